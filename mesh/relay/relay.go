package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/internal/rate"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Limits of the sessions. Strangers must not take the places of the box itself. Any stranger can make
// a key, so maxUnlisted limits the sessions with an unlisted key. If there are maxUnauthenticated sessions
// without a key, a new session closes the oldest of them, because the new one may be the box's.
const (
	maxConnections     = 512
	maxUnauthenticated = 128
	maxUnlisted        = 256
)

// standing says which kind of key a session has proved.
type standing int

const (
	unauthenticated standing = iota // no key
	unlisted                        // a key that is neither in Own nor in Allowed
	listed
)

const pruneEvery = time.Hour

// Config of a Relay.
type Config struct {
	Dir    string // directory of the database
	Policy func() Policy
	// MessagesPerSec is the rate limit of a connection, with a burst of twice as many. Keys of
	// Policy.Own have no limit.
	MessagesPerSec int
	// RetentionDays is how long events without an expiration are kept; 0 = no limit.
	RetentionDays int
	// MaxBytes limits the size of the database without free pages. It must be greater than 0.
	MaxBytes   int64
	Kinds      []int // kinds that have their own metric label
	Info       Info
	Registerer prometheus.Registerer
	// Report is called for each problem with the database.
	Report func(what string, err error)
}

// Info is the operator's description of the relay (NIP-11).
type Info struct {
	Name, Description, Contact, PubKey, Version string
}

// Relay is a running relay. Its methods may be called from any goroutine.
type Relay struct {
	cfg     Config
	store   *store
	metrics *metrics
	// The memory that sessions share, and the slots for large messages and for queries.
	inbound, outbound, filters *budget
	large, reading             chan struct{}

	mu       sync.Mutex
	sessions map[*session]standing
	entered  uint64 // number of sessions since the start
	closing  bool
	// isFull says that StoreFull is reported. fullLately says that the limit was reached since the
	// last call of notFull.
	isFull, fullLately bool
	running            sync.WaitGroup
	stop               context.CancelFunc
	stopped            context.Context
}

// Start opens the database and returns a relay that serves connections until Close.
func Start(ctx context.Context, cfg Config) (*Relay, error) {
	if cfg.MaxBytes <= 0 {
		return nil, errors.New("the relay's database needs a limit of its size")
	}
	s, err := openStore(ctx, filepath.Join(cfg.Dir, "relay.db"), cfg.MaxBytes, cfg.Policy().MaxEventBytes)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registerer, cfg.Kinds)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	largest := cfg.Policy().MaxEventBytes + messageOverhead
	r := &Relay{
		cfg: cfg, store: s, metrics: m, sessions: map[*session]standing{},
		large: make(chan struct{}, maxLarge), reading: make(chan struct{}, maxReading),
		inbound: newBudget(inboundMemory, largest), outbound: newBudget(outboundMemory, largest), filters: newBudget(filterMemory, 0),
	}
	r.stopped, r.stop = context.WithCancel(context.Background())
	r.running.Go(r.retain)
	return r, nil
}

// Close ends all sessions and closes the database.
func (r *Relay) Close() error {
	r.mu.Lock()
	if r.closing {
		r.mu.Unlock()
		return nil
	}
	r.closing = true
	r.mu.Unlock()
	r.stop()
	r.running.Wait()
	r.metrics.unregister(r.cfg.Registerer)
	return r.store.close()
}

// Serve accepts connections on l until Close.
func (r *Relay) Serve(l net.Listener) error {
	server := &http.Server{
		Handler: r, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10, ConnContext: withVisitor,
	}
	stop := context.AfterFunc(r.stopped, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(&entrance{Listener: l}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP accepts WebSockets, and answers requests for the relay's document (NIP-11).
func (r *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case strings.Trim(req.URL.Path, "/") != "":
		http.NotFound(w, req)
	case strings.EqualFold(req.Header.Get("Upgrade"), "websocket"):
		r.accept(w, req)
	case strings.Contains(req.Header.Get("Accept"), "application/nostr+json"):
		r.document(w)
	default:
		w.Header().Set("Upgrade", "websocket")
		http.Error(w, "This is a Nostr relay: connect with a websocket (NIP-01).", http.StatusUpgradeRequired)
	}
}

func (r *Relay) accept(w http.ResponseWriter, req *http.Request) {
	policy := r.policy()
	s := &session{
		relay: r, out: newOutbound(r.outbound), subs: map[string]*subscription{}, rate: rate.Full(messageRate(r.cfg.MessagesPerSec), time.Now()),
	}
	s.ctx, s.stop = context.WithCancel(r.stopped)
	defer s.stop()
	if a, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		s.local = a.String()
	}
	if !r.enter(s) {
		w.Header().Set("Retry-After", "30")
		http.Error(w, "The relay has too many connections.", http.StatusServiceUnavailable)
		return
	}
	defer r.leave(s)
	if v := visitorOf(req.Context()); v != nil && !v.enter() {
		return // entrance has closed the connection to make room
	}
	// Web pages of any origin may connect, as usual for a relay: their rights depend on the key that
	// the session proves.
	conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // websocket.Accept has answered
	}
	conn.SetReadLimit(int64(policy.MaxEventBytes + messageOverhead))
	if !r.connected(s, conn) {
		_ = conn.CloseNow() // another session has its place
		return
	}
	s.run()
}

func (r *Relay) policy() Policy { return r.cfg.Policy() }

func (r *Relay) report(what string, err error) {
	if r.cfg.Report != nil {
		r.cfg.Report(what, err)
	}
}

