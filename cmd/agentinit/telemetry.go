package main

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/telemetry"
)

// startTracing makes the exporter to the collector at endpoint. Without an endpoint there is no
// exporter and no cost. It does not dial.
func (b *box) startTracing(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	pipeline, err := telemetry.New(telemetry.Config{
		Endpoint: endpoint, Headers: b.getenv("OTEL_EXPORTER_OTLP_HEADERS"), Version: version, Instance: b.bootID,
		Report: func(err error) {
			b.publish(event.Warn, "SpansLost", map[string]any{"message": err.Error()})
		},
	})
	if err != nil {
		from := "observability.otlp_endpoint"
		if b.getenv("AGENTBOX_OTLP_ENDPOINT") != "" {
			from = "AGENTBOX_OTLP_ENDPOINT"
		}
		return fmt.Errorf("%s: %w", from, err)
	}
	b.tracing, b.tracer = pipeline, pipeline.Tracer()
	return nil
}

// traceMetrics adds the metrics about spans; it adds none without a collector.
func (b *box) traceMetrics() error {
	if b.tracing == nil {
		return nil
	}
	for _, c := range b.tracing.Collectors() {
		if err := b.registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// traceRequests wraps the servers; nil without a collector.
func (b *box) traceRequests() func(http.Handler) http.Handler {
	if b.tracing == nil {
		return nil
	}
	return b.tracing.Handler
}

// traceBoot makes the spans of the boot from its record, because there is no collector before the
// manifest was read. The messages of the phases are left out, because they may quote the manifest.
func (b *box) traceBoot() {
	if b.tracer == nil {
		return
	}
	ctx, boot := b.tracer.Start(b.stopped, "agentbox.boot", trace.WithTimestamp(b.started))
	ended := b.started
	for _, r := range b.boot.Records() {
		if r.Started.IsZero() {
			continue
		}
		end := r.Started.Add(r.Duration)
		_, span := b.tracer.Start(ctx, "agentbox.boot."+r.Name, trace.WithTimestamp(r.Started), trace.WithAttributes(
			attribute.String("agentbox.phase", r.Label()), attribute.String("agentbox.outcome", string(r.Status)),
		))
		if r.Status == bootstrap.StatusFailed {
			span.SetStatus(codes.Error, "")
			boot.SetStatus(codes.Error, "")
		}
		span.End(trace.WithTimestamp(end))
		ended = end
	}
	for _, run := range b.boot.Runs() {
		if run.Started.IsZero() || run.Ready.IsZero() {
			continue
		}
		_, span := b.tracer.Start(ctx, "agentbox.program.start", trace.WithTimestamp(run.Started), trace.WithAttributes(
			attribute.String("agentbox.program", run.Name), attribute.Bool("agentbox.required", run.Required),
		))
		span.End(trace.WithTimestamp(run.Ready))
	}
	boot.End(trace.WithTimestamp(ended))
}

// trace begins the span of an agent's life; the returned function ends it. The command line is left
// out, because it may contain anything.
func (a *agents) trace(ctx context.Context, id string, p *agentProcess) func(orchestrator.Ending) {
	if a.tracer == nil {
		return func(orchestrator.Ending) {}
	}
	m := adapters.MetaFrom(ctx)
	_, span := a.tracer.Start(ctx, "agentbox.agent", trace.WithTimestamp(p.Started()), trace.WithAttributes(
		attribute.String("agentbox.agent_id", id), attribute.Int("process.pid", p.PID()),
		attribute.String("agentbox.session_id", m.SessionID), attribute.String("agentbox.execution_id", m.ExecutionID),
	))
	return func(e orchestrator.Ending) {
		if e.Signal != 0 {
			span.SetAttributes(attribute.String("agentbox.exit_signal", "SIG"+signame.Of(e.Signal)))
		} else {
			span.SetAttributes(attribute.Int("process.exit.code", e.Code))
		}
		if e.Leaked > 0 {
			span.SetAttributes(attribute.Int("agentbox.leaked_processes", e.Leaked))
		}
		if e.Signal != 0 || e.Code != 0 {
			span.SetStatus(codes.Error, "")
		}
		end := e.Time
		if end.Before(p.Started()) {
			end = p.Started() // it ended before its start was recorded here
		}
		span.End(trace.WithTimestamp(end))
	}
}

// endTracing sends the remaining spans within the same time limit as the log.
func (b *box) endTracing() {
	if b.tracing == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushWait)
	defer cancel()
	if err := b.tracing.Shutdown(ctx); err != nil {
		b.publish(event.Warn, "SpansLost", map[string]any{"message": err.Error()})
	}
}
