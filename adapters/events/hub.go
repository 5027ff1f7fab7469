package events

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const (
	subscriberBuffer = 1024
	catchUpBytes     = 1 << 20 // read from the journal at a time
)

// hub sends live events to subscriptions. Publishing never waits: a subscription whose buffer is
// full gets a notice of what it missed.
type hub struct {
	mu     sync.Mutex
	subs   map[string]*subscription
	closed bool
}

func newHub() *hub { return &hub{subs: make(map[string]*subscription)} }

// publish is called with the journal's lock held, so the events are in order.
func (h *hub) publish(e adapters.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.subs {
		s.push(e)
	}
}

func (h *hub) subscribe(j *journal, filter adapters.EventFilter, from adapters.From) (*subscription, error) {
	s := &subscription{id: adapters.NewID(), hub: h, journal: j, filter: filter, wake: make(chan struct{}, 1), done: make(chan struct{})}
	// The journal's lock stops publishing, so "now" is one moment for all.
	j.mu.Lock()
	defer j.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, adapters.Closed(adapters.SlotEvents)
	}
	if len(h.subs) >= maxSubscriptions {
		return nil, adapters.Errorf(adapters.CodeRateLimited, "there are %d subscriptions already", maxSubscriptions)
	}
	s.start(from, j)
	h.subs[s.id] = s
	return s, nil
}

func (h *hub) unsubscribe(id string) error {
	h.mu.Lock()
	s, ok := h.subs[id]
	h.mu.Unlock()
	if !ok {
		return adapters.NotFound("subscription", id)
	}
	return s.Close()
}

func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	subs := h.subs
	h.subs = nil
	h.mu.Unlock()
	for _, s := range subs {
		s.end()
	}
}

// subscription is one reader. If it wants past events, it begins in the journal. When it has read
// all of the journal, it becomes live.
type subscription struct {
	id      string
	hub     *hub
	journal *journal
	filter  adapters.EventFilter
	wake    chan struct{} // has a token if there may be new events
	done    chan struct{}
	once    sync.Once

	mu      sync.Mutex
	live    bool
	buffer  []adapters.Event
	dropped uint64 // number of events dropped since the buffer was full; 0 = it is not full
	resume  uint64 // the number after the newest dropped event
	after   uint64 // while catching up: the last number read
	pending []adapters.Event
}

// start sets the reader's position. The caller holds the journal's lock.
func (s *subscription) start(from adapters.From, j *journal) {
	if from.Live {
		s.live = true
		return
	}
	s.after = from.After
	switch oldest := j.oldestLocked(); {
	case from.After > j.seq:
		// This number was not given out yet, so it comes from another journal. What the reader
		// missed cannot be known.
		s.live = true
		s.pending = append(s.pending, lagged(0, j.seq+1))
	case from.After > 0 && from.After+1 < oldest:
		s.pending = append(s.pending, lagged(oldest-from.After-1, oldest))
		s.after = oldest - 1
	}
}

func lagged(dropped, resume uint64) adapters.Event {
	payload, _ := json.Marshal(map[string]uint64{"dropped": dropped, "resume_from": resume}) // numbers always marshal
	return adapters.Event{Kind: adapters.KindLagged, Payload: payload, Seq: resume - 1}
}

// push takes a live event, or counts it as dropped. It never waits.
func (s *subscription) push(e adapters.Event) {
	if !s.filter.Matches(e) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live {
		signal(s.wake) // the event is in the journal
		return
	}
	if s.dropped > 0 || len(s.buffer) >= subscriberBuffer {
		s.dropped++
		s.resume = e.Seq + 1
		return
	}
	s.buffer = append(s.buffer, e)
	signal(s.wake)
}

// ID names the subscription for Unsubscribe.
func (s *subscription) ID() string { return s.id }

// Next waits for the next event.
func (s *subscription) Next(ctx context.Context) (adapters.Event, error) {
	for {
		select {
		case <-s.done:
			return adapters.Event{}, adapters.Errorf(adapters.CodeUnavailable, "the subscription is closed")
		default:
		}
		if e, ok := s.take(); ok {
			return e, nil
		}
		more, err := s.catchUp(ctx)
		if err != nil {
			return adapters.Event{}, err
		}
		if more {
			continue
		}
		select {
		case <-s.wake:
		case <-s.done:
		case <-ctx.Done():
			return adapters.Event{}, adapters.AsError(ctx.Err())
		}
	}
}

// take returns the next event: first those of the journal, then live ones and, if events were
// dropped, a notice about that.
func (s *subscription) take() (adapters.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, queue := range []*[]adapters.Event{&s.pending, &s.buffer} {
		if len(*queue) > 0 {
			e := (*queue)[0]
			*queue = (*queue)[1:]
			return e, true
		}
	}
	if s.dropped > 0 {
		e := lagged(s.dropped, s.resume)
		s.dropped = 0
		return e, true
	}
	return adapters.Event{}, false
}

// catchUp reads the next part of the journal. At its end it makes the subscription live, under the
// journal's lock, so that no event is missed. more says that there is more to read.
func (s *subscription) catchUp(ctx context.Context) (more bool, err error) {
	s.mu.Lock()
	live, after := s.live, s.after
	s.mu.Unlock()
	if live {
		return false, nil
	}
	if oldest := s.journal.oldest(); after > 0 && after+1 < oldest {
		// Retention has removed the segment meanwhile.
		s.mu.Lock()
		s.pending = append(s.pending, lagged(oldest-after-1, oldest))
		s.after = oldest - 1
		s.mu.Unlock()
		return true, nil
	}
	before, _, _ := s.journal.status()
	var batch []adapters.Event
	last, end, err := s.journal.read(ctx, after, catchUpBytes, func(e adapters.Event) bool {
		if s.filter.Matches(e) {
			batch = append(batch, e)
		}
		return true
	})
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, batch...)
	s.after = last
	if err != nil {
		return false, err
	}
	// It has read the whole journal, and no event has come since. Missing numbers are appends that
	// failed.
	s.live = end && s.journal.seq == before
	return !s.live || len(batch) > 0, nil
}

// Close ends the subscription.
func (s *subscription) Close() error {
	s.hub.mu.Lock()
	delete(s.hub.subs, s.id)
	s.hub.mu.Unlock()
	s.end()
	return nil
}

func (s *subscription) end() { s.once.Do(func() { close(s.done) }) }
