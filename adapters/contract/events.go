package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// eventsCase is one case over a connected, empty store.
type eventsCase struct {
	name string
	run  func(t *testing.T, ctx context.Context, e adapters.Events)
}

func eventsCases() []eventsCase {
	return []eventsCase{
		{"dispatch", eventsDispatch},
		{"limits", eventsLimits},
		{"same id", eventsSameID},
		{"subscribe live", eventsLive},
		{"subscribe from the past", eventsPast},
		{"no gap between past and live", eventsNoGap},
		{"slow subscriber", eventsSlow},
		{"unsubscribe", eventsUnsubscribe},
		{"history", eventsHistory},
	}
}

// Events runs the suite of the events slot. newAdapter makes a fresh, unconnected adapter over an
// empty store. Its own subscribers must get the events that it dispatches.
func Events(t *testing.T, newAdapter func(testing.TB) adapters.Events) {
	t.Run("life", func(t *testing.T) {
		a := newAdapter(t)
		describe(t, a, adapters.SlotEvents)
		w := adapters.WrapEvents(a, nil)
		if a.Class() == adapters.ClassOff {
			eventsOff(t, w)
			return
		}
		life(t, a, func(ctx context.Context) error {
			_, err := w.Dispatch(ctx, adapters.Event{Kind: "life.call"})
			return err
		})
	})
	if newAdapter(t).Class() == adapters.ClassOff {
		return
	}
	for _, c := range eventsCases() {
		t.Run(c.name, func(t *testing.T) {
			a := newAdapter(t)
			c.run(t, connect(t, a), adapters.WrapEvents(a, nil))
		})
	}
}

func eventsOff(t *testing.T, e adapters.Events) {
	ctx := context.Background()
	if r, err := e.Dispatch(ctx, adapters.Event{Kind: "x", ID: "1"}); err != nil || r.ID != "1" || r.Kind != "x" {
		t.Errorf("dispatch: %+v %v", r, err)
	}
	_, err := e.Subscribe(ctx, adapters.EventFilter{}, adapters.From{})
	want(t, "subscribe", err, adapters.CodeDisabled)
	want(t, "unsubscribe", e.Unsubscribe(ctx, "x"), adapters.CodeDisabled)
	_, err = e.History(ctx, adapters.EventFilter{}, adapters.PageOpt{})
	want(t, "history", err, adapters.CodeDisabled)
}

func dispatch(t *testing.T, ctx context.Context, e adapters.Events, ev adapters.Event) adapters.Receipt {
	t.Helper()
	return ok[adapters.Receipt](t, "dispatch "+ev.Kind)(e.Dispatch(ctx, ev))
}

// arrived waits until subscribers and History can see a queued event.
func arrived(t *testing.T, ctx context.Context, e adapters.Events, r adapters.Receipt) {
	t.Helper()
	if !r.Queued {
		return
	}
	s := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{})
	for next(t, ctx, s).ID != r.ID {
	}
}

// sameJSON compares two JSON texts by value: a server on the way may change the escapes.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func subscribe(t *testing.T, ctx context.Context, e adapters.Events, f adapters.EventFilter, from adapters.From) adapters.Subscription {
	t.Helper()
	s := ok[adapters.Subscription](t, "subscribe")(e.Subscribe(ctx, f, from))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func next(t *testing.T, ctx context.Context, s adapters.Subscription) adapters.Event {
	t.Helper()
	return ok[adapters.Event](t, "next")(s.Next(ctx))
}

func eventsDispatch(t *testing.T, ctx context.Context, e adapters.Events) {
	s := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{})
	meta := adapters.WithMeta(ctx, adapters.Meta{SessionID: "s1", ExecutionID: "e1"})
	before := time.Now().Add(-time.Second)
	payload := json.RawMessage(`{"n":1.50,"t":"<ü>"}`)
	first := dispatch(t, meta, e, adapters.Event{Kind: "agent.spawned", Subject: "a-1", Payload: payload})
	second := dispatch(t, ctx, e, adapters.Event{Kind: "agent.exit", ID: "mine", SessionID: "s2", Source: "urn:x"})
	holds(t, first, facts{"id": first.ID != "", "kind": first.Kind == "agent.spawned", "time": !first.TS.Before(before)})
	equal(t, "id", second.ID, "mine")
	equal(t, "number", second.Seq, first.Seq+1)
	a, b := next(t, ctx, s), next(t, ctx, s)
	holds(t, a, facts{"source": a.Source != "", "time": first.Queued || a.TS == first.TS, "payload": sameJSON(a.Payload, payload)})
	equal(t, "first", a, adapters.Event{
		ID: first.ID, Seq: first.Seq, TS: a.TS, Kind: "agent.spawned", Source: a.Source, Subject: "a-1",
		SessionID: "s1", ExecutionID: "e1", Payload: a.Payload, Author: a.Author,
	})
	equal(t, "second", b, adapters.Event{
		ID: "mine", Seq: b.Seq, TS: b.TS, Kind: "agent.exit", Source: "urn:x", SessionID: "s2", Payload: json.RawMessage(`{}`), Author: b.Author,
	})
}

