package supervisord

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// Event is one event as supervisord's listeners get it (http://supervisord.org/events.html).
type Event struct {
	Serial  uint64
	Name    string
	Payload string
	Program string // for an event of a process: the name of its program
}

// Starts tells whether the event is a start of the program.
func (e Event) Starts(program string) bool {
	return e.Program == program && e.Name == stateEvent+starting
}

// The events of supervisord that are made here, but for those of states and ticks, whose names are made
// of a state or period.
const (
	stateEvent   = "PROCESS_STATE_"
	tickEvent    = "TICK_"
	boxRunning   = "SUPERVISOR_STATE_CHANGE_RUNNING"
	boxStopping  = "SUPERVISOR_STATE_CHANGE_STOPPING"
	groupAdded   = "PROCESS_GROUP_ADDED"
	groupRemoved = "PROCESS_GROUP_REMOVED"
)

// The states of a process in events.
const (
	stopped  = "STOPPED"
	starting = "STARTING"
	running  = "RUNNING"
	backoff  = "BACKOFF"
	stopping = "STOPPING"
	exited   = "EXITED"
	fatal    = "FATAL"
)

// tickPeriods are the seconds between two events of a kind of TICK.
var tickPeriods = [...]int64{5, 60, 3600}

// supported returns the names to which a listener can subscribe, and the events that each stands for.
// UNKNOWN is a state that no program of agentinit reaches.
func supported() map[string][]string {
	names := map[string][]string{
		"SUPERVISOR_STATE_CHANGE": {boxRunning, boxStopping},
		"PROCESS_GROUP":           {groupAdded, groupRemoved},
	}
	for _, state := range []string{stopped, starting, running, backoff, stopping, exited, fatal, "UNKNOWN"} {
		names["PROCESS_STATE"] = append(names["PROCESS_STATE"], stateEvent+state)
	}
	for _, seconds := range tickPeriods {
		names["TICK"] = append(names["TICK"], tickName(seconds))
	}
	var all []string
	for _, members := range names {
		all = append(all, members...)
	}
	for _, name := range all {
		names[name] = []string{name}
	}
	names["EVENT"] = all
	return names
}

// unsupported returns the events of supervisord that are not made here, and what to use.
func unsupported() map[string]string {
	return map[string]string{
		"PROCESS_LOG":           "agentctl logs --follow prints the output of programs",
		"PROCESS_COMMUNICATION": "agentinit does not look for messages in the output of programs",
		"REMOTE_COMMUNICATION":  "there is no sendRemoteCommEvent",
	}
}

func tickName(seconds int64) string { return fmt.Sprint(tickEvent, seconds) }

// NoEquivalentError is about an event of supervisord that agentinit does not make.
type NoEquivalentError struct{ Name, Instead string }

// Error implements error.
func (e *NoEquivalentError) Error() string {
	return e.Name + ": agentinit has no such event; " + e.Instead
}

// CheckEvent says why a listener cannot subscribe to a name; nil means that it can.
func CheckEvent(name string) error {
	if _, ok := supported()[name]; ok {
		return nil
	}
	for prefix, hint := range unsupported() {
		rest, ok := strings.CutPrefix(name, prefix)
		if ok && slices.Contains([]string{"", "_STDOUT", "_STDERR"}, rest) {
			return &NoEquivalentError{name, hint}
		}
	}
	return fmt.Errorf("supervisord has no event %q; PROCESS_STATE and TICK_60 are two", name)
}

// Translator makes supervisord's events of agentinit's. It must see the events in their order.
//
// supervisord has one state less between two runs: there a program goes from RUNNING to EXITED and at once
// to STARTING, here from RUNNING to BACKOFF. And there a failed start goes to BACKOFF even if it was the
// last one before FATAL.
type Translator struct {
	serial    uint64
	processes map[string]*process // by the name of the program
	groups    map[string]bool
	ticks     [len(tickPeriods)]int64 // the latest period of each kind that has begun
}

// process is the state of a program in supervisord's terms.
type process struct {
	state string
	pid   int
	tries int
}

// NewTranslator returns a Translator for a box that has the programs of these names.
func NewTranslator(programs []string, now time.Time) *Translator {
	t := &Translator{processes: map[string]*process{}, groups: map[string]bool{}}
	t.Programs(programs)
	t.Ticks(now)
	t.serial = 0 // no listener gets these events
	return t
}

