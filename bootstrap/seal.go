package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// watcher knows which required programs the seal still waits for. A state change costs one look-up.
// All programs are read again only after an event of reloads.
type watcher struct {
	read        program.Reader
	bus         *event.Bus
	events      *event.Watcher
	known       map[string]program.Status
	outstanding map[string]struct{}
	gaveUp      string // why a required program cannot come; empty while each can
	culprit     string // the program that gaveUp is about
}

// reloads are the events after which all programs are read again.
var reloads = []string{event.ProgramsApplied, event.ProgramRemoved, event.Lagged}

func newWatcher(bus *event.Bus, read program.Reader) *watcher {
	w := &watcher{read: read, bus: bus}
	w.readAll()
	return w
}

func (w *watcher) readAll() {
	seq, programs := w.read.All()
	w.events = w.bus.Watch(seq)
	w.known = make(map[string]program.Status, len(programs))
	w.outstanding = make(map[string]struct{})
	w.gaveUp = ""
	for _, p := range programs {
		w.put(p)
	}
}

// put updates the state of one program.
func (w *watcher) put(p program.Status) {
	w.known[p.Name] = p
	switch {
	case !p.Required || p.Counts():
		delete(w.outstanding, p.Name)
	default:
		w.outstanding[p.Name] = struct{}{}
	}
	if why := p.GaveUp(); why != "" && p.Required && w.gaveUp == "" {
		w.gaveUp, w.culprit = why, p.Name
	}
}

// root is the program that the culprit waits for in vain, directly or through others. It is the
// culprit itself if that does not wait.
func (w *watcher) root() string {
	p := w.known[w.culprit]
	for p.Blocked && p.Spec != nil {
		i := slices.IndexFunc(p.Spec.Needs, func(n program.Need) bool {
			needed, ok := w.known[n.Program]
			return ok && (needed.Blocked || needed.GaveUp() != "") && !n.Condition.Met(&needed)
		})
		if i < 0 {
			break
		}
		p = w.known[p.Spec.Needs[i].Program]
	}
	return p.Name
}

func (w *watcher) take(e event.Event) {
	if slices.Contains(reloads, e.Name) {
		w.readAll()
		return
	}
	if e.Name != event.ProgramStateChanged {
		return
	}
	if p, ok := w.read.Status(e.Program); ok {
		w.put(p)
	}
}

