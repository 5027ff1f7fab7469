package probes

import (
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"time"
)

// PhaseState is one phase of bootstrap as shown to people.
type PhaseState struct {
	Number   string        `json:"phase"`
	Name     string        `json:"name"`
	Outcome  string        `json:"outcome"` // pending running ok warning off failed
	Note     string        `json:"note,omitempty"`
	Duration time.Duration `json:"-"`
}

// AdapterState is one slot as shown to people.
type AdapterState struct {
	Slot   string `json:"slot"`
	Impl   string `json:"impl"`
	Status string `json:"status"` // healthy degraded unhealthy off
	Reason string `json:"reason,omitempty"`
	// Lost counts, by kind, what the adapter could not keep or deliver.
	Lost map[string]uint64 `json:"lost,omitempty"`
}

// Build identifies the running version.
type Build struct {
	Version          string `json:"version"`
	ImageHash        string `json:"image_hash"`
	ManifestChecksum string `json:"manifest_checksum"`
	FederationMode   string `json:"federation_mode"`
	BootID           string `json:"boot_id,omitempty"`
}

// Health is the answer of /health.
type Health struct {
	Status        string              `json:"status"` // ok degraded
	Uptime        float64             `json:"uptime"` // seconds
	Ready         bool                `json:"ready"`
	Reason        string              `json:"reason,omitempty"`
	Phases        []PhaseState        `json:"phases"`
	Programs      map[string][]string `json:"programs"` // state → names
	Adapters      []AdapterState      `json:"adapters"`
	DegradedCount int                 `json:"degraded_count"`
	Drift         []Drift             `json:"contract_drift"`
	Listeners     []ListenerState     `json:"listeners"`
	Artifacts     any                 `json:"artifacts,omitempty"`
	Build         Build               `json:"build"`
	Note          string              `json:"note"`
}

// healthNote tells automation which endpoints to use instead.
const healthNote = "for people; automation reads /livez and /ready"

// Facts are what NewHealth judges.
type Facts struct {
	Uptime    time.Duration
	Verdict   Verdict
	Phases    []PhaseState
	Programs  []program.Status
	Adapters  []AdapterState
	Drift     []Drift
	Listeners []ListenerState
	Artifacts any
	Build     Build
}

// NewHealth judges the facts. The box is degraded if it is not ready, or if any program is FATAL, a
// slot is neither healthy nor off, there is drift, or a listener is not bound.
func NewHealth(f Facts) Health {
	h := Health{
		Status: "ok", Uptime: seconds(f.Uptime), Ready: f.Verdict.Ready, Reason: f.Verdict.Reason,
		Phases: orEmpty(f.Phases), Adapters: orEmpty(f.Adapters), Drift: orEmpty(f.Drift), Listeners: orEmpty(f.Listeners),
		Artifacts: f.Artifacts, Build: f.Build, Programs: make(map[string][]string), Note: healthNote,
		DegradedCount: len(f.Drift),
	}
	for _, p := range f.Programs {
		h.Programs[p.State.String()] = append(h.Programs[p.State.String()], p.Name)
		if p.State == program.Fatal {
			h.DegradedCount++
		}
	}
	for _, a := range f.Adapters {
		if a.Status != "healthy" && a.Status != "off" {
			h.DegradedCount++
		}
	}
	for _, l := range f.Listeners {
		if !l.Bound {
			h.DegradedCount++
		}
	}
	if h.DegradedCount > 0 || !h.Ready {
		h.Status = "degraded"
	}
	return h
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