// Translate returns the events of supervisord that an event of agentinit means.
func (t *Translator) Translate(e event.Event) []Event {
	switch e.Name {
	case event.ProgramStateChanged:
		return t.change(e.Program, e.Change)
	case event.ProgramsStarted:
		return []Event{t.make(boxRunning, "")}
	case event.ShutdownStarted:
		return []Event{t.make(boxStopping, "")}
	case event.ProgramRemoved:
		delete(t.processes, e.Program)
	case event.ProgramRenamed:
		was, _ := e.Fields["was"].(string)
		if p := t.processes[was]; p != nil {
			t.processes[e.Program] = p
			delete(t.processes, was)
		}
	case event.Lagged: // events are missing: each program begins again with its next change
		clear(t.processes)
	}
	return nil
}

// Programs tells the names of all programs. It returns what that changes in the groups.
func (t *Translator) Programs(names []string) (events []Event) {
	groups := map[string]bool{}
	for _, name := range names {
		group, _ := split(name)
		groups[group] = true
	}
	tell := func(name string, in, notIn map[string]bool) {
		for _, group := range slices.Sorted(maps.Keys(in)) {
			if !notIn[group] {
				events = append(events, t.make(name, "groupname:"+group+"\n"))
			}
		}
	}
	tell(groupRemoved, t.groups, groups)
	tell(groupAdded, groups, t.groups)
	t.groups = groups
	return events
}

// Has tells whether there is a group of that name.
func (t *Translator) Has(group string) bool { return t.groups[group] }

// Ticks returns the events of the periods that have begun since the call before.
func (t *Translator) Ticks(now time.Time) (events []Event) {
	for i, seconds := range tickPeriods {
		begun := now.Unix() / seconds * seconds
		if begun != t.ticks[i] {
			events = append(events, t.make(tickName(seconds), fmt.Sprint("when:", begun)))
		}
		t.ticks[i] = begun
	}
	return events
}

// NextTick is how long it takes until a period begins.
func NextTick(now time.Time) time.Duration {
	shortest := time.Duration(tickPeriods[0]) * time.Second
	return shortest - time.Duration(now.UnixNano())%shortest
}

func (t *Translator) make(name, payload string) Event {
	e := Event{Serial: t.serial, Name: name, Payload: payload}
	t.serial++
	return e
}

func (t *Translator) change(name string, c *event.Change) (events []Event) {
	p := t.processes[name]
	if p == nil {
		p = &process{state: c.From, pid: c.PIDBefore, tries: c.FailedStarts}
		t.processes[name] = p
	}
	group, member := split(name)
	enter := func(state, format string, args ...any) {
		payload := fmt.Sprintf("processname:%s groupname:%s from_state:%s", member, group, p.state) + fmt.Sprintf(format, args...)
		e := t.make(stateEvent+state, payload)
		e.Program = name
		events = append(events, e)
		p.state = state
	}
	failed := p.state == starting && (c.To == backoff || c.To == fatal || c.To == exited || c.FailedStarts > p.tries)
	p.tries = c.FailedStarts
	if c.PIDBefore != 0 {
		p.pid = c.PIDBefore
	}
	switch {
	case p.state == stopping && c.To != stopping:
		enter(stopped, " pid:%d", p.pid)
	case c.Exit == event.ExitExpected || c.Exit == event.ExitUnexpected:
		if p.state == starting {
			enter(running, " pid:%d", p.pid)
		}
		expected := 0
		if c.Exit == event.ExitExpected {
			expected = 1
		}
		enter(exited, " expected:%d pid:%d", expected, p.pid)
	case failed:
		enter(backoff, " tries:%d", cmp.Or(c.FailedStarts, 1))
	}
	if p.state != running && p.state != starting && p.state != stopping {
		p.pid = 0 // the run has ended
	}
	if c.PID != 0 {
		p.pid = c.PID
	}
	switch {
	case c.To == p.state:
	case c.To == starting:
		enter(starting, " tries:%d", c.FailedStarts)
	case c.To == running, c.To == stopping, c.To == stopped:
		enter(c.To, " pid:%d", p.pid)
	case c.To == fatal:
		enter(fatal, "")
	}
	return events
}
