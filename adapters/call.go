package adapters

import (
	"context"
	"encoding/json"
	"time"
)

// Call describes one call of a slot to the middleware. The wrapped slots make it. Middleware reads
// it and must not keep it.
type Call struct {
	Slot   Slot
	Method string // as in Contract.Methods
	Impl   string // of the active adapter, "off" while degraded
	Class  Class
	Write  bool // the call changes something, so privacy applies
	// Creates says that a repeated call would create a second thing. So the call may have an
	// idempotency key.
	Creates bool
	// Idle says that the manifest turns the slot off: the slot accepts the call and does nothing. A
	// slot that is only out of service refuses the call instead, so that no event that must be kept
	// is lost silently.
	Idle bool
	// Args is the whole input of the call in a form for JSON. It is set if Creates is set, for the
	// hash that is stored with a key.
	Args any
	// Text lists the texts that privacy may rewrite before the adapter gets them.
	Text []Text
	// Check compares the input with the contract's limits, before any I/O.
	Check func() error
	// Guard is the reason why the call cannot go to the adapter: the slot is off, degraded or
	// disconnected. It is nil if the call can go.
	Guard error
	// Limit bounds the call in addition to the caller's deadline; 0 means the middleware's default.
	Limit time.Duration
	// Cancel is set for calls that return a stream. Their context must outlive the call, so a time
	// limit applies only to the opening, through Cancel.
	Cancel context.CancelCauseFunc

	result any // pointer to the T of Do
}

// Result points to the call's answer after the inner handler has returned nil. Middleware may
// marshal it. To answer instead of the adapter, middleware may unmarshal into it.
func (c Call) Result() any { return c.result }

// Text is one part of a call's input that people may have written. Exactly one of String, JSON and
// Body is set.
type Text struct {
	String *string          // plain text
	JSON   *json.RawMessage // string values are text; keys and structure are not
	Body   *Body            // its content type says what is text
}

// Handler carries out a call.
type Handler func(ctx context.Context, c Call) error

// Middleware wraps a handler in another. It must call next at most once, on its own goroutine.
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

// basic is the least middleware that a slot may have: guard and limits. It is used for a nil
// Middleware, so that no adapter gets unchecked input.
func basic(next Handler) Handler { return Guarded(Limits(next)) }

// Do passes one call through mw to f. The error, if any, is always an *Error that names slot and
// method; the result is then the zero T.
func Do[T any](ctx context.Context, mw Middleware, c Call, f func(context.Context) (T, error)) (T, error) {
	if mw == nil {
		mw = basic
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
