package probes

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// maxScrapes bounds how many scrapes run at once: each reads /proc.
const maxScrapes = 4

// routes is the table of what needs no key. Everything else comes by Mount.
func (s *Server) routes() chi.Router {
	r := chi.NewRouter()
	s.fallbacks(r)
	for _, route := range []struct {
		pattern string
		handler http.HandlerFunc
	}{
		{"/livez", s.livez},
		{"/ready", s.ready},
		{"/health", s.health},
		{"/health/pods", s.pods},
		{"/v1/meta", s.meta},
	} {
		s.get(r, route.pattern, route.handler)
	}
	s.addMetricsRoute(r)
	return r
}

func (s *Server) addMetricsRoute(r chi.Router) {
	s.get(r, "/metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: ReadTimeout,
		// One collector that fails must not hide all the others.
		ErrorHandling: promhttp.ContinueOnError,
	}))
}

func (s *Server) get(r chi.Router, pattern string, h http.Handler) {
	h = s.metrics.instrument(pattern, http.MaxBytesHandler(h, MaxBodyBytes))
	r.Method(http.MethodGet, pattern, h)
	r.Method(http.MethodHead, pattern, h)
}

func (s *Server) fallbacks(r chi.Router) {
	r.NotFound(s.metrics.instrument(unmatched, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		Problem(w, http.StatusNotFound, "there is nothing at this path")
	})).ServeHTTP)
	r.MethodNotAllowed(s.metrics.instrument(unmatched, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		Problem(w, http.StatusMethodNotAllowed, "this path does not take that method")
	})).ServeHTTP)
}

// MountOption changes how Mount treats a handler.
type MountOption func(*mount)

type mount struct {
	open    bool
	maxBody int64
}

// Open lets requests in without a key: the handler decides itself.
func Open() MountOption { return func(m *mount) { m.open = true } }

// MaxBody replaces MaxBodyBytes; 0 leaves the bound to the handler.
func MaxBody(n int64) MountOption { return func(m *mount) { m.maxBody = n } }

// Mount serves h below pattern ("/v1/beads", "/pods"), for every method, behind
// the key. The handler finds who asks with PrincipalFrom. It must be called
// before Start, and panics when the pattern is taken, as chi does.
func (s *Server) Mount(pattern string, h http.Handler, opts ...MountOption) {
	m := mount{maxBody: MaxBodyBytes}
	for _, o := range opts {
		o(&m)
	}
	if m.maxBody > 0 {
		h = http.MaxBytesHandler(h, m.maxBody)
	}
	if !m.open {
		h = s.authenticate(h)
	}
	s.router.Mount(pattern, s.metrics.instrument(strings.TrimSuffix(pattern, "/"), h))
}

// Authenticated puts h behind the key, for handlers that are not mounted here.
func (s *Server) Authenticated(h http.Handler) http.Handler { return s.authenticate(h) }

func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := remoteAddress(r)
		blocked := s.failures.blocked(from, time.Now())
		if blocked && !hasBearer(r) {
			tooMany(w)
			return
		}
		// A key is compared even then: that costs nothing, and a program of the
		// box must not be able to lock out the operator who shares its address.
		p, err := s.cfg.Auth.Authenticate(r)
		if err == nil {
			next.ServeHTTP(w, r.WithContext(withPrincipal(r.Context(), p)))
			return
		}
		if blocked {
			tooMany(w)
			return
		}
		if !errors.Is(err, ErrNoKeyYet) {
			s.failures.failed(from, time.Now())
		}
		s.refuse(w, err)
	})
}

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	Problem(w, http.StatusTooManyRequests, "too many failed attempts from this address")
}

func (s *Server) refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, ErrForbidden):
		Problem(w, http.StatusForbidden, err.Error())
	case errors.Is(err, ErrNoKeyYet):
		w.Header().Set("Retry-After", "1")
		Problem(w, http.StatusServiceUnavailable, err.Error())
	default:
		for _, c := range s.cfg.Auth.challenge() {
			w.Header().Add("WWW-Authenticate", c)
		}
		Problem(w, http.StatusUnauthorized, err.Error())
	}
}

