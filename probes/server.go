package probes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/internal/rate"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// Limits of the listeners.
const (
	maxHeaderBytes = 64 << 10
	maxBodyBytes   = 1 << 20
	// maxConnections is the limit of each listener; it is lower if RLIMIT_NOFILE is low.
	maxConnections    = 512
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	// writeTimeout ends an answer that the client does not read. A handler that streams removes it
	// with http.ResponseController.SetWriteDeadline. One that reads for longer than readTimeout
	// uses SetReadDeadline.
	writeTimeout = 30 * time.Second
	idleTimeout  = 60 * time.Second
	// retryListen is the pause before another attempt to listen on an address.
	retryListen = 5 * time.Second
)

// headerSlack is how much net/http reads beyond its MaxHeaderBytes.
const headerSlack = 4 << 10

// Off as an address opens no listener.
const Off = "off"

// Names of the listeners.
const (
	ManagementListener = "management"
	MetricsListener    = "metrics"
)

// Config of a Server. Its functions are called from many goroutines at once and must return from
// memory.
type Config struct {
	Bus       *event.Bus
	Readiness *Readiness
	Liveness  *Liveness
	Auth      *Auth
	Gatherer  prometheus.Gatherer
	// Registerer takes the metrics of the HTTP servers themselves.
	Registerer prometheus.Registerer
	// Health answers /health, Meta /v1/meta, Pods /health/pods and Relay /health/relay. Pods is nil
	// if there is no pod server, and Relay if there is no relay.
	Health func() Health
	Pods   func() any
	Relay  func() any
	Meta   func(*http.Request) any

	// Names are the host names of the box in addition to localhost. Requests for another name are
	// refused; requests for an address never are.
	Names []string
	// PublicOrigins are the origins of the box in addition to those of its listeners, for example
	// behind a proxy: "https://box.example.org".
	PublicOrigins []string
	// TrustedProxies are the peers whose X-Forwarded-For or Forwarded header is used.
	TrustedProxies []netip.Prefix
	// Origins are the origins whose pages may read answers, in the form in which a browser sends
	// them: lower case, without the default port of the scheme.
	Origins []string
	// Wrap wraps the handlers of both listeners; it may be nil. Each handler names its route with
	// exchange.SetRoute.
	Wrap func(http.Handler) http.Handler

	ManagementAddress string // host:port, or Off
	MetricsAddress    string // host:port, or Off
	// Listen opens the listener of a name; nil is the function Listen.
	Listen func(ctx context.Context, name, address string) (net.Listener, error)
}

// Server is the management server and the metrics server.
type Server struct {
	cfg       Config
	router    http.Handler
	mounts    []mount
	keyless   []openRoute
	metrics   *httpMetrics
	anonymous *rate.Callers[string]
	forged    *rate.Callers[string] // the same for requests that show a signature
	names     map[string]bool       // of the box

	mu        sync.Mutex
	listeners map[string]*listener
	running   sync.WaitGroup
}

// listener is an address on which the server listens, or tries to.
type listener struct {
	name, address string
	handler       http.Handler
	bound         net.Addr // nil while it does not listen
	reason        string   // why it does not listen
}

// NewServer makes a Server. It opens no listener; Start does.
func NewServer(cfg Config) (*Server, error) {
	m, err := newHTTPMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	if cfg.Listen == nil {
		cfg.Listen = Listen
	}
	s := &Server{cfg: cfg, metrics: m, anonymous: newAnonymous(), forged: newAnonymous(), names: ourNames(cfg.Names), listeners: make(map[string]*listener)}
	s.keyless = s.openRoutes()
	s.router = onFirstRequest(s.routes)
	return s, nil
}

// onFirstRequest builds a handler when the first request comes. So programs start earlier, and a
// box that gets no request uses no memory for it.
func onFirstRequest(build func() http.Handler) http.Handler {
	built := sync.OnceValue(build)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { built().ServeHTTP(w, r) })
}

// Handler serves the routes of the management listener on another listener, such as the control
// socket. It checks neither Host nor Origin.
func (s *Server) Handler() http.Handler { return s.contain(s.router) }

// public is Handler for the network: it accepts only names of the box, and pages of listed origins.
// The names are checked first, so that a page with a wrong name does not learn which origins are
// listed.
func (s *Server) public() http.Handler { return s.contain(s.onlyOurNames(s.crossOrigin(s.router))) }

// Start opens both listeners and serves until ctx ends. If it cannot listen on an address, the box
// goes on: the failure is published and shown by Listeners, and Start tries again every
// retryListen. Start returns the errors of the first attempt, for the log.
func (s *Server) Start(ctx context.Context) error {
	return errors.Join(
		s.open(ctx, &listener{name: ManagementListener, address: s.cfg.ManagementAddress, handler: s.wrapped(s.public())}),
		s.open(ctx, &listener{name: MetricsListener, address: s.cfg.MetricsAddress, handler: s.wrapped(s.contain(s.onlyOurNames(onFirstRequest(s.metricsRoutes))))}),
	)
}

