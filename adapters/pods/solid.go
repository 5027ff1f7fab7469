package pods

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// The optional features that a server announces. JSON Patch is not one of them: if the server lacks
// it, the client applies the patch itself.
const (
	CapNotifications = "notifications" // WebSocketChannel2023
	CapN3Patch       = "n3-patch"
	CapSPARQLUpdate  = "sparql-update"
)

// Config of a Solid client.
type Config struct {
	// BaseURL is the address of the pod path "/": an http or https URL. Its own path is kept as a
	// prefix.
	BaseURL string
	// Key is the manifest key of BaseURL, for error messages; "" means the key of the class.
	Key       string
	Auth      wire.Authorizer // nil = anonymous
	UserAgent string
	// Listener is the host on which the server of class local-solid-rs listens.
	Listener string
	// Transport carries the requests; nil means the network. A pod server inside the process is
	// given here.
	Transport http.RoundTripper
}

// Solid is a client of one Solid server. It is safe for concurrent use.
type Solid struct {
	impl    string
	class   adapters.Class
	base    *url.URL
	client  *wire.Client // paths below the base
	origin  *wire.Client // paths of the whole server
	dial    *http.Client // WebSocket handshakes
	cursors *adapters.Cursors
	dialect *dialects
	session atomic.Pointer[session]
}

var _ adapters.Pods = (*Solid)(nil)

// session is the state from one Connect to the next Disconnect.
type session struct {
	ctx    context.Context // ends with Disconnect
	cancel context.CancelFunc
	// subscribe are the WebSocketChannel2023 endpoints in the server's description, as paths of its
	// origin.
	subscribe []string
	caps      []string
}

// NewLocal makes the client of class local-solid-rs, the pod server of this box, without any I/O.
// While that server starts, Connect returns UNAVAILABLE, and the caller tries again.
func NewLocal(cfg Config) (*Solid, error) {
	if cfg.Transport == nil && strings.HasPrefix(cfg.BaseURL, "http://") {
		cfg.Transport = wire.LocalTransport(listenerHost(cfg.Listener))
	}
	return newSolid(cfg, "local-solid-rs", adapters.ClassLocal, "integrations.solid_pod_rs.base_url")
}

// NewExternal makes the client of class external, for any Solid server, without any I/O.
func NewExternal(cfg Config) (*Solid, error) {
	return newSolid(cfg, "external", adapters.ClassExternal, "federation.external_url")
}

func newSolid(cfg Config, impl string, class adapters.Class, key string) (*Solid, error) {
	if cfg.Key == "" {
		cfg.Key = key
	}
	wc := wire.Config{
		Slot: adapters.SlotPods, BaseURL: cfg.BaseURL, Key: cfg.Key,
		Auth: cfg.Auth, UserAgent: cfg.UserAgent, Transport: cfg.Transport,
	}
	client, err := wire.New(wc)
	if err != nil {
		return nil, err
	}
	base := client.Base()
	wc.BaseURL = (&url.URL{Scheme: base.Scheme, Host: base.Host}).String()
	origin, err := wire.New(wc)
	if err != nil {
		return nil, err
	}
	return &Solid{
		impl: impl, class: class, base: base, client: client, origin: origin, dial: newDialer(cfg.Transport),
		cursors: adapters.NewCursors(nil), dialect: newDialects(),
	}, nil
}

// Slot and the methods after it describe the adapter. Version and capabilities are those of the
// server, once known.
func (s *Solid) Slot() adapters.Slot   { return adapters.SlotPods }
func (s *Solid) Impl() string          { return s.impl }
func (s *Solid) Class() adapters.Class { return s.class }
func (s *Solid) Enabled() bool         { return true }

// ContractVersion is 1.1: the methods that were added after 1.0 need nothing beyond plain Solid.
func (s *Solid) ContractVersion() string { return "1.1" }

// Capabilities are those seen in the server's answers so far.
func (s *Solid) Capabilities() []string {
	caps := []string{}
	if c := s.session.Load(); c != nil {
		caps = append(caps, c.caps...)
		caps = append(caps, s.dialect.capabilities()...)
	}
	slices.Sort(caps)
	return caps
}

