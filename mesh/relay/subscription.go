package relay

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Limits of the subscriptions of a session.
const (
	maxSubscriptions = 32
	maxLimit         = 500       // stored events for one filter
	maxStored        = 2000      // stored events for all filters of one REQ
	maxHeld          = 1024      // live events that are held while stored ones are sent
	maxFilterBytes   = 256 << 10 // the filters of all subscriptions
	pageBytes        = 128 << 10 // stored events that are read at once
	queryLimit       = 5 * time.Second
)

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

func (s *session) request(ctx context.Context, policy Policy, m nip01.FromClient) {
	key := s.provedKey()
	if refusal := policy.request(key, m.Filters); refusal != nil {
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
func (s *session) subscribe(policy Policy, id string, sub *subscription) *refusal {
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
			if sent[id] || !policy.readable(key, e) {
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
func (s *session) live(policy Policy, e nip01.Subject, text func() []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || !policy.readable(s.key, e.Event) {
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
		size, charge := len(text())+weight(e.Event), 0
		if !own && sub.heldBytes+size > smallQueue {
			charge = size
		}
		if len(sub.held) >= maxHeld || !s.relay.outbound.take(charge) {
			s.end(errSlow)
			return
		}
		sub.held = append(sub.held, heldEvent{e.Event, text(), charge})
		sub.heldBytes += size
	}
}
