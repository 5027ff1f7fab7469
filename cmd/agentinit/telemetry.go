package main

import (
	"context"
	"fmt"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/telemetry"
)

// startTracing makes the way to the collector at endpoint; without one there is
// no exporter and no cost. Nothing is dialled here.
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
		return fmt.Errorf("observability.otlp_endpoint %q: %w", withoutCredentials(endpoint), err)
	}
	b.tracing, b.tracer = pipeline, pipeline.Tracer()
	return nil
}

// traceMetrics shows what came of the spans; nothing without a collector.
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

// endTracing sends what spans are left, for as long as the log has too.
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
