package adapters

import (
	"context"
	"time"
)

// IdempotencyLife is how long a repeated idempotency key gets the first answer again, even after
// restarts. Slots must remember calls for at least as long. A slot that forgot a call earlier would
// create a thing twice.
const IdempotencyLife = 24 * time.Hour

// Meta travels in the context of a call. The HTTP and RPC servers set it, the middleware logs and
// traces it, and external adapters forward it. An empty Actor is the box itself, which may do
// everything.
type Meta struct {
	SessionID   string
	ExecutionID string
	// Actor is the caller, as established by authentication. It is never taken from a request body.
	Actor string
	// Admin lets the actor change what other actors hold.
	Admin bool
	// IdempotencyKey is 1-255 visible ASCII bytes, or empty.
	IdempotencyKey string
	// Once identifies the call for the life of an idempotency key, over restarts: the same key and
	// request give the same name. Only the middleware sets it. A slot that stores it in the same
	// write as the created thing recognises a repeated call, even if the box died during the first.
	Once string
	// TraceParent is the W3C trace context of the request, or empty.
	TraceParent string
}

type metaKey struct{}

// WithMeta returns ctx with m, which replaces an earlier Meta.
func WithMeta(ctx context.Context, m Meta) context.Context {
	return context.WithValue(ctx, metaKey{}, m)
}

// MetaFrom returns the Meta of ctx, or the zero Meta.
func MetaFrom(ctx context.Context) Meta {
	m, _ := ctx.Value(metaKey{}).(Meta)
	return m
}

// MayActFor tells whether the caller may change what holder holds.
func (m Meta) MayActFor(holder string) bool {
	return m.Admin || m.Actor == "" || m.Actor == holder
}

// Report tells a server how the answer was made. The middleware fills it in.
type Report struct {
	// Replayed says that the answer is the first answer to the same idempotency key.
	Replayed bool
}

type reportKey struct{}

// WithReport returns ctx with r. The call with this ctx fills r in before it returns. One report
// serves one call.
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
