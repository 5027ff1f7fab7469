package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/internal/rate"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Limits of a session.
const (
	maxSubscriptions = 32
	maxLimit         = 500  // stored events for one filter
	maxHeld          = 1024 // live events that are held while stored ones are sent
	authWait         = 30 * time.Second
	pingEvery        = 60 * time.Second
	pingWait         = 10 * time.Second
	sendLimit        = 10 * time.Second
	queryLimit       = 5 * time.Second
	receiveLimit     = 30 * time.Second // from the beginning of a message to its end
	maxRefusals      = 100              // messages over the rate limit, in a row
	messageOverhead  = 4096
	maxFilterBytes   = 256 << 10 // the filters of all subscriptions
	maxStored        = 2000      // stored events for all filters of one REQ
	pageBytes        = 128 << 10 // stored events that are read at once
)

// session is one connection. One goroutine runs handle; other goroutines call live.
type session struct {
	relay  *Relay
	number uint64 // increases with each new session
	ousted bool   // another session has its place; guarded by the relay's lock
	conn   *websocket.Conn
	ctx    context.Context // ends with the session
	stop   context.CancelFunc
	local  string // the local address of the connection
	out    *outbound
	ending sync.Once
	tasks  sync.WaitGroup

	rate    rate.Bucket
	refused int

	mu        sync.Mutex
	key       string // public key that the client has proved with AUTH
	challenge Challenge
	over      bool // giveBack was called
	subs      map[string]*subscription
}

// subscription is one REQ. Live events are held while the stored ones are sent, so that no live event
// is lost and none comes before EOSE.
type subscription struct {
	filters []nip01.Filter
	holding bool
	held    []heldEvent
	// heldBytes is the memory of the held events, filterCharge what is taken of the relay's memory for
	// the filters.
	heldBytes, filterCharge int
}

type heldEvent struct {
	event  *nostr.Event
	body   []byte // its JSON
	charge int    // what is taken of the relay's memory for it
}

// Reasons to end a session.
var (
	errSlow   = errors.New("the client reads too slowly")
	errNoAuth = errors.New("no AUTH in time")
)

// run serves the connection until it ends.
func (s *session) run() {
	ctx := s.ctx
	defer s.giveBack()
	defer s.tasks.Wait()
	defer s.stop()
	s.tasks.Go(func() { s.send(ctx) })
	s.tasks.Go(func() { s.ping(ctx) })
	if s.relay.policy().AuthWanted() {
		timer := time.AfterFunc(authWait, func() {
			if s.shown() == "" {
				s.end(errNoAuth)
			}
		})
		defer timer.Stop()
	}
	s.issue()
	for {
		kind, raw, charge, err := s.receive(ctx)
		freeRaw := sync.OnceFunc(func() { s.relay.inbound.put(charge) })
		if err == nil && kind == websocket.MessageText {
			err = s.handle(ctx, raw, freeRaw)
		} else if err == nil {
			s.end(errors.New("binary messages are not of NIP-01"))
		}
		freeRaw()
		if err != nil {
			break
		}
	}
	_ = s.conn.CloseNow() // the client has disconnected, or the relay closes
}

// receive reads a message. charge is what it has taken of the relay's memory, also with an error.
func (s *session) receive(ctx context.Context) (kind websocket.MessageType, raw []byte, charge int, err error) {
	kind, r, err := s.conn.Reader(ctx)
	if err != nil {
		return kind, nil, 0, err
	}
	late := time.AfterFunc(receiveLimit, func() { s.end(errSlow) })
	defer late.Stop()
	policy := s.relay.policy()
	free := policy.own(s.shown())
	raw = make([]byte, 0, 512)
	for {
		if len(raw) == cap(raw) {
			// The limit of the connection ends the message below the largest size.
			size := max(min(4*cap(raw), policy.MaxEventBytes+messageOverhead+512), cap(raw)+512)
			if !free && size > smallMessage {
				if !s.relay.inbound.take(size - charge) {
					s.relay.inbound.put(charge)
					s.refuse(errBusy)
					return kind, nil, 0, errBusy
				}
				charge = size
			}
			raw = append(make([]byte, 0, size), raw...)
		}
		n, err := r.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		if errors.Is(err, io.EOF) {
			return kind, raw, charge, nil
		}
		if err != nil {
			return kind, nil, charge, err
		}
	}
}

