package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/adapters/pods/solid"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// packagedPodServer is the pod server that an image may have.
const packagedPodServer = "solid-pod-rs-server"

func newPodServer(c *cli) *cobra.Command {
	var storage string
	var builtIn bool
	cmd := &cobra.Command{
		Use:   "pod-server",
		Short: "Serve the pods of the box (Solid); the program solid-pod runs it",
		Long: `Serve the pods of the box, as the program solid-pod of a manifest with
sovereign_mesh.enabled and adapters.pods = "local-solid-rs" does. If
` + packagedPodServer + ` is in PATH, this command runs it in its own place.
Otherwise agentctl is the server: the Solid Protocol over files, with access
lists (WAC), signed requests (NIP-98) and notifications (WebSocketChannel2023).

The variables JSS_* configure it; agentinit sets them from the keys of
[integrations.solid_pod_rs]. agentctl has no OIDC, no webhooks and no storage
but files. A client without a right in an access list (.acl) gets nothing.

Exit status:
  0  a signal has ended it
  1  it cannot listen, or cannot use the storage
  2  a variable or the command line is wrong, or asks for what agentctl has not`,
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !builtIn {
				err := execute([]string{packagedPodServer}, os.Environ())
				if !errors.Is(err, fs.ErrNotExist) {
					return failed(fmt.Errorf("cannot run %s: %w", packagedPodServer, err))
				}
			}
			cfg, err := podServerConfig(c.variable)
			if err != nil {
				return usageError("%w\nin a manifest, the keys of [integrations.solid_pod_rs] set these variables", err)
			}
			if storage != "" {
				cfg.Root = storage
			}
			return failed(c.servePods(cmd.Context(), cfg))
		},
	}
	cmd.Flags().StringVar(&storage, "storage", "", "`DIR` of the pods, in place of $JSS_STORAGE_ROOT")
	cmd.Flags().BoolVar(&builtIn, "built-in", false, "do not look for "+packagedPodServer)
	return cmd
}

// variable is a variable of the environment, "" if it is not set.
func (c *cli) variable(name string) string {
	v, _ := c.lookupEnv(name)
	return v
}

// podServerSettings is the configuration of the pod server.
type podServerSettings struct {
	solid.Config
	address string
	level   slog.Level
	// unchecked says that requests are to be taken without a check of their signatures, which agentctl does not do.
	unchecked bool
}

// defaultPodBase is the default of integrations.solid_pod_rs.base_url. It stands for the address of the listener, whatever
// its port.
const defaultPodBase = "http://127.0.0.1:8484"

