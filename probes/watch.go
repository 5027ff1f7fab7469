package probes

import (
	"context"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// checkCycle is the time between two checks of mounts and relays.
const checkCycle = 5 * time.Second

// met says whether the program fulfils its requirement, and if not why.
func met(p program.Status) (bool, string) {
	switch {
	case p.Counts():
		return true, ""
	case p.State == program.Running:
		return false, withReason("RUNNING but not ready", p.Reason)
	}
	return false, withReason(p.Shown(), p.Reason)
}

func withReason(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// reloads are the events after which every program is read again.
var reloads = []string{event.ProgramsApplied, event.ProgramRemoved, event.Lagged}

// Follow keeps the program requirements of r up to date until ctx ends. Each event changes one
// requirement. If events were lost, or if the set of programs has changed, Follow reads all
// programs again.
func (r *Readiness) Follow(ctx context.Context, read program.Reader) {
	r.mu.Lock()
	r.programs = read
	r.mu.Unlock()
	f := follower{r: r, read: read}
	f.readAll()
	for {
		e, err := f.watch.Next(ctx)
		if err != nil {
			return
		}
		f.take(e)
	}
}

type follower struct {
	r     *Readiness
	read  program.Reader
	watch *event.Watcher
}

func (f *follower) readAll() {
	seq, programs := f.read.All()
	f.watch = f.r.bus.Watch(seq)
	keep := make(map[string]bool)
	for _, p := range programs {
		if p.Required {
			keep[programID(p.Name)] = true
			f.publish(p)
		}
	}
	f.r.Keep(KindProgram, keep)
}

func (f *follower) take(e event.Event) {
	if slices.Contains(reloads, e.Name) {
		f.readAll()
		return
	}
	if e.Name != event.ProgramStateChanged {
		return
	}
	if p, ok := f.read.Status(e.Program); ok && p.Required {
		f.publish(p)
	}
}

func (f *follower) publish(p program.Status) {
	met, why := met(p)
	f.r.Set(Requirement{ID: programID(p.Name), Kind: KindProgram, Met: met, Reason: why})
}

const programPrefix = "program:"

func programID(name string) string { return programPrefix + name }
