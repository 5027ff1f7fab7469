package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/internal/exchange"
	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// Slots are the wrapped slots of a box; *adapters.Set is them.
type Slots interface {
	Beads() adapters.Beads
	Pods() adapters.Pods
	Memory() adapters.Memory
	Events() adapters.Events
	Orchestrator() adapters.Orchestrator
	Status() []adapters.SlotStatus
}

var _ Slots = (*adapters.Set)(nil)

// Config is what a Server answers from. Slots and Principal are required.
type Config struct {
	Slots Slots
	// Principal says who makes a request; false is answered 401.
	Principal func(context.Context) (Principal, bool)
	// Version is that of the program, for the documents.
	Version string
	// Facts are what GET /v1/status tells beyond what this package knows itself.
	Facts Facts
	// Federation answers GET /v1/federation; nil: the box stands alone. It must
	// return from memory and name no secret.
	Federation func() FederationStatus
	// Host takes other boxes in; nil: this box is no host.
	Host Host
	// Identity is the box's own; nil: it has none.
	Identity Identity
	// Mesh is the box among relays; nil: it is not.
	Mesh Mesh
	// Tasks runs templates; nil: the box runs none.
	Tasks *tasks.Manager
	// Backup is the box's local state; nil: it keeps none.
	Backup *backup.State

	// Origins are the browser origins that may open a WebSocket beside the
	// box's own, as a browser sends them.
	Origins []string
	// RateLimit is how many requests a second each principal may make, with
	// twice as many at once; 0 is DefaultRateLimit, < 0 has no limit.
	RateLimit int
	// HeldBodies is how many bytes of request bodies are in memory at once, over all requests;
	// 0 is maxHeld. A request that would exceed it is answered UNAVAILABLE.
	HeldBodies int64
	// Origin tells by which origin the caller reaches the box, nil where it cannot be
	// known; RDF of the pods is moved to addresses below it. nil = it never is.
	Origin func(*http.Request) *url.URL
	// Report is told of errors that a caller cannot see: a panic, an answer
	// that could not be made. nil drops them.
	Report func(route string, err error)
}

// DefaultRateLimit is requests a second of one principal.
const DefaultRateLimit = 1000

// maxStreams bounds how many streams are open at once; each holds a goroutine
// and a subscription.
const maxStreams = 400

// Server answers requests. Its handler may be served by several listeners at
// once.
type Server struct {
	cfg     Config
	router  func() chi.Router // made for the first caller
	started time.Time
	limits  *rate.Callers
	tickets tickets
	held    heldBodies
	actions *actions // the agents' recent actions
	openapi func() ([]byte, error)

	streams atomic.Int64

	closing context.Context
	close   context.CancelFunc
	open    sync.WaitGroup
}

// maxPrincipals bounds how many callers the rate limit remembers.
const maxPrincipals = 10000

// New starts nothing, and leaves the routes and the document to their first
// caller: that work must not delay the start of the programs.
func New(cfg Config) (*Server, error) {
	if cfg.Slots == nil || cfg.Principal == nil {
		return nil, errors.New("rest: Slots and Principal are required")
	}
	if cfg.RateLimit == 0 {
		cfg.RateLimit = DefaultRateLimit
	}
	s := &Server{cfg: cfg, started: time.Now(), actions: newActions(), held: heldBodies{most: cmp.Or(cfg.HeldBodies, maxHeld)}}
	s.limits = rate.NewCallers(rate.Limit{PerSecond: float64(cfg.RateLimit), Burst: 2 * float64(cfg.RateLimit)}, maxPrincipals)
	s.closing, s.close = context.WithCancel(context.Background())
	s.router = sync.OnceValue(s.newRouter)
	s.openapi = sync.OnceValues(func() ([]byte, error) { return json.Marshal(openAPI(routes(), cfg.Version)) })
	return s, nil
}

func (s *Server) newRouter() chi.Router {
	router := chi.NewRouter()
	for _, rt := range routes() {
		h := s.serve(rt)
		router.Method(rt.Method, rt.Path, h)
		if rt.Method == http.MethodGet && !rt.stream() && !rt.ownHead {
			router.Method(http.MethodHead, rt.Path, h)
		}
	}
	router.NotFound(s.notFound)
	router.MethodNotAllowed(s.methodNotAllowed)
	return router
}

// Close ends all streams and returns when they have ended. Requests that come
// after it are answered UNAVAILABLE.
func (s *Server) Close() {
	s.close()
	s.open.Wait()
}

// Mount is one path prefix under which Handler expects to be reached.
type Mount struct {
	Pattern string
	// Open: the handler decides by itself who may; the request needs no
	// credential.
	Open bool
	// Told: a wrong key is always called wrong, however many come from one address.
	Told bool
}

// Mounts lists the prefixes, for the server that owns the listener. Bodies are
// bounded here; no other bound is needed.
func Mounts() []Mount {
	var out []Mount
	seen := make(map[string]bool)
	for _, rt := range routes() {
		p := rt.prefix()
		if !seen[p] {
			seen[p] = true
			out = append(out, Mount{Pattern: p, Open: rt.open, Told: rt.told})
		}
	}
	return out
}

