package probes

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// ProgramFacts are the values of the metrics of one program.
type ProgramFacts struct {
	Name      string
	State     string
	Restarts  uint64
	StartedAt time.Time // of the latest run; zero when there was none
	// LastExit is the status of the latest exit as a shell reports it, nil when
	// there was none.
	LastExit *int
	// CPUSeconds is user and system time of all runs, those that have ended and
	// reaped members included.
	CPUSeconds float64
	Usage      *Usage // nil if nothing runs
	Logs       []StreamLogs
	Refused    []RefusedCalls
}

// RefusedCalls counts the system calls that were refused to a program.
type RefusedCalls struct {
	By    string // guard, seccomp; audit for those that went on
	Count uint64
}

// Usage is what a program's whole process tree uses now.
type Usage struct {
	ResidentBytes uint64
	OpenFDs       int
}

// StreamLogs counts the bytes of one output stream.
type StreamLogs struct {
	Stream  string // stdout, stderr
	Bytes   uint64
	Dropped uint64
}

// Programs reads what the metrics show, at the moment of a scrape. It may read
// /proc but must not wait for the supervisor's loop.
type Programs interface {
	Programs() []ProgramFacts
	// AgentRefusals counts the system calls that were refused to agents, by template.
	AgentRefusals() map[string][]RefusedCalls
	// Reaped counts the processes that were reaped: those of programs, and orphans.
	Reaped() (programs, orphans uint64)
	// ScoreRestored counts how often agentinit's OOM score was raised and restored.
	ScoreRestored() uint64
}

// Boot reads what the metrics show of the boot.
type Boot interface {
	Phases() []PhaseState
	// Took is the time from start to seal, false before the seal.
	Took() (time.Duration, bool)
}

// MetricsConfig is what the collector reads. Without Programs or Boot their
// metrics are absent.
type MetricsConfig struct {
	Bus       *event.Bus
	Readiness *Readiness
	Programs  Programs
	Boot      Boot
	Build     func() Build
}

// Metrics is the collector for the metrics of the supervisor and of the boot. Its only state is the
// highest CPU time of each program, because a counter must never fall.
type Metrics struct {
	cfg MetricsConfig

	mu  sync.Mutex
	cpu map[string]float64
}

var _ prometheus.Collector = (*Metrics)(nil)

// RegisterMetrics registers the collector, and those of the Go runtime and of
// this process, with reg.
func RegisterMetrics(reg prometheus.Registerer, cfg MetricsConfig) (*Metrics, error) {
	m := &Metrics{cfg: cfg, cpu: make(map[string]float64)}
	for _, c := range []prometheus.Collector{
		m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register the metrics: %w", err)
		}
	}
	return m, nil
}

var (
	descBuild     = desc("agentbox_build_info", "What is running; always 1.", "version", "image_hash", "manifest_checksum", "federation_mode")
	descState     = desc("agentinit_program_state", "1 for the state that the program is in, 0 for the others.", "program", "state")
	descUp        = desc("agentinit_program_up", "1 while the program is RUNNING.", "program")
	descRestarts  = desc("agentinit_program_restarts_total", "Starts made by the restart policy.", "program")
	descStart     = desc("agentinit_program_start_time_seconds", "Start of the latest run, in seconds since 1970.", "program")
	descExit      = desc("agentinit_program_last_exit_code", "Status of the latest exit as a shell reports it: 128 + n for signal n.", "program")
	descCPU       = desc("agentinit_program_cpu_seconds_total", "User and system time of the whole process tree, over all runs.", "program")
	descMemory    = desc("agentinit_program_resident_memory_bytes", "Resident memory of the whole process tree.", "program")
	descFDs       = desc("agentinit_program_open_fds", "Open file descriptors of the whole process tree.", "program")
	descLogBytes  = desc("agentinit_program_log_bytes_total", "Bytes of output read from the program.", "program", "stream")
	descLogDrop   = desc("agentinit_program_log_dropped_bytes_total", "Bytes of output that were dropped.", "program", "stream")
	descRefused   = desc("agentinit_program_refused_calls_total", "System calls that the guard or the sandbox refused, or in audit mode would have refused.", "program", "by")
	descAgents    = desc("agentinit_agent_refused_calls_total", "System calls that the guard or the sandbox refused to agents, or in audit mode would have refused.", "template", "by")
	descReaped    = desc("agentinit_reaped_processes_total", "Processes waited for.", "kind")
	descScore     = desc("agentinit_oom_score_restored_total", "Times that agentinit's own oom_score_adj was raised and restored.")
	descEvents    = desc("agentinit_events_total", "Events published.", "event")
	descPhase     = desc("agentinit_boot_phase_duration_seconds", "Duration of a finished boot phase.", "phase")
	descBoot      = desc("agentinit_boot_duration_seconds", "Time from the start to the seal; absent before it.")
	descReady     = desc("agentinit_ready", "1 while the box is ready.")
	descReadyItem = desc("agentinit_ready_requirement", "1 while the requirement is met.", "id")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descBuild, descState, descUp, descRestarts, descStart, descExit, descCPU, descMemory, descFDs, descLogBytes,
		descLogDrop, descRefused, descAgents, descReaped, descScore, descEvents, descPhase, descBoot, descReady, descReadyItem,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	b := m.cfg.Build()
	gauge(ch, descBuild, 1, b.Version, b.ImageHash, b.ManifestChecksum, b.FederationMode)
	for name, n := range m.cfg.Bus.Counts() {
		counter(ch, descEvents, float64(n), name)
	}
	if m.cfg.Programs != nil {
		m.collectPrograms(ch)
	}
	if m.cfg.Boot != nil {
		m.collectBoot(ch)
	}
	v := m.cfg.Readiness.Verdict()
	gauge(ch, descReady, truth(v.Ready))
	for _, q := range v.Requirements {
		gauge(ch, descReadyItem, truth(q.Met), q.ID)
	}
}

