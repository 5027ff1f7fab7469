package bootstrap

import (
	"cmp"
	"context"
	"sync"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// recorder notes when each program was started, RUNNING and ready for the first
// time. Until the boot is over it takes every run and every program, also what was
// added or started on request: the seal may have waited for it. Then it follows the
// first runs that are still under way, and stops by itself after the last of them.
type recorder struct {
	read   program.Reader
	events *event.Watcher

	mu   sync.Mutex
	runs []Run
	at   map[string]int  // index in runs
	open map[string]bool // started by the boot, and its first run not ready yet
	seen uint64          // newest event that was taken
	over uint64          // newest event of the boot; 0 before its end
}

func newRecorder(bus *event.Bus, read program.Reader, specs []program.Spec) *recorder {
	r := &recorder{read: read, events: bus.Watch(bus.Seq()), at: make(map[string]int), open: make(map[string]bool)}
	for i := range specs {
		r.add(&specs[i])
	}
	return r
}

// add is for the goroutine that made r, or for who holds mu.
func (r *recorder) add(s *program.Spec) *Run {
	r.at[s.Name] = len(r.runs)
	r.runs = append(r.runs, Run{Name: s.Name, Required: s.Required, Priority: s.Priority, Needs: s.Needs})
	if s.Autostart && s.Type != program.Schedule {
		r.open[s.Name] = true
	}
	return &r.runs[len(r.runs)-1]
}

// finish says that the boot is over, and ended with the event of that number.
func (r *recorder) finish(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = seq
}

// Runs returns what is known so far.
func (r *recorder) Runs() []Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Run(nil), r.runs...)
}

func (r *recorder) follow(ctx context.Context) {
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

func (r *recorder) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over == 0 || r.seen < r.over || len(r.open) > 0
}

// runOf returns the entry of a program if the given run of it is one to record. seq
// is the event up to which all is known now.
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
	return nil // it has been removed already
}

func (r *recorder) take(e event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = e.Seq
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

// catchUp takes from the supervisor what lost events would have said.
func (r *recorder) catchUp() {
	seq, programs := r.read.All()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = max(r.seen, seq)
	for _, p := range programs {
		run := r.runOf(p.Name, p.Run, seq)
		if run == nil {
			continue
		}
		run.Started, run.Running = cmp.Or(run.Started, value(p.StartedAt)), cmp.Or(run.Running, value(reached(p)))
		if p.Counts() {
			run.Ready = value(reached(p))
		}
		if p.Counts() || p.State == program.Fatal {
			delete(r.open, p.Name)
		}
	}
}