// Handler serves all routes by their full paths, wherever it is mounted.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A router around this one has cut the path, and matches decoded ones. A
		// parameter is decoded here, once, after the path was taken apart.
		router, rctx := s.router(), chi.NewRouteContext()
		rctx.Routes = router
		rctx.RoutePath = r.URL.EscapedPath()
		router.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, rctx)))
	})
}

// serve is what every row has in common: who, how often, which contract, and
// what an error becomes.
func (s *Server) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		exchange.SetRoute(r.Context(), rt.Path)
		q := &request{Request: r, s: s, w: w, rc: http.NewResponseController(w), row: rt, report: new(adapters.Report)}
		defer func() {
			s.held.release(q.held)
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			s.panicked(q, v)
		}()
		err := s.admit(q)
		if err == nil && rt.needs != nil {
			err = rt.needs(q)
		}
		if err == nil {
			err = rt.handle(q)
		}
		if err != nil {
			s.fail(q, err)
		}
	})
}

// admit fills in who asks and with what metadata, or refuses.
func (s *Server) admit(q *request) error {
	if s.closing.Err() != nil {
		return adapters.Unavailable(nil, "the box is shutting down")
	}
	if q.row.open {
		return nil
	}
	if q.isWebSocket() && !s.mayConnect(q.Request) {
		return adapters.Errorf(adapters.CodePermissionDenied, "pages of this origin may open no WebSocket here")
	}
	who, known := s.cfg.Principal(q.Context())
	if !known {
		return adapters.Errorf(adapters.CodeUnauthenticated, "no credential was given").With("reason", "missing")
	}
	q.who = who
	if err := s.limit(q); err != nil {
		return err
	}
	if !q.row.Roles.admits(who.Role) {
		return outside(q.row.Roles, who.Role)
	}
	if err := checkContract(q.Header, q.row.Slot); err != nil {
		return err
	}
	m, err := metaOf(q.Header, who)
	if err != nil {
		return err
	}
	ctx := adapters.WithReport(adapters.WithMeta(q.Context(), m), q.report)
	q.Request = q.WithContext(ctx)
	return nil
}

// outside is the refusal of a role that the row does not admit. A box without a
// session, or with one that has ended, registers and comes back with another token: it is
// told to wait. A refusal for good would make it give up what it wants to deliver.
func outside(row roles, role string) error {
	if row.admits(RoleBox) && (role == RoleEnded || role == RoleMember) {
		return adapters.Errorf(adapters.CodeUnavailable, "this box has no session here: it has to register first").WithRetryAfter(registerAgain)
	}
	return adapters.Errorf(adapters.CodePermissionDenied, "role %q may not do that", role)
}

// registerAgain is when a box without a session may ask again: a registration takes less.
const registerAgain = time.Second

// limit bounds how often a principal asks.
func (s *Server) limit(q *request) error {
	if q.row.paced && q.row.Roles.admits(q.who.Role) {
		return nil
	}
	if wait, ok := s.limits.Take(q.who.Role+" "+q.who.ID, time.Now()); !ok {
		return adapters.Errorf(adapters.CodeRateLimited, "more than %d requests a second", s.cfg.RateLimit).WithRetryAfter(wait)
	}
	return nil
}

// mayConnect tells whether a WebSocket may be opened from where it is: by what
// is no browser, by a page of the box itself, or of a listed origin. CORS does
// not cover WebSockets (RFC 6455, 10.2).
func (s *Server) mayConnect(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	return slices.Contains(s.cfg.Origins, origins[0]) || err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// fail answers with the problem document of err.
func (s *Server) fail(q *request, err error) {
	e := adapters.AsError(err)
	if e.Code == adapters.CodeInternal {
		s.tell(q.row, err)
	}
	q.begin("")
	if e.Code == adapters.CodeUnauthenticated {
		q.w.Header().Add("WWW-Authenticate", "Bearer")
	}
	adapters.WriteProblem(q.w, e)
}

func (s *Server) tell(rt route, err error) {
	if s.cfg.Report != nil {
		s.cfg.Report(rt.Method+" "+rt.Path, err)
	}
}

func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	adapters.WriteProblem(w, adapters.Errorf(adapters.CodeNotFound, "there is nothing at this path; /openapi.json says what there is").
		With("resource", "path", "id", adapters.Cut(r.URL.Path, 200)))
}

// methodNotAllowed answers 405 (RFC 9110, 15.5.6), which a client of ours maps
// to UNSUPPORTED as it does the 501 of a missing capability.
func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allow []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
		if s.router().Match(chi.NewRouteContext(), m, r.URL.EscapedPath()) {
			allow = append(allow, m)
		}
	}
	e := adapters.Errorf(adapters.CodeUnsupported, "this path does not take %s", adapters.Cut(r.Method, 20)).With("method", adapters.Cut(r.Method, 20))
	_, body := adapters.Problem(e)
	var doc map[string]any
	if json.Unmarshal(body, &doc) == nil {
		doc["status"] = http.StatusMethodNotAllowed
	}
	body, _ = json.Marshal(doc) // it was JSON a moment ago
	h := w.Header()
	h.Set("Allow", strings.Join(allow, ", "))
	h.Set("Content-Type", adapters.ProblemType)
	w.WriteHeader(http.StatusMethodNotAllowed)
	// The status is sent already: an error of the connection cannot be answered.
	_, _ = w.Write(append(body, '\n'))
}
