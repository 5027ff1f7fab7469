package adapters

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"
)

// WrapEvents wraps one implementation in mw (nil = guard and limits); see WrapBeads.
func WrapEvents(a Events, mw Middleware) Events {
	return eventsPort{wrapped(SlotEvents, a, mw)}
}

type eventsPort struct{ *port }

var _ Events = eventsPort{}

func (p eventsPort) Dispatch(ctx context.Context, e Event) (Receipt, error) {
	m := MetaFrom(ctx)
	e.SessionID = cmp.Or(e.SessionID, NullString(m.SessionID))
	e.ExecutionID = cmp.Or(e.ExecutionID, NullString(m.ExecutionID))
	if e.Payload == nil {
		e.Payload = json.RawMessage("{}")
	}
	e.Payload = slices.Clone(e.Payload)
	e.TS, e.Seq, e.Author = Time{}, 0, m.Actor // the box sets these fields
	args := e                                  // before an id is made: ids differ between calls
	made := e.ID == ""
	if made {
		e.ID = NewID()
	}
	c := Call{
		Method: "dispatch", Write: true, Creates: true, Idle: true, Args: args,
		Check: func() error { return e.check() },
		Text:  []Text{{JSON: &e.Payload}},
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Events) (Receipt, error) {
		if a == nil { // the slot is off
			return Receipt{ID: e.ID, TS: At(time.Now()), Kind: e.Kind}, nil
		}
		// For 24 h, the box and every sink recognise an event by its author and its id.
		if once := MetaFrom(ctx).Once; made && once != "" {
			e.ID = "once-" + once
		}
		return a.Dispatch(ctx, e)
	})
}

func (p eventsPort) Subscribe(ctx context.Context, filter EventFilter, from From) (Subscription, error) {
	filter.Kinds = slices.Clone(filter.Kinds)
	ctx, cancel := context.WithCancelCause(ctx)
	s, err := via(ctx, p.port, Call{Method: "subscribe", Cancel: cancel, Check: filter.check},
		func(ctx context.Context, a Events) (Subscription, error) { return a.Subscribe(ctx, filter, from) })
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &eventStream{Subscription: s, once: onceCancel(cancel, s.Close)}, nil
}

type eventStream struct {
	Subscription
	once func() error
}

func (s *eventStream) Close() error { return s.once() }

func (p eventsPort) Unsubscribe(ctx context.Context, id string) error {
	return exec(ctx, p.port, Call{Method: "unsubscribe", Check: func() error { return CheckID("id", id) }},
		func(ctx context.Context, a Events) error { return a.Unsubscribe(ctx, id) })
}

func (p eventsPort) History(ctx context.Context, filter EventFilter, page PageOpt) (Page[Event], error) {
	return via(ctx, p.port, Call{Method: "history", Check: func() error { return cmp.Or(filter.check(), page.Check()) }},
		func(ctx context.Context, a Events) (Page[Event], error) { return a.History(ctx, filter, page) })
}
