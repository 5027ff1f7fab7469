package contract

import (
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// SameEvents runs the same random scripts with two classes. It compares every answer, and every event
// that a subscriber sees.
func SameEvents(t *testing.T, one, other func(testing.TB) adapters.Events) {
	s := &eventsScript{twins: newTwins(t, adapters.WrapEvents, one, other)}
	for i, e := range s.sides {
		s.live[i] = subscribe(t, s.ctx, e, adapters.EventFilter{}, adapters.From{Live: true})
	}
	rapid.Check(t, func(r *rapid.T) {
		s.round++
		for range rapid.IntRange(1, 15).Draw(r, "steps") {
			if rapid.IntRange(0, 3).Draw(r, "what") > 0 {
				s.dispatch(r)
			} else {
				s.read(r)
			}
		}
	})
	if s.last == 0 {
		t.Error("no script dispatched an event")
	}
}

type eventsScript struct {
	*twins[adapters.Events]
	live  [2]adapters.Subscription
	round int
	last  uint64 // seq of the newest event
}

var eventKinds = rapid.SampledFrom([]string{"tool.used", "tool.failed", "agent.exit", "x", "Bad", "", adapters.KindLagged})

// dispatch sends an event, possibly with the id of an earlier one. If the event is new, it waits for
// the event on both sides' subscriptions.
func (s *eventsScript) dispatch(r *rapid.T) {
	e := adapters.Event{
		Kind: eventKinds.Draw(r, "kind"), Source: "urn:x", SessionID: adapters.NullString(rapid.SampledFrom([]string{"", "s1", "s2", "a/b"}).Draw(r, "session")),
		Subject: rapid.SampledFrom([]string{"", "agent-1"}).Draw(r, "subject"),
		Payload: json.RawMessage(rapid.SampledFrom([]string{``, `{}`, `{"a":[1,2.5,"ü<&>"]}`, `[]`, `{"deep":{"null":null}}`}).Draw(r, "payload")),
	}
	if len(e.Payload) == 0 {
		e.Payload = nil
	}
	if n := rapid.IntRange(0, 5).Draw(r, "id"); n > 0 {
		e.ID = fmt.Sprintf("id-%d-%d", s.round, n)
	}
	got, ok := compare(r, s.twins, "dispatch", func(i int, slot adapters.Events) (adapters.Receipt, error) {
		x, err := slot.Dispatch(s.ctx, e)
		if err == nil && e.ID == "" {
			s.names[i][x.ID] = fmt.Sprintf("event-%d", x.Seq)
		}
		x.Queued = false // the contract lets the classes differ in Queued
		return x, err
	})
	if ok && got[0].Seq > s.last {
		s.last = got[0].Seq
		compare(r, s.twins, "next", func(i int, _ adapters.Events) (adapters.Event, error) { return s.live[i].Next(s.ctx) })
	}
}

func (s *eventsScript) read(r *rapid.T) {
	f := adapters.EventFilter{
		Kinds:     rapid.SampledFrom([][]string{nil, {"tool."}, {"x", "agent.exit"}}).Draw(r, "kinds"),
		SessionID: rapid.SampledFrom([]string{"", "s1"}).Draw(r, "session"),
	}
	back := uint64(rapid.IntRange(1, 12).Draw(r, "back"))
	size := rapid.IntRange(1, 1000).Draw(r, "page")
	compare(r, s.twins, "history", func(_ int, e adapters.Events) ([]any, error) {
		var all []any
		opt := adapters.PageOpt{Limit: size}
		for range 3 {
			p, err := e.History(s.ctx, f, opt)
			if err != nil {
				return nil, err
			}
			opt.Cursor = string(p.NextCursor)
			p.NextCursor = "" // a cursor has a meaning only for its own store
			all = append(all, p, opt.Cursor == "")
			if opt.Cursor == "" {
				break
			}
		}
		return all, nil
	})
	if s.last <= back {
		return
	}
	compare(r, s.twins, "subscribe", func(_ int, e adapters.Events) ([]adapters.Event, error) {
		sub, err := e.Subscribe(s.ctx, adapters.EventFilter{}, adapters.From{After: s.last - back})
		if err != nil {
			return nil, err
		}
		defer sub.Close()
		var all []adapters.Event
		for range back {
			x, err := sub.Next(s.ctx)
			if err != nil {
				return nil, err
			}
			all = append(all, x)
		}
		return all, nil
	})
}
