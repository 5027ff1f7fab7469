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

// Limits of the queue and of one batch.
const (
	// queueSize is the maximum number of spans held, including those of the current export. Spans
	// of requests take at most half of it.
	queueSize = 2048
	// batchSize is the maximum number of spans in one export.
	batchSize = 512
	// batchEvery is how long an ended span waits for others to share its batch.
	batchEvery = 5 * time.Second
	// maxValue is the maximum length of one attribute's value in characters.
	maxValue    = 512
	reportEvery = time.Minute
)

// Config is the argument of New.
type Config struct {
	// Endpoint is http://host:port or https://host:port. Port 4317 selects gRPC. Any other port
	// selects HTTP, with the path of the endpoint or, if it has none, /v1/traces.
	Endpoint string
	// Headers are sent with every export. They have the form of OTEL_EXPORTER_OTLP_HEADERS.
	Headers string
	// Version and Instance are the attributes service.version and service.instance.id of the spans.
	// service.name is always agentinit.
	Version, Instance string
	// Report is called with an error at most once a minute: from the exporting goroutine, and from
	// New. It must not block.
	Report func(error)
}

// Pipeline makes spans and exports them to the collector. It is safe for concurrent use. It has one
// goroutine until Shutdown.
type Pipeline struct {
	provider *sdk.TracerProvider
	client   *client
	exporter sdk.SpanExporter
	batcher  sdk.SpanProcessor
	report   func(error)

	held     atomic.Int64
	exported prometheus.Counter
	dropped  *prometheus.CounterVec

	// abandoned is cancelled when the time of Shutdown is over. That cancels the current export.
	abandoned context.Context
	abandon   context.CancelFunc
	leave     sync.Once

	mu       sync.Mutex
	reported time.Time
}

// The values of the label "reason" of agentbox_spans_dropped_total.
const (
	dropQueue    = "queue"    // the queue was full
	dropExport   = "export"   // the collector could not be reached, or it refused the batch
	dropRejected = "rejected" // the collector rejected these spans and took the rest of the batch
)

// New makes a pipeline and opens no connection. The error says what is wrong with the endpoint,
// without quoting it. Headers that cannot be sent are given to Report.
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
		p.dropped.WithLabelValues(reason) // the series must exist with value 0, so that rate() sees the first increase
	}
	headers, bad := parseHeaders(c.Headers)
	var err error
	if p.client, err = newClient(c.Endpoint, headers); err != nil {
		return nil, err
	}
	p.abandoned, p.abandon = context.WithCancel(context.Background())
	p.exporter = otlptrace.NewUnstarted(p.client)
	// The batcher itself never drops a span: OnEnd never admits more spans than the batcher has
	// room for.
	p.batcher = sdk.NewBatchSpanProcessor(exporter{p},
		sdk.WithMaxQueueSize(queueSize), sdk.WithMaxExportBatchSize(batchSize),
		sdk.WithBatchTimeout(batchEvery), sdk.WithExportTimeout(ExportTimeout))
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

// Tracer returns the tracer that makes the spans.
func (p *Pipeline) Tracer() trace.Tracer { return p.provider.Tracer("agentinit") }

// Collectors returns the metrics of the pipeline.
func (p *Pipeline) Collectors() []prometheus.Collector {
	return []prometheus.Collector{p.exported, p.dropped}
}

// Shutdown exports the spans held, without retries, until ctx ends. Then it drops the rest. Spans
// that end after Shutdown are discarded. The error is that of ctx.
func (p *Pipeline) Shutdown(ctx context.Context) error {
	p.leave.Do(func() { close(p.client.leaving) })
	stop := context.AfterFunc(ctx, p.abandon)
	err := p.provider.Shutdown(ctx)
	if !stop() && err == nil {
		return ctx.Err() // the abandoned export ended before the SDK looked at ctx
	}
	return err
}

// trouble reports at most once a minute, because every batch fails while a collector is
// unreachable.
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

// gate admits spans to the queue or drops them.
type gate struct{ p *Pipeline }

func (g gate) OnStart(ctx context.Context, s sdk.ReadWriteSpan) { g.p.batcher.OnStart(ctx, s) }

func (g gate) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	room := int64(queueSize)
	if s.SpanKind() == trace.SpanKindServer {
		room /= 2 // clients decide how many requests there are, so their spans get only half
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

// exporter takes spans from the queue. It counts and reports its errors and always returns nil,
// because the SDK would write an error to stderr.
type exporter struct{ p *Pipeline }

func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer e.p.held.Add(-int64(len(spans)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.p.abandoned, cancel)()
	err := e.p.exporter.ExportSpans(ctx, spans)
	lost, reason := 0, dropExport
	p, ok := errors.AsType[*partial](err)
	switch {
	case ok:
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
