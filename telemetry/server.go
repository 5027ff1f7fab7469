package telemetry

import (
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/dreamlab-ai/agentinit/internal/httpstatus"
)

// The attributes of a request's span, by OpenTelemetry's semantic conventions for
// HTTP (https://opentelemetry.io/docs/specs/semconv/http/http-spans/).
const (
	methodKey = "http.request.method"
	routeKey  = "http.route"
	statusKey = "http.response.status_code"
	errorKey  = "error.type"
)

// Handler puts every request to next into a span, below the request's own
// traceparent (W3C Trace Context). The span shows method, status and what next
// sets as http.route on the span of the request's context; never a path or a
// query, which may hold anything.
func (p *Pipeline) Handler(next http.Handler) http.Handler {
	tracer := p.Tracer()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		method := knownMethod(r.Method)
		ctx, span := tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String(methodKey, method)))
		ww := &httpstatus.Recorder{ResponseWriter: w}
		finished := false
		// Not deferred by itself: End would record the text of a panic.
		defer func() {
			conclude(span, method, statusOf(ww, r, finished))
			span.End()
		}()
		next.ServeHTTP(ww, r.WithContext(ctx))
		finished = true
	})
}

// statusOf is the status of an answer, 0 when it was cut off before it began.
func statusOf(w *httpstatus.Recorder, r *http.Request, finished bool) int {
	switch code := w.Status; {
	case code != 0 || !finished:
		return code
	case r.Header.Get("Upgrade") != "":
		return http.StatusSwitchingProtocols // written on the bare connection
	}
	return http.StatusOK
}

func conclude(span trace.Span, method string, status int) {
	if s, ok := span.(sdk.ReadOnlySpan); ok {
		for _, a := range s.Attributes() {
			if a.Key == routeKey {
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

// knownMethod keeps a made-up method out of names; _OTHER is the convention's.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return "_OTHER"
}
