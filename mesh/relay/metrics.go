package relay

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

type metrics struct {
	connections  *prometheus.GaugeVec
	events       *prometheus.CounterVec
	authFailures *prometheus.CounterVec
	signatures   prometheus.Counter
	bytes        prometheus.Gauge
	pruned       prometheus.Counter
	evicted      prometheus.Counter
	kinds        []int
}

func newMetrics(r prometheus.Registerer, kinds []int) (*metrics, error) {
	m := &metrics{
		connections:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "agentbox_relay_connections_active", Help: "Connections to the box's relay, by whether they have shown a key."}, []string{"state"}),
		events:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "agentbox_relay_events_total", Help: "Events of the box's relay, by direction, kind and what became of them."}, []string{"direction", "kind", "outcome"}),
		authFailures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "agentbox_relay_auth_fail_total", Help: "Refused logins (NIP-42) at the box's relay."}, []string{"reason"}),
		signatures:   prometheus.NewCounter(prometheus.CounterOpts{Name: "agentbox_relay_sig_fail_total", Help: "Events with a wrong id or signature."}),
		bytes:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "agentbox_relay_db_bytes", Help: "Size of the relay's database, as of its last pruning."}),
		pruned:       prometheus.NewCounter(prometheus.CounterOpts{Name: "agentbox_relay_retention_pruned_total", Help: "Events deleted because they expired or the retention time was over."}),
		evicted:      prometheus.NewCounter(prometheus.CounterOpts{Name: "agentbox_relay_evicted_total", Help: "Events deleted because the relay's database had reached max_bytes."}),
		kinds:        kinds,
	}
	for _, c := range m.all() {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.events, m.authFailures, m.signatures, m.bytes, m.pruned, m.evicted}
}

// unregister removes the metrics, so that the next relay of this process can register its own.
func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.all() {
		r.Unregister(c)
	}
}

// event counts an event. Kinds that are not allowed count as "other", so that strangers cannot create
// new time series.
func (m *metrics) event(direction string, kind int, outcome string) {
	label := "other"
	if nip01.KindAllowed(m.kinds, kind) {
		label = strconv.Itoa(kind)
	}
	m.events.WithLabelValues(direction, label, outcome).Inc()
}

func (m *metrics) authFailed(reason string) { m.authFailures.WithLabelValues(reason).Inc() }

func (m *metrics) badSignature() { m.signatures.Inc() }