func (m *Metrics) collectPrograms(ch chan<- prometheus.Metric) {
	programs, orphans := m.cfg.Programs.Reaped()
	counter(ch, descReaped, float64(programs), "program")
	counter(ch, descReaped, float64(orphans), "orphan")
	counter(ch, descScore, float64(m.cfg.Programs.ScoreRestored()))
	for template, kinds := range m.cfg.Programs.AgentRefusals() {
		for _, r := range kinds {
			counter(ch, descAgents, float64(r.Count), template, r.By)
		}
	}
	list := m.cfg.Programs.Programs()
	m.forget(list)
	for _, p := range list {
		for _, s := range program.States {
			gauge(ch, descState, truth(p.State == s.String()), p.Name, s.String())
		}
		gauge(ch, descUp, truth(p.State == program.Running.String()), p.Name)
		counter(ch, descRestarts, float64(p.Restarts), p.Name)
		if !p.StartedAt.IsZero() {
			gauge(ch, descStart, float64(p.StartedAt.UnixMilli())/1000, p.Name)
		}
		if p.LastExit != nil {
			gauge(ch, descExit, float64(*p.LastExit), p.Name)
		}
		// Not only while it runs: a job has ended long before most scrapes.
		counter(ch, descCPU, m.highest(p.Name, p.CPUSeconds), p.Name)
		if u := p.Usage; u != nil {
			gauge(ch, descMemory, float64(u.ResidentBytes), p.Name)
			gauge(ch, descFDs, float64(u.OpenFDs), p.Name)
		}
		for _, l := range p.Logs {
			counter(ch, descLogBytes, float64(l.Bytes), p.Name, l.Stream)
			counter(ch, descLogDrop, float64(l.Dropped), p.Name, l.Stream)
		}
		for _, r := range p.Refused {
			counter(ch, descRefused, float64(r.Count), p.Name, r.By)
		}
	}
}

func (m *Metrics) collectBoot(ch chan<- prometheus.Metric) {
	for _, p := range m.cfg.Boot.Phases() {
		if p.Outcome != PhasePending && p.Outcome != PhaseRunning {
			gauge(ch, descPhase, p.Duration.Seconds(), p.Number)
		}
	}
	if took, ok := m.cfg.Boot.Took(); ok {
		gauge(ch, descBoot, took.Seconds())
	}
}

// The outcomes of a phase that has not finished.
const (
	PhasePending = "pending"
	PhaseRunning = "running"
)

// highest keeps the counter from falling. A process seen in one scrape may have ended before its
// time was added to that of the reaped processes. The same holds for a run and the time of ended
// runs.
func (m *Metrics) highest(program string, cpu float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cpu[program] = math.Max(m.cpu[program], cpu)
	return m.cpu[program]
}

// forget drops removed programs, so that the map stays bounded.
func (m *Metrics) forget(list []ProgramFacts) {
	present := make(map[string]bool, len(list))
	for _, p := range list {
		present[p.Name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.cpu {
		if !present[name] {
			delete(m.cpu, name)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	emit(ch, d, prometheus.GaugeValue, v, labels)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	emit(ch, d, prometheus.CounterValue, v, labels)
}

// emit reports a metric that cannot be built, for example with a label that is not UTF-8. Otherwise
// the scrape would panic.
func emit(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) {
	metric, err := prometheus.NewConstMetric(d, kind, v, labels...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(d, err)
	}
	ch <- metric
}
