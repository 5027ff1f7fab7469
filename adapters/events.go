package adapters

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
)

// Events is the sink of the agents' lifecycle.
type Events interface {
	Adapter

	// Dispatch records one event. When it returns without error, the event is as durable as the
	// class promises. A repeated id within 24 h has no effect and returns the first receipt.
	// Dispatch never waits for a subscriber.
	Dispatch(ctx context.Context, e Event) (Receipt, error)
	// Subscribe follows events in seq order: at least once if it starts at a seq, at most once if
	// it is live.
	Subscribe(ctx context.Context, filter EventFilter, from From) (Subscription, error)
	// Unsubscribe ends a subscription by its id; NOT_FOUND when there is none.
	Unsubscribe(ctx context.Context, id string) error

	// History is contract 1.1, capability "history": stored events in seq
	// order.
	History(ctx context.Context, filter EventFilter, page PageOpt) (Page[Event], error)
}

// CapHistory is the capability of contract 1.1 of events.
const CapHistory = "history"

// Limits of events, in bytes.
const (
	MaxEventPayload = 64 << 10
	MaxEventKind    = 128
	MaxEventSource  = 512
)

// KindLagged is the kind of the event that replaces events for which the subscriber was too slow.
// Its payload is {"dropped", "resume_from"}.
const KindLagged = "lagged"

// Event is one thing that an agent or the box did.
type Event struct {
	TS          Time            `json:"ts"` // set by the box
	SessionID   NullString      `json:"session_id"`
	ExecutionID NullString      `json:"execution_id"`
	Kind        string          `json:"kind"`
	Payload     json.RawMessage `json:"payload"` // an object
	ID          string          `json:"id"`
	Seq         uint64          `json:"seq"` // set by the box, increases by one
	Source      string          `json:"source,omitempty"`
	Subject     string          `json:"subject,omitempty"`
	// Author is the authenticated caller (Meta.Actor) that dispatched it. Unlike source and
	// session, the caller cannot choose it. Set by the box.
	Author string `json:"author,omitempty"`
}

// Receipt confirms that an event was accepted.
type Receipt struct {
	ID   string `json:"id"`
	Seq  uint64 `json:"seq"`
	TS   Time   `json:"ts"`
	Kind string `json:"kind"`
	// Queued says that it is in the spool and has not reached its sink yet.
	Queued bool `json:"queued"`
}

// EventFilter narrows the result. Zero fields do not filter.
type EventFilter struct {
	Kinds       []string `json:"kinds,omitempty"` // any of these; "agent." is a prefix
	SessionID   string   `json:"session_id,omitempty"`
	ExecutionID string   `json:"execution_id,omitempty"`
	Source      string   `json:"source,omitempty"`
	Subject     string   `json:"subject,omitempty"`
}

// Matches tells whether e passes the filter. Lagged notices always pass.
func (f EventFilter) Matches(e Event) bool {
	if e.Kind == KindLagged {
		return true
	}
	return f.matchesKind(e.Kind) &&
		(f.SessionID == "" || f.SessionID == string(e.SessionID)) &&
		(f.ExecutionID == "" || f.ExecutionID == string(e.ExecutionID)) &&
		(f.Source == "" || f.Source == e.Source) &&
		(f.Subject == "" || f.Subject == e.Subject)
}

func (f EventFilter) matchesKind(kind string) bool {
	return len(f.Kinds) == 0 || slices.ContainsFunc(f.Kinds, func(k string) bool {
		return k == kind || strings.HasSuffix(k, ".") && strings.HasPrefix(kind, k)
	})
}

// From is where a subscription starts. The zero value is the oldest kept event.
type From struct {
	Live  bool   // only events from now on
	After uint64 // otherwise: start with the event after this seq
}

// Subscription yields events until it is closed. Only one goroutine at a time may call Next. Any
// goroutine may call Close, also repeatedly. After Close, Next returns UNAVAILABLE.
type Subscription interface {
	ID() string
	Next(ctx context.Context) (Event, error)
	Close() error
}

// CheckKind refuses every kind that does not match [a-z0-9][a-z0-9._-]{0,127}.
func CheckKind(kind string) error {
	if kind == "" {
		return Invalid("kind", "is required")
	}
	if len(kind) > MaxEventKind {
		return OverLimit("kind (bytes)", MaxEventKind).With("field", "kind")
	}
	for i := range len(kind) {
		c := kind[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return Invalid("kind", "must match [a-z0-9][a-z0-9._-]*")
		}
	}
	return nil
}

func (e Event) check() error {
	if err := CheckKind(e.Kind); err != nil {
		return err
	}
	if e.Kind == KindLagged {
		return Invalid("kind", "lagged is reserved")
	}
	if err := CheckID("id", e.ID); err != nil {
		return err
	}
	for _, f := range [][2]string{{"session_id", string(e.SessionID)}, {"execution_id", string(e.ExecutionID)}} {
		if f[1] != "" {
			if err := CheckID(f[0], f[1]); err != nil {
				return err
			}
		}
	}
	return cmp.Or(
		CheckText("source", e.Source, MaxEventSource), CheckText("subject", e.Subject, MaxEventSource),
		CheckObject("payload", e.Payload, MaxEventPayload),
	)
}

func (f EventFilter) check() error {
	if len(f.Kinds) > 64 {
		return OverLimit("kinds", 64)
	}
	for _, k := range f.Kinds {
		if err := CheckKind(k); err != nil {
			return err
		}
	}
	for _, v := range [][2]string{{"session_id", f.SessionID}, {"execution_id", f.ExecutionID}, {"source", f.Source}, {"subject", f.Subject}} {
		if err := CheckText(v[0], v[1], MaxEventSource); err != nil {
			return err
		}
	}
	return nil
}
