package telemetry

import (
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/dreamlab-ai/agentinit/internal/exchange"
)

// The attributes of a request's span, as named by OpenTelemetry's semantic conventions for HTTP
// (https://opentelemetry.io/docs/specs/semconv/http/http-spans/).
const (
	methodKey = "http.request.method"
	statusKey = "http.response.status_code"
	errorKey  = "error.type"
)

// Handler makes a span for every request to next, as a child of the traceparent of the request (W3C
// Trace Context). The span shows the method, the status and the route that next sets with
// exchange.SetRoute. It never shows the path or the query, which may contain secrets.
func (p *Pipeline) Handler(next http.Handler) http.Handler {
	tracer := p.Tracer()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		method := exchange.Method(r.Method, "_OTHER") // the word that the semantic conventions use
		ctx, span := tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String(methodKey, method)))
		ww := &exchange.Recorder{ResponseWriter: w}
		finished := false
		// End is not deferred directly, because a deferred End records the text of a panic.
		defer func() {
			conclude(span, method, statusOf(ww, r, finished))
			span.End()
		}()
		next.ServeHTTP(ww, r.WithContext(ctx))
		finished = true
	})
}

// statusOf returns the status of an answer, or 0 if the answer was cut off before it began.
func statusOf(w *exchange.Recorder, r *http.Request, finished bool) int {
	switch code := w.Status; {
	case code != 0 || !finished:
		return code
	case r.Header.Get("Upgrade") != "":
		return http.StatusSwitchingProtocols // the handler wrote this status on the hijacked connection
	}
	return http.StatusOK
}

func conclude(span trace.Span, method string, status int) {
	if s, ok := span.(sdk.ReadOnlySpan); ok {
		for _, a := range s.Attributes() {
			if a.Key == exchange.RouteKey {
				span.SetName(method + " " + a.Value.AsString())
			}
		}
	}
	if status == 0 {
		span.SetAttributes(attribute.String(errorKey, "aborted"))
		span.SetStatus(codes.Error, "")
		return
	}
	span.SetAttributes(attribute.Int(statusKey, status))
	if status >= http.StatusInternalServerError {
		span.SetAttributes(attribute.String(errorKey, strconv.Itoa(status)))
		span.SetStatus(codes.Error, "")
	}
}
