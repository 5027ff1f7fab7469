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
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/internal/exchange"
	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// Config configures a Server. Slots and Principal are required.
type Config struct {
	Slots *adapters.Set
	// Principal returns the caller of a request. If it returns false, the answer is 401.
	Principal func(context.Context) (Principal, bool)
	// Version is the version of agentinit.
	Version string
	// Facts are the parts of GET /v1/status that this package cannot find out itself.
	Facts Facts
	// Federation returns the answer to GET /v1/federation; nil = the box is standalone. It must not
	// block, and its result must not contain a secret.
	Federation func() FederationStatus
	// Host registers other boxes; nil = this box is not a host.
	Host Host
	// Identity is the box's own identity; nil = it has none.
	Identity Identity
	// Mesh is the box's access to relays; nil = it has none.
	Mesh Mesh
	// Tasks runs templates; nil = the box runs no tasks.
	Tasks *tasks.Manager
	// Backup is the box's local state; nil = it keeps none.
	Backup *backup.State

	// Origins are the further browser origins that may open a WebSocket, as a browser sends them.
	// The box's own origin always may.
	Origins []string
	// RateLimit is how many requests a second each principal may make, with a burst of twice as
	// many; 0 = DefaultRateLimit, < 0 = no limit.
	RateLimit int
	// HeldBodies limits the bytes of all request bodies in memory together; 0 = maxHeld. A request
	// that would exceed it is answered UNAVAILABLE.
	HeldBodies int64
	// Scarce tells whether the kernel has little memory to give; the limit is 2 MiB then. It is
	// called often, from many goroutines. nil = memory is never scarce.
	Scarce func() bool
	// Origin returns the origin by which the caller reaches the box, nil if it is unknown. The pods
	// slot rewrites the URLs in RDF to that origin. If Origin itself is nil, it never rewrites.
	Origin func(*http.Request) *url.URL
	// Report gets the errors that a caller does not see, such as a panic. nil drops them.
	Report func(route string, err error)
}

// DefaultRateLimit is the default for Config.RateLimit.
const DefaultRateLimit = 1000

// maxStreams limits the open streams: each one holds a goroutine and a subscription. Guests together
// have at most maxGuestStreams, fewer than the events slot has subscriptions, so that they cannot keep out
// the operator.
const (
	maxStreams      = 400
	maxGuestStreams = 200
)

// Server serves the API. Several listeners may use its handler at once.
type Server struct {
	cfg      Config
	router   func() chi.Router // makes the router at the first call
	started  time.Time
	limits   *rate.Callers[string]
	tickets  tickets
	held     heldBodies
	decoding gate // of large bodies
	// answers limits large answers, answersOfGuests those to guests.
	answers, answersOfGuests *largeAnswers
	actions                  *actions // recent actions of agents
	openapi                  func() ([]byte, error)

	closing context.Context
	close   context.CancelFunc
	// entering guards streams and guests. It orders enter and Close: no stream may be added to open
	// while Close waits for it.
	entering sync.Mutex
	streams  map[*stream]struct{}
	guests   int // of streams, those of guests
	open     sync.WaitGroup
}

// maxPrincipals limits the callers that the rate limit remembers.
const maxPrincipals = 10000

