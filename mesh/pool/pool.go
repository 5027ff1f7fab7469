package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Limits of a pool and of each of its relays.
const (
	MaxRelays        = 32
	MaxGuests        = 8  // in addition to MaxRelays
	maxCopies        = 64 // events that one guest has not answered yet
	maxSubscriptions = 16
	maxMessage       = 1 << 20
	maxHeader        = 64 << 10 // bytes of the head of a relay's answer
	maxReason        = 300      // bytes of an error in a status
	seenIDs          = 8192     // remembered ids, so that each event is passed on once
	eventsPerSecond  = 500      // messages read from one relay; the others wait at the relay
	guestPerSecond   = 50       // the same for a guest: another box has chosen it
	badLimit         = 10       // invalid messages until a connection is closed
	dialLimit        = 10 * time.Second
	sendLimit        = 10 * time.Second
	answerLimit      = 10 * time.Second
	slowLimit        = time.Second // for the other relays after one has accepted an event
	pingEvery        = 30 * time.Second
	backoffFirst     = time.Second
	backoffMost      = 60 * time.Second
	steadyAfter      = 30 * time.Second // a connection that lasted this long resets the backoff
)

// Signer signs events with the box's key.
type Signer interface {
	Sign(*nostr.Event) error
}

// Conn is a connection to a relay. It carries text messages in both directions.
type Conn interface {
	Read(context.Context) ([]byte, error)
	Write(context.Context, []byte) error
	Ping(context.Context) error
	Close() error
}

// Config of a Pool.
type Config struct {
	URLs []string // ws:// or wss://, at most MaxRelays
	// Signer signs the answers to AUTH; nil = the pool does not log in.
	Signer Signer
	// Publishes tells whether a relay gets events, Subscribes whether it is asked for events;
	// nil = all relays.
	Publishes, Subscribes func(url string) bool
	// Dial connects to a relay; nil = the function Dial of this package.
	Dial func(ctx context.Context, url string) (Conn, error)
	// Document asks a relay for its description (NIP-11); nil = the pool does not ask.
	Document func(ctx context.Context, url string) (Document, error)
	// Notice is called when the state of a relay changes. It must not block. It may be nil.
	Notice func(Status)
}

// Pool keeps the connections to relays. Its methods may be called from any goroutine.
type Pool struct {
	cfg    Config
	relays []*link
	seen   *recent

	mu     sync.Mutex
	guests []*link // sorted by address
	closed bool
	subs   map[string]*Subscription
	next   int

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Start starts to dial all relays, and returns without waiting for a connection.
func Start(cfg Config) (*Pool, error) {
	urls := slices.Compact(slices.Sorted(slices.Values(cfg.URLs)))
	if len(urls) > MaxRelays {
		return nil, fmt.Errorf("%d relays are configured, the limit is %d", len(urls), MaxRelays)
	}
	for _, u := range urls {
		if !nostr.IsValidRelayURL(u) {
			return nil, fmt.Errorf("%.100q is no address of a relay (want ws:// or wss://)", u)
		}
	}
	if cfg.Dial == nil {
		cfg.Dial = Dial
	}
	p := &Pool{cfg: cfg, seen: newRecent(seenIDs), subs: map[string]*Subscription{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, u := range urls {
		l := p.newLink(u, cfg.Publishes == nil || cfg.Publishes(u), cfg.Subscribes == nil || cfg.Subscribes(u))
		p.relays = append(p.relays, l)
		p.running.Go(func() { l.run(p.ctx) })
	}
	return p, nil
}

func (p *Pool) newLink(url string, publishes, subscribes bool) *link {
	return &link{
		pool: p, url: url, shown: shown(url), publishes: publishes, subscribes: subscribes,
		status: Status{URL: url, State: Connecting}, waiting: map[string]chan nip01.FromRelay{}, pages: map[string]*page{},
	}
}

// shown returns an address without user, query and fragment, which may have a password or a token.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// Guests sets the guests of the pool: relays that another box has named. The pool connects to the new
// ones and disconnects from guests that are not in urls. It takes at most MaxGuests.
//
// A silent or lying guest must not harm the other relays. If the pool has an own relay that gets
// events, each guest gets only a copy, and its answer does not count.
func (p *Pool) Guests(urls []string, publishes, subscribes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	wanted := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(urls))), func(u string) bool {
		return !nostr.IsValidRelayURL(u) || slices.ContainsFunc(p.relays, func(l *link) bool { return l.url == u })
	})
	wanted = wanted[:min(len(wanted), MaxGuests)]
	var guests []*link
	for _, l := range p.guests {
		if slices.Contains(wanted, l.url) && l.publishes == publishes && l.subscribes == subscribes {
			guests = append(guests, l)
		} else {
			l.leave()
		}
	}
	for _, u := range wanted {
		if slices.ContainsFunc(guests, func(l *link) bool { return l.url == u }) {
			continue
		}
		l := p.newLink(u, publishes, subscribes)
		l.status.Guest = true
		ctx, leave := context.WithCancel(p.ctx)
		l.leave = leave
		guests = append(guests, l)
		p.running.Go(func() { l.run(ctx) })
	}
	slices.SortFunc(guests, func(a, b *link) int { return strings.Compare(a.url, b.url) })
	p.guests = guests
}

