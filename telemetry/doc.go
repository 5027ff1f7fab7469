// Package telemetry owns the export of spans from the box to an OpenTelemetry collector: a bounded
// queue, one exporting goroutine, and OTLP as protobuf over HTTP or gRPC
// (https://opentelemetry.io/docs/specs/otlp/).
//
// It implements the gRPC call itself. The official exporters link a whole gRPC stack and the
// collector's gateway, and that would slow every start of PID 1, even without a collector.
//
// The package must never block the code that ends a span, hold more spans than its queue, or delay
// the shutdown of the box beyond the time it is given. It must never write an endpoint's
// credentials or a header's value anywhere, and never change the SDK's globals.
package telemetry
