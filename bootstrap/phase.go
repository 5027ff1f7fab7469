package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// stage is the value of agentbox.stage in this package's events.
const stage = "bootstrap"

// Events that this package publishes, in the order in which they occur.
const (
	EventStarted         = "BootstrapStarted"
	EventRootWritable    = "ImmutableRootWritable"
	EventPhaseStarted    = "PhaseStarted"
	EventPhaseCompleted  = "PhaseCompleted"
	EventWarning         = "BootstrapWarning"
	EventKeyReady        = "ManagementKeyReady"
	EventKeyRotated      = "ManagementKeyRotated"
	EventValidated       = "CapabilityValidated"
	EventOptionalMissing = "OptionalArtifactMissing"
	EventMissing         = "MissingArtifactDetected"
	EventClosureValid    = "RuntimeClosureValidated"
	EventSecurityApplied = "SecurityProfileApplied"
	EventSealStarted     = "BootstrapSealStarted"
	EventCompleted       = "BootstrapCompleted"
	EventSealTimeout     = "BootstrapSealTimeout"
	EventSealInMemory    = "BootstrapSealInMemory"
	// EventManifestReplaceable: another user can replace the manifest's file.
	EventManifestReplaceable = "ManifestReplaceable"
	EventSentinelAltered     = "SentinelAltered"
	// EventSentinelUnwatched: the kernel cannot report changes to the sentinel.
	EventSentinelUnwatched = "SentinelUnwatched"
	EventFailed            = "BootstrapFailed"
)

// phase is one step of the boot.
type phase struct {
	Number float64
	Name   string
	Run    func(context.Context, *Boot) (Outcome, error)
	// AgentboxOnly phases are skipped with profile "none".
	AgentboxOnly bool
}

// Outcome is the result of a phase that did not fail.
type Outcome struct {
	Status Status
	Note   string
}

// Status is the outcome of a phase in one word.
type Status string

// The statuses of a phase.
const (
	StatusPending Status = "pending"
	StatusRunning Status = "running"
	StatusOK      Status = "ok"
	StatusWarning Status = "warning" // the phase is incomplete, and the boot continues
	StatusOff     Status = "off"     // this box does not need the phase
	StatusFailed  Status = "failed"
)

// done and off are the outcomes that most phases have.
func done() Outcome              { return Outcome{Status: StatusOK} }
func off(note string) Outcome    { return Outcome{Status: StatusOff, Note: note} }
func warned(note string) Outcome { return Outcome{Status: StatusWarning, Note: note} }

// Record is the result of one phase.
type Record struct {
	Number   float64       `json:"number"`
	Name     string        `json:"name"`
	Status   Status        `json:"outcome"`
	Note     string        `json:"note,omitempty"`
	Started  time.Time     `json:"started_at,omitzero"`
	Duration time.Duration `json:"-"`
}

// Label is the number as text, for people and metrics: "0.5", "9".
func (r Record) Label() string { return strconv.FormatFloat(r.Number, 'g', -1, 64) }

// journal keeps the records of a boot. It may be read while phases run.
type journal struct {
	mu      sync.Mutex
	records []Record
}

func newJournal(phases []phase) *journal {
	j := &journal{records: make([]Record, len(phases))}
	for i, p := range phases {
		j.records[i] = Record{Number: p.Number, Name: p.Name, Status: StatusPending}
	}
	return j
}

// Records returns all phases. A running phase has its duration so far.
func (j *journal) Records() []Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := slices.Clone(j.records)
	for i := range out {
		if out[i].Status == StatusRunning {
			out[i].Duration = time.Since(out[i].Started)
		}
	}
	return out
}

func (j *journal) begin(number float64) {
	j.change(number, func(r *Record) { r.Status, r.Started = StatusRunning, time.Now() })
}

func (j *journal) end(number float64, o Outcome) (took time.Duration) {
	j.change(number, func(r *Record) {
		r.Status, r.Note, r.Duration = o.Status, o.Note, time.Since(r.Started)
		took = r.Duration
	})
	return took
}

func (j *journal) change(number float64, f func(*Record)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.records {
		if j.records[i].Number == number {
			f(&j.records[i])
		}
	}
}

// runPhases runs the phases in order and stops at the first one that fails. Its error is always a
// *Failure.
func (b *Boot) runPhases(ctx context.Context, phases []phase) error {
	for _, p := range phases {
		if err := b.runPhase(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (b *Boot) runPhase(ctx context.Context, p phase) error {
	b.journal.begin(p.Number)
	b.publish(b.phaseLevel(StatusRunning), EventPhaseStarted, map[string]any{"phase": p.Number, "name": p.Name})
	outcome, err := b.attempt(ctx, p)
	if err != nil {
		outcome = Outcome{Status: StatusFailed, Note: err.Error()}
	}
	took := b.journal.end(p.Number, outcome)
	fields := map[string]any{"phase": p.Number, "name": p.Name, "duration_ms": milliseconds(took), "outcome": string(outcome.Status)}
	if outcome.Note != "" {
		fields["note"] = outcome.Note
	}
	b.publish(b.phaseLevel(outcome.Status), EventPhaseCompleted, fields)
	if err == nil {
		return nil
	}
	f := asFailure(err)
	f.Phase = p.Name
	fields = map[string]any{"phase": p.Number, "name": p.Name, "reason": f.Summary()}
	if f.Code != ExitOK { // what interrupted the boot decides the status
		fields["exit_code"] = int(f.Code)
	}
	if f.Capability != "" {
		fields["capability"] = f.Capability
	}
	b.publish(event.Error, EventFailed, fields)
	return f
}

// attempt runs the phase unless the profile leaves it out or ctx has ended.
func (b *Boot) attempt(ctx context.Context, p phase) (Outcome, error) {
	if err := context.Cause(ctx); err != nil {
		return Outcome{}, fail(ExitOK, err, "the boot was interrupted")
	}
	if p.Run == nil {
		return off("this number is reserved"), nil
	}
	if p.AgentboxOnly && !b.agentbox() {
		return off(`profile "none"`), nil
	}
	return p.Run(ctx, b)
}

// phaseLevel is the event level for a phase. In a plain container, skipped and running phases are
// at debug level. A failed phase is too, because BootstrapFailed contains the details.
func (b *Boot) phaseLevel(s Status) event.Level {
	plain := b.booted != nil && !b.agentbox()
	switch {
	case s == StatusWarning:
		return event.Warn
	case s == StatusFailed, plain && (s == StatusOff || s == StatusRunning):
		return event.Debug
	}
	return event.Info
}

// asFailure turns an error that is not a Failure into one with ExitInternal.
func asFailure(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	return &Failure{Code: ExitInternal, Reason: err.Error(), Err: err}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (b *Boot) publish(level event.Level, name string, fields map[string]any) {
	b.cfg.Bus.Publish(event.Event{Level: level, Stage: stage, Name: name, Fields: fields})
}

// warn publishes a warning. It says what is wrong, and where.
func (b *Boot) warn(what string, args ...any) {
	b.publish(event.Warn, EventWarning, map[string]any{"message": fmt.Sprintf(what, args...)})
}