// giveBack returns the session's part of the relay's memory. All its goroutines have ended, but live
// may still be called.
func (s *session) giveBack() {
	s.out.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.subs {
		s.drop(id)
	}
	s.over = true
}

// drop removes a subscription. The caller holds mu.
func (s *session) drop(id string) {
	if sub := s.subs[id]; sub != nil {
		s.relay.filters.put(sub.filterCharge)
		for _, h := range sub.held {
			s.relay.outbound.put(h.charge)
		}
		sub.filterCharge, sub.held = 0, nil
		delete(s.subs, id)
	}
}

// isOwn tells whether the session has proved a key of the box or its operator.
func (s *session) isOwn() bool { return s.relay.policy().own(s.shown()) }

// refuse closes the connection because the relay has no room for its message. That may take seconds,
// because Close waits for the client. No call of end waits for it: live, which calls end, runs in the
// goroutine of another session.
func (s *session) refuse(why error) {
	first := false
	s.ending.Do(func() { first = true })
	if first {
		_ = s.conn.Close(websocket.StatusTryAgainLater, why.Error()) // the client may have disconnected
	}
}

// end closes the connection and sends the client the reason. Then Read returns.
func (s *session) end(why error) {
	s.ending.Do(func() {
		go func() {
			_ = s.conn.Close(websocket.StatusPolicyViolation, why.Error()) // the client may have disconnected
			s.stop()                                                       // handle may be waiting for memory
		}()
	})
}

func (s *session) send(ctx context.Context) {
	for {
		message, err := s.out.next(ctx)
		if err != nil {
			return
		}
		limited, cancel := context.WithTimeout(ctx, sendLimit)
		err = s.conn.Write(limited, websocket.MessageText, message)
		cancel()
		if err != nil {
			s.end(errSlow)
			return
		}
	}
}

func (s *session) ping(ctx context.Context) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, pingWait)
		err := s.conn.Ping(limited)
		cancel()
		if err != nil {
			s.end(errSlow)
			return
		}
	}
}

func (s *session) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key
}

// issue sends a new challenge.
func (s *session) issue() {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	s.mu.Lock()
	s.challenge = Challenge{Text: hex.EncodeToString(raw[:]), Issued: time.Now()}
	text := s.challenge.Text
	s.mu.Unlock()
	s.say(nip01.VerbAuth, text)
}

// say sends a short answer. If the client does not read its answers, the connection is closed.
func (s *session) say(parts ...any) {
	if !s.out.offer(item{head: nip01.Message(parts...)}, s.isOwn()) {
		s.end(errSlow)
	}
}

// handle returns an error if the session ends meanwhile. handle may call freeRaw as soon as it no longer
// needs raw.
func (s *session) handle(ctx context.Context, raw []byte, freeRaw func()) error {
	policy := s.relay.policy()
	own, done := policy.own(s.shown()), func() {}
	if !own {
		var err error
		if done, err = s.relay.turn(ctx, len(raw)); err != nil {
			return err
		}
	}
	defer done()
	now := time.Now()
	m, err := nip01.ParseFromClient(raw)
	if !own {
		if _, ok := s.rate.Take(now); !ok {
			s.overRate(m)
			return nil
		}
	}
	s.refused = 0
	switch {
	case err != nil && m.Verb == nip01.VerbReq && m.Subscription != "":
		s.say(nip01.VerbClosed, m.Subscription, "invalid: "+err.Error())
	case err != nil:
		s.say(nip01.VerbNotice, "invalid: "+err.Error())
	case m.Verb == nip01.VerbEvent:
		s.event(ctx, policy, m.Event, now)
	case m.Verb == nip01.VerbAuth:
		s.authenticate(policy, m.Event, now)
	case m.Verb == nip01.VerbReq:
		// A client that reads slowly must not hold up others. subscribe charges the filters.
		done()
		freeRaw()
		s.request(ctx, policy, m)
	case m.Verb == nip01.VerbClose:
		s.mu.Lock()
		s.drop(m.Subscription)
		s.mu.Unlock()
	}
	return nil
}

