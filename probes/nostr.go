package probes

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/probes/nip98"
)

// maxHeld is how many bytes of a signed body are read and checked before the handler runs. A longer
// body is checked while the handler reads it. If it is wrong, the last read fails, so the handler
// must not have an effect before that read.
const maxHeld = 1 << 20

// NostrConfig is what signed requests are checked against.
type NostrConfig struct {
	// Origins are the origins of the box in addition to those of its listener, such as
	// "https://box.example": lower case, without the default port of the scheme.
	Origins []string
	// Names are the host names of the box in addition to localhost. With the port of the listener
	// they are origins, too.
	Names []string
	// TrustedProxies are the peers whose X-Forwarded-Proto and X-Forwarded-Host are used.
	TrustedProxies []netip.Prefix
	// Role returns the principal that the holder of a key is; false means a stranger. It must
	// return from memory, and may be called from any goroutine.
	Role func(pubkey string) (Principal, bool)
}

// Nostr is the Authenticator of requests signed by NIP-98.
type Nostr struct {
	cfg    NostrConfig
	replay nip98.Replay
}

// NewNostr returns a Nostr that remembers no token yet.
func NewNostr(cfg NostrConfig) *Nostr { return &Nostr{cfg: cfg} }

// Authenticate implements Authenticator. The expensive checks come last, and only keys that have a
// role are remembered. So strangers cannot use up the memory or make agentinit store bodies.
func (n *Nostr) Authenticate(r *http.Request) (Principal, error) {
	address, err := n.address(r)
	if err != nil {
		return Principal{}, &refusal{string(nip98.ReasonURL), err}
	}
	hasBody := r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
	body, err := hold(r, hasBody)
	if err != nil {
		return Principal{}, &refusal{string(nip98.ReasonPayload), err}
	}
	// After the wait for the body: a token that is valid at this moment is still remembered.
	now := time.Now()
	token, err := nip98.Verify(r.Header.Get("Authorization"), nip98.Request{
		Method: r.Method, URL: address, HasBody: body.begins(),
	}, now)
	if err != nil {
		return Principal{}, &refusal{string(nip98.ReasonOf(err)), err}
	}
	who, known := n.cfg.Role(token.Pubkey)
	if !known {
		return Principal{}, &refusal{"stranger", fmt.Errorf("%w: the signature is good, but this key has no role here", ErrForbidden)}
	}
	if err := n.replay.Use(token, now); err != nil {
		return Principal{}, &refusal{string(nip98.ReasonOf(err)), err}
	}
	if err := body.check(r, token); err != nil {
		return Principal{}, &refusal{string(nip98.ReasonPayload), err}
	}
	return who, nil
}

// address is the absolute URL of a request. The Host in the request counts only if it belongs to
// the box: otherwise a token that was signed for another server could be used here.
func (n *Nostr) address(r *http.Request) (string, error) {
	if !strings.HasPrefix(r.RequestURI, "/") {
		return "", fmt.Errorf("NIP-98: the request target is not a path")
	}
	scheme, host := "http", r.Host
	if r.TLS != nil {
		scheme = "https"
	}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && contains(n.cfg.TrustedProxies, bare(peer.Addr())) {
		scheme = orElse(r.Header.Values("X-Forwarded-Proto"), scheme)
		host = orElse(r.Header.Values("X-Forwarded-Host"), host)
	}
	canonical, err := nip98.CanonicalURL(scheme + "://" + host + "/")
	if err != nil {
		return "", fmt.Errorf("NIP-98: the request has no usable Host")
	}
	origin := strings.TrimSuffix(canonical, "/")
	if !slices.Contains(n.cfg.Origins, origin) && !slices.Contains(n.ofListener(r, scheme), origin) {
		return "", fmt.Errorf("NIP-98: %s is not an origin of this box; [api].public_urls or MANAGEMENT_API_PUBLIC_URLS lists those it has beside its own listener, and what a proxy says of scheme and host counts if [api].trusted_proxies lists the proxy", origin)
	}
	return origin + r.RequestURI, nil
}

// ofListener are the origins of the listener that the request came to: the
// address of the connection, and the box's names with its port.
func (n *Nostr) ofListener(r *http.Request, scheme string) []string {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return nil
	}
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return nil
	}
	address := bare(at.Addr())
	names := slices.Clone(n.cfg.Names)
	if address.IsLoopback() {
		names = append(names, "localhost")
	}
	host := address.String()
	if address.Is6() {
		host = "[" + host + "]"
	}
	var origins []string
	for _, name := range append(names, host) {
		if one, err := nip98.CanonicalURL(fmt.Sprintf("%s://%s:%d/", scheme, name, at.Port())); err == nil {
			origins = append(origins, strings.TrimSuffix(one, "/"))
		}
	}
	return origins
}

// orElse is the value of a header that a proxy sets, or other if the header is there twice or not
// at all.
func orElse(values []string, other string) string {
	if len(values) == 1 && values[0] != "" && !strings.Contains(values[0], ",") {
		return values[0]
	}
	return other
}

// heldBody is the part of a body that has been read.
type heldBody struct {
	start []byte
	rest  io.ReadCloser // nil when start is all of it
}

// hold reads the first byte of a body, to know whether there is one: a chunked
// body may be empty.
func hold(r *http.Request, may bool) (*heldBody, error) {
	if !may {
		return &heldBody{}, nil
	}
	first := make([]byte, 1)
	n, err := io.ReadFull(r.Body, first)
	if err == io.EOF {
		return &heldBody{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the body: %w", err)
	}
	return &heldBody{start: first[:n], rest: r.Body}, nil
}

func (h *heldBody) begins() bool { return len(h.start) > 0 }

// check compares the body with the signed one, and puts it back.
func (h *heldBody) check(r *http.Request, token nip98.Token) error {
	if h.rest == nil {
		if token.Payload != nil && !token.Matches(sha256.Sum256(nil)) {
			return nip98.BodyMismatch()
		}
		return nil
	}
	more, err := io.ReadAll(io.LimitReader(h.rest, maxHeld))
	if err != nil {
		return fmt.Errorf("cannot read the body: %w", err)
	}
	start := append(h.start, more...)
	if len(more) < maxHeld {
		if !token.Matches(sha256.Sum256(start)) {
			return nip98.BodyMismatch()
		}
		r.Body = body{bytes.NewReader(start), h.rest}
		return nil
	}
	r.Body = &checkedBody{from: io.MultiReader(bytes.NewReader(start), h.rest), digest: sha256.New(), token: token, Closer: h.rest}
	return nil
}

// body is what was read, closed as the connection's body is.
type body struct {
	io.Reader
	io.Closer
}

// checkedBody ends with an error instead of EOF when it was not the signed one.
type checkedBody struct {
	from   io.Reader
	digest hash.Hash
	token  nip98.Token
	io.Closer
}

func (c *checkedBody) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.digest.Write(p[:n])
	if err == io.EOF && !c.token.Matches([sha256.Size]byte(c.digest.Sum(nil))) {
		return n, nip98.BodyMismatch()
	}
	return n, err
}
