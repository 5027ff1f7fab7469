// Package exchange owns the facts of an HTTP exchange that metrics and spans may show: its route, a
// method from a fixed list, and the status of the answer. It must never change an answer. It must
// never reveal a path or a query, because they may contain secrets.
package exchange

import (
	"cmp"
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// RouteKey is the span attribute for the route, as named by OpenTelemetry's semantic conventions
// for HTTP (https://opentelemetry.io/docs/specs/semconv/http/http-spans/).
const RouteKey = attribute.Key("http.route")

// SetRoute sets the pattern that matched the request as an attribute of the span in ctx. The span
// is later named after it. Without a span, SetRoute does nothing. A later call replaces the
// pattern.
func SetRoute(ctx context.Context, pattern string) {
	trace.SpanFromContext(ctx).SetAttributes(RouteKey.String(pattern))
}

// Method returns method if it is a method of RFC 9110 or PATCH (RFC 5789). For any other text it
// returns other, because a client must not be able to choose names and labels.
func Method(method, other string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return other
}

// Recorder passes an answer on and remembers its status. http.ResponseController and the WebSocket
// library reach Flush and Hijack through Unwrap. Like every ResponseWriter, a Recorder is for one
// goroutine only.
type Recorder struct {
	http.ResponseWriter
	// Status is 0 until the header is written.
	Status int
}

// WriteHeader implements http.ResponseWriter.
func (r *Recorder) WriteHeader(status int) {
	// Statuses 1xx are not the final answer, except the switch to another protocol.
	if r.Status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		r.Status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(b []byte) (int, error) {
	r.Status = cmp.Or(r.Status, http.StatusOK)
	return r.ResponseWriter.Write(b)
}

// Unwrap gives http.ResponseController access to the wrapped writer.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