func (s *session) overRate(m nip01.FromClient) {
	const why = "rate-limited: slow down"
	if s.refused++; s.refused > maxRefusals {
		s.end(errors.New("far too many messages"))
		return
	}
	switch {
	case m.Verb == nip01.VerbEvent || m.Verb == nip01.VerbAuth:
		s.answer(nip01.ClaimedID(m.Event), refuse("rate-limited", "slow down"))
	case m.Verb == nip01.VerbReq && m.Subscription != "":
		s.say(nip01.VerbClosed, m.Subscription, why)
	case m.Verb != nip01.VerbClose:
		s.say(nip01.VerbNotice, why)
	}
}

// answer sends OK, or a NOTICE if there is no id to name.
func (s *session) answer(id string, refusal *Refusal) {
	switch {
	case refusal == nil:
		s.say(nip01.VerbOK, id, true, "")
	case id == "":
		s.say(nip01.VerbNotice, refusal.Error())
	default:
		s.say(nip01.VerbOK, id, false, refusal.Error())
		if refusal.Prefix == "auth-required" {
			s.renew()
		}
	}
}

// renew sends a new challenge if the client has shown no key and its challenge is too old.
func (s *session) renew() {
	s.mu.Lock()
	stale := s.key == "" && !s.challenge.Fresh(time.Now())
	s.mu.Unlock()
	if stale {
		s.issue()
	}
}

func (s *session) event(ctx context.Context, policy Policy, raw []byte, now time.Time) {
	e, err := nip01.ParseEvent(raw)
	if err != nil {
		s.relay.metrics.event("in", -1, "invalid")
		s.answer(nip01.ClaimedID(raw), refuse("invalid", "%s", err))
		return
	}
	outcome, refusal := s.take(ctx, policy, e, len(raw), now)
	if refusal != nil {
		s.relay.metrics.event("in", e.Kind, refusal.Prefix)
		s.answer(e.ID, refusal)
		return
	}
	switch outcome {
	case Duplicate:
		s.relay.metrics.event("in", e.Kind, "duplicate")
		s.say(nip01.VerbOK, e.ID, true, "duplicate: already have this event")
	case Superseded:
		s.relay.metrics.event("in", e.Kind, "duplicate")
		s.say(nip01.VerbOK, e.ID, true, "duplicate: have a newer event in its place")
	default:
		s.relay.metrics.event("in", e.Kind, "accepted")
		// Broadcast before the answer: a client that asks for stored events after the answer must not
		// get this event a second time, as a live one.
		s.relay.broadcast(e)
		s.answer(e.ID, nil)
	}
}

// take checks, verifies and stores an event. The cheap checks come first.
func (s *session) take(ctx context.Context, policy Policy, e *nostr.Event, size int, now time.Time) (Outcome, *Refusal) {
	key := s.shown()
	if refusal := policy.Writer(key); refusal != nil {
		return 0, refusal
	}
	if refusal := policy.Event(key, e, size, now); refusal != nil {
		return 0, refusal
	}
	if err := nip01.Verify(e); err != nil {
		s.relay.metrics.badSignature()
		return 0, refuse("invalid", "%s", err)
	}
	if e.IsEphemeral() {
		return Stored, nil // an ephemeral event is broadcast but not stored
	}
	outcome, evicted, err := s.relay.store.add(ctx, e, policy.rank(key, e), now)
	if err != nil {
		s.relay.report("EventNotStored", err)
		return 0, refuse("error", "the event could not be stored")
	}
	if evicted > 0 || outcome == Full {
		s.relay.full(evicted)
	}
	if outcome == Full {
		return 0, refuse("error", "the relay is full")
	}
	return outcome, nil
}

