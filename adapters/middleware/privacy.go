package middleware

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Policy says what happens to a text if the redactor gives no answer.
type Policy string

// The policies.
const (
	PolicyStrict Policy = "strict" // the write is refused: PRIVACY_REJECTED
	PolicySoft   Policy = "soft"   // the original is written, with a warning
	PolicyOff    Policy = "off"    // the redactor is not called
)

// defaultPolicy is the policy of a slot that names none.
func defaultPolicy(slot adapters.Slot) Policy {
	switch slot {
	case adapters.SlotPods, adapters.SlotMemory:
		return PolicyStrict
	case adapters.SlotOrchestrator:
		return PolicyOff
	}
	return PolicySoft
}

// entities are the kinds of private text a redactor knows.
func entities() []string {
	return []string{
		"account_number", "private_address", "private_email", "private_person",
		"private_phone", "private_url", "private_date", "secret",
	}
}

// Limits of one call's redaction.
const (
	redactLimit    = 2 * time.Second // all requests of one call
	redactParallel = 4
	maxRedactText  = 1 << 20 // bytes of one text, and of one body
	maxRedactReply = 8 << 20 // bytes of one answer
	warnEvery      = time.Minute
)

// RedactRequest is a request to the sidecar.
type RedactRequest struct {
	Text     string   `json:"text"`
	Slot     string   `json:"slot"`
	Entities []string `json:"entities"` // empty = all
}

// RedactAnswer is the sidecar's answer. Text is nil if the answer had none.
type RedactAnswer struct {
	Text     *string `json:"text"`
	Replaced []struct {
		Entity string  `json:"entity_group"`
		Start  int     `json:"start"`
		End    int     `json:"end"`
		Score  float64 `json:"score"`
	} `json:"replaced"`
	LatencyMS float64 `json:"latency_ms"`
}

// Redactor masks private text.
type Redactor interface {
	Redact(ctx context.Context, r RedactRequest) (RedactAnswer, error)
}

// Sidecar is the redactor behind http://127.0.0.1:<port>.
type Sidecar struct {
	url    string
	client *http.Client
}

// NewSidecar makes a client of the sidecar on a loopback port. It does no I/O.
func NewSidecar(port int) *Sidecar {
	return &Sidecar{
		url: fmt.Sprintf("http://127.0.0.1:%d/redact", port),
		client: &http.Client{
			// Private text must go only to this port: no proxy, no redirect.
			Transport: &http.Transport{
				MaxIdleConnsPerHost: redactParallel, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: outbound.NoRedirect,
		},
	}
}

// Close ends idle connections.
func (s *Sidecar) Close() { s.client.CloseIdleConnections() }

// Redact asks the sidecar. Every answer other than 200 with a text is an error.
func (s *Sidecar) Redact(ctx context.Context, r RedactRequest) (a RedactAnswer, err error) {
	if r.Entities == nil {
		r.Entities = []string{}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	res, err := s.client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxRedactReply))
	if err != nil {
		return a, err
	}
	if res.StatusCode != http.StatusOK {
		return a, fmt.Errorf("the redactor answered %d", res.StatusCode)
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, fmt.Errorf("the redactor's answer: %w", err)
	}
	if a.Text == nil {
		return a, errors.New("the redactor answered without a text")
	}
	return a, nil
}

// PrivacyConfig configures the filter.
type PrivacyConfig struct {
	Redactor Redactor                 // nil = privacy is not enabled
	Policies map[adapters.Slot]Policy // absent = defaultPolicy
	Entities []string                 // empty = all
}

// privacyFilter rewrites the text of incoming calls. It is safe for concurrent use.
type privacyFilter struct {
	cfg     PrivacyConfig
	metrics *privacyMetrics
	tracer  trace.Tracer
	log     zerolog.Logger

	mu     sync.Mutex
	warned map[adapters.Slot]time.Time
}

func newFilter(cfg PrivacyConfig, tracer trace.Tracer, log zerolog.Logger) *privacyFilter {
	return &privacyFilter{cfg: cfg, metrics: newPrivacyMetrics(), tracer: tracer, log: log, warned: make(map[adapters.Slot]time.Time)}
}

func (f *privacyFilter) policy(slot adapters.Slot) Policy {
	if f.cfg.Redactor == nil {
		return PolicyOff
	}
	if p, ok := f.cfg.Policies[slot]; ok {
		return p
	}
	return defaultPolicy(slot)
}

func (f *privacyFilter) middleware(next adapters.Handler) adapters.Handler {
	return func(ctx context.Context, c adapters.Call) error {
		if c.Write && c.Class != adapters.ClassOff && len(c.Text) > 0 {
			if err := f.rewrite(ctx, c.Slot, c.Text, c.Check); err != nil {
				return err
			}
		}
		return next(ctx, c)
	}
}

