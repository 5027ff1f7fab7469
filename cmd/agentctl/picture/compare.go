package picture

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Step is one part of two boots: a phase, the time of a program from its start
// until it is ready, or the whole boot until the seal.
type Step struct {
	Kind string `json:"kind"` // boot, phase or program
	Name string `json:"name,omitempty"`
	// BeforeMS and NowMS are milliseconds; nil means that the boot did not have the step or did not
	// finish it.
	BeforeMS *float64 `json:"before_ms,omitempty"`
	NowMS    *float64 `json:"now_ms,omitempty"`
}

// Change is how much longer the step took, in milliseconds. It returns false if one of the boots
// lacks the step.
func (s Step) Change() (float64, bool) {
	if s.BeforeMS == nil || s.NowMS == nil {
		return 0, false
	}
	return *s.NowMS - *s.BeforeMS, true
}

// Compare lists the steps of two boots: the whole boot first, then phases and
// programs by how much they differ, and last those that only one boot has.
func Compare(now, before api.Boot) []Step {
	had := map[Step]float64{}
	for _, s := range steps(before) {
		had[s.key] = s.took
	}
	var out []Step
	for _, s := range steps(now) {
		step := s.key
		took := s.took
		step.NowMS = &took
		if old, ok := had[s.key]; ok {
			step.BeforeMS = &old
			delete(had, s.key)
		}
		out = append(out, step)
	}
	for _, s := range steps(before) {
		if took, left := had[s.key]; left {
			step := s.key
			step.BeforeMS = &took
			out = append(out, step)
		}
	}
	slices.SortStableFunc(out, func(a, b Step) int { return cmp.Compare(weight(b), weight(a)) })
	return out
}

// weight orders steps: the boot first, then by the size of the difference.
func weight(s Step) float64 {
	if s.Kind == "boot" {
		return 1e18
	}
	change, both := s.Change()
	if !both {
		return -1
	}
	return max(change, -change)
}

// timedStep is a step by name, and how long it took in one boot.
type timedStep struct {
	key  Step
	took float64
}

func steps(b api.Boot) (out []timedStep) {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	if b.SealedAt != nil {
		out = append(out, timedStep{Step{Kind: "boot"}, ms(b.SealedAt.Sub(b.StartedAt))})
	}
	for _, p := range b.Phases {
		name := strconv.FormatFloat(p.Number, 'f', -1, 64) + " " + p.Name
		out = append(out, timedStep{Step{Kind: "phase", Name: name}, p.DurationMS})
	}
	for _, p := range b.Programs {
		if p.StartedAt != nil && p.ReadyAt != nil {
			out = append(out, timedStep{Step{Kind: "program", Name: p.Name}, ms(p.ReadyAt.Sub(*p.StartedAt))})
		}
	}
	return out
}