func (s *session) authenticate(policy Policy, raw []byte, now time.Time) {
	e, err := nip01.ParseEvent(raw)
	if err != nil {
		s.relay.metrics.authFailed("malformed")
		s.answer(nip01.ClaimedID(raw), refuse("invalid", "%s", err))
		return
	}
	s.mu.Lock()
	challenge := s.challenge
	s.mu.Unlock()
	refusal := policy.Auth(e, challenge, s.local, now)
	reason := "rejected"
	if refusal == nil {
		if err := nip01.Verify(e); err != nil {
			refusal, reason = refuse("invalid", "%s", err), "signature"
		}
	}
	if refusal != nil {
		s.relay.metrics.authFailed(reason)
		s.answer(e.ID, refusal)
		s.renew()
		return
	}
	if !s.relay.moved(s, policy.standing(e.PubKey)) {
		s.relay.metrics.authFailed("full")
		s.answer(e.ID, refuse("rate-limited", "the relay has too many sessions of keys that it does not list"))
		return
	}
	s.mu.Lock()
	s.key, s.challenge = e.PubKey, Challenge{}
	s.mu.Unlock()
	s.answer(e.ID, nil)
}

func (s *session) request(ctx context.Context, policy Policy, m nip01.FromClient) {
	key := s.shown()
	if refusal := policy.Request(key, m.Filters); refusal != nil {
		s.say(nip01.VerbClosed, m.Subscription, refusal.Error())
		s.renew()
		return
	}
	sub := &subscription{filters: m.Filters, holding: true}
	if refusal := s.subscribe(policy, m.Subscription, sub); refusal != nil {
		s.say(nip01.VerbClosed, m.Subscription, refusal.Error())
		return
	}
	sent, err := s.stored(ctx, policy, key, m)
	if err != nil {
		s.mu.Lock()
		s.drop(m.Subscription)
		s.mu.Unlock()
		if !errors.Is(err, errEnded) && ctx.Err() == nil {
			s.relay.report("QueryFailed", err)
			s.say(nip01.VerbClosed, m.Subscription, "error: the stored events could not be read")
		}
		return
	}
	// EOSE needs no memory of the shared budget, so that a full budget does not end the session here.
	if s.out.wait(ctx, item{head: nip01.Message(nip01.VerbEOSE, m.Subscription)}) != nil {
		return // the session has ended
	}
	s.release(m.Subscription, sub, sent)
}

// subscribe adds a subscription, or replaces the one of that id.
func (s *session) subscribe(policy Policy, id string, sub *subscription) *Refusal {
	size := filterWeight(sub.filters)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id)
	if len(s.subs) >= maxSubscriptions {
		return refuse("error", "a session has at most %d subscriptions", maxSubscriptions)
	}
	if !policy.own(s.key) {
		all := size
		for _, other := range s.subs {
			all += other.filterCharge
		}
		switch {
		case all > maxFilterBytes:
			return refuse("error", "the filters of a session have at most %d bytes; close a subscription", maxFilterBytes)
		case !s.relay.filters.take(size):
			return refuse("error", "the relay has no memory left for subscriptions")
		}
		sub.filterCharge = size
	}
	s.subs[id] = sub
	return nil
}

// eventID is the first half of an event's id.
type eventID [16]byte

func idOf(e *nostr.Event) (id eventID) {
	_, _ = hex.Decode(id[:], []byte(e.ID[:2*len(id)])) // ParseEvent has checked the digits
	return id
}

