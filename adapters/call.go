package adapters

import (
	"context"
	"encoding/json"
	"time"
)

// Call describes one crossing into a slot to the middleware. The wrapped slots
// make it; middleware reads it and must not keep it.
type Call struct {
	Slot   Slot
	Method string // as in Contract.Methods
	Impl   string // of the adapter that is active now, "off" while degraded
	Class  Class
	Write  bool // changes something: subject to privacy
	// Creates says that repeating the call would make a second thing, so an
	// idempotency key is honoured.
	Creates bool
	// Idle says that a slot which the manifest turns off takes the call and does
	// nothing. A slot that is out of service refuses it: an event that is to be kept
	// must not disappear unnoticed.
	Idle bool
	// Args is everything the caller asked for, as JSON can show it; set when
	// Creates, for the hash that a key is kept with.
	Args any
	// Text lists what privacy may rewrite before the adapter sees it.
	Text []Text
	// Check judges the input against the contract's limits, before any I/O.
	Check func() error
	// Guard is why the call cannot go to the adapter at all: the slot is off,
	// degraded or disconnected. nil when it can.
	Guard error
	// Limit bounds the call in addition to the caller's deadline; 0 leaves the
	// middleware's default.
	Limit time.Duration
	// Cancel is set for calls that return a stream. Their context must outlive
	// the call, so a time limit is put on the opening alone, through this.
	Cancel context.CancelCauseFunc

	result any // pointer to the T of Do
}

// Result is a pointer to where the call's answer lies once the inner handler
// has returned nil. Middleware may marshal it, or unmarshal into it to answer
// in the adapter's place.
func (c Call) Result() any { return c.result }

// Text is one piece of a call's input that people may have written. Exactly one
// of String, JSON and Body is set.
type Text struct {
	Name   string           // field, for the log
	String *string          // plain text
	JSON   *json.RawMessage // string leaves are text; keys and structure are not
	Body   *Body            // decided by its content type
}

// Handler carries out a call.
type Handler func(ctx context.Context, c Call) error

// Middleware wraps a handler in another. It must call next at most once, from
// the goroutine it was called on.
type Middleware func(next Handler) Handler

// Chain joins middleware, outermost first. Chain() changes nothing.
func Chain(mw ...Middleware) Middleware {
	return func(next Handler) Handler {
		for i := len(mw) - 1; i >= 0; i-- {
			next = mw[i](next)
		}
		return next
	}
}

// Guarded is the middleware that refuses a call when its slot cannot take it.
func Guarded(next Handler) Handler {
	return func(ctx context.Context, c Call) error {
		if c.Guard != nil {
			return c.Guard
		}
		return next(ctx, c)
	}
}

// Limits is the middleware that runs the contract's checks on the input.
func Limits(next Handler) Handler {
	return func(ctx context.Context, c Call) error {
		if c.Class == ClassOff {
			return next(ctx, c)
		}
		if err := CheckIdempotencyKey(MetaFrom(ctx).IdempotencyKey); err != nil {
			return err
		}
		if c.Check != nil {
			if err := c.Check(); err != nil {
				return err
			}
		}
		return next(ctx, c)
	}
}

// Basic is the least middleware a slot may have: guard and limits. It is what
// a nil Middleware stands for, so that no adapter ever sees unchecked input.
func Basic(next Handler) Handler { return Guarded(Limits(next)) }

// Do carries one call through mw to f. The error, if any, is always an *Error
// that names slot and method; the result is then the zero T.
func Do[T any](ctx context.Context, mw Middleware, c Call, f func(context.Context) (T, error)) (T, error) {
	if mw == nil {
		mw = Basic
	}
	var out T
	c.result = &out
	h := mw(func(ctx context.Context, _ Call) error {
		v, err := f(ctx)
		if err != nil {
			return err
		}
		out = v
		return nil
	})
	if err := h(ctx, c); err != nil {
		var zero T
		return zero, AsError(err).At(c.Slot, c.Method)
	}
	return out, nil
}
