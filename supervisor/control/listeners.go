package control

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

const (
	// maxListeners is how many event listeners of programs without control = true there are at once, and
	// as many of those with it.
	maxListeners = 16
	// maxPools is how many pools the listeners of one program have, those without a listener included.
	maxPools = 8
	// maxRecent is how many events are held for a listener that connects some time after its start.
	maxRecent = 64

	// A rejected event is sent again after this time, and each further time after twice as long. Without a
	// wait, a listener that rejects everything would keep a processor busy.
	firstPause = 10 * time.Millisecond
	maxPause   = time.Second
)

// listenPlace is the place of a listener.
func listenPlace(s *Server, peer Peer) (leave func(), err error) {
	leave, ok := s.listenGuests.take(peer, s.mayControl)
	if !ok {
		return nil, api.Errorf(api.CodeBusy, "supervised programs have %d event listeners already; try again when one has ended", maxListeners)
	}
	return leave, nil
}

// listenEvents serves an event listener of supervisord.
func listenEvents(s *Server, r *http.Request) (func(io.ReadWriteCloser) error, error) {
	q, err := decodeListen(r.URL.Query())
	if err != nil {
		return nil, err
	}
	peer := peerOf(r.Context())
	id := poolID{name: q.Pool}
	if peer.Program != nobodysProgram {
		id.group, _, _ = strings.Cut(peer.Program, ":")
	}
	id.name = cmp.Or(id.name, id.group, "listener")
	if id.group == "" {
		id.alone = new(byte)
	}
	// The peer may count on every event after the answer.
	from := origin{peer.Program, s.cfg.Events.Seq()}
	return func(conn io.ReadWriteCloser) error { return s.listeners.serve(r.Context(), conn, id, from, q) }, nil
}

// origin is where the events of a new pool begin: with the latest start of its program, or after an event.
type origin struct {
	program string
	after   uint64
}

// pastEvent is an event of supervisord, with the number of the event that it was made of.
type pastEvent struct {
	supervisord.Event
	seq uint64
}

// listeners are the event listeners of supervisord. The first one starts the goroutine that makes
// supervisord's events of agentinit's.
type listeners struct {
	s *Server

	mu     sync.Mutex
	base   context.Context         // of the server; nil until there is a listener
	events *supervisord.Translator // nil until there is a listener
	recent []pastEvent
	pools  map[poolID]*pool
	ticks  *time.Timer // nil: no pool wants events of time
	behind event.Throttle
}

// poolID tells pools apart. Listeners of one group of instances that name the same pool share it, and each
// event goes to one of them. The pool of a group stays while none of its listeners is connected. So a
// program gets no event that is meant for another one.
type poolID struct {
	group, name string
	alone       *byte // not nil for a listener that belongs to no program: it shares its pool with none
}

// pool is a pool and its listeners. listeners.mu guards it.
type pool struct {
	*supervisord.Pool
	id      poolID
	buffer  int
	members map[*member]bool
	ready   []*member   // in the order in which they became ready
	pause   *time.Timer // not nil: no event is sent before it fires
	dropped uint64
	full    bool // it has dropped an event since it was last empty
}

// member is one listener.
type member struct {
	supervisord.Listener
	out     chan []byte // never has to wait: the writer is idle when an event is sent
	writing bool        // the event is not written yet, because the listener does not read
	flight  *supervisord.Notice
}

// serve serves one listener until it ends, violates the protocol or ctx ends.
func (ls *listeners) serve(ctx context.Context, conn io.ReadWriteCloser, id poolID, from origin, q api.ListenQuery) error {
	defer conn.Close()
	m := &member{out: make(chan []byte, 1)}
	p, err := ls.join(ctx, m, id, from, q)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer conn.Close() // it ends a write that waits for the listener
	defer ls.leave(p, m)
	writing.Go(func() {
		for text := range m.out {
			if _, err := conn.Write(text); err != nil {
				conn.Close()
			}
			ls.wrote(p, m)
		}
	})
	data := make([]byte, 512)
	for {
		n, err := conn.Read(data)
		if violation := ls.heard(p, m, data[:n]); violation != nil {
			return fmt.Errorf("the event listener violated the protocol: %w; its standard output is only for READY and RESULT", violation)
		}
		if err != nil {
			return nil // the listener, or the server, has ended
		}
	}
}