// Connect finds out whether the base is a Solid server and which features it has. If the server is
// another box, Connect also asks for its contract version.
func (s *Solid) Connect(ctx context.Context) error {
	if s.session.Load() != nil {
		return nil
	}
	next := new(session)
	if err := s.probe(ctx); err != nil {
		return err
	}
	if err := s.handshake(ctx); err != nil {
		return err
	}
	if err := s.describe(ctx, next); err != nil {
		return err
	}
	next.ctx, next.cancel = context.WithCancel(context.Background())
	if !s.session.CompareAndSwap(nil, next) {
		next.cancel()
	}
	return nil
}

// handshake is the handshake of package wire. A plain Solid server does not know it, may refuse
// access to its path, or may serve a document there.
func (s *Solid) handshake(ctx context.Context) error {
	_, err := s.origin.Handshake(ctx)
	switch {
	case errors.Is(err, adapters.ErrContractMismatch):
		return err
	case ctx.Err() != nil:
		return adapters.AsError(ctx.Err())
	}
	// The probe has found a Solid server there, so the server is not a box.
	return nil
}

// probe asks for the root. It accepts an answer that shows a Solid server, also if access is
// refused or the root does not exist yet.
func (s *Solid) probe(ctx context.Context) error {
	res, err := s.client.Do(ctx, wire.Request{Method: http.MethodHead, Path: "/", Accept: acceptRDF, Probe: true})
	switch adapters.CodeOf(err) {
	case adapters.CodeUnauthenticated, adapters.CodePermissionDenied, adapters.CodeNotFound:
		return nil
	}
	if err != nil {
		return err
	}
	if !solidSigns(res.Header) {
		return adapters.Unavailable(nil, "the peer is no Solid server: its root is no LDP container")
	}
	return nil
}

func solidSigns(h http.Header) bool {
	for _, name := range []string{"WAC-Allow", "Accept-Patch", "Accept-Post", "Accept-Put", "MS-Author-Via"} {
		if h.Get(name) != "" {
			return true
		}
	}
	for _, l := range adapters.ParseLinks(h) {
		if l.Rel == "type" && strings.HasPrefix(l.Target, rdf.LDP) {
			return true
		}
	}
	switch mediaType(h) {
	case "text/turtle", "application/ld+json":
		return true
	}
	return false
}

// Health asks for the root once.
func (s *Solid) Health(ctx context.Context) adapters.Health {
	if _, err := s.live(); err != nil {
		return adapters.Unhealthy(err)
	}
	if err := s.probe(ctx); err != nil {
		return adapters.Unhealthy(adapters.AsError(err))
	}
	return adapters.Healthy()
}

// Disconnect ends subscriptions. Bodies that are being read end by themselves.
func (s *Solid) Disconnect(context.Context) error {
	if c := s.session.Swap(nil); c != nil {
		c.cancel()
	}
	s.client.Close()
	s.origin.Close()
	s.dial.CloseIdleConnections()
	return nil
}

// target is the escaped path of a request. It is refused before any I/O if the pod path must not
// name a resource or the slot is not connected.
func (s *Solid) target(path string) (string, error) {
	if _, err := s.live(); err != nil {
		return "", err
	}
	if err := adapters.CheckPodPath(path); err != nil {
		return "", err
	}
	return escapePath(path), nil
}

// kept are the headers of an error answer that its reader needs.
var kept = map[string]string{"WAC-Allow": "wac_allow", "WWW-Authenticate": "challenge", "ETag": "current"}

// about adds the resource to an error that says that it does not exist.
func about(err error, path string) error {
	if e, ok := errors.AsType[*adapters.Error](err); ok && e.Code == adapters.CodeNotFound {
		return e.With("resource", "pod resource", "id", path)
	}
	return err
}

func mediaType(h http.Header) string { return adapters.MediaType(h.Get("Content-Type")) }

// lied is UNAVAILABLE without a chance that a retry helps: the server does not use the protocol.
func lied(format string, args ...any) *adapters.Error {
	return adapters.Unavailable(nil, "the server's "+format, args...).Final()
}
