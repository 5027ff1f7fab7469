package bootstrap

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// recorder records when each program was first started, RUNNING and ready. Until the boot is over,
// it records every run of every program, including programs that were added or started on request,
// because the seal may have waited for them. Afterwards it follows only first runs that are not
// ready yet, and ends after the last of them.
type recorder struct {
	read   program.Reader
	events *event.Watcher

	mu   sync.Mutex
	runs []Run
	at   map[string]int  // index in runs, by name
	open map[string]bool // programs that the boot starts and whose first run is not ready yet
	seen uint64          // number of the newest event that was processed
	over uint64          // number of the newest event of the boot; 0 while the boot runs

	complete chan struct{} // closed when every event of the boot was processed, or follow has ended
	ended    sync.Once     // closes complete
}

func newRecorder(bus *event.Bus, read program.Reader, specs []program.Spec) *recorder {
	r := &recorder{
		read: read, events: bus.Watch(bus.Seq()), runs: make([]Run, 0, len(specs)),
		at: make(map[string]int, len(specs)), open: make(map[string]bool, len(specs)),
		complete: make(chan struct{}),
	}
	for i := range specs {
		r.add(&specs[i])
	}
	return r
}

// add may be called by the goroutine that created r, or by a caller that holds mu.
func (r *recorder) add(s *program.Spec) *Run {
	r.at[s.Name] = len(r.runs)
	r.runs = append(r.runs, Run{Name: s.Name, Required: s.Required, Priority: s.Priority, Needs: s.Needs})
	if s.Autostart && s.Type != program.Schedule {
		r.open[s.Name] = true
	}
	return &r.runs[len(r.runs)-1]
}

// finish tells the recorder that the boot is over. seq is the number of the boot's last event.
func (r *recorder) finish(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = seq
	r.settle()
}

// settle closes complete if every event of the boot was processed. The caller holds mu.
func (r *recorder) settle() {
	if r.over != 0 && r.seen >= r.over {
		r.ended.Do(func() { close(r.complete) })
	}
}

// Runs returns the runs recorded so far.
func (r *recorder) Runs() []Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.runs)
}

func (r *recorder) follow(ctx context.Context) {
	defer r.close()
	for r.pending() {
		e, err := r.events.Next(ctx)
		if err != nil {
			return
		}
		if e.Name == event.Lagged {
			r.catchUp()
			continue
		}
		r.take(e)
	}
}

// close drops what only follow needs.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.open = nil, nil
	r.ended.Do(func() { close(r.complete) })
}

func (r *recorder) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over == 0 || r.seen < r.over || len(r.open) > 0
}

// runOf returns the entry of a program if this run is to be recorded, otherwise nil. seq is the
// number of the newest event that is processed.
func (r *recorder) runOf(name string, run, seq uint64) *Run {
	if r.over != 0 && seq > r.over && (!r.open[name] || run > 1) {
		delete(r.open, name)
		return nil
	}
	if i, ok := r.at[name]; ok {
		if !r.runs[i].Ready.IsZero() {
			return nil
		}
		return &r.runs[i]
	}
	if p, ok := r.read.Status(name); ok && p.Spec != nil {
		return r.add(p.Spec)
	}
	return nil // the program has been removed already
}

func (r *recorder) take(e event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = e.Seq
	defer r.settle()
	if e.Name != event.ProgramStateChanged || e.Change == nil {
		return
	}
	run := r.runOf(e.Program, e.Run, e.Seq)
	if run == nil {
		return
	}
	if e.Change.PID != 0 && run.Started.IsZero() {
		run.Started = e.Time
	}
	if e.Change.To == program.Running.String() && run.Running.IsZero() {
		run.Running = e.Time
	}
	if e.Change.Ready || e.Change.Completed {
		run.Ready = e.Time
	}
	if !run.Ready.IsZero() || e.Change.To == program.Fatal.String() {
		delete(r.open, e.Program)
	}
}

// catchUp reads the supervisor's state to replace events that were lost.
func (r *recorder) catchUp() {
	seq, programs := r.read.All()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = max(r.seen, seq)
	defer r.settle()
	for _, p := range programs {
		run := r.runOf(p.Name, p.Run, seq)
		if run == nil {
			continue
		}
		if program.NeedStarted.Met(&p) {
			run.Started = cmp.Or(run.Started, value(p.StartedAt))
		}
		run.Running = cmp.Or(run.Running, value(p.RunningAt))
		if p.Ready || p.Completed {
			run.Ready = value(reached(p))
		}
		if p.Ready || p.Completed || p.State == program.Fatal {
			delete(r.open, p.Name)
		}
	}
}