// join adds a listener to its pool, and makes the pool if there is none.
func (ls *listeners) join(ctx context.Context, m *member, id poolID, from origin, q api.ListenQuery) (*pool, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.events == nil {
		ls.begin(ctx.Value(baseKey{}).(context.Context))
	}
	p := ls.pools[id]
	isNew := p == nil
	if isNew {
		if !ls.roomFor(id) {
			return nil, api.Errorf(api.CodeBusy, "the event listeners of %s have %d pools already", id.group, maxPools)
		}
		p = &pool{Pool: supervisord.NewPool(id.name), id: id, members: map[*member]bool{}}
		ls.pools[id] = p
	}
	p.Subscribe(q.Events, q.Buffer)
	p.buffer = q.Buffer
	p.members[m] = true
	if isNew {
		for _, e := range ls.since(from) {
			ls.offer(p, e.Event)
		}
	}
	if ls.ticks == nil {
		ls.events.Ticks(time.Now()) // what has begun while nobody listened
		ls.awaitTick()
	}
	return p, nil
}

// begin goes through the events that are held, and then follows the new ones until the server ends.
func (ls *listeners) begin(base context.Context) {
	ls.base, ls.pools = base, map[poolID]*pool{}
	ls.events = supervisord.NewTranslator(ls.programs(), time.Now())
	w := ls.s.cfg.Events.Watch(0)
	for e, ok := w.TryNext(); ok; e, ok = w.TryNext() {
		ls.spread(e.Seq, ls.events.Translate(e))
	}
	ls.s.upgraded.Go(func() {
		for {
			e, err := w.Next(base)
			if err != nil {
				return
			}
			ls.take(e)
		}
	})
}

// programs are the names of the box's programs.
func (ls *listeners) programs() (names []string) {
	for _, p := range ls.s.cfg.Supervisor.Snapshot().Programs {
		names = append(names, p.Name)
	}
	return names
}

func (ls *listeners) take(e event.Event) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.spread(e.Seq, ls.events.Translate(e))
	switch e.Name {
	case event.ProgramsApplied, event.ProgramRemoved, event.ProgramRenamed, event.Lagged:
		ls.spread(e.Seq, ls.events.Programs(ls.programs()))
		maps.DeleteFunc(ls.pools, func(_ poolID, p *pool) bool { return ls.forgotten(p) })
	}
}

// forgotten tells whether no listener will come back to a pool.
func (ls *listeners) forgotten(p *pool) bool {
	return len(p.members) == 0 && !ls.events.Has(p.id.group)
}

// roomFor tells whether there may be another pool, perhaps in place of one without a listener.
func (ls *listeners) roomFor(id poolID) bool {
	if id.group == "" {
		return true // the connections are bounded
	}
	pools := 0
	var spare *pool
	for other, p := range ls.pools {
		if other.group != id.group {
			continue
		}
		pools++
		if len(p.members) == 0 {
			spare = p
		}
	}
	if pools < maxPools {
		return true
	}
	if spare != nil {
		delete(ls.pools, spare.id)
	}
	return spare != nil
}

// spread offers events to all pools. seq is the number of the event that they were made of.
func (ls *listeners) spread(seq uint64, events []supervisord.Event) {
	for _, e := range events {
		ls.recent = append(ls.recent, pastEvent{e, seq})
		for _, p := range ls.pools {
			ls.offer(p, e)
		}
	}
	ls.recent = slices.Delete(ls.recent, 0, max(0, len(ls.recent)-maxRecent))
}

