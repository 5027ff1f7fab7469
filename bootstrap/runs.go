package bootstrap

import (
	"context"
	"sync"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// recorder notes when each program was started, RUNNING and ready for the first
// time. It stops by itself once every first run is over or ready: later
// restarts are none of the boot's business.
type recorder struct {
	read   program.Reader
	events *event.Watcher

	mu   sync.Mutex
	runs []Run
	at   map[string]int  // index in runs
	open map[string]bool // first run not ready yet
}

func newRecorder(bus *event.Bus, read program.Reader, specs []program.Spec) *recorder {
	r := &recorder{read: read, events: bus.Watch(bus.Seq()), at: make(map[string]int), open: make(map[string]bool)}
	for i, s := range specs {
		r.runs = append(r.runs, Run{Name: s.Name, Required: s.Required, Priority: s.Priority, Needs: s.Needs})
		r.at[s.Name] = i
		if s.Autostart && s.Type != program.Schedule {
			r.open[s.Name] = true
		}
	}
	return r
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
		switch {
		case e.Name == event.Lagged:
			r.catchUp()
		case e.Name == event.ProgramStateChanged && e.Change != nil:
			r.take(e)
		}
	}
}

func (r *recorder) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open) > 0
}

func (r *recorder) take(e event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.at[e.Program]
	if !ok || !r.open[e.Program] {
		return
	}
	run := &r.runs[i]
	if e.Run > 1 || e.Change.To == program.Fatal.String() {
		delete(r.open, e.Program)
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
		delete(r.open, e.Program)
	}
}

// catchUp takes from the supervisor what lost events would have said.
func (r *recorder) catchUp() {
	_, programs := r.read.All()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range programs {
		i, ok := r.at[p.Name]
		if !ok || !r.open[p.Name] {
			continue
		}
		if p.Run > 1 || p.State == program.Fatal {
			delete(r.open, p.Name)
			continue
		}
		r.runs[i].Started, r.runs[i].Running = value(p.StartedAt), value(reached(p))
		if p.Counts() {
			r.runs[i].Ready = value(reached(p))
			delete(r.open, p.Name)
		}
	}
}