// podServerConfig reads the variables. It reports all mistakes at once.
func podServerConfig(getenv func(string) string) (podServerSettings, error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	text := func(name, otherwise string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	on := func(name string, otherwise bool) bool {
		v, err := strconv.ParseBool(text(name, strconv.FormatBool(otherwise)))
		if err != nil {
			wrong("%s is %q: write true or false", name, shortened(getenv(name)))
		}
		return v
	}
	number := func(name string, otherwise, least, most int64) int64 {
		v, err := strconv.ParseInt(text(name, strconv.FormatInt(otherwise, 10)), 10, 64)
		if err != nil || v < least || v > most {
			wrong("%s is %q: write a number from %d to %d", name, shortened(getenv(name)), least, most)
		}
		return v
	}
	var s podServerSettings
	host, port := text("JSS_HOST", "127.0.0.1"), number("JSS_PORT", 8484, 0, 65535)
	s.address = net.JoinHostPort(strings.Trim(host, "[]"), strconv.FormatInt(port, 10))
	s.BaseURL = strings.TrimSuffix(text("JSS_BASE_URL", defaultPodBase), "/")
	s.Root = text("JSS_STORAGE_ROOT", "/var/lib/solid")
	if u, err := url.Parse(s.BaseURL); err != nil || u.Path != "" || u.Host == "" {
		wrong("JSS_BASE_URL must be an origin without a path, as in https://pods.example: agentctl serves pods only at the root of a host")
	}
	if storage := text("JSS_STORAGE", "fs"); storage != "fs" {
		wrong("JSS_STORAGE is %q: agentctl stores pods only in files (fs)", shortened(storage))
	}
	if on("JSS_ENABLE_OIDC", false) {
		wrong("JSS_ENABLE_OIDC is true: agentctl has no login by OIDC, only signed requests (NIP-98)")
	}
	switch kind := text("JSS_NOTIFICATIONS", "websocket"); kind {
	case "websocket":
		s.Notifications = true
	case "off":
	default:
		wrong("JSS_NOTIFICATIONS is %q: agentctl sends notifications only over websocket, or off", shortened(kind))
	}
	s.unchecked = !on("JSS_ENABLE_SCHNORR_VERIFY", true)
	if on("JSS_ENABLE_DID_NOSTR", true) {
		s.Document = didDocument
	}
	if perSecond := number("JSS_RATE_LIMIT_PER_SEC", 20, 1, 1_000_000); on("JSS_ENABLE_RATE_LIMIT", true) {
		s.RatePerSecond = int(perSecond)
	}
	s.Quota = -1
	if quota := number("JSS_QUOTA_DEFAULT_BYTES", 10737418240, 0, 1<<62); on("JSS_ENABLE_QUOTA", true) {
		s.Quota = quota
	}
	switch level := text("JSS_LOG_LEVEL", "info"); level {
	case "trace":
		s.level = slog.LevelDebug
	default:
		if err := s.level.UnmarshalText([]byte(level)); err != nil {
			wrong("JSS_LOG_LEVEL is %q: write trace, debug, info, warn or error", shortened(level))
		}
	}
	return s, errors.Join(errs...)
}

// didDocument is the document that the key in a did:nostr name has by itself.
func didDocument(name string) (document []byte, pod string, ok bool) {
	key, err := identity.ParsePublicKey(name)
	if err != nil {
		return nil, "", false
	}
	document, err = json.Marshal(identity.Identity{PublicKey: key, Npub: key.Npub(), DID: key.DID()}.DIDDocument("", nil))
	return document, key.Npub(), err == nil
}

// servePods listens and serves until ctx ends.
func (c *cli) servePods(ctx context.Context, s podServerSettings) error {
	s.Log = slog.New(slog.NewJSONHandler(escapedLines{c}, &slog.HandlerOptions{Level: s.level}))
	if s.unchecked {
		s.Log.Warn("JSS_ENABLE_SCHNORR_VERIFY=false has no effect: agentctl always checks signatures")
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	defer l.Close()
	host, _, _ := net.SplitHostPort(s.address)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	own := "http://" + net.JoinHostPort(strings.Trim(catalog.Dialable(host), "[]"), port)
	if s.BaseURL == defaultPodBase {
		s.BaseURL = own
	}
	s.Aliases = []string{own, "http://localhost:" + port}
	// From now on no other program has the port. One that had it before may have kept requests that were signed for it: those are of
	// an earlier second.
	now := time.Now()
	signers := &podSigners{since: now.Add(time.Second - time.Duration(now.Nanosecond()))}
	s.Identify = signers.identifyFor(s.BaseURL)
	server, err := solid.New(s.Config)
	if err != nil {
		return err
	}
	if sleep.For(ctx, time.Until(signers.since)) {
		s.Log.Info("serving pods", "address", l.Addr().String(), "base_url", s.BaseURL, "storage", s.Root)
		err = server.Serve(ctx, l)
	}
	s.Log.Info("stopped")
	return errors.Join(err, server.Close())
}

// escapedLines writes lines of JSON to standard error, without the characters that a terminal would act on: the log quotes paths of
// clients.
type escapedLines struct{ c *cli }

func (e escapedLines) Write(line []byte) (int, error) {
	_, err := e.c.stderr.Write(escape.JSON(bytes.Clone(line)))
	return len(line), err
}

// podSigners checks signed requests (NIP-98).
type podSigners struct {
	replay nip98.Replay
	anyone nip98.Replay // of subscriptions that any key may make
	since  time.Time    // an earlier token may have been given to another program, and this server does not know whether it was used
}

// early tells whether a token was made before the server began, by the present clock: if that was set back meanwhile, since is earlier too.
func (p *podSigners) early(t nip98.Token, now time.Time) bool {
	return t.Created.Before(now.Add(p.since.Sub(now)).Round(time.Second))
}

func (p *podSigners) identifyFor(base string) func(r *http.Request, url string) (solid.Identity, error) {
	return func(r *http.Request, url string) (solid.Identity, error) {
		_, streamed := r.Trailer[nip98.Trailer]
		headers := r.Header.Values("Authorization")
		if len(headers) != 1 {
			return nil, errors.New("there is more than one Authorization header")
		}
		now := time.Now()
		token, err := nip98.Verify(headers[0], nip98.Request{Method: r.Method, URL: url, HasBody: r.ContentLength != 0, AtEnd: streamed, HeaderDigest: nip98.HeaderDigest(r.Header)}, now)
		if err != nil {
			return nil, err
		}
		if p.early(token, now) {
			return nil, solid.ErrSignAgain
		}
		key, err := identity.ParsePublicKey(token.Pubkey)
		if err != nil {
			return nil, err
		}
		return &podSigner{signers: p, r: r, url: url, token: token, at: now, streamed: streamed, ids: []string{
			key.DID(), base + "/pods/" + key.Npub() + "/profile.json#me",
		}}, nil
	}
}

// podSigner is who signed a request.
type podSigner struct {
	signers  *podSigners
	r        *http.Request
	url      string
	token    nip98.Token
	at       time.Time
	streamed bool // the signature of the body comes after it
	ids      []string
}

func (p *podSigner) IDs() []string { return p.ids }

func (p *podSigner) Use(s solid.Standing) error { return p.signers.use(p.token, p.at, s) }

// use marks a token as used. Keys of one standing cannot fill the memory for those of a higher one.
func (p *podSigners) use(t nip98.Token, now time.Time, s solid.Standing) (err error) {
	switch s {
	case solid.Owner:
		err = p.replay.Use(t, now)
	case solid.Listed:
		err = p.replay.UseShared(t, now)
	default:
		err = p.anyone.UseShared(t, now)
	}
	if err != nil && nip98.ReasonOf(err) == nip98.ReasonFull {
		return solid.ErrTooManySigned
	}
	return err
}

func (p *podSigner) Body(sum [sha256.Size]byte, s solid.Standing) error {
	token := p.token
	if p.streamed {
		var err error
		token, err = nip98.Verify(p.r.Trailer.Get(nip98.Trailer), nip98.Request{Method: p.r.Method, URL: p.url, HasBody: true, HeaderDigest: nip98.HeaderDigest(p.r.Header)}, p.at)
		if err != nil {
			return err
		}
		if token.Pubkey != p.token.Pubkey || !token.Created.Equal(p.token.Created) {
			return errors.New("the body is signed by another key than the request, or at another time")
		}
		if s != solid.Anyone {
			if err := p.signers.use(token, time.Now(), s); err != nil {
				return err
			}
		}
	}
	if token.Payload == nil && sum == sha256.Sum256(nil) {
		return nil
	}
	if !token.Matches(sum) {
		return nip98.BodyMismatch()
	}
	return nil
}
