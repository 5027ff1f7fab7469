package solid

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/pods/wac"
	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// rdfTypes are the media types of RDF that are converted into each other.
var rdfTypes = []string{rdf.MediaTurtle, rdf.MediaJSONLD, rdf.MediaNTriples}

// The media types of patches.
var (
	n3Patch      = adapters.PatchType(adapters.DialectN3)
	sparqlUpdate = adapters.PatchType(adapters.DialectSPARQLUpdate)
	jsonPatch    = adapters.PatchType(adapters.DialectJSONPatch)
)

const (
	// maxRDF bounds a document that is read as RDF or JSON, for another form of it or for a patch.
	maxRDF = 1 << 20
	// maxHeavy is how many conversions, patches and listings are at work at once.
	maxHeavy = 2
	// maxGuests is how many requests may be at work of agents that do not own the whole tree. One that reads slowly holds its place for
	// as long as transfer.
	maxGuests = 64
	// maxAsking is how many of their subscriptions are at work besides: before the body of one is there, it is unknown whether it is
	// allowed. If there is one more, the oldest gives way.
	maxAsking = 16
	// maxUploads bounds the bytes of their uploads that are not yet documents.
	maxUploads = 512 << 20
	// transfer is the time for a body in either direction.
	transfer = 2 * time.Minute
	maxType  = 255 // bytes of a Content-Type
	// maxAgents is how many agents have their requests counted.
	maxAgents = 10_000
)

// Identity is who signed a request.
type Identity interface {
	// IDs are the agent's names in access lists.
	IDs() []string
	// Use marks the signature as used. An error means that it was used before, or is ErrTooManySigned. Agents of one standing must not fill the memory for
	// those of a higher one.
	Use(Standing) error
	// Body checks the digest of the body, before the request has an effect.
	Body(sum [sha256.Size]byte, s Standing) error
}

// Standing is why an agent may do what it asks for.
type Standing int

const (
	Anyone Standing = iota // any key may do the same
	Listed                 // access lists name the agent
	Owner                  // it owns the whole tree
)

// Config of a Server.
type Config struct {
	Root string // the directory of the pods
	// BaseURL is the origin in all IRIs of the server, such as "https://pods.example": no path, no slash at its end.
	BaseURL string
	// Aliases are further origins by which clients reach the server.
	Aliases []string
	// Identify checks the Authorization header of a request to an absolute URL. An error is for the client. It is called
	// only if there is such a header.
	Identify func(r *http.Request, url string) (Identity, error)
	// Document returns the DID document of a did:nostr name, and the name of its pod; false if the name is none. nil = no
	// such documents.
	Document func(did string) (document []byte, pod string, ok bool)
	// Quota is the limit of each pod in bytes; < 0 = none.
	Quota int64
	// RatePerSecond is how many requests each connection, and each agent on all of its connections, may make; 0 = no limit.
	RatePerSecond int
	Notifications bool
	Log           *slog.Logger
}

// Server is the pod server. Close it after its listener has ended.
type Server struct {
	cfg     Config
	log     *slog.Logger
	origin  string
	aliases []string
	hosts   map[string]string // Host → origin
	store   *store
	quotas  *quotas
	hub     *hub
	lists   accessLists
	// heavy are the places of conversions, patches and listings: of who owns the whole tree, and of all others. guests are those of
	// all requests of the others, asking those of their subscriptions.
	heavy    [2]chan struct{}
	guests   chan struct{}
	asking   asking
	patching turns
	uploads  atomic.Int64 // see maxUploads
	limits   rate.Limit
	agents   *rate.Callers[string]

	troubles *rate.Callers[string]
}

// New opens the tree. It does not listen.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg: cfg, log: cfg.Log, origin: cfg.BaseURL, aliases: cfg.Aliases, hosts: map[string]string{},
		guests:   make(chan struct{}, maxGuests),
		limits:   rate.Limit{PerSecond: float64(cfg.RatePerSecond), Burst: float64(cfg.RatePerSecond)},
		troubles: rate.NewCallers[string](rate.Limit{PerSecond: 1.0 / 60, Burst: 1}, 1000),
	}
	s.agents = rate.NewCallers[string](s.limits, maxAgents)
	for i := range s.heavy {
		s.heavy[i] = make(chan struct{}, maxHeavy)
	}
	for _, origin := range append(slices.Clone(cfg.Aliases), cfg.BaseURL) {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf("the base URL %q is not an origin: write it as in https://pods.example, without a path", origin)
		}
		s.hosts[hostOf(u.Scheme, u.Host)] = origin
	}
	var err error
	if s.store, err = openStore(cfg.Root, s.seldom); err != nil {
		return nil, fmt.Errorf("cannot open the storage root: %w", err)
	}
	s.quotas = &quotas{store: s.store, limit: cfg.Quota, most: maxCounted, warn: func(path string, err error) { s.seldom(path, "a quota cannot be read", err) }}
	if cfg.Notifications {
		s.hub = newHub(s)
	}
	return s, nil
}

// Close ends subscriptions.
func (s *Server) Close() error {
	if s.hub != nil {
		s.hub.close()
		s.hub.watcher.close()
	}
	return s.store.close()
}

// hostOf is a host in the form for comparisons.
func hostOf(scheme, host string) string {
	host = strings.ToLower(host)
	return strings.TrimSuffix(host, map[string]string{"http": ":80", "https": ":443"}[scheme])
}