func eventsLimits(t *testing.T, ctx context.Context, e adapters.Events) {
	payload := func(n int) json.RawMessage { return json.RawMessage(`{"a":"` + long(n-8) + `"}`) }
	for name, c := range map[string]struct {
		ev   adapters.Event
		code adapters.Code
	}{
		"no kind":        {adapters.Event{}, adapters.CodeValidation},
		"kind 128":       {adapters.Event{Kind: long(128)}, ""},
		"kind 129":       {adapters.Event{Kind: long(129)}, adapters.CodeValidation},
		"upper case":     {adapters.Event{Kind: "Agent"}, adapters.CodeValidation},
		"reserved":       {adapters.Event{Kind: adapters.KindLagged}, adapters.CodeValidation},
		"payload 64 KiB": {adapters.Event{Kind: "x", Payload: payload(64 << 10)}, ""},
		"payload +1":     {adapters.Event{Kind: "x", Payload: payload(64<<10 + 1)}, adapters.CodePayloadTooLarge},
		"payload array":  {adapters.Event{Kind: "x", Payload: json.RawMessage(`[]`)}, adapters.CodeValidation},
		"payload broken": {adapters.Event{Kind: "x", Payload: json.RawMessage(`{`)}, adapters.CodeValidation},
		"id":             {adapters.Event{Kind: "x", ID: "a b"}, adapters.CodeValidation},
		"session":        {adapters.Event{Kind: "x", SessionID: "a/b"}, adapters.CodeValidation},
		"kind 127":       {adapters.Event{Kind: long(127)}, ""},
		"payload -1":     {adapters.Event{Kind: "x", Payload: payload(64<<10 - 1)}, ""},
		"id 128":         {adapters.Event{Kind: "x", ID: long(128)}, ""},
		"id 129":         {adapters.Event{Kind: "x", ID: long(129)}, adapters.CodeValidation},
		"session 128":    {adapters.Event{Kind: "x", SessionID: adapters.NullString(long(128))}, ""},
		"session 129":    {adapters.Event{Kind: "x", SessionID: adapters.NullString(long(129))}, adapters.CodeValidation},
		"execution 129":  {adapters.Event{Kind: "x", ExecutionID: adapters.NullString(long(129))}, adapters.CodeValidation},
		"source 512":     {adapters.Event{Kind: "x", Source: long(512)}, ""},
		"source 513":     {adapters.Event{Kind: "x", Source: long(513)}, adapters.CodeValidation},
		"subject 512":    {adapters.Event{Kind: "x", Subject: long(512)}, ""},
		"subject 513":    {adapters.Event{Kind: "x", Subject: long(513)}, adapters.CodeValidation},
	} {
		_, err := e.Dispatch(ctx, c.ev)
		if c.code != "" {
			want(t, name, err, c.code)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func eventsSameID(t *testing.T, ctx context.Context, e adapters.Events) {
	s := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{Live: true})
	first := dispatch(t, ctx, e, adapters.Event{Kind: "a", ID: "same"})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			r, err := e.Dispatch(ctx, adapters.Event{Kind: "b", ID: "same"})
			if err != nil || r.Seq != first.Seq || r.Kind != "a" || r.TS != first.TS {
				t.Errorf("again: %+v %v", r, err)
			}
		})
	}
	wg.Wait()
	end := dispatch(t, ctx, e, adapters.Event{Kind: "end"})
	if a, b := next(t, ctx, s), next(t, ctx, s); a.ID != "same" || b.ID != end.ID || b.Seq != a.Seq+1 {
		t.Errorf("subscribers saw %+v, %+v", a, b)
	}
}

func eventsLive(t *testing.T, ctx context.Context, e adapters.Events) {
	arrived(t, ctx, e, dispatch(t, ctx, e, adapters.Event{Kind: "past"}))
	all := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{Live: true})
	agents := subscribe(t, ctx, e, adapters.EventFilter{Kinds: []string{"agent."}}, adapters.From{Live: true})
	one := subscribe(t, ctx, e, adapters.EventFilter{SessionID: "s2"}, adapters.From{Live: true})
	dispatch(t, ctx, e, adapters.Event{Kind: "agent.spawned", SessionID: "s1"})
	dispatch(t, ctx, e, adapters.Event{Kind: "agentx", SessionID: "s2"})
	dispatch(t, ctx, e, adapters.Event{Kind: "agent.exit"})
	for _, want := range []string{"agent.spawned", "agentx", "agent.exit"} {
		if got := next(t, ctx, all); got.Kind != want {
			t.Errorf("all: %s, want %s", got.Kind, want)
		}
	}
	for _, want := range []string{"agent.spawned", "agent.exit"} {
		if got := next(t, ctx, agents); got.Kind != want {
			t.Errorf("prefix: %s, want %s", got.Kind, want)
		}
	}
	if got := next(t, ctx, one); got.Kind != "agentx" {
		t.Errorf("session: %s", got.Kind)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := all.Next(short); adapters.CodeOf(err) != adapters.CodeTimeout {
		t.Errorf("waiting for nothing: %v", err)
	}
}

