package relay

import (
	"context"
	"errors"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// maxRefusals is how many messages over the rate limit, in a row, end the session.
const maxRefusals = 100

// handle returns an error if the session ends meanwhile. handle may call freeRaw as soon as it no longer
// needs raw.
func (s *session) handle(ctx context.Context, raw []byte, freeRaw func()) error {
	policy := s.relay.policy()
	own, done := policy.own(s.provedKey()), func() {}
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
func (s *session) answer(id string, refusal *refusal) {
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
	stale := s.key == "" && !s.challenge.fresh(time.Now())
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
func (s *session) take(ctx context.Context, policy Policy, e *nostr.Event, size int, now time.Time) (Outcome, *refusal) {
	key := s.provedKey()
	if refusal := policy.writer(key); refusal != nil {
		return 0, refusal
	}
	if refusal := policy.event(key, e, size, now); refusal != nil {
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
	refusal := policy.auth(e, challenge, s.local, now)
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
	if !s.relay.setStanding(s, policy.standing(e.PubKey)) {
		s.relay.metrics.authFailed("full")
		s.answer(e.ID, refuse("rate-limited", "the relay has too many sessions of keys that it does not list"))
		return
	}
	s.mu.Lock()
	s.key, s.challenge = e.PubKey, Challenge{}
	s.mu.Unlock()
	s.answer(e.ID, nil)
}
