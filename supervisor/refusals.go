package supervisor

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// EventRefused: the guard or the sandbox of a program refused a system call of this kind for the
// first time, or again at least a minute after the last event.
const EventRefused = "SandboxRefused"

// Refusal is one kind of system call that was refused to a program.
type Refusal struct {
	By      string    `json:"by"`   // "guard" or "seccomp"
	Call    string    `json:"call"` // name of the system call
	Allowed bool      `json:"allowed,omitempty"`
	Count   uint64    `json:"count"`
	PID     int       `json:"pid"`               // of the last process
	Command string    `json:"command,omitempty"` // name of the process in the latest event
	Last    time.Time `json:"last"`

	told uint64    // value of Count in the latest event
	at   time.Time // time of the latest event
}

const (
	// maxRefused bounds how many kinds are kept for one program. Further kinds are counted together
	// as "other".
	maxRefused = 32
	// refusedAgain is the least time between two events of one kind.
	refusedAgain = time.Minute
)

// otherCalls is the name for all further kinds.
const otherCalls = "other"

// tallies are the refused calls, by program. The lock of the owner guards them.
type tallies map[string][]Refusal

// add counts a refusal. If an event is due, tell is a copy for it; otherwise tell is nil.
func (t tallies) add(name string, x proc.Refusal, now time.Time) (tell *Refusal) {
	list := t[name]
	i := slices.IndexFunc(list, func(r Refusal) bool { return r.By == x.By && r.Call == x.Call && r.Allowed == x.Allowed })
	if i < 0 && len(list) >= maxRefused {
		x.Call = otherCalls
		i = slices.IndexFunc(list, func(r Refusal) bool { return r.Call == otherCalls })
	}
	if i < 0 {
		list = append(list, Refusal{By: x.By, Call: x.Call, Allowed: x.Allowed})
		t[name], i = list, len(list)-1
	}
	r := &list[i]
	r.Count++
	r.PID, r.Last = x.PID, now
	if r.told > 0 && now.Sub(r.at) < refusedAgain {
		return nil
	}
	r.told, r.at = r.Count, now
	r.Command = proc.Name(x.PID)
	return new(*r)
}

// rename moves the counts of a program to its new name.
func (t tallies) rename(was, name string) {
	if list := t[was]; list != nil {
		t[name] = append(t[name], list...)
		delete(t, was)
	}
}

// tally returns the function to which a command of a program reports its refusals.
func (s *System) tally(r *systemRun) func(proc.Refusal) {
	return func(x proc.Refusal) {
		s.mu.Lock()
		name, run := r.key.name, r.key.run
		var told *Refusal
		if !r.forgotten {
			told = s.refusals.add(name, x, time.Now())
		}
		s.mu.Unlock()
		if told == nil {
			return
		}
		s.cfg.Bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventRefused, Program: name, Run: run, Fields: told.fields()})
	}
}

// fields are those of the event.
func (r *Refusal) fields() map[string]any {
	return map[string]any{"by": r.By, "call": r.Call, "count": r.Count, "pid": r.PID, "command": r.Command, "allowed": r.Allowed}
}

// AgentRefusals counts what is refused to agents, by the template that they were started from. It
// is safe for concurrent use.
type AgentRefusals struct {
	bus *event.Bus

	mu     sync.Mutex
	counts tallies
}

// NewAgentRefusals tells bus the same events as those of programs; the field template stands for
// the program.
func NewAgentRefusals(bus *event.Bus) *AgentRefusals {
	return &AgentRefusals{bus: bus, counts: tallies{}}
}

// Add counts a refusal to an agent.
func (a *AgentRefusals) Add(agent, template string, x proc.Refusal) {
	a.mu.Lock()
	told := a.counts.add(template, x, time.Now())
	a.mu.Unlock()
	if told == nil {
		return
	}
	fields := told.fields()
	fields["agent"], fields["template"] = agent, template
	a.bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventRefused, Fields: fields})
}

// List returns what was refused, by template.
func (a *AgentRefusals) List() map[string][]Refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := maps.Clone(a.counts)
	for template, kinds := range out {
		out[template] = slices.Clone(kinds)
	}
	return out
}

// Refusals lists the system calls that were refused to a program, the most frequent first.
func (s *System) Refusals(name string) []Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append([]Refusal{}, s.refusals[name]...)
	slices.SortStableFunc(out, func(a, b Refusal) int { return cmp.Compare(b.Count, a.Count) })
	return out
}