func eventsPast(t *testing.T, ctx context.Context, e adapters.Events) {
	var seqs []uint64
	var last adapters.Receipt
	for i := range 10 {
		last = dispatch(t, ctx, e, adapters.Event{Kind: fmt.Sprintf("k%d", i)})
		seqs = append(seqs, last.Seq)
	}
	arrived(t, ctx, e, last)
	s := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{After: seqs[4]})
	for _, want := range seqs[5:] {
		if got := next(t, ctx, s); got.Seq != want {
			t.Errorf("got %d, want %d", got.Seq, want)
		}
	}
	future := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{After: seqs[9] + 1000})
	if got := next(t, ctx, future); got.Kind != adapters.KindLagged {
		t.Errorf("from a number of another store: %+v", got)
	}
}

// eventsNoGap subscribes from the past while events arrive. Each subscriber must see every event
// once and in order.
func eventsNoGap(t *testing.T, ctx context.Context, e adapters.Events) {
	const events = 600
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range events {
			if _, err := e.Dispatch(ctx, adapters.Event{Kind: "x", ID: fmt.Sprintf("id-%d", i)}); err != nil {
				t.Errorf("dispatch: %v", err)
				return
			}
		}
	})
	for range 4 {
		s := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{})
		wg.Go(func() {
			for i := range events {
				got, err := s.Next(ctx)
				if err != nil || got.ID != fmt.Sprintf("id-%d", i) {
					t.Errorf("event %d: %+v %v", i, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func eventsSlow(t *testing.T, ctx context.Context, e adapters.Events) {
	const buffer, extra = 1024, 76
	s := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{Live: true})
	var last adapters.Receipt
	for range buffer + extra {
		last = dispatch(t, ctx, e, adapters.Event{Kind: "x"})
	}
	// A remote subscriber has further buffers on the way, so it may see more than 1024 events, even
	// all.
	var seen uint64
	for seen < buffer+extra {
		got := next(t, ctx, s)
		if got.Kind != adapters.KindLagged {
			seen++
			continue
		}
		var p struct {
			Dropped uint64 `json:"dropped"`
			Resume  uint64 `json:"resume_from"`
		}
		if err := json.Unmarshal(got.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if seen+p.Dropped != buffer+extra || seen < buffer || p.Resume != last.Seq+1 {
			t.Errorf("saw %d, lagged %+v after %d", seen, p, last.Seq)
		}
		break
	}
	after := dispatch(t, ctx, e, adapters.Event{Kind: "on"})
	if got := next(t, ctx, s); got.ID != after.ID {
		t.Errorf("does not go on: %+v", got)
	}
}

func eventsUnsubscribe(t *testing.T, ctx context.Context, e adapters.Events) {
	s := subscribe(t, ctx, e, adapters.EventFilter{}, adapters.From{Live: true})
	waiting := make(chan error)
	go func() { _, err := s.Next(ctx); waiting <- err }()
	if err := e.Unsubscribe(ctx, s.ID()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; adapters.CodeOf(err) != adapters.CodeUnavailable {
		t.Errorf("the waiting reader got %v", err)
	}
	want(t, "unsubscribe again", e.Unsubscribe(ctx, s.ID()), adapters.CodeNotFound)
	if err := s.Close(); err != nil {
		t.Errorf("close after unsubscribe: %v", err)
	}
}

func eventsHistory(t *testing.T, ctx context.Context, e adapters.Events) {
	if !slices.Contains(e.Capabilities(), adapters.CapHistory) {
		_, err := e.History(ctx, adapters.EventFilter{}, adapters.PageOpt{})
		want(t, "history without the capability", err, adapters.CodeUnsupported)
		return
	}
	var all []uint64
	var last adapters.Receipt
	for i := range 25 {
		last = dispatch(t, ctx, e, adapters.Event{Kind: fmt.Sprintf("k%d", i%2)})
		all = append(all, last.Seq)
	}
	arrived(t, ctx, e, last)
	walk := func(f adapters.EventFilter, limit int) (seqs []uint64) {
		opt := adapters.PageOpt{Limit: limit}
		for {
			page := ok[adapters.Page[adapters.Event]](t, "history")(e.History(ctx, f, opt))
			if len(page.Items) > limit {
				t.Fatalf("%d items of %d", len(page.Items), limit)
			}
			for _, x := range page.Items {
				seqs = append(seqs, x.Seq)
			}
			if page.NextCursor == "" {
				return seqs
			}
			opt.Cursor = string(page.NextCursor)
		}
	}
	if got := walk(adapters.EventFilter{}, 4); !slices.Equal(got, all) {
		t.Errorf("got %v, want %v", got, all)
	}
	if got := walk(adapters.EventFilter{Kinds: []string{"k1"}}, 5); len(got) != 12 {
		t.Errorf("filtered: %v", got)
	}
	_, err := e.History(ctx, adapters.EventFilter{}, adapters.PageOpt{Cursor: "5"})
	want(t, "a foreign cursor", err, adapters.CodeValidation)
}
