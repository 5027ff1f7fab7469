package supervisor

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// EventRefused: the guard or the sandbox of a program refused a system call of this kind for
// the first time, or again a minute after it was told.
const EventRefused = "SandboxRefused"

// Refusal is one kind of system call that was refused to a program.
type Refusal struct {
	By      string    `json:"by"`   // "guard" or "seccomp"
	Call    string    `json:"call"` // name of the system call
	Allowed bool      `json:"allowed,omitempty"`
	Count   uint64    `json:"count"`
	PID     int       `json:"pid"`               // of the last process
	Command string    `json:"command,omitempty"` // of the process that the latest event is about
	Last    time.Time `json:"last"`

	told uint64    // Count when it was told last
	at   time.Time // when
}

const (
	// maxRefused bounds the kinds that are kept of one program. Further ones are counted as
	// one, "other".
	maxRefused = 32
	// refusedAgain is the least time between two events of one kind.
	refusedAgain = time.Minute
)

// otherCalls is the name of the kinds that are not kept apart.
const otherCalls = "other"

// tallies are what was refused, by program. The owner of it holds its lock.
type tallies map[string][]*Refusal

// add counts a refusal. tell is a copy that an event is due for, else nil.
func (t tallies) add(name string, x proc.Refusal, now time.Time) (tell *Refusal) {
	list := t[name]
	i := slices.IndexFunc(list, func(r *Refusal) bool { return r.By == x.By && r.Call == x.Call && r.Allowed == x.Allowed })
	if i < 0 && len(list) >= maxRefused {
		x.Call = otherCalls
		i = slices.IndexFunc(list, func(r *Refusal) bool { return r.Call == otherCalls })
	}
	if i < 0 {
		list = append(list, &Refusal{By: x.By, Call: x.Call, Allowed: x.Allowed})
		t[name], i = list, len(list)-1
	}
	r := list[i]
	r.Count++
	r.PID, r.Last = x.PID, now
	if r.told > 0 && now.Sub(r.at) < refusedAgain {
		return nil
	}
	r.told, r.at = r.Count, now
	r.Command = commandName(x.PID)
	told := *r
	return &told
}

// rename moves what is counted of a program.
func (t tallies) rename(was, name string) {
	if list := t[was]; list != nil {
		t[name] = append(t[name], list...)
		delete(t, was)
	}
}

// tally is what a command of a program reports its refusals to.
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
		fields := map[string]any{
			"by": told.By, "call": told.Call, "count": told.Count, "pid": told.PID, "command": told.Command, "allowed": told.Allowed,
		}
		s.cfg.Bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventRefused, Program: name, Run: run, Fields: fields})
	}
}

// commandName is what the process calls itself; the kernel keeps 15 bytes of it.
func commandName(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Refusals lists what was refused to a program since it is known, the most frequent first.
func (s *System) Refusals(name string) []Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Refusal, 0, len(s.refusals[name]))
	for _, r := range s.refusals[name] {
		out = append(out, *r)
	}
	slices.SortStableFunc(out, func(a, b Refusal) int { return cmp.Compare(b.Count, a.Count) })
	return out
}
