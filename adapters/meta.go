package adapters

import (
	"context"
	"time"
)

// IdempotencyLife is how long the first answer to an idempotency key is given
// again. All that remembers calls, over restarts too, keeps them as long: a slot
// that forgot before the answers are forgotten would make a thing twice.
const IdempotencyLife = 24 * time.Hour

// Meta travels in the context of a call. The HTTP and RPC edges set it, the
// middleware logs and traces it, external adapters forward it. An empty Actor
// is the box itself, which may do everything.
type Meta struct {
	SessionID   string
	ExecutionID string
	// Actor is who calls, as decided by authentication; never what a request
	// body claims.
	Actor string
	// Admin lets the actor act on what others hold.
	Admin bool
	// IdempotencyKey is 1-255 visible ASCII bytes, or empty.
	IdempotencyKey string
	// Once names the call for as long as an idempotency key lives, over restarts:
	// the same key and request give the same name. The middleware alone sets it.
	// A slot that keeps it beside what the call made, in one write, can tell a
	// repetition from a second call even when the box died between the two.
	Once string
	// TraceParent is the W3C trace context that came in, or empty.
	TraceParent string
}

type metaKey struct{}

// WithMeta returns ctx carrying m instead of whatever it carried before.
func WithMeta(ctx context.Context, m Meta) context.Context {
	return context.WithValue(ctx, metaKey{}, m)
}

// MetaFrom returns what ctx carries, the zero Meta if nothing.
func MetaFrom(ctx context.Context) Meta {
	m, _ := ctx.Value(metaKey{}).(Meta)
	return m
}

// MayActFor says whether the caller may act on what holder holds.
func (m Meta) MayActFor(holder string) bool {
	return m.Admin || m.Actor == "" || m.Actor == holder
}

// Report is filled by the middleware for an edge that wants to tell its caller
// how the answer came about.
type Report struct {
	// Replayed: the answer is the first one to the same idempotency key.
	Replayed bool
}

type reportKey struct{}

// WithReport returns ctx carrying r, which the call made with it fills in
// before it returns. One report serves one call.
func WithReport(ctx context.Context, r *Report) context.Context {
	return context.WithValue(ctx, reportKey{}, r)
}

// ReportFrom returns the report of ctx, or an unused one.
func ReportFrom(ctx context.Context) *Report {
	if r, ok := ctx.Value(reportKey{}).(*Report); ok {
		return r
	}
	return new(Report)
}