func (s *Server) wrapped(h http.Handler) http.Handler {
	if s.cfg.Wrap == nil {
		return h
	}
	return s.cfg.Wrap(h)
}

// Wait returns when both listeners are closed. The end of the context of Start closes them.
func (s *Server) Wait() { s.running.Wait() }

// ListenerState is the state of one listener.
type ListenerState struct {
	Name    string `json:"name"`
	Address string `json:"address"` // where it listens, or where it should listen
	Bound   bool   `json:"bound"`
	Reason  string `json:"reason,omitempty"`
}

// Listeners returns the state of the listeners that are not off.
func (s *Server) Listeners() []ListenerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ListenerState
	for _, name := range []string{ManagementListener, MetricsListener} {
		l := s.listeners[name]
		if l == nil {
			continue
		}
		state := ListenerState{Name: name, Address: l.address, Bound: l.bound != nil, Reason: l.reason}
		if l.bound != nil {
			state.Address = l.bound.String()
		}
		out = append(out, state)
	}
	return out
}

// Bound is the address of the named listener; "" if it does not listen.
func (s *Server) Bound(name string) string {
	for _, l := range s.Listeners() {
		if l.Name == name && l.Bound {
			return l.Address
		}
	}
	return ""
}

// MetricsURL is where the client of a request can get the metrics; "" while the metrics listener
// does not listen. The host of the URL is the address of the listener. If it listens on every
// address, the host is the name by which the request reached the box, or loopback for a request
// over the control socket.
func (s *Server) MetricsURL(r *http.Request) string {
	bound, err := netip.ParseAddrPort(s.Bound(MetricsListener))
	if err != nil {
		return ""
	}
	host := bound.Addr().Unmap().String()
	if bound.Addr().IsUnspecified() {
		if host = hostName(r.Host); !s.isOurName(host) {
			host = "127.0.0.1"
		}
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(int(bound.Port()))), Path: "/metrics"}
	return u.String()
}

func (s *Server) open(ctx context.Context, l *listener) error {
	if l.address == Off || l.address == "" {
		return nil
	}
	s.mu.Lock()
	s.listeners[l.name] = l
	s.mu.Unlock()
	n, err := s.bind(ctx, l)
	s.running.Go(func() { s.keep(ctx, l, n) })
	return err
}

// keep serves the listener until ctx ends. Whenever the listener fails, keep opens it again.
func (s *Server) keep(ctx context.Context, l *listener, n net.Listener) {
	for ctx.Err() == nil {
		if n != nil {
			s.serve(ctx, l, n)
		}
		if !sleep.For(ctx, retryListen) {
			return
		}
		n, _ = s.bind(ctx, l) // bind publishes the error
	}
	if n != nil {
		n.Close()
	}
}

// Listen opens a listener as a Server does by itself.
func Listen(ctx context.Context, _, address string) (net.Listener, error) {
	return (&net.ListenConfig{Control: deferAccept}).Listen(ctx, "tcp", address)
}

func (s *Server) bind(ctx context.Context, l *listener) (net.Listener, error) {
	n, err := s.cfg.Listen(ctx, l.name, l.address)
	s.mu.Lock()
	same := err != nil && l.reason == err.Error()
	if err != nil {
		l.bound, l.reason = nil, err.Error()
	} else {
		l.bound, l.reason = n.Addr(), ""
	}
	s.mu.Unlock()
	switch {
	case err == nil:
		s.publish(event.Info, EventListening, map[string]any{"listener": l.name, "address": n.Addr().String()})
	case !same && ctx.Err() == nil: // the same error was published before
		s.listenFailed(l, err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the %s listener: %w", l.name, err)
	}
	steady := Steady(n, func(err error) {
		s.publish(event.Warn, EventAcceptFailed, map[string]any{"listener": l.name, "address": l.address, "reason": err.Error()})
	})
	limit := connectionLimit(descriptors())
	shorten(n, limit)
	return newBoundedListener(steady, limit), nil
}

// shutdownGrace is how long running requests may take after the end of ctx.
const shutdownGrace = time.Second

func (s *Server) serve(ctx context.Context, l *listener, n net.Listener) {
	srv := &http.Server{
		Handler:           l.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes - headerSlack,
		ConnContext:       connContext,
		// Mistakes of clients are counted and not logged.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(n)
	if stop() {
		srv.Close() // the listener failed by itself
	} else {
		<-closed
	}
	s.mu.Lock()
	l.bound, l.reason = nil, err.Error()
	s.mu.Unlock()
	if ctx.Err() == nil {
		s.listenFailed(l, err)
	}
}

func (s *Server) listenFailed(l *listener, err error) {
	s.publish(event.Error, EventListenFailed, map[string]any{
		"listener": l.name, "address": l.address, "reason": err.Error(), "retry_ms": retryListen.Milliseconds(),
	})
}

func (s *Server) publish(level event.Level, name string, fields map[string]any) {
	s.cfg.Bus.Publish(event.Event{Level: level, Stage: stage, Name: name, Fields: fields})
}
