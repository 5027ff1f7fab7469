// Package middleware does what every call of a slot needs, in the same way for all slots, in this
// order, outermost first:
//
//	recover, metrics, tracing, log, deadline, guard, limits, idempotency, privacy
//
// Metrics are outside privacy, so that a rejected write is counted. Idempotency is before privacy,
// so that a repeated call needs no redactor. The package must never put a payload into a log, a
// label or a span. It must take labels only from a fixed set. It must treat all slots alike, apart
// from their names.
package middleware
