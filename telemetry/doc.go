// Package telemetry owns the way of spans from the box to an OpenTelemetry
// collector: a bounded queue, one exporting goroutine, and OTLP as protobuf over
// HTTP or gRPC (https://opentelemetry.io/docs/specs/otlp/).
//
// It speaks gRPC itself: the official exporters link a whole gRPC stack and the
// collector's gateway, which every start of PID 1 would pay for, with or without
// a collector.
//
// The package must never make the end of a span wait, hold more spans than its
// queue, keep the box from ending, write an endpoint's credentials or a header's
// value anywhere, or touch the SDK's globals.
package telemetry