// request is one request at work.
type request struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	at    resource
	agent wac.Agent
	who   Identity // nil = anonymous
	owner bool     // the agent owns the whole tree
	reads bool     // the agent may read what it writes, as judge has found

	standing Standing // as judge has found
	used     bool     // the signature
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{s: s, w: w, r: r}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	// Whoever may write into a pod has made its documents: a browser must not run them as pages of this server.
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Vary", "Accept, Authorization, Origin")
	if q.cors() {
		return
	}
	if err := q.serve(); err != nil {
		q.fail(err)
	}
}

// cors lets pages of other origins use the server (Solid Protocol, 8.1). A browser adds no credentials by itself, so
// this gives a page no right that it has not already. It answers a preflight request.
func (q *request) cors() (answered bool) {
	origin := q.r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	h := q.w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Accept-Patch, Accept-Post, Allow, Content-Range, ETag, Last-Modified, Link, Location, Retry-After, WAC-Allow, WWW-Authenticate")
	if q.r.Method != http.MethodOptions || q.r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS, PUT, POST, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, If-Match, If-None-Match, If-Modified-Since, Link, Range, Slug")
	h.Set("Access-Control-Max-Age", "600")
	q.w.WriteHeader(http.StatusNoContent)
	return true
}

func (q *request) serve() error {
	// A page in a browser can give its own name the address of this server (DNS rebinding).
	origin, known := q.s.hosts[hostOf("http", q.r.Host)]
	if !known {
		origin, known = q.s.hosts[hostOf("https", q.r.Host)]
	}
	if !known || !strings.HasPrefix(q.r.RequestURI, "/") {
		return faulty(adapters.CodeValidation, "this server is not the host that the request names; it is %s", q.s.origin).with(http.StatusMisdirectedRequest)
	}
	if err := q.identify(origin); err != nil {
		return err
	}
	q.owner = q.ownsAll()
	if err := q.limited(); err != nil {
		return err
	}
	if secret, ok := strings.CutPrefix(q.r.URL.Path, channelPath); ok && secret != "" && q.s.hub != nil {
		return q.s.hub.connect(q, secret) // which has limits of its own
	}
	switch {
	case q.owner, q.r.URL.Path == health:
	case q.r.URL.Path == channelPath:
		defer q.s.asking.enter(q.w)()
	default:
		select {
		case q.s.guests <- struct{}{}:
			defer func() { <-q.s.guests }()
		default:
			return busy()
		}
	}
	if answer := q.own(); answer != nil {
		return answer()
	}
	var err error
	if q.at, err = parse(q.r.URL.EscapedPath()); err != nil {
		return err
	}
	switch q.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return q.get()
	case http.MethodPut:
		return q.put()
	case http.MethodPost:
		return q.post()
	case http.MethodPatch:
		return q.patch()
	case http.MethodDelete:
		return q.delete()
	}
	return q.noMethod(methodsOf(q.at))
}

func (q *request) noMethod(allow string) error {
	q.w.Header().Set("Allow", allow)
	return faulty(adapters.CodeUnsupported, "the resource does not take %s", strings.ToValidUTF8(adapters.Cut(q.r.Method, 20), "?")).with(http.StatusMethodNotAllowed)
}

// identify finds out who has signed the request. Without a signature, it is anonymous.
func (q *request) identify(origin string) error {
	q.agent.Origin = q.r.Header.Get("Origin")
	if len(q.r.Header.Values("Authorization")) == 0 {
		return nil
	}
	who, err := q.s.cfg.Identify(q.r, origin+q.r.RequestURI)
	if err != nil {
		return badSignature(err)
	}
	q.who, q.agent.IDs = who, who.IDs()
	return nil
}

// limited counts the request of its connection and its agent.
func (q *request) limited() error {
	c := connOf(q.r.Context())
	if q.s.limits.PerSecond <= 0 || c == nil || q.owner {
		return nil
	}
	wait, ok := c.take(q.s.limits)
	if ok && len(q.agent.IDs) > 0 {
		wait, ok = q.s.agents.Take(q.agent.IDs[0], time.Now())
	}
	if ok {
		return nil
	}
	f := faulty(adapters.CodeRateLimited, "this connection or key makes more than %d requests a second", q.s.cfg.RatePerSecond)
	f.retry = int(wait.Seconds()) + 1
	return f
}

// work takes a place among the heavy requests.
func (q *request) work() (done func(), err error) {
	places := q.s.heavy[0]
	if q.owner {
		places = q.s.heavy[1]
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-q.r.Context().Done():
		return nil, q.r.Context().Err()
	}
}

// metered counts the body of an upload among those of all agents that do not own the whole tree.
func (q *request) metered(body io.Reader) io.Reader {
	if q.owner {
		return body
	}
	return &metered{Reader: body, total: &q.s.uploads}
}

// allowLonger gives the body of a request, or of an answer, the time that a large one needs.
func (q *request) allowLonger() {
	c := http.NewResponseController(q.w)
	until := time.Now().Add(transfer)
	// Only a connection of a test has no deadlines.
	_ = errors.Join(c.SetReadDeadline(until), c.SetWriteDeadline(until.Add(10*time.Second)))
}

func isRDF(contentType string) bool {
	return slices.Contains(rdfTypes, adapters.MediaType(contentType))
}
