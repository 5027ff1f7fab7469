package probes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// openRoute is a route that needs no key and has no rate limit.
type openRoute struct {
	pattern string
	handler http.HandlerFunc
	// probe says that kubelet, Prometheus and other machines call the route, under any name of the
	// box.
	probe bool
}

func (s *Server) openRoutes() []openRoute {
	return []openRoute{
		{"/livez", s.livez, true},
		{"/ready", s.ready, true},
		{"/health", s.health, true},
		{"/health/pods", s.pods, true},
		{"/health/relay", s.relay, true},
		{"/metrics", s.scrape().ServeHTTP, true},
		{"/v1/meta", s.meta, false},
		{"/", s.index, false},
	}
}

// isProbe tells whether path is a route that machines call, under any private name.
func (s *Server) isProbe(path string) bool {
	return slices.ContainsFunc(s.keyless, func(o openRoute) bool { return o.probe && o.pattern == path })
}

// routes serves the routes without a key, and the handlers added by Mount.
func (s *Server) routes() http.Handler {
	r := chi.NewRouter()
	s.fallbacks(r)
	for _, route := range s.keyless {
		s.get(r, route.pattern, route.handler)
	}
	for _, m := range s.mounts {
		r.Mount(m.pattern, s.metrics.instrument(strings.TrimSuffix(m.pattern, "/"), m.handler))
	}
	return anyMethod(r)
}

// anyMethod routes a request with a method that chi does not know as if it were TRACE, which no route
// takes. Otherwise chi refuses the request before it looks for a mounted handler, and the answer cannot
// say which methods that handler allows.
func anyMethod(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
			http.MethodConnect, http.MethodOptions, http.MethodTrace:
		default:
			route := chi.NewRouteContext()
			route.RouteMethod = http.MethodTrace
			r = r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, route))
		}
		next.ServeHTTP(w, r)
	})
}

// metricsRoutes is all that the metrics listener serves.
func (s *Server) metricsRoutes() http.Handler {
	r := chi.NewRouter()
	s.fallbacks(r)
	s.get(r, "/metrics", s.scrape())
	return r
}

func (s *Server) get(r chi.Router, pattern string, h http.Handler) {
	h = s.metrics.instrument(pattern, http.MaxBytesHandler(h, maxBodyBytes))
	r.Method(http.MethodGet, pattern, h)
	r.Method(http.MethodHead, pattern, h)
}

func (s *Server) fallbacks(r chi.Router) {
	r.NotFound(s.metrics.instrument(unmatched, s.limitAnonymous(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, problem.NotFound, "there is no such path", "resource", "path")
	}))).ServeHTTP)
	r.MethodNotAllowed(s.metrics.instrument(unmatched, s.limitAnonymous(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Only open routes come here: mounted handlers accept every method.
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, problem.Unsupported, "this path does not take that method", "method", methodLabel(r.Method))
	}))).ServeHTTP)
}

// MountOption changes how Mount treats a handler.
type MountOption func(*mount)

type mount struct {
	pattern string
	handler http.Handler
	open    bool
	tell    bool
	maxBody int64
}

// Open lets requests in without a key: the handler decides itself.
func Open() MountOption { return func(m *mount) { m.open = true } }

// TellWrongKeys answers every wrong key with 401, without the limit for one address. The caller
// ends its session after 401; after 429 it would ask again.
func TellWrongKeys() MountOption { return func(m *mount) { m.tell = true } }

// MaxBody replaces maxBodyBytes; 0 leaves the bound to the handler.
func MaxBody(n int64) MountOption { return func(m *mount) { m.maxBody = n } }

// Mount serves h below pattern ("/v1/beads", "/pods"), for every method, behind the key. The
// handler gets the caller from PrincipalFrom. Mount must be called before Start. Like chi, it
// panics if the pattern is already used.
func (s *Server) Mount(pattern string, h http.Handler, opts ...MountOption) {
	taken := slices.ContainsFunc(s.mounts, func(m mount) bool { return m.pattern == pattern }) ||
		slices.ContainsFunc(s.keyless, func(o openRoute) bool { return o.pattern == pattern })
	if taken {
		panic("probes: " + pattern + " is served already")
	}
	m := mount{pattern: pattern, maxBody: maxBodyBytes}
	for _, o := range opts {
		o(&m)
	}
	if m.maxBody > 0 {
		h = http.MaxBytesHandler(h, m.maxBody)
	}
	if m.open {
		h = s.limitAnonymous(h)
	} else {
		h = s.authenticate(h, m.tell)
	}
	m.handler = h
	s.mounts = append(s.mounts, m)
}