// links returns all relays, the guests last.
func (p *Pool) links() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.relays, p.guests)
}

// spawn runs f on a new goroutine unless the pool is closed. Close waits for f.
func (p *Pool) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Go(f)
	return true
}

// Close ends all connections and subscriptions.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		s.end(ErrClosed)
	}
	p.subs = nil
}

// Reconnect closes all connections. The pool dials them again after the usual pause. Call it when the
// signer has a new key: a connection stays logged in with the old one.
func (p *Pool) Reconnect() {
	for _, l := range p.links() {
		l.mu.Lock()
		conn := l.conn
		l.mu.Unlock()
		if conn != nil {
			_ = conn.Close() // the reader reports the reason and dials again
		}
	}
}

// State of a relay.
type State string

// States of a relay.
const (
	Connecting State = "connecting"
	Connected  State = "connected"
	Waiting    State = "waiting" // for the next attempt to connect
)

// Status is the state of one relay at one moment.
type Status struct {
	URL       string        `json:"url"`
	Guest     bool          `json:"guest,omitempty"`
	State     State         `json:"state"`
	Since     time.Time     `json:"since"`
	LoggedIn  bool          `json:"logged_in"`
	Connect   time.Duration `json:"-"`          // how long the last handshake took
	LatencyMS float64       `json:"latency_ms"` // the same, in milliseconds
	LastEvent time.Time     `json:"last_event,omitzero"`
	Events    uint64        `json:"events"`
	Published uint64        `json:"published"`
	Refused   uint64        `json:"refused"` // messages that an honest relay would not send
	Retries   int           `json:"retries"`
	Error     string        `json:"error,omitempty"`
	Document  Document      `json:"document,omitzero"` // the relay's description of itself
}

// Status returns the state of all relays, sorted by address, the guests last.
func (p *Pool) Status() []Status {
	links := p.links()
	out := make([]Status, len(links))
	for i, l := range links {
		out[i] = l.snapshot()
	}
	return out
}

// Result is the answer of one relay to an event.
type Result struct {
	URL      string `json:"url"` // without user and query
	Guest    bool   `json:"guest,omitempty"`
	Accepted bool   `json:"accepted"`
	// Reason is the relay's text on one line, or why there is no answer.
	Reason string `json:"reason,omitempty"`
	// Answered tells whether the relay itself has answered.
	Answered bool `json:"-"`
}

// ErrNoRelay means that no relay is connected.
var ErrNoRelay = errors.New("no relay is connected")

