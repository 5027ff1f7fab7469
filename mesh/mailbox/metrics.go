package mailbox

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	writes   *prometheus.CounterVec
	failures *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		writes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "agentbox_pod_write_total", Help: "Messages of the pod's inbox and outbox, by what became of them."}, []string{"direction", "outcome"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "agentbox_pod_write_fail_total", Help: "Messages that did not get into the inbox or the outbox, by reason."}, []string{"reason"}),
	}
}

func (m *metrics) register(r prometheus.Registerer, box *Mailbox) error {
	if r == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.writes, m.failures, box} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer, box *Mailbox) {
	if r == nil {
		return
	}
	for _, c := range []prometheus.Collector{m.writes, m.failures, box} {
		r.Unregister(c)
	}
}

func pendingDesc() *prometheus.Desc {
	return prometheus.NewDesc("agentbox_outbox_pending", "Messages that wait to be published.", nil, nil)
}

func inboxDesc() *prometheus.Desc {
	return prometheus.NewDesc("agentbox_inbox_messages", "Messages in the inbox, by whether the events slot was told of them.", []string{"told"}, nil)
}

// Describe implements prometheus.Collector.
func (m *Mailbox) Describe(to chan<- *prometheus.Desc) {
	to <- pendingDesc()
	to <- inboxDesc()
}

// Collect implements prometheus.Collector.
func (m *Mailbox) Collect(to chan<- prometheus.Metric) {
	c := m.Counts()
	to <- prometheus.MustNewConstMetric(pendingDesc(), prometheus.GaugeValue, float64(c.Pending))
	to <- prometheus.MustNewConstMetric(inboxDesc(), prometheus.GaugeValue, float64(c.Untold), "false")
	to <- prometheus.MustNewConstMetric(inboxDesc(), prometheus.GaugeValue, float64(c.Inbox-c.Untold), "true")
}
