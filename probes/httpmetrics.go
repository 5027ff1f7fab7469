package probes

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/internal/exchange"
)

// unmatched is the label for requests that no route takes.
const unmatched = "unmatched"

// httpMetrics counts requests by the pattern of their route and not by path, because the caller
// chooses the path.
type httpMetrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	panics   prometheus.Counter
}

func newHTTPMetrics(reg prometheus.Registerer) (*httpMetrics, error) {
	m := &httpMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentbox_http_requests_total", Help: "HTTP requests answered, by route pattern, method and status.",
		}, []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "agentbox_http_request_duration_seconds", Help: "Time from request to the end of the answer, by route pattern.",
			Buckets: []float64{.0005, .001, .005, .01, .05, .1, .5, 1, 5, 10},
		}, []string{"route"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "agentbox_http_requests_in_flight", Help: "HTTP requests being answered, by route pattern.",
		}, []string{"route"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "agentbox_http_panics_total", Help: "HTTP handlers that panicked; each is an event too.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.panics} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register the HTTP metrics: %w", err)
		}
	}
	return m, nil
}

// instrument counts the answers of h under the pattern. If h is a chi router that is mounted there,
// it counts them under the full pattern of the route.
func (m *httpMetrics) instrument(pattern string, h http.Handler) http.Handler {
	gauge := m.inFlight.WithLabelValues(pattern)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pattern != unmatched {
			exchange.SetRoute(r.Context(), pattern)
		}
		gauge.Inc()
		ww := &exchange.Recorder{ResponseWriter: w}
		begin := time.Now()
		finished := false
		defer func() {
			gauge.Dec()
			route := pattern
			if c := chi.RouteContext(r.Context()); c != nil && pattern != unmatched && c.RoutePattern() != "" {
				route = c.RoutePattern()
			}
			code := ww.Status
			switch {
			case !finished && code == 0:
				code = http.StatusInternalServerError // a handler panics; the panic continues after this
			case code == 0:
				code = http.StatusOK
			}
			m.requests.WithLabelValues(route, methodLabel(r.Method), strconv.Itoa(code)).Inc()
			m.duration.WithLabelValues(route).Observe(time.Since(begin).Seconds())
		}()
		h.ServeHTTP(ww, r)
		finished = true
	})
}

// methodLabel is "other" for an unknown method: callers must not be able to make label values.
func methodLabel(method string) string { return exchange.Method(method, "other") }
