package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
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
	maxRefusals      = 100 // messages over the rate limit, in a row
	messageOverhead  = 4096
)

// session is one connection. One goroutine runs handle; other goroutines call live.
type session struct {
	relay  *Relay
	number uint64 // increases with each new session
	ousted bool   // another session has its place; guarded by the relay's lock
	conn   *websocket.Conn
	local  string // the local address of the connection
	out    *outbound
	ending sync.Once
	tasks  sync.WaitGroup

	rate    rate.Bucket
	refused int

	mu        sync.Mutex
	key       string // public key that the client has proved with AUTH
	challenge Challenge
	subs      map[string]*subscription
}

// subscription is one REQ. Live events are held while the stored ones are sent, so that no live event
// is lost and none comes before EOSE.
type subscription struct {
	filters []nip01.Filter
	holding bool
	held    []*nostr.Event
}

// Reasons to end a session.
var (
	errSlow   = errors.New("the client reads too slowly")
	errNoAuth = errors.New("no AUTH in time")
)

// run serves the connection until it ends.
func (s *session) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer s.tasks.Wait()
	defer cancel()
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
		kind, raw, err := s.conn.Read(ctx)
		if err != nil {
			break
		}
		if kind != websocket.MessageText {
			s.end(errors.New("binary messages are not of NIP-01"))
			continue
		}
		s.handle(ctx, raw)
	}
	_ = s.conn.CloseNow() // the client has disconnected, or the relay closes
}

// end closes the connection and sends the client the reason. Then Read returns.
func (s *session) end(why error) {
	s.ending.Do(func() {
		go func() {
			_ = s.conn.Close(websocket.StatusPolicyViolation, why.Error()) // the client may have disconnected
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
	if !s.out.offer(nip01.Message(parts...)) {
		s.end(errSlow)
	}
}

func (s *session) handle(ctx context.Context, raw []byte) {
	now := time.Now()
	m, err := nip01.ParseFromClient(raw)
	policy := s.relay.policy()
	if !policy.own(s.shown()) {
		if _, ok := s.rate.Take(now); !ok {
			s.overRate(m)
			return
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
		s.request(ctx, policy, m)
	case m.Verb == nip01.VerbClose:
		s.mu.Lock()
		delete(s.subs, m.Subscription)
		s.mu.Unlock()
	}
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
	s.mu.Lock()
	_, replaced := s.subs[m.Subscription]
	full := !replaced && len(s.subs) >= maxSubscriptions
	if !full {
		s.subs[m.Subscription] = sub
	}
	s.mu.Unlock()
	if full {
		s.say(nip01.VerbClosed, m.Subscription, refuse("error", "a session has at most %d subscriptions", maxSubscriptions).Error())
		return
	}
	sent, err := s.stored(ctx, policy, key, m)
	if err != nil {
		s.mu.Lock()
		delete(s.subs, m.Subscription)
		s.mu.Unlock()
		if !errors.Is(err, errEnded) && ctx.Err() == nil {
			s.relay.report("QueryFailed", err)
			s.say(nip01.VerbClosed, m.Subscription, "error: the stored events could not be read")
		}
		return
	}
	s.say(nip01.VerbEOSE, m.Subscription)
	s.release(m.Subscription, sub, sent)
}

// stored sends the stored events and returns their ids.
func (s *session) stored(ctx context.Context, policy Policy, key string, m nip01.FromClient) (map[string]bool, error) {
	sent := map[string]bool{}
	now := time.Now()
	for _, f := range m.Filters {
		limit := maxLimit
		if f.Limit != nil {
			limit = min(*f.Limit, maxLimit)
		}
		// Collect the events first: a slow client must not keep the read transaction open.
		var found []*nostr.Event
		limited, cancel := context.WithTimeout(ctx, queryLimit)
		err := s.relay.store.query(limited, f, limit, now, func(e *nostr.Event) bool {
			if !sent[e.ID] && policy.Readable(key, e) {
				found = append(found, e)
				sent[e.ID] = true
			}
			return true
		})
		cancel()
		if err != nil {
			return nil, err
		}
		for _, e := range found {
			if err := s.out.wait(ctx, nip01.Message(nip01.VerbEvent, m.Subscription, e)); err != nil {
				return nil, err
			}
		}
	}
	return sent, nil
}

// release sends the held live events and makes the subscription live.
func (s *session) release(id string, sub *subscription, sent map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range sub.held {
		if !sent[e.ID] && !s.out.offer(nip01.Message(nip01.VerbEvent, id, e)) {
			s.end(errSlow)
			return
		}
	}
	sub.held, sub.holding = nil, false
}

// live offers an event that was just accepted. It never waits.
func (s *session) live(policy Policy, e *nostr.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !policy.Readable(s.key, e) {
		return
	}
	for id, sub := range s.subs {
		if !nip01.MatchesAny(sub.filters, e) {
			continue
		}
		switch {
		case !sub.holding:
			if !s.out.offer(nip01.Message(nip01.VerbEvent, id, e)) {
				s.end(errSlow)
				return
			}
			s.relay.metrics.event("out", e.Kind, "sent")
		case len(sub.held) >= maxHeld:
			s.end(errSlow)
			return
		default:
			sub.held = append(sub.held, e)
		}
	}
}