// Publish sends a signed event to all connected relays that get events. It returns when each relay
// has answered or its time is over; after one relay has accepted the event, the others have
// slowLimit. Guests get a copy, and Publish does not wait for them, unless the pool has no own relay
// that gets events. The error is ErrNoRelay or nil. Verdict tells whether the event is published.
func (p *Pool) Publish(ctx context.Context, e *nostr.Event) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	counted, copies := p.publishers()
	counted = slices.DeleteFunc(counted, func(l *link) bool { return !l.connected() })
	if len(counted) == 0 {
		return nil, ErrNoRelay
	}
	event := *e // a copy, because a goroutine may use it after Publish has returned
	for _, l := range copies {
		if l.connected() && l.unanswered() < maxCopies {
			p.send(l, &event, func(Result) {})
		}
	}
	type answer struct {
		from int
		Result
	}
	answers := make(chan answer, len(counted))
	results := make([]Result, len(counted))
	for i, l := range counted {
		results[i] = Result{URL: l.shown, Guest: l.guest(), Reason: "no answer in time"}
		p.send(l, &event, func(r Result) { answers <- answer{i, r} })
	}
	for range counted {
		select {
		case a := <-answers:
			results[a.from] = a.Result
			if a.Accepted {
				limit := time.AfterFunc(slowLimit, cancel)
				defer limit.Stop()
			}
		case <-ctx.Done():
			return results, nil
		}
	}
	return results, nil
}

// publishers returns the relays whose answers count, and those that get only copies.
func (p *Pool) publishers() (counted, copies []*link) {
	for _, l := range p.links() {
		switch {
		case !l.publishes:
		case l.guest():
			copies = append(copies, l)
		default:
			counted = append(counted, l)
		}
	}
	if len(counted) == 0 {
		return copies, nil
	}
	return counted, copies
}

// send publishes to one relay on a new goroutine, independent of the caller's context, and calls
// answered with the result.
func (p *Pool) send(l *link, e *nostr.Event, answered func(Result)) {
	asked := p.spawn(func() {
		ctx, cancel := context.WithTimeout(p.ctx, answerLimit)
		defer cancel()
		answered(l.publish(ctx, e))
	})
	if !asked {
		answered(Result{URL: l.shown, Guest: l.guest(), Reason: "the box leaves the mesh"})
	}
}

// Verdict tells whether a relay has the event, or else whether every relay has refused it
// permanently. The refusal of a guest never counts as permanent, because the guest leaves with its
// session.
func Verdict(results []Result) (published, refused bool) {
	refused = len(results) > 0
	for _, r := range results {
		if r.Accepted || strings.HasPrefix(r.Reason, "duplicate:") {
			return true, false
		}
		refused = refused && !r.Guest && terminal(r.Reason)
	}
	return false, refused
}

// Reasons is what the relays say, on one line.
func Reasons(results []Result) string {
	var out []string
	for _, r := range results {
		out = append(out, fmt.Sprintf("%s: %.200s", r.URL, r.Reason))
	}
	return strings.Join(out, "; ")
}

// terminal tells whether a relay's reason is permanent.
func terminal(reason string) bool {
	return slices.ContainsFunc([]string{"invalid:", "blocked:", "payload-too-large", "kind-not-allowed"}, func(prefix string) bool {
		return strings.HasPrefix(reason, prefix)
	})
}

// Subscription yields the events of all relays, each event once, in no particular order.
type Subscription struct {
	pool    *Pool
	id      string
	filters []nip01.Filter
	events  chan Event
	waiting atomic.Int64 // bytes in events
	most    int64        // for waiting; 0: the pool waits for the reader
	done    chan struct{}
	once    sync.Once
	err     error // why it has ended; written before done is closed
}

// Event is a verified event from a relay.
type Event struct {
	*nostr.Event
	Relay string // the address without user and query
}

// size is about how many bytes the event takes.
func (e Event) size() int64 {
	n := 500 + len(e.Content) // 500: ids, the signature, and what holds them
	for _, tag := range e.Tags {
		for _, text := range tag {
			n += 16 + len(text)
		}
	}
	return int64(n)
}

// Subscribe asks all relays for events, also those that connect later: after each connection, also for events
// older than those that a relay gives at once. buffer is how many events wait
// for the reader. If the buffer is full, the pool stops reading from the relays.
func (p *Pool) Subscribe(filters []nip01.Filter, buffer int) (*Subscription, error) {
	return p.subscribe(&Subscription{filters: filters, events: make(chan Event, buffer)})
}

// maxWatched bounds the events that wait for the reader of a Watch, beside their bytes.
const maxWatched = 4096

// Watch is Subscribe for a reader that may be slow on purpose: the pool never waits for it. If events
// of more bytes than most wait for the reader, the subscription ends with ErrBehind, and must still be
// closed. One event alone may have any size.
func (p *Pool) Watch(filters []nip01.Filter, most int64) (*Subscription, error) {
	return p.subscribe(&Subscription{filters: filters, events: make(chan Event, maxWatched), most: most})
}