// full counts events that were deleted to make room. It reports StoreFull once, and again only after
// an hour in which the database was not full.
func (r *Relay) full(evicted int64) {
	r.metrics.evicted.Add(float64(evicted))
	r.mu.Lock()
	first := !r.isFull
	r.isFull, r.fullLately = true, true
	r.mu.Unlock()
	if first {
		r.report("StoreFull", fmt.Errorf("the relay's database has reached its limit of %d bytes (sovereign_mesh.relay.max_bytes); the oldest events are deleted, those of strangers first", r.cfg.MaxBytes))
	}
}

// notFull runs every hour. If full was not called since, the next call of full reports again.
func (r *Relay) notFull() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isFull, r.fullLately = r.fullLately, false
}

func (r *Relay) enter(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing || len(r.sessions) >= maxConnections {
		return false
	}
	strangers, oldest := 0, (*session)(nil)
	for other, has := range r.sessions {
		if has != unauthenticated || other.evicted {
			continue
		}
		strangers++
		if oldest == nil || other.number < oldest.number {
			oldest = other
		}
	}
	if strangers >= maxUnauthenticated {
		oldest.evicted = true
		oldest.stop() // it may be waiting for memory
		if conn := oldest.conn; conn != nil {
			go func() { _ = conn.CloseNow() }() // an error does not matter: the session ends
		}
	}
	r.entered++
	s.number = r.entered
	r.sessions[s] = unauthenticated
	r.running.Add(1)
	r.metrics.connections.WithLabelValues("unauthenticated").Inc()
	return true
}

// connected sets the connection of the session. It returns false if another session has its place.
func (r *Relay) connected(s *session, conn *websocket.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.conn = conn
	return !s.evicted
}

// setStanding records that the session has proved a key. It returns false if there are too many sessions
// with an unlisted key.
func (r *Relay) setStanding(s *session, now standing) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.sessions[s]
	if now == unlisted && before != unlisted {
		n := 0
		for _, has := range r.sessions {
			if has == unlisted {
				n++
			}
		}
		if n >= maxUnlisted {
			return false
		}
	}
	r.sessions[s] = now
	if before == unauthenticated {
		r.metrics.connections.WithLabelValues("unauthenticated").Dec()
		r.metrics.connections.WithLabelValues("authenticated").Inc()
	}
	return true
}

func (r *Relay) leave(s *session) {
	r.mu.Lock()
	state := "unauthenticated"
	if r.sessions[s] != unauthenticated {
		state = "authenticated"
	}
	delete(r.sessions, s)
	r.mu.Unlock()
	r.metrics.connections.WithLabelValues(state).Dec()
	r.running.Done()
}

// broadcast offers an event to all sessions without waiting.
func (r *Relay) broadcast(e *nostr.Event) {
	policy := r.policy()
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.sessions))
	r.mu.Unlock()
	text, subject := sync.OnceValue(func() []byte { return nip01.EventText(e) }), nip01.NewSubject(e)
	for _, s := range sessions {
		s.live(policy, subject, text)
	}
}

// Status is the state of the relay at one moment.
type Status struct {
	Connections int        `json:"connections"`
	Events      int64      `json:"events"`
	Bytes       int64      `json:"db_bytes"`
	LastEvent   *time.Time `json:"last_event_at"` // when the newest of the events arrived, nil without events
}

// Status returns the current state.
func (r *Relay) Status(ctx context.Context) (Status, error) {
	out, err := r.store.count(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Connections = len(r.sessions)
	return out, err
}

// retain prunes at the start and then every hour.
func (r *Relay) retain() {
	for again := true; again; again = sleep.For(r.stopped, pruneEvery) {
		now := time.Now()
		var keep time.Time
		if r.cfg.RetentionDays > 0 {
			keep = now.AddDate(0, 0, -r.cfg.RetentionDays)
		}
		deleted, err := r.store.prune(r.stopped, now, keep)
		r.metrics.pruned.Add(float64(deleted))
		r.notFull()
		if err == nil {
			var evicted int64
			if evicted, err = r.store.shrink(r.stopped); evicted > 0 {
				r.full(evicted)
			}
		}
		if held, countErr := r.store.count(r.stopped); countErr == nil {
			r.metrics.bytes.Set(float64(held.Bytes))
		}
		if err != nil && r.stopped.Err() == nil {
			r.report("RetentionFailed", err)
		}
	}
}

// NIPs are the Nostr implementation possibilities that the relay supports.
var NIPs = []int{1, 11, 40, 42, 70}

// document answers with the relay information document (NIP-11).
func (r *Relay) document(w http.ResponseWriter) {
	p, info := r.policy(), r.cfg.Info
	doc := map[string]any{
		"name": info.Name, "description": info.Description, "software": "https://github.com/dreamlab-ai/agentinit",
		"version": info.Version, "supported_nips": NIPs,
		"limitation": map[string]any{
			"max_message_length": p.MaxEventBytes + messageOverhead, "max_subscriptions": maxSubscriptions,
			"max_filters": nip01.MaxFilters, "max_limit": maxLimit, "default_limit": maxLimit,
			"max_subid_length": nip01.MaxSubscriptionID, "max_event_tags": nip01.MaxTags,
			"created_at_upper_limit": int(futureSkew.Seconds()), "auth_required": false, "payment_required": false, "restricted_writes": p.Ingress != Open,
		},
	}
	if info.PubKey != "" {
		doc["pubkey"] = info.PubKey
	}
	if info.Contact != "" {
		doc["contact"] = info.Contact
	}
	if r.cfg.RetentionDays > 0 {
		doc["retention"] = []any{map[string]any{"time": r.cfg.RetentionDays * 24 * 3600}}
	}
	w.Header().Set("Content-Type", "application/nostr+json")
	w.Header().Set("Access-Control-Allow-Origin", "*")
	_ = json.NewEncoder(w).Encode(doc) // an error means that the client has disconnected
}