func (s *Server) authenticate(next http.Handler, tell bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, failures := bucketOf(s.client(r)), s.anonymous
		if isSigned(r) {
			// Counted separately: callers without a key or with an old one must not block signing
			// callers with the same address.
			if failures = s.forged; failures.Empty(from, time.Now()) {
				s.tooMany(w)
				return
			}
		}
		// A key is compared even then. That is cheap, and a program of the box must not be able to
		// lock out the operator who has the same address.
		p, err := s.cfg.Auth.Authenticate(r)
		switch {
		case err == nil:
			if c, ok := r.Context().Value(connKey{}).(*boundedConn); ok && p.Role == RoleAgent && !c.serves(p.ID) {
				busy(w, http.StatusTooManyRequests, problem.RateLimited, 1+rand.IntN(comeBack), "too many requests of agents are being answered")
				return
			}
			next.ServeHTTP(w, r.WithContext(withPrincipal(r.Context(), p)))
		case errors.Is(err, ErrNoKeyYet), errors.Is(err, ErrCannotTell):
			busy(w, http.StatusServiceUnavailable, problem.Unavailable, 1+rand.IntN(comeBack), err.Error())
		case nip98.ReasonOf(err) == nip98.ReasonFull:
			busy(w, http.StatusTooManyRequests, problem.RateLimited, int(nip98.ForgetEvery/time.Second)+rand.IntN(comeBack), err.Error())
		default:
			if _, ok := failures.Take(from, time.Now()); !ok && (!tell || isSigned(r)) {
				s.tooMany(w)
				return
			}
			s.refuse(w, err)
		}
	})
}

func (s *Server) refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrForbidden) {
		fail(w, http.StatusForbidden, problem.PermissionDenied, err.Error())
		return
	}
	for _, c := range s.cfg.Auth.challenge() {
		w.Header().Add("WWW-Authenticate", c)
	}
	fail(w, http.StatusUnauthorized, problem.Unauthenticated, err.Error(), "reason", reasonOf(err))
}

// contain turns a panic of a handler into the answer 500. It counts and publishes the panic with
// its stack, and the process goes on.
func (s *Server) contain(next http.Handler) http.Handler {
	probe := func(r *http.Request) bool { return s.isProbe(r.URL.Path) }
	return bounded(probe, s.metrics.instrument(unmatched, http.HandlerFunc(tooMuch)), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
			fail(w, http.StatusInternalServerError, problem.Internal, "the handler failed; the failure is in the log")
		}()
		next.ServeHTTP(w, r)
	}))
}

func (s *Server) livez(w http.ResponseWriter, r *http.Request) {
	// The request's context ends when the client sends no more, but such a client still reads the answer:
	// nc and shells ask so. The check has a time limit of its own.
	err := s.cfg.Liveness.check(context.WithoutCancel(r.Context()))
	status, body := http.StatusOK, map[string]any{"live": true, "uptime": seconds(s.cfg.Liveness.uptime())}
	if err != nil {
		status, body["live"], body["reason"] = http.StatusServiceUnavailable, false, err.Error()
	}
	if isVerbose(r) {
		v := verbose{name: "livez"}
		v.line("supervisor-loop", err == nil, body["reason"])
		v.write(w, status)
		return
	}
	writeJSON(w, status, body)
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
		writeJSON(w, status, map[string]any{"ready": true, "since": v.Since.UTC().Format(time.RFC3339), "requirements": v.Requirements})
		return
	}
	writeJSON(w, status, map[string]any{"ready": false, "reason": v.Reason, "missing": v.Missing})
}

func writeVerboseReady(w http.ResponseWriter, status int, v Verdict) {
	out := verbose{name: "ready"}
	for _, q := range v.Requirements {
		out.line(q.ID, q.Met, q.Reason)
	}
	if v.ShuttingDown {
		out.line("shutdown", false, reasonShutdown)
	}
	out.write(w, status)
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.cfg.Health())
}
func (s *Server) meta(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, s.cfg.Meta(r))
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.Pods == nil {
		fail(w, http.StatusNotFound, problem.NotFound, "no pod server is configured", "resource", "pods")
		return
	}
	writeJSON(w, http.StatusOK, s.cfg.Pods())
}

func (s *Server) relay(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.Relay == nil {
		fail(w, http.StatusNotFound, problem.NotFound, "the box runs no relay of its own", "resource", "relay")
		return
	}
	writeJSON(w, http.StatusOK, s.cfg.Relay())
}

// index tells people which paths to open.
func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	open := make([]string, 0, len(s.keyless))
	for _, route := range s.keyless {
		if route.pattern != "/" {
			open = append(open, route.pattern)
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"service": "agentinit", "open": open, "api": "/openapi.json"})
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

// verbose is the text form of a probe: one line for each requirement.
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

// send writes the body. An error means that the client has disconnected; then net/http drops the
// connection.
func send(w http.ResponseWriter, body []byte) {
	_, _ = w.Write(body)
}

// writeJSON answers with v. Call it at most once for a request.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		fail(w, http.StatusInternalServerError, problem.Internal, "the answer cannot be written as JSON: "+err.Error())
		return
	}
	noCache(w, "application/json")
	w.WriteHeader(status)
	send(w, append(body, '\n'))
}

func noCache(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