func (p *Pool) subscribe(s *Subscription) (*Subscription, error) {
	p.mu.Lock()
	if p.subs == nil || len(p.subs) >= maxSubscriptions {
		p.mu.Unlock()
		return nil, fmt.Errorf("there are %d subscriptions already, or the pool is closed", maxSubscriptions)
	}
	p.next++
	s.pool, s.id, s.done = p, fmt.Sprintf("box%d", p.next), make(chan struct{})
	p.subs[s.id] = s
	p.mu.Unlock()
	for _, l := range p.links() {
		l.request(s)
	}
	return s, nil
}

// offer gives the reader an event, and waits for a reader of Subscribe. It tells whether the reader of a
// Watch is too slow.
func (s *Subscription) offer(ctx context.Context, e Event) (behind bool) {
	size := e.size()
	waiting := s.waiting.Add(size)
	if s.most == 0 {
		select {
		case s.events <- e:
		case <-s.done:
		case <-ctx.Done():
		}
		return false
	}
	if waiting > size && waiting > s.most {
		return true
	}
	select {
	case s.events <- e:
		return false
	default:
		return true
	}
}

// Next waits for the next event. Its error is that of ctx, ErrClosed or ErrBehind.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	select {
	case e := <-s.events:
		s.waiting.Add(-e.size())
		return e, nil
	case <-s.done:
		return Event{}, s.err
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

// Errors of Next.
var (
	ErrClosed = errors.New("the subscription is closed")
	ErrBehind = errors.New("the reader of the subscription is too slow")
)

// Close ends the subscription at all relays.
func (s *Subscription) Close() {
	s.pool.mu.Lock()
	delete(s.pool.subs, s.id)
	s.pool.mu.Unlock()
	s.end(ErrClosed)
	for _, l := range s.pool.links() {
		l.unsubscribe(s)
	}
}

func (s *Subscription) end(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.done)
	})
}

func (p *Pool) subscription(id string) *Subscription {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.subs[id]
}

func (p *Pool) subscriptions() []*Subscription {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.subs))
}

// backoff returns the pause after n failed attempts in a row, n from 1. It doubles from 1 s to 60 s.
// spread (0 to 1) changes it by up to 20 % in both directions.
func backoff(n int, spread float64) time.Duration {
	d := min(backoffFirst<<min(n-1, 6), backoffMost)
	return time.Duration(float64(d) * (0.8 + 0.4*spread))
}

// recent remembers the last ids, in a ring.
type recent struct {
	mu   sync.Mutex
	ids  map[string]struct{}
	ring []string
	at   int
}

func newRecent(n int) *recent {
	return &recent{ids: make(map[string]struct{}, n), ring: make([]string, n)}
}

// add remembers an id and tells whether it is new.
func (r *recent) add(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.ids[id]; there {
		return false
	}
	delete(r.ids, r.ring[r.at])
	r.ring[r.at] = id
	r.ids[id] = struct{}{}
	r.at = (r.at + 1) % len(r.ring)
	return true
}

// Dial connects to a relay over the network. It does not follow redirects. The error does not contain
// the address, which may have a password or a token.
func Dial(ctx context.Context, url string) (Conn, error) {
	c, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: client()})
	if err != nil {
		err = outbound.WithoutURL(err)
		if resp != nil {
			err = fmt.Errorf("answered %s", resp.Status)
		}
		return nil, errors.New(escape.Line(err.Error(), maxReason)) // the relay can write parts of it
	}
	c.SetReadLimit(maxMessage)
	return socket{c}, nil
}

type socket struct{ *websocket.Conn }

func (s socket) Read(ctx context.Context) ([]byte, error) {
	kind, raw, err := s.Conn.Read(ctx)
	if err == nil && kind != websocket.MessageText {
		err = errors.New("the relay sends binary messages")
	}
	return raw, err
}

func (s socket) Write(ctx context.Context, raw []byte) error {
	return s.Conn.Write(ctx, websocket.MessageText, raw)
}

func (s socket) Close() error { return s.CloseNow() }