// since returns the events from the latest start of the program on: a listener does not miss what happens
// while it starts. Without a start it returns those after the given one.
func (ls *listeners) since(from origin) []pastEvent {
	for i, e := range slices.Backward(ls.recent) {
		if from.program != "" && e.Starts(from.program) {
			return ls.recent[i:]
		}
	}
	for i, e := range ls.recent {
		if e.seq > from.after {
			return ls.recent[i:]
		}
	}
	return nil
}

func (ls *listeners) offer(p *pool, e supervisord.Event) {
	ls.note(p, p.Offer(e))
	ls.send(p)
}

// note counts an event that was dropped, and tells it for the first one since the pool was last empty.
func (ls *listeners) note(p *pool, dropped bool) {
	if !dropped {
		return
	}
	p.dropped++
	if p.full {
		return
	}
	p.full = true
	if n, ok := ls.behind.Pass(time.Now()); ok {
		ls.s.publish(event.Warn, EventListenerBehind, map[string]any{
			"pool": p.id.name, "listener": p.id.group, "buffer": p.buffer, "dropped": p.dropped, "suppressed": n,
		})
	}
}

// send sends events to the listeners that are ready.
func (ls *listeners) send(p *pool) {
	for len(p.ready) > 0 && p.pause == nil {
		n, ok := p.Take()
		if !ok {
			break
		}
		m := p.ready[0]
		p.ready = p.ready[1:]
		m.Sent()
		m.flight, m.writing = &n, true
		m.out <- p.Message(n)
	}
	p.full = p.full && !p.Empty()
}

// heard takes what a listener has written.
func (ls *listeners) heard(p *pool, m *member, data []byte) (violation error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	verdict, violation := m.Feed(data)
	switch verdict {
	case supervisord.Processed:
		m.flight = nil
	case supervisord.Rejected:
		n := *m.flight
		m.flight = nil
		n.Rejections++
		ls.note(p, p.Return(n))
		if p.pause == nil {
			p.pause = time.AfterFunc(min(firstPause<<min(n.Rejections-1, 10), maxPause), func() { ls.resume(p) })
		}
	}
	if violation == nil && len(data) > 0 {
		ls.await(p, m)
	}
	return violation
}

// wrote tells that the event is written.
func (ls *listeners) wrote(p *pool, m *member) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	m.writing = false
	ls.await(p, m)
}

// await lets a listener wait for an event, if it is ready and has taken the one before. Only what it writes,
// or reads, makes it so.
func (ls *listeners) await(p *pool, m *member) {
	if p.members[m] && m.Ready() && !m.writing {
		p.ready = append(p.ready, m)
		ls.send(p)
	}
}

// resume ends the pause after an event was rejected.
func (ls *listeners) resume(p *pool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.pause = nil
	ls.send(p)
}

// leave removes a listener. The event that it has not processed waits for another one, or for its next run.
func (ls *listeners) leave(p *pool, m *member) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	close(m.out)
	delete(p.members, m)
	p.ready = slices.DeleteFunc(p.ready, func(other *member) bool { return other == m })
	if m.flight != nil {
		ls.note(p, p.Return(*m.flight))
		ls.send(p)
	}
	if ls.pools[p.id] == p && ls.forgotten(p) {
		delete(ls.pools, p.id)
	}
}

// awaitTick sets the timer for the events of time, if a pool wants one.
func (ls *listeners) awaitTick() {
	ls.ticks = nil
	for _, p := range ls.pools {
		if p.WantsTicks() && ls.base.Err() == nil {
			ls.ticks = time.AfterFunc(supervisord.NextTick(time.Now()), ls.tick)
			return
		}
	}
}

func (ls *listeners) tick() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, e := range ls.events.Ticks(time.Now()) {
		for _, p := range ls.pools {
			ls.offer(p, e)
		}
	}
	ls.awaitTick()
}
