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

// ProgramState is what the seal and the timeline know of one program.
type ProgramState struct {
	Name     string
	Type     program.Type
	State    program.State
	Required bool
	// Ready is true when the program is ready, or RUNNING without a declared
	// readiness.
	Ready     bool
	Completed bool
	Reason    string
	PID       int
	Run       uint64    // number of the latest run; 0 before the first
	StartedAt time.Time // of the latest run; zero before the first
	RunningAt time.Time // zero until it was RUNNING; of a oneshot, until it completed
}

// Snapshotter reads all programs, and the number of the newest event that the
// answer contains. It must return within milliseconds.
type Snapshotter interface {
	Snapshot() (seq uint64, programs []ProgramState)
}

// counts tells whether the seal need not wait for the program any more. A
// schedule waits for its time, which is no part of booting.
func (p ProgramState) counts() bool {
	switch {
	case p.Completed, p.Type == program.Schedule:
		return true
	case p.Type == program.Oneshot:
		return false
	}
	return p.State == program.Running && p.Ready
}

// watcher knows which required programs the seal still waits for. Each event
// costs one look-up; only when events were lost, or one names a program not
// seen before, are all programs read again.
type watcher struct {
	read        Snapshotter
	bus         *event.Bus
	reload      map[string]bool
	events      *event.Watcher
	known       map[string]ProgramState
	outstanding map[string]struct{}
	fatal       string // a required program that gave up; empty while none has
}

func newWatcher(bus *event.Bus, read Snapshotter, reload []string) *watcher {
	w := &watcher{read: read, bus: bus, reload: map[string]bool{event.Lagged: true}}
	for _, name := range reload {
		w.reload[name] = true
	}
	w.readAll()
	return w
}

func (w *watcher) readAll() {
	seq, programs := w.read.Snapshot()
	w.events = w.bus.Watch(seq)
	w.known = make(map[string]ProgramState, len(programs))
	w.outstanding = make(map[string]struct{})
	w.fatal = ""
	for _, p := range programs {
		w.put(p)
	}
}

// put takes the present state of one program.
func (w *watcher) put(p ProgramState) {
	w.known[p.Name] = p
	if !p.Required {
		return
	}
	if p.counts() {
		delete(w.outstanding, p.Name)
	} else {
		w.outstanding[p.Name] = struct{}{}
	}
	if p.State == program.Fatal && w.fatal == "" {
		w.fatal = p.Name
	}
}

func (w *watcher) take(e event.Event) {
	if w.reload[e.Name] {
		w.readAll()
		return
	}
	if e.Name != event.ProgramStateChanged || e.Change == nil {
		return
	}
	p, ok := w.known[e.Program]
	if !ok {
		w.readAll()
		return
	}
	if err := p.State.UnmarshalText([]byte(e.Change.To)); err != nil {
		w.readAll() // a state we do not know: the snapshot is typed
		return
	}
	p.Ready, p.Completed, p.Reason, p.PID = e.Change.Ready, e.Change.Completed, e.Change.Reason, e.Change.PID
	if p.State == program.Starting {
		p.StartedAt = e.Time
	}
	if p.counts() {
		p.RunningAt = e.Time
	}
	w.put(p)
}

// waitingFor names the outstanding programs with their states, in order.
func (w *watcher) waitingFor() []string {
	var out []string
	for name := range w.outstanding {
		p := w.known[name]
		text := name + " " + p.State.String()
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
	var out []string
	for name, p := range w.known {
		if p.Required {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// SealedProgram is what the sentinel says of one program.
type SealedProgram struct {
	PID             int     `json:"pid"`
	TimeToRunningMS float64 `json:"time_to_running_ms"` // from the start of its latest run
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

// waitForPrograms returns the sealed programs once no required program is
// outstanding and the start is complete. The error is a *Failure, or ctx's.
func (b *Boot) waitForPrograms(ctx context.Context, w *watcher, started <-chan struct{}) (map[string]SealedProgram, error) {
	if w.fatal == "" && len(w.required()) == 0 {
		select {
		case <-started:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		// Whatever was read before the supervisor knew its programs is stale.
		w.readAll()
	}
	for {
		if w.fatal != "" {
			p := w.known[w.fatal]
			return nil, fail(ExitRequiredFatal, nil, "the required program %s is FATAL: %s", p.Name, p.Reason)
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

func sealed(known map[string]ProgramState) map[string]SealedProgram {
	out := make(map[string]SealedProgram)
	for name, p := range known {
		if !p.Required {
			continue
		}
		s := SealedProgram{PID: p.PID}
		if !p.StartedAt.IsZero() && p.RunningAt.After(p.StartedAt) {
			s.TimeToRunningMS = milliseconds(p.RunningAt.Sub(p.StartedAt))
		}
		out[name] = s
	}
	return out
}

// errSealTimeout is the cause of a context that the seal's timeout has ended.
var errSealTimeout = fmt.Errorf("seal timeout")

// seal is phase 10.
func seal(ctx context.Context, b *Boot) (Outcome, error) {
	timeout := b.sealTimeout()
	b.publish(event.Info, EventSealStarted, map[string]any{
		"required": b.watcher.required(), "timeout_ms": timeout.Milliseconds(),
	})
	waiting, cancel := context.WithTimeoutCause(ctx, timeout, errSealTimeout)
	defer cancel()
	programs, err := b.waitForPrograms(waiting, b.watcher, b.started)
	var failure *Failure
	switch {
	case err == nil:
		return b.completeSeal(programs), nil
	case errors.As(err, &failure):
		// Before the look at ctx: the program that failed may have ended the box
		// too, and that interrupts the boot in the same moment.
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
	return warned(reason), nil
}

// completeSeal makes the seal true, in memory first: the file only publishes it.
func (b *Boot) completeSeal(programs map[string]SealedProgram) Outcome {
	now := time.Now()
	elapsed := now.Sub(b.cfg.Started)
	s := Sentinel{
		CompletedAt: now.UTC().Format(event.TimeFormat), Stage: stage, ManifestChecksum: b.Current().Checksum,
		BootID: b.cfg.BootID, DurationMS: milliseconds(elapsed), Programs: programs,
	}
	content, err := json.Marshal(s)
	if err != nil {
		content = []byte("{}") // strings and numbers always marshal
	}
	content = append(content, '\n')
	b.sentinel.set(content)
	outcome := done()
	path := b.cfg.Roots.Sentinel()
	if err := b.sentinel.write(); err != nil {
		b.publish(event.Warn, EventSealInMemory, map[string]any{"path": path, "reason": err.Error()})
		outcome = warned("the seal is in memory only: " + err.Error())
		path = ""
	}
	b.setSealed(s, elapsed)
	b.publish(event.Info, EventCompleted, map[string]any{"sentinel": path, "elapsed_ms": milliseconds(elapsed)})
	return outcome
}
