package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Limits of what is held.
const (
	// QueueSize is the most spans held, those of the export under way included;
	// requests take at most half of it.
	QueueSize = 2048
	// BatchSize is the most spans of one export.
	BatchSize = 512
	// BatchEvery is how long an ended span waits for others.
	BatchEvery = 5 * time.Second
	// maxValue is the most characters of one attribute's value.
	maxValue    = 512
	reportEvery = time.Minute
)

// Config of New.
type Config struct {
	// Endpoint is http://host:port or https://host:port; port 4317 is gRPC, every
	// other one HTTP, at the path given or /v1/traces.
	Endpoint string
	// Headers go with every export, in the form of OTEL_EXPORTER_OTLP_HEADERS.
	Headers string
	// Version and Instance are service.version and service.instance.id of the
	// spans; service.name is agentinit.
	Version, Instance string
	// Report is told what goes wrong, at most once a minute, from the exporting
	// goroutine. It must return from memory.
	Report func(error)
}

// Pipeline makes spans and brings them to the collector. It is safe for
// concurrent use and has one goroutine, until Shutdown.
type Pipeline struct {
	provider *sdk.TracerProvider
	client   *client
	exporter sdk.SpanExporter
	batcher  sdk.SpanProcessor
	report   func(error)

	held     atomic.Int64
	exported prometheus.Counter
	dropped  *prometheus.CounterVec

	// abandoned ends when Shutdown's time is over: what is under way ends with it.
	abandoned context.Context
	abandon   context.CancelFunc
	leave     sync.Once

	mu       sync.Mutex
	reported time.Time
}

// The reasons of agentbox_spans_dropped_total.
const (
	dropQueue    = "queue"    // the queue was full
	dropExport   = "export"   // the collector could not be reached, or refused
	dropRejected = "rejected" // the collector took the others of the batch
)

// New makes a pipeline; nothing is dialled. The error says what is wrong with the
// endpoint, without quoting it. Headers that cannot be sent are reported.
func New(c Config) (*Pipeline, error) {
	p := &Pipeline{
		report: c.Report,
		exported: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "agentbox_spans_exported_total", Help: "Spans that the trace collector took.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentbox_spans_dropped_total", Help: "Spans that did not reach the trace collector.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{dropQueue, dropExport, dropRejected} {
		p.dropped.WithLabelValues(reason) // a rate needs the zero
	}
	headers, bad := parseHeaders(c.Headers)
	var err error
	if p.client, err = newClient(c.Endpoint, headers); err != nil {
		return nil, err
	}
	p.abandoned, p.abandon = context.WithCancel(context.Background())
	p.exporter = otlptrace.NewUnstarted(p.client)
	// The batcher never drops by itself: OnEnd lets in no more than it has room for.
	p.batcher = sdk.NewBatchSpanProcessor(exporter{p},
		sdk.WithMaxQueueSize(QueueSize), sdk.WithMaxExportBatchSize(BatchSize),
		sdk.WithBatchTimeout(BatchEvery), sdk.WithExportTimeout(ExportTimeout))
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxValue
	p.provider = sdk.NewTracerProvider(
		sdk.WithSpanProcessor(gate{p}), sdk.WithRawSpanLimits(limits),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "agentinit"),
			attribute.String("service.version", c.Version),
			attribute.String("service.instance.id", c.Instance),
		)),
	)
	if bad != nil {
		p.trouble(bad)
	}
	return p, nil
}

// Tracer makes the spans.
func (p *Pipeline) Tracer() trace.Tracer { return p.provider.Tracer("agentinit") }

// Collectors are the metrics of the pipeline.
func (p *Pipeline) Collectors() []prometheus.Collector {
	return []prometheus.Collector{p.exported, p.dropped}
}

// Shutdown exports what is held, without a second attempt, until ctx ends; then
// it lets go of the rest. Spans that end afterwards go nowhere. The error is ctx's.
func (p *Pipeline) Shutdown(ctx context.Context) error {
	p.leave.Do(func() { close(p.client.leaving) })
	stop := context.AfterFunc(ctx, p.abandon)
	defer stop()
	return p.provider.Shutdown(ctx)
}

// trouble reports at most once a minute: a collector that is away fails every
// batch.
func (p *Pipeline) trouble(err error) {
	p.mu.Lock()
	now := time.Now()
	again := p.reported.IsZero() || now.Sub(p.reported) >= reportEvery
	if again {
		p.reported = now
	}
	p.mu.Unlock()
	if again && p.report != nil {
		p.report(err)
	}
}

// gate is the way into the queue.
type gate struct{ p *Pipeline }

func (g gate) OnStart(ctx context.Context, s sdk.ReadWriteSpan) { g.p.batcher.OnStart(ctx, s) }

func (g gate) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	room := int64(QueueSize)
	if s.SpanKind() == trace.SpanKindServer {
		room /= 2 // the clients decide how many of these there are
	}
	if g.p.held.Add(1) > room {
		g.p.held.Add(-1)
		g.p.dropped.WithLabelValues(dropQueue).Inc()
		return
	}
	g.p.batcher.OnEnd(s)
}

func (g gate) ForceFlush(ctx context.Context) error { return g.p.batcher.ForceFlush(ctx) }
func (g gate) Shutdown(ctx context.Context) error   { return g.p.batcher.Shutdown(ctx) }

// exporter is the way out of the queue. It returns no error, which the SDK would
// write to stderr: it counts and reports instead.
type exporter struct{ p *Pipeline }

func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer e.p.held.Add(-int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.p.abandoned, cancel)()
	err := e.p.exporter.ExportSpans(ctx, spans)
	lost, reason := 0, dropExport
	var p *partial
	switch {
	case errors.As(err, &p):
		lost, reason = int(min(p.rejected, int64(len(spans)))), dropRejected
	case err != nil:
		lost = len(spans)
	}
	e.p.exported.Add(float64(len(spans) - lost))
	e.p.dropped.WithLabelValues(reason).Add(float64(lost))
	if err != nil {
		e.p.trouble(fmt.Errorf("%d of %d spans lost: %w", lost, len(spans), err))
	}
	return nil
}

func (e exporter) Shutdown(ctx context.Context) error { return e.p.exporter.Shutdown(ctx) }