// New makes a Server. The first request makes the routes, and the first request for it makes the
// OpenAPI document: that work must not delay the start of the programs in the box.
func New(cfg Config) (*Server, error) {
	if cfg.Slots == nil || cfg.Principal == nil {
		return nil, errors.New("rest: Slots and Principal are required")
	}
	cfg.RateLimit = cmp.Or(cfg.RateLimit, DefaultRateLimit)
	s := &Server{cfg: cfg, started: time.Now(), actions: newActions(), held: heldBodies{most: cmp.Or(cfg.HeldBodies, maxHeld), scarce: cfg.Scarce},
		decoding: make(gate, maxDecoding), streams: make(map[*stream]struct{}), answers: newLargeAnswers(), answersOfGuests: newLargeAnswers()}
	s.limits = rate.NewCallers[string](rate.Limit{PerSecond: float64(cfg.RateLimit), Burst: 2 * float64(cfg.RateLimit)}, maxPrincipals)
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

// Close ends all streams and returns when they have ended. Later requests are answered UNAVAILABLE.
func (s *Server) Close() {
	s.entering.Lock()
	s.close()
	for st := range s.streams {
		st.end()
	}
	s.entering.Unlock()
	s.open.Wait()
}

// closed returns the error that answers a request after Close began, or nil before.
func (s *Server) closed() error {
	if s.closing.Err() != nil {
		return adapters.Unavailable(nil, "the box is shutting down")
	}
	return nil
}

// Mount is one path prefix of the routes that Handler serves.
type Mount struct {
	Pattern string
	// Open means that the request needs no credential.
	Open bool
	// Told means that a request with a wrong key always gets 401, never 429, even if many of them
	// come from one address.
	Told bool
}

// Mounts lists the prefixes, for the server that owns the listener. That server need not limit the
// size of bodies: this package does.
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

// Handler serves all routes by their full paths, under whatever prefix it is mounted.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// An outer router may have cut and decoded the path. Route by the escaped path: param
		// decodes each parameter once, after the router has split the path.
		router, rctx := s.router(), chi.NewRouteContext()
		rctx.Routes = router
		rctx.RoutePath = r.URL.EscapedPath()
		router.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, rctx)))
	})
}

// serve makes the handler of a row. It checks the caller, calls the row's handler and answers with
// its error.
func (s *Server) serve(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		exchange.SetRoute(r.Context(), rt.Path)
		q := &request{Request: r, s: s, w: w, rc: http.NewResponseController(w), row: rt, report: new(adapters.Report)}
		defer func() {
			s.held.release(q.held)
			if q.answers != nil {
				q.answers.release(q.unsent)
			}
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

// admit sets the caller and the metadata of a request, or returns why the request is refused.
func (s *Server) admit(q *request) error {
	if err := s.closed(); err != nil {
		return err
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

// outside returns the error for a role that the row does not admit. A box without an active session
// gets UNAVAILABLE, because it will register and come back with another token. After
// PERMISSION_DENIED it would not try again.
func outside(row roles, role string) error {
	if row.admits(RoleBox) && (role == RoleEnded || role == RoleMember) {
		return adapters.Errorf(adapters.CodeUnavailable, "this box has no session here: it has to register first").WithRetryAfter(registerAgain)
	}
	return adapters.Errorf(adapters.CodePermissionDenied, "role %q may not do that", role)
}

// registerAgain is the Retry-After for a box without a session. A registration takes less time.
const registerAgain = time.Second

// limit applies the rate limit of the principal.
func (s *Server) limit(q *request) error {
	if q.row.paced && q.row.Roles.admits(q.who.Role) {
		return nil
	}
	if wait, ok := s.limits.Take(q.who.Role+" "+q.who.ID, time.Now()); !ok {
		return adapters.Errorf(adapters.CodeRateLimited, "more than %d requests a second", s.cfg.RateLimit).WithRetryAfter(wait)
	}
	return nil
}

// mayConnect tells whether the origin of a request may open a WebSocket: a client that is not a
// browser (no Origin), a page of the box itself, or a page of a listed origin. CORS does not cover
// WebSockets (RFC 6455, 10.2).
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

// fail answers with the problem document of err. It also reports an internal error.
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
	adapters.WriteProblem(w, adapters.Errorf(adapters.CodeNotFound, "there is no such path; /openapi.json lists all paths").
		With("resource", "path", "id", adapters.Cut(r.URL.Path, 200)))
}

// methodNotAllowed answers 405 (RFC 9110, 15.5.6). The external adapters map 405 to UNSUPPORTED, like
// the 501 of a missing capability.
func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allow []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
		if s.router().Match(chi.NewRouteContext(), m, r.URL.EscapedPath()) {
			allow = append(allow, m)
		}
	}
	method := adapters.Cut(r.Method, 20)
	// It cannot fail: a text is always JSON.
	body, _ := problem.Document(map[string]any{"method": method}, problem.Unsupported, http.StatusMethodNotAllowed, "this path does not take "+method, false)
	w.Header().Set("Allow", strings.Join(allow, ", "))
	problem.Write(w, http.StatusMethodNotAllowed, body)
}
