// Package exchange tells what may be told of an HTTP exchange by those who count
// it or put it into spans: its route, a method that nobody made up, the status of
// the answer. It must never change an answer, and never tell a path or a query,
// which may hold anything.
package exchange

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// RouteKey is the span attribute of the route, by OpenTelemetry's semantic
// conventions for HTTP (https://opentelemetry.io/docs/specs/semconv/http/http-spans/).
const RouteKey = attribute.Key("http.route")

// SetRoute names the pattern that took the request on the span of its context,
// which is what names that span. Without a span it does nothing; a later call
// wins.
func SetRoute(ctx context.Context, pattern string) {
	trace.SpanFromContext(ctx).SetAttributes(RouteKey.String(pattern))
}

// Method is the method where it is one of RFC 9110 or PATCH (RFC 5789), and other
// where somebody made it up: whoever asks must not choose names and labels.
func Method(method, other string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return other
}

// Recorder passes an answer on and remembers its status. Flush and Hijack go
// through Unwrap, as http.ResponseController and the WebSocket library ask for
// them. Like every ResponseWriter it is for one goroutine.
type Recorder struct {
	http.ResponseWriter
	// Status is 0 before the header.
	Status int
}

// WriteHeader implements http.ResponseWriter.
func (r *Recorder) WriteHeader(status int) {
	// 1xx are not the answer yet, except the switch to another protocol.
	if r.Status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		r.Status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(b []byte) (int, error) {
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap implements what http.ResponseController looks for.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
