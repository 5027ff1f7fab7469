package middleware

import (
	"context"

	"github.com/dreamlab-ai/agentinit/adapters"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// span puts every call into a span. Its parent is the running span, otherwise the trace context
// that came with the call. External adapters send the new span's context on.
func (s *Stack) span(next adapters.Handler) adapters.Handler {
	if s.tracer == nil {
		return next
	}
	return func(ctx context.Context, c adapters.Call) error {
		m := adapters.MetaFrom(ctx)
		ctx, span := s.tracer.Start(withParent(ctx, m.TraceParent), "agentbox.adapter."+string(c.Slot)+"."+c.Method,
			trace.WithAttributes(
				attribute.String("adapter.impl", c.Impl),
				attribute.String("agentbox.session_id", m.SessionID),
				attribute.String("agentbox.execution_id", m.ExecutionID),
			))
		m.TraceParent = traceParent(ctx)
		code := adapters.CodeInternal // the code for a panic, which recoverPanics handles next
		// End is not deferred alone: it would record the text of a panic, which may contain a
		// payload.
		defer func() {
			if code != "" {
				span.SetAttributes(attribute.String("error.kind", string(code)))
				span.SetStatus(codes.Error, string(code))
			}
			span.End()
		}()
		err := next(adapters.WithMeta(ctx, m), c)
		code = adapters.CodeOf(err)
		return err
	}
}

// withParent uses a W3C traceparent as parent if no span is running.
func withParent(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

func traceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}
