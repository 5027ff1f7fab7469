package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/prometheus/client_golang/prometheus"
)

// The outcomes of a call.
const (
	outcomeSuccess  = "success"
	outcomeError    = "error"
	outcomeDisabled = "disabled" // the slot is off, or degraded to off
	outcomeRejected = "rejected" // by privacy
	outcomeTimeout  = "timeout"
	outcomeCanceled = "canceled" // the caller has disconnected
)

func outcome(c adapters.Call, err error) string {
	switch adapters.CodeOf(err) {
	case "":
		if c.Class == adapters.ClassOff {
			return outcomeDisabled
		}
		return outcomeSuccess
	case adapters.CodeDisabled:
		return outcomeDisabled
	case adapters.CodePrivacyRejected:
		return outcomeRejected
	case adapters.CodeTimeout:
		if errors.Is(err, context.Canceled) {
			return outcomeCanceled
		}
		return outcomeTimeout
	}
	return outcomeError
}

type metrics struct {
	dispatch *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
	errors   *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		dispatch: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentbox_adapter_dispatch_total", Help: "Calls into a slot by their outcome.",
		}, []string{"slot", "method", "impl", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "agentbox_adapter_duration_seconds", Help: "Time a call into a slot took.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"slot", "method", "impl"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "agentbox_adapter_inflight", Help: "Calls into a slot that are under way.",
		}, []string{"slot"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentbox_adapter_errors_total", Help: "Failed calls into a slot by error code.",
		}, []string{"slot", "code"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.dispatch, m.duration, m.inflight, m.errors}
}

// measure counts and times calls. A panic passes through it to recoverPanics, and is counted as the
// error that it will become.
func (s *Stack) measure(next adapters.Handler) adapters.Handler {
	return func(ctx context.Context, c adapters.Call) error {
		begin := time.Now()
		inflight := s.metrics.inflight.WithLabelValues(string(c.Slot))
		inflight.Inc()
		err := error(adapters.ErrInternal) // until next returns
		defer func() {
			inflight.Dec()
			s.metrics.duration.WithLabelValues(string(c.Slot), c.Method, c.Impl).Observe(time.Since(begin).Seconds())
			s.metrics.dispatch.WithLabelValues(string(c.Slot), c.Method, c.Impl, outcome(c, err)).Inc()
			if err != nil {
				s.metrics.errors.WithLabelValues(string(c.Slot), string(adapters.CodeOf(err).Row().Code)).Inc()
			}
		}()
		err = next(ctx, c)
		return err
	}
}

// statusCollector reads the slots' state at scrape time.
type statusCollector struct{ status func() []adapters.SlotStatus }

// descs are the descriptions of its metrics.
func (statusCollector) descs() (health, info, reconnects, lost *prometheus.Desc) {
	return prometheus.NewDesc("agentbox_adapter_health", "Health of a slot's adapter: 0 unhealthy, 1 healthy, 2 degraded.", []string{"slot", "impl"}, nil),
		prometheus.NewDesc("agentbox_adapter_info", "The implementation a slot is configured with.", []string{"slot", "impl", "class", "contract_version"}, nil),
		prometheus.NewDesc("agentbox_adapter_reconnects_total", "Successful connects of a slot after boot.", []string{"slot"}, nil),
		prometheus.NewDesc("agentbox_adapter_lost_total", "What a slot's adapter could not keep or deliver since it connected, by kind.", []string{"slot", "kind"}, nil)
}

// Describe sends the descriptions.
func (s statusCollector) Describe(out chan<- *prometheus.Desc) {
	health, info, reconnects, lost := s.descs()
	out <- health
	out <- info
	out <- reconnects
	out <- lost
}

// Collect sends one sample of each metric for each slot. A slot that is off or still connecting has
// no health.
func (s statusCollector) Collect(out chan<- prometheus.Metric) {
	health, info, reconnects, lost := s.descs()
	for _, st := range s.status() {
		slot := string(st.Slot)
		if v, ok := healthValue(st.State); ok {
			out <- prometheus.MustNewConstMetric(health, prometheus.GaugeValue, v, slot, st.Wanted)
		}
		out <- prometheus.MustNewConstMetric(info, prometheus.GaugeValue, 1, slot, st.Wanted, string(st.Class), st.ContractVersion)
		out <- prometheus.MustNewConstMetric(reconnects, prometheus.CounterValue, float64(st.Reconnects), slot)
		for kind, n := range st.Lost {
			out <- prometheus.MustNewConstMetric(lost, prometheus.CounterValue, float64(n), slot, kind)
		}
	}
}

func healthValue(s adapters.State) (float64, bool) {
	switch s {
	case adapters.StateUnhealthy:
		return 0, true
	case adapters.StateHealthy:
		return 1, true
	case adapters.StateDegraded:
		return 2, true
	}
	return 0, false
}