// stored sends the stored events and returns their ids.
func (s *session) stored(ctx context.Context, policy Policy, key string, m nip01.FromClient) (map[eventID]bool, error) {
	sent, own := map[eventID]bool{}, policy.own(key)
	now := time.Now()
	for _, f := range m.Filters {
		limit := maxLimit
		if f.Limit != nil {
			limit = min(*f.Limit, maxLimit)
		}
		if !own {
			limit = min(limit, maxStored-len(sent))
		}
		if limit == 0 {
			continue
		}
		var ids []string
		err := s.query(ctx, own, func(ctx context.Context) (err error) {
			ids, err = s.relay.store.find(ctx, f, limit, now)
			return err
		})
		for err == nil && len(ids) > 0 {
			ids, err = s.page(ctx, policy, key, m.Subscription, ids, sent)
		}
		if err != nil {
			return nil, err
		}
	}
	return sent, nil
}

// query runs f, which reads the database.
func (s *session) query(ctx context.Context, own bool, f func(context.Context) error) error {
	if !own {
		done, err := acquire(ctx, s.relay.reading)
		if err != nil {
			return err
		}
		defer done()
	}
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	return f(ctx)
}

// page sends the first of the events and returns the ids of the others. It reads them before it sends
// them: a slow client must not keep the read transaction open.
func (s *session) page(ctx context.Context, policy Policy, key, subscription string, ids []string, sent map[eventID]bool) ([]string, error) {
	own := policy.own(key)
	paid := 0
	if !own {
		paid = pageBytes + policy.MaxEventBytes + messageOverhead // the last event may exceed the page
		if err := s.relay.outbound.await(ctx, paid); err != nil {
			return nil, err
		}
	}
	var found []item
	err := s.query(ctx, own, func(ctx context.Context) (err error) {
		ids, err = s.relay.store.read(ctx, ids, pageBytes, func(e *nostr.Event, raw []byte) {
			id := idOf(e)
			if sent[id] || !policy.Readable(key, e) {
				return
			}
			i := eventItem(subscription, raw)
			i.charge = min(i.size(), paid)
			paid -= i.charge
			found, sent[id] = append(found, i), true
		})
		return err
	})
	s.relay.outbound.put(paid)
	for _, i := range found {
		if err == nil {
			err = s.out.wait(ctx, i)
		}
		if err != nil {
			s.relay.outbound.put(i.charge)
		}
	}
	return ids, err
}

// release sends the held live events and makes the subscription live.
func (s *session) release(id string, sub *subscription, sent map[eventID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(sub.held) > 0 {
		h := sub.held[0]
		sub.held = sub.held[1:]
		if sent[idOf(h.event)] {
			s.relay.outbound.put(h.charge)
			continue
		}
		i := eventItem(id, h.body)
		i.charge = min(i.size(), h.charge)
		s.relay.outbound.put(h.charge - i.charge) // the parsed event is no longer needed
		if !s.out.offer(i, true) {
			s.relay.outbound.put(i.charge)
			s.end(errSlow)
			return
		}
	}
	sub.held, sub.heldBytes, sub.holding = nil, 0, false
}

// live offers an event that was just accepted. text returns its JSON. live never waits.
func (s *session) live(policy Policy, e *nostr.Event, text func() []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || !policy.Readable(s.key, e) {
		return
	}
	own := policy.own(s.key)
	for id, sub := range s.subs {
		if !nip01.MatchesAny(sub.filters, e) {
			continue
		}
		if !sub.holding {
			if !s.out.offer(eventItem(id, text()), own) {
				s.end(errSlow)
				return
			}
			s.relay.metrics.event("out", e.Kind, "sent")
			continue
		}
		size, charge := len(text())+weight(e), 0
		if !own && sub.heldBytes+size > smallQueue {
			charge = size
		}
		if len(sub.held) >= maxHeld || !s.relay.outbound.take(charge) {
			s.end(errSlow)
			return
		}
		sub.held = append(sub.held, heldEvent{e, text(), charge})
		sub.heldBytes += size
	}
}