// waitingFor lists the outstanding programs with their states, sorted. It reads them again: the answer
// of a probe changes the reason without an event. Where no program is required, the seal waits for the
// end of all first starts, thus for the programs that are starting.
func (w *watcher) waitingFor() []string {
	var out []string
	_, programs := w.read.All()
	for _, p := range programs {
		_, outstanding := w.outstanding[p.Name]
		if !outstanding && (len(w.outstanding) > 0 || p.State != program.Starting) {
			continue
		}
		text := p.Name + " " + p.Shown()
		if p.State == program.Running && !p.Ready {
			text += " (not ready)"
		}
		if p.Reason != "" {
			text += " (" + p.Reason + ")"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

func (w *watcher) required() []string {
	out := []string{} // an event shows it: an empty list is not null there
	for name, p := range w.known {
		if p.Required {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// SealedProgram is the entry of one program in the sentinel.
type SealedProgram struct {
	PID             int     `json:"pid"`
	TimeToRunningMS float64 `json:"time_to_running_ms"` // from the start of the latest run
}

// Sentinel is the content of the sentinel file.
type Sentinel struct {
	CompletedAt      string                   `json:"completed_at"` // RFC 3339, UTC
	Stage            string                   `json:"agentbox.stage"`
	ManifestChecksum string                   `json:"manifest_checksum"`
	BootID           string                   `json:"boot_id"`
	DurationMS       float64                  `json:"duration_ms"`
	Programs         map[string]SealedProgram `json:"programs"`
}

// waitForPrograms returns the sealed programs when no required program is outstanding. If no
// required program is known yet, it first waits until started is closed. The error is a *Failure,
// or the cause of the end of ctx.
func (b *Boot) waitForPrograms(ctx context.Context, w *watcher, started <-chan struct{}) (map[string]SealedProgram, error) {
	if w.gaveUp == "" && len(w.required()) == 0 {
		select {
		case <-started:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		// The state that was read before may be older than the supervisor's list of programs.
		w.readAll()
	}
	for {
		if w.gaveUp != "" {
			failure := fail(ExitRequiredFatal, nil, "the required program %s", w.gaveUp)
			failure.Program = w.root()
			return nil, failure
		}
		if len(w.outstanding) == 0 {
			return sealed(w.known), nil
		}
		e, err := w.events.Next(ctx)
		if err != nil {
			return nil, err
		}
		w.take(e)
	}
}

func sealed(known map[string]program.Status) map[string]SealedProgram {
	out := make(map[string]SealedProgram)
	for name, p := range known {
		if !p.Required {
			continue
		}
		s := SealedProgram{PID: p.PID}
		if from, to := value(p.StartedAt), value(reached(p)); !from.IsZero() && to.After(from) {
			s.TimeToRunningMS = milliseconds(to.Sub(from))
		}
		out[name] = s
	}
	return out
}

// reached is when the program became RUNNING or, for a oneshot, when it completed.
func reached(p program.Status) *time.Time {
	if p.RunningAt == nil {
		return p.EndedAt
	}
	return p.RunningAt
}

func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// errSealTimeout is the cause of a context that the seal timeout has ended.
var errSealTimeout = fmt.Errorf("seal timeout")

// seal is phase 10.
func seal(ctx context.Context, b *Boot) (Outcome, error) {
	timeout := b.sealTimeout()
	b.publish(event.Info, EventSealStarted, map[string]any{
		"required": b.watcher.required(), "timeout_ms": timeout.Milliseconds(),
	})
	defer func() { b.watcher = nil }() // it holds a copy of every program's status
	waiting, cancel := context.WithTimeoutCause(ctx, timeout, errSealTimeout)
	defer cancel()
	programs, err := b.waitForPrograms(waiting, b.watcher, b.started)
	failure, isFailure := errors.AsType[*Failure](err)
	switch {
	case err == nil:
		return b.completeSeal(programs), nil
	case isFailure:
		// This case must come before the check of ctx: the failed program may have ended the box
		// too, which interrupts the boot at the same moment.
		return Outcome{}, failure
	case context.Cause(ctx) != nil:
		return Outcome{}, fail(ExitOK, context.Cause(ctx), "the boot was interrupted")
	case context.Cause(waiting) == errSealTimeout:
		return b.sealTimedOut(timeout)
	}
	return Outcome{}, err
}

func (b *Boot) sealTimedOut(timeout time.Duration) (Outcome, error) {
	waiting := b.watcher.waitingFor()
	b.publish(event.Error, EventSealTimeout, map[string]any{"timeout_ms": timeout.Milliseconds(), "programs": waiting})
	reason := fmt.Sprintf("not sealed within %s; waiting for %s", timeout, strings.Join(waiting, ", "))
	if b.Current().Manifest.Bootstrap.OnSealTimeout == "exit" {
		return Outcome{}, fail(ExitSealTimeout, nil, "%s", reason)
	}
	b.setUnsealed(reason)
	b.awaitRuns()
	return warned(reason), nil
}

// completeSeal seals the box. The seal is first set in memory; the file only publishes it.
func (b *Boot) completeSeal(programs map[string]SealedProgram) Outcome {
	now := time.Now()
	elapsed := now.Sub(b.cfg.Started)
	s := Sentinel{
		CompletedAt: now.UTC().Format(event.TimeFormat), Stage: stage, ManifestChecksum: b.Current().Checksum,
		BootID: b.cfg.BootID, DurationMS: milliseconds(elapsed), Programs: programs,
	}
	content, _ := json.Marshal(s) // strings and numbers always marshal
	content = append(content, '\n')
	outcome := done()
	path := b.cfg.Roots.Sentinel()
	if err := b.sentinel.publish(content); err != nil {
		b.publish(event.Warn, EventSealInMemory, map[string]any{"path": path, "reason": err.Error()})
		outcome = warned("the seal is in memory only: " + err.Error())
		path = ""
	}
	b.setSealed(s, elapsed)
	b.publish(event.Info, EventCompleted, map[string]any{"sentinel": path, "elapsed_ms": milliseconds(elapsed)})
	b.awaitRuns()
	return outcome
}