// rewrite masks private parts of texts in place, by the policy of slot. check, if not nil,
// checks the result. If the redactor made a text longer than allowed, that counts as a failure of the
// redactor.
func (f *privacyFilter) rewrite(ctx context.Context, slot adapters.Slot, texts []adapters.Text, check func() error) error {
	policy := f.policy(slot)
	if policy == PolicyOff {
		return nil
	}
	limited, end := f.begin(ctx, slot, policy)
	pieces, err := gather(texts)
	if err == nil {
		err = f.redactAll(limited, slot, pieces.all())
	}
	if err == nil {
		restore := pieces.apply()
		if check != nil {
			if err = check(); err != nil {
				restore()
			}
		}
	}
	end(pieces, err)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil { // the caller's time has ended, so the redactor has not failed
		return context.Cause(ctx)
	}
	if policy == PolicyStrict {
		f.metrics.closed.WithLabelValues(string(slot)).Inc()
		return adapters.Errorf(adapters.CodePrivacyRejected, "the text could not be checked for private content").Wrap(err)
	}
	f.metrics.open.WithLabelValues(string(slot)).Inc()
	f.warn(slot, err)
	return nil
}

// begin starts the span and the time limit of one redaction.
func (f *privacyFilter) begin(ctx context.Context, slot adapters.Slot, policy Policy) (context.Context, func(*pieces, error)) {
	const op = "redact"
	start := time.Now()
	var span trace.Span
	if f.tracer != nil {
		ctx, span = f.tracer.Start(ctx, "agentbox.privacy_filter."+op)
	}
	ctx, cancel := context.WithTimeout(ctx, redactLimit)
	return ctx, func(p *pieces, err error) {
		cancel()
		f.metrics.duration.WithLabelValues(string(slot), op).Observe(time.Since(start).Seconds())
		if span == nil {
			return
		}
		hits, size := p.sums()
		span.SetAttributes(attribute.String("policy", string(policy)), attribute.String("slot", string(slot)),
			attribute.Int("entity_hits", hits), attribute.Int("redacted_bytes", size))
		if err != nil {
			span.SetAttributes(attribute.String("error.kind", "redactor"))
			span.SetStatus(codes.Error, "redactor")
		}
		span.End()
	}
}

// redactAll sends every text once, redactParallel texts at a time. The first failure stops the
// others.
func (f *privacyFilter) redactAll(ctx context.Context, slot adapters.Slot, texts []*piece) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan *piece)
	var wg sync.WaitGroup
	for range min(redactParallel, len(texts)) {
		wg.Go(func() {
			for p := range queue {
				if err := f.redact(ctx, slot, p); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for _, p := range texts {
		select {
		case queue <- p:
		case <-ctx.Done():
			break feed
		}
	}
	close(queue)
	wg.Wait()
	return context.Cause(ctx)
}

func (f *privacyFilter) redact(ctx context.Context, slot adapters.Slot, p *piece) (err error) {
	// A panic in this goroutine would end the box.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the redactor panicked: %v", r)
		}
	}()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f.metrics.requests.WithLabelValues(string(slot), "redact").Inc()
	a, err := f.cfg.Redactor.Redact(ctx, RedactRequest{Text: p.text, Slot: string(slot), Entities: f.cfg.Entities})
	if err != nil {
		return err
	}
	if a.Text == nil {
		return errors.New("the redactor answered without a text")
	}
	p.redacted, p.hits = *a.Text, len(a.Replaced)
	for _, r := range a.Replaced {
		entity := r.Entity
		if !slices.Contains(entities(), entity) {
			entity = "other"
		}
		f.metrics.redactions.WithLabelValues(string(slot), entity).Inc()
	}
	return nil
}

// warn logs, at most once a minute for each slot, that texts pass unchecked.
func (f *privacyFilter) warn(slot adapters.Slot, err error) {
	f.mu.Lock()
	now := time.Now()
	last, ok := f.warned[slot]
	again := !ok || now.Sub(last) >= warnEvery
	if again {
		f.warned[slot] = now
	}
	f.mu.Unlock()
	if again {
		f.log.Warn().Str("slot", string(slot)).Str("policy", string(PolicySoft)).AnErr("cause", err).
			Msg("text is written without a check for private content")
	}
}

type privacyMetrics struct {
	requests, redactions, closed, open *prometheus.CounterVec
	duration                           *prometheus.HistogramVec
}

func newPrivacyMetrics() *privacyMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &privacyMetrics{
		requests:   counter("opf_requests_total", "Requests to the privacy redactor.", "slot", "op"),
		redactions: counter("opf_redactions_total", "Private texts that were masked.", "slot", "entity"),
		closed:     counter("opf_fail_closed_total", "Writes refused because the redactor failed.", "slot"),
		open:       counter("opf_fail_open_total", "Writes let through although the redactor failed.", "slot"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "opf_duration_seconds", Help: "Time one call's redaction took.", Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2},
		}, []string{"slot", "op"}),
	}
}

func (m *privacyMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.redactions, m.closed, m.open, m.duration}
}
