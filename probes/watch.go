package probes

import (
	"context"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// Cycle is the time between two checks of mounts and relays.
const Cycle = 5 * time.Second

// ProgramState is what readiness knows of one program.
type ProgramState struct {
	Name     string
	State    string // supervisord's name: RUNNING, FATAL, …
	Required bool
	// Ready is true when the program is ready, or when it declares no readiness
	// and is RUNNING.
	Ready     bool
	Completed bool // a oneshot that ended as expected
	// Scheduled programs run now and then: waiting for their time is no fault.
	Scheduled bool
	Reason    string
}

// met says whether the program fulfils its requirement, and if not why.
func (p ProgramState) met() (bool, string) {
	switch {
	case p.Completed:
		return true, ""
	case p.Scheduled && p.State != "FATAL":
		return true, ""
	case p.State == "RUNNING" && p.Ready:
		return true, ""
	case p.State == "RUNNING":
		return false, withReason("RUNNING but not ready", p.Reason)
	}
	return false, withReason(p.State, p.Reason)
}

func withReason(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// ProgramStates reads all programs and the number of the newest event that the
// answer contains. It must return within milliseconds.
type ProgramStates func() (seq uint64, programs []ProgramState)

// Follow keeps the program requirements of r up to date until ctx ends. It
// costs nothing while nothing happens: each event changes one requirement. When
// events were lost, or one names a program not seen before, or one of the names
// in reload is published, it reads all programs again.
func (r *Readiness) Follow(ctx context.Context, read ProgramStates, reload ...string) {
	f := follower{r: r, read: read, reload: make(map[string]bool)}
	for _, name := range append(reload, event.Lagged) {
		f.reload[name] = true
	}
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
	r      *Readiness
	read   ProgramStates
	reload map[string]bool
	watch  *event.Watcher
	known  map[string]ProgramState
}

func (f *follower) readAll() {
	seq, programs := f.read()
	f.watch = f.r.bus.Watch(seq)
	f.known = make(map[string]ProgramState, len(programs))
	keep := make(map[string]bool)
	for _, p := range programs {
		f.known[p.Name] = p
		if p.Required {
			keep[programID(p.Name)] = true
			f.publish(p)
		}
	}
	f.r.Keep(KindProgram, keep)
}

func (f *follower) take(e event.Event) {
	if f.reload[e.Name] {
		f.readAll()
		return
	}
	if e.Name != event.ProgramStateChanged || e.Change == nil {
		return
	}
	p, ok := f.known[e.Program]
	if !ok {
		f.readAll()
		return
	}
	p.State, p.Ready, p.Completed, p.Reason = e.Change.To, e.Change.Ready, e.Change.Completed, e.Change.Reason
	f.known[p.Name] = p
	if p.Required {
		f.publish(p)
	}
}

func (f *follower) publish(p ProgramState) {
	met, why := p.met()
	f.r.Set(Requirement{ID: programID(p.Name), Kind: KindProgram, Met: met, Reason: why})
}

func programID(name string) string { return "program:" + name }