// contain keeps a panic of a handler from being anything but a 500: it is
// counted and published, with the stack, and the process goes on.
func (s *Server) contain(next http.Handler) http.Handler {
	return markBusy(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v) // net/http's own way to drop a connection
			}
			s.metrics.panics.Inc()
			s.publish(event.Error, EventHandlerPanic, map[string]any{
				"panic": fmt.Sprint(v), "method": methodLabel(r.Method), "stack": string(debug.Stack()),
			})
			// Harmless when the answer has already begun.
			Problem(w, http.StatusInternalServerError, "the handler failed; the failure is in the log")
		}()
		next.ServeHTTP(w, r)
	}))
}

func (s *Server) livez(w http.ResponseWriter, r *http.Request) {
	err := s.cfg.Liveness.Check(r.Context())
	status, body := http.StatusOK, map[string]any{"live": true, "uptime": seconds(s.cfg.Liveness.Uptime())}
	if err != nil {
		status, body["live"], body["reason"] = http.StatusServiceUnavailable, false, err.Error()
	}
	if isVerbose(r) {
		v := verbose{name: "livez"}
		v.line("supervisor-loop", err == nil, body["reason"])
		v.write(w, status)
		return
	}
	JSON(w, status, body)
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	v := s.cfg.Readiness.Verdict()
	status := http.StatusOK
	if !v.Ready {
		status = http.StatusServiceUnavailable
	}
	if isVerbose(r) {
		writeVerboseReady(w, status, v)
		return
	}
	if v.Ready {
		JSON(w, status, map[string]any{"ready": true, "since": v.Since.UTC().Format(time.RFC3339), "requirements": v.Requirements})
		return
	}
	JSON(w, status, map[string]any{"ready": false, "reason": v.Reason, "missing": v.Missing})
}

func writeVerboseReady(w http.ResponseWriter, status int, v Verdict) {
	out := verbose{name: "ready"}
	for _, q := range v.Requirements {
		out.line(q.ID, q.Met, q.Reason)
	}
	if v.ShuttingDown {
		out.line("shutdown", false, ReasonShutdown)
	}
	out.write(w, status)
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	JSON(w, http.StatusOK, s.cfg.Health())
}
func (s *Server) meta(w http.ResponseWriter, _ *http.Request) { JSON(w, http.StatusOK, s.cfg.Meta()) }

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.Pods == nil {
		Problem(w, http.StatusNotFound, "no pod server is configured")
		return
	}
	JSON(w, http.StatusOK, s.cfg.Pods())
}

// isVerbose is true for ?verbose and ?verbose=true, as with kube-apiserver.
func isVerbose(r *http.Request) bool {
	q := r.URL.Query()
	if !q.Has("verbose") {
		return false
	}
	v := q.Get("verbose")
	on, err := strconv.ParseBool(v)
	return v == "" || (err == nil && on)
}

// verbose is the text form of a probe: one line a requirement.
type verbose struct {
	name string
	b    strings.Builder
}

func (v *verbose) line(id string, ok bool, reason any) {
	if ok {
		fmt.Fprintf(&v.b, "[+]%s ok\n", id)
		return
	}
	fmt.Fprintf(&v.b, "[-]%s failed: %s\n", id, strings.ReplaceAll(fmt.Sprint(reason), "\n", "; "))
}

func (v *verbose) write(w http.ResponseWriter, status int) {
	verdict := "passed"
	if status != http.StatusOK {
		verdict = "failed"
	}
	noCache(w, "text/plain; charset=utf-8")
	w.WriteHeader(status)
	send(w, []byte(v.b.String()+v.name+" check "+verdict+"\n"))
}

// send writes the body. The error means that the client has gone away, which is
// its own affair: net/http drops the connection.
func send(w http.ResponseWriter, body []byte) {
	_, _ = w.Write(body)
}

// JSON writes v as the answer. It must be called once.
func JSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		Problem(w, http.StatusInternalServerError, "the answer cannot be written as JSON: "+err.Error())
		return
	}
	noCache(w, "application/json")
	w.WriteHeader(status)
	send(w, append(body, '\n'))
}

// Problem writes an error as application/problem+json (RFC 9457).
func Problem(w http.ResponseWriter, status int, detail string) {
	body, err := json.Marshal(map[string]any{
		"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail,
	})
	if err != nil {
		body = nil // strings and numbers always marshal
	}
	noCache(w, "application/problem+json")
	w.WriteHeader(status)
	send(w, append(body, '\n'))
}

func noCache(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
