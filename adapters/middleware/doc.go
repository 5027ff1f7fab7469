// Package middleware owns what happens around every call into a slot, written
// once for all of them, in this order, outermost first:
//
//	recover, metrics, tracing, log, deadline, guard, limits, idempotency, privacy
//
// Metrics are outside privacy, so that a rejected write is counted;
// idempotency is before privacy, so that a replay needs no redactor. The
// package must never let a payload into a log, a label or a span, take a label
// from outside a fixed set, or know one slot from another beyond its name.
package middleware
