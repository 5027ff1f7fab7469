package main

import (
	"encoding/json"
	"fmt"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// bootRecord is the record of the boot for the control socket.
type bootRecord struct{ b *box }

func (r bootRecord) Boot() api.Boot {
	out := api.Boot{ID: r.b.bootID, StartedAt: r.b.started, Outcome: api.BootUnderWay, Manifest: r.b.boot.ManifestPath()}
	if _, took, ok := r.b.boot.Sealed(); ok {
		at := r.b.started.Add(took)
		out.SealedAt, out.Outcome = &at, api.BootSealed
	} else if why := r.b.boot.GivenUp(); why != "" {
		out.Outcome, out.Reason = api.BootTimeout, why
	}
	for _, p := range r.b.boot.Records() {
		if p.Status == bootstrap.StatusPending {
			continue
		}
		if p.Status == bootstrap.StatusFailed {
			out.Outcome, out.Reason = api.BootFailed, p.Note
		}
		out.Phases = append(out.Phases, api.BootPhase{
			Number: p.Number, Name: p.Name, StartedAt: p.Started, Outcome: string(p.Status), Detail: p.Note,
			DurationMS: float64(p.Duration.Microseconds()) / 1000,
		})
	}
	for _, a := range r.b.boot.Artifacts() {
		out.Artifacts = append(out.Artifacts, api.BootArtifact{
			ID: a.ID, Class: a.Class, Required: a.Required, OK: a.Outcome == bootstrap.ArtifactPassed, Reason: a.Reason,
			DurationMS: a.DurationMS,
		})
	}
	runs := r.b.boot.Runs()
	for _, run := range runs {
		p := api.BootProgram{
			Name: run.Name, Required: run.Required,
			StartedAt: pointer(run.Started), RunningAt: pointer(run.Running), ReadyAt: pointer(run.Ready),
		}
		for _, n := range run.Needs {
			p.Needs = append(p.Needs, n.Program)
		}
		out.Programs = append(out.Programs, p)
	}
	out.CriticalChain = bootstrap.CriticalChain(runs)
	return out
}

// Previous is the record that the boot before this one has left.
func (r bootRecord) Previous() (api.Boot, error) {
	var out api.Boot
	text, err := r.b.boot.PreviousRecord()
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("the record of the boot before cannot be read: %w", err)
	}
	return out, nil
}

// keepBoot stores the record of this boot for later boots.
func (b *box) keepBoot() {
	text, err := json.Marshal(bootRecord{b}.Boot())
	if err != nil {
		b.publish(event.Warn, "Degraded", map[string]any{"message": "the boot is not recorded: " + err.Error()})
		return
	}
	b.boot.KeepRecord(text)
}
