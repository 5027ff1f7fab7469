package supervisord

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// change is a change of the program web. The last field of a text is how its run ended.
func change(from, to string, c event.Change) event.Event {
	c.From, c.To = from, to
	return event.Event{Name: event.ProgramStateChanged, Program: "web", Change: &c}
}

// told writes events in short: what belongs to the program web is left out.
func told(events []Event) (lines []string) {
	for _, e := range events {
		payload := strings.TrimPrefix(e.Payload, "processname:web groupname:web ")
		lines = append(lines, strings.TrimSpace(strings.TrimPrefix(e.Name, "PROCESS_STATE_")+" "+payload))
	}
	return lines
}

// supervisord 4.2 was seen to send these events in the same life of a program, but for those that only
// agentinit's states can lead to.
func TestLivesOfPrograms(t *testing.T) {
	start := change(stopped, starting, event.Change{})
	forked := change(starting, starting, event.Change{PID: 7})
	runs := change(starting, running, event.Change{PID: 7, PIDBefore: 7})
	const started, running7 = "STARTING from_state:STOPPED tries:0", "RUNNING from_state:STARTING pid:7"
	for name, test := range map[string]struct {
		events []event.Event
		want   []string
	}{
		"stop": {[]event.Event{start, forked, runs, change(running, running, event.Change{PID: 7, PIDBefore: 7}),
			change(running, stopping, event.Change{PID: 7, PIDBefore: 7}), change(stopping, stopped, event.Change{})},
			[]string{started, running7, "STOPPING from_state:RUNNING pid:7", "STOPPED from_state:STOPPING pid:7"}},
		"stop of a start": {[]event.Event{start, forked, change(starting, stopping, event.Change{PID: 7, PIDBefore: 7}), change(stopping, stopped, event.Change{})},
			[]string{started, "STOPPING from_state:STARTING pid:7", "STOPPED from_state:STOPPING pid:7"}},
		"restart by request": {[]event.Event{start, forked, runs, change(running, stopping, event.Change{PID: 7, PIDBefore: 7}), change(stopping, starting, event.Change{})},
			[]string{started, running7, "STOPPING from_state:RUNNING pid:7", "STOPPED from_state:STOPPING pid:7", started}},
		"expected exit": {[]event.Event{start, forked, runs, change(running, exited, event.Change{PIDBefore: 7, Exit: event.ExitExpected}), change(exited, starting, event.Change{})},
			[]string{started, running7, "EXITED from_state:RUNNING expected:1 pid:7", "STARTING from_state:EXITED tries:0"}},
		"restart after a crash": {[]event.Event{start, forked, runs, change(running, backoff, event.Change{PIDBefore: 7, Exit: event.ExitUnexpected}), change(backoff, starting, event.Change{})},
			[]string{started, running7, "EXITED from_state:RUNNING expected:0 pid:7", "STARTING from_state:EXITED tries:0"}},
		"restart at once": {[]event.Event{start, forked, runs, change(running, starting, event.Change{PIDBefore: 7, Exit: event.ExitUnexpected}),
			change(starting, starting, event.Change{PID: 8}), change(starting, running, event.Change{PID: 8, PIDBefore: 8})},
			[]string{started, running7, "EXITED from_state:RUNNING expected:0 pid:7", "STARTING from_state:EXITED tries:0", "RUNNING from_state:STARTING pid:8"}},
		"crash of a start without start_seconds": {[]event.Event{start, forked, change(starting, exited, event.Change{PIDBefore: 7, Exit: event.ExitUnexpected})},
			[]string{started, running7, "EXITED from_state:RUNNING expected:0 pid:7"}},
		"too many crashes": {[]event.Event{start, forked, runs, change(running, fatal, event.Change{PIDBefore: 7, Exit: event.ExitUnexpected})},
			[]string{started, running7, "EXITED from_state:RUNNING expected:0 pid:7", "FATAL from_state:EXITED"}},
		"failed starts": {[]event.Event{start, forked, change(starting, backoff, event.Change{PIDBefore: 7, FailedStarts: 1}), change(backoff, starting, event.Change{FailedStarts: 1}),
			change(starting, starting, event.Change{PID: 8, FailedStarts: 1}), change(starting, fatal, event.Change{PIDBefore: 8, FailedStarts: 2}), change(fatal, starting, event.Change{})},
			[]string{started, "BACKOFF from_state:STARTING tries:1", "STARTING from_state:BACKOFF tries:1", "BACKOFF from_state:STARTING tries:2", "FATAL from_state:BACKOFF", "STARTING from_state:FATAL tries:0"}},
		"failed starts at once": {[]event.Event{start, forked, change(starting, starting, event.Change{PIDBefore: 7, FailedStarts: 1}), change(starting, starting, event.Change{FailedStarts: 2})},
			[]string{started, "BACKOFF from_state:STARTING tries:1", "STARTING from_state:BACKOFF tries:1", "BACKOFF from_state:STARTING tries:2", "STARTING from_state:BACKOFF tries:2"}},
		"one failed start": {[]event.Event{start, change(starting, fatal, event.Change{})}, []string{started, "BACKOFF from_state:STARTING tries:1", "FATAL from_state:BACKOFF"}},
		"stop in BACKOFF": {[]event.Event{start, change(starting, backoff, event.Change{FailedStarts: 1}), change(backoff, stopped, event.Change{FailedStarts: 1})},
			[]string{started, "BACKOFF from_state:STARTING tries:1", "STOPPED from_state:BACKOFF pid:0"}},
		"a start that takes too long": {[]event.Event{start, forked, change(starting, stopping, event.Change{PID: 7, PIDBefore: 7}), change(stopping, backoff, event.Change{FailedStarts: 1}), change(backoff, starting, event.Change{FailedStarts: 1})},
			[]string{started, "STOPPING from_state:STARTING pid:7", "STOPPED from_state:STOPPING pid:7", "STARTING from_state:STOPPED tries:1"}},
		"another main process": {[]event.Event{start, forked, runs, change(running, running, event.Change{PID: 9, PIDBefore: 7}), change(running, exited, event.Change{PIDBefore: 9, Exit: event.ExitExpected})},
			[]string{started, running7, "EXITED from_state:RUNNING expected:1 pid:9"}},
		"events are missing": {[]event.Event{start, {Name: event.Lagged}, change(running, exited, event.Change{PIDBefore: 7, Exit: event.ExitExpected})},
			[]string{started, "EXITED from_state:RUNNING expected:1 pid:7"}},
		"the first event of a listener": {[]event.Event{change(running, stopping, event.Change{PID: 7, PIDBefore: 7}), change(stopping, stopped, event.Change{})},
			[]string{"STOPPING from_state:RUNNING pid:7", "STOPPED from_state:STOPPING pid:7"}},
		"removed": {[]event.Event{start, {Name: event.ProgramRemoved, Program: "web"}, start}, []string{started, started}},
		"the box": {[]event.Event{{Name: event.ProgramsStarted}, {Name: event.HookFailed}, {Name: event.ShutdownStarted}}, []string{"SUPERVISOR_STATE_CHANGE_RUNNING", "SUPERVISOR_STATE_CHANGE_STOPPING"}},
	} {
		tr := NewTranslator([]string{"web"}, time.Unix(0, 0))
		var got []Event
		for _, e := range test.events {
			got = append(got, tr.Translate(e)...)
		}
		if lines := told(got); !slices.Equal(lines, test.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, lines, test.want)
		}
		for i, e := range got {
			if e.Serial != uint64(i) {
				t.Errorf("%s: event %d has the serial %d", name, i, e.Serial)
			}
		}
	}
}

func TestGroups(t *testing.T) {
	tr := NewTranslator([]string{"web", "worker:0", "worker:1"}, time.Unix(0, 0))
	if got := tr.Programs([]string{"web:0", "worker:1"}); got != nil {
		t.Errorf("no group has changed: %v", got)
	}
	got := told(tr.Programs([]string{"db", "cache", "worker:1"}))
	if want := []string{"PROCESS_GROUP_REMOVED groupname:web", "PROCESS_GROUP_ADDED groupname:cache", "PROCESS_GROUP_ADDED groupname:db"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if tr.Has("web") || !tr.Has("db") {
		t.Error("the groups have not changed")
	}
	// An instance keeps its state under its new name.
	tr.Translate(change(stopped, starting, event.Change{}))
	tr.Translate(event.Event{Name: event.ProgramRenamed, Program: "web:0", Fields: map[string]any{"was": "web"}})
	e := change(starting, running, event.Change{PID: 7})
	e.Program = "web:0"
	if got := tr.Translate(e); len(got) != 1 || got[0].Payload != "processname:0 groupname:web from_state:STARTING pid:7" {
		t.Errorf("got %+v", got)
	}
}

func TestTicks(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(7200+seconds, 5) }
	tr := NewTranslator(nil, at(1))
	for _, test := range []struct {
		at   int64
		want string
	}{
		{4, ""}, {5, "TICK_5 when:7205"}, {9, ""}, {21, "TICK_5 when:7220"}, {60, "TICK_5 when:7260 TICK_60 when:7260"},
		{3601, "TICK_5 when:10800 TICK_60 when:10800 TICK_3600 when:10800"},
		{3598, "TICK_5 when:10795 TICK_60 when:10740 TICK_3600 when:7200"}, // the clock was set back
	} {
		if got := strings.Join(told(tr.Ticks(at(test.at))), " "); got != test.want {
			t.Errorf("after %d s: %q, want %q", test.at, got, test.want)
		}
	}
	if got := NextTick(at(3)); got != 2*time.Second-5 {
		t.Errorf("the next tick comes after %v", got)
	}
}

func TestEventNames(t *testing.T) {
	for _, name := range []string{"EVENT", "PROCESS_STATE", "PROCESS_STATE_UNKNOWN", "TICK_3600", "PROCESS_GROUP_ADDED", "SUPERVISOR_STATE_CHANGE"} {
		if err := CheckEvent(name); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]string{
		"PROCESS_LOG":                  "PROCESS_LOG: agentinit has no such event; agentctl logs --follow prints the output of programs",
		"PROCESS_LOG_STDERR":           "PROCESS_LOG_STDERR: agentinit has no such event",
		"PROCESS_COMMUNICATION_STDOUT": "agentinit does not look for messages",
		"REMOTE_COMMUNICATION":         "there is no sendRemoteCommEvent",
		"TICK_1":                       `supervisord has no event "TICK_1"; PROCESS_STATE and TICK_60 are two`,
		"process_state":                `supervisord has no event "process_state"`,
		"":                             `supervisord has no event ""`,
	} {
		if err := CheckEvent(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, ok := range map[string]bool{"watch": true, "a.b-c_1": true, "": false, "a b": false, "a:b": false, "a\n": false, "é": false, strings.Repeat("x", 128): false} {
		if err := CheckPool(name); (err == nil) != ok {
			t.Errorf("pool %q: %v", name, err)
		}
	}
}

func TestPool(t *testing.T) {
	p := NewPool("watch")
	p.Subscribe([]string{"PROCESS_STATE", "TICK_5"}, 3)
	offer := func(serial uint64, name string) bool {
		return p.Offer(Event{Serial: serial, Name: name, Payload: "when:5"})
	}
	take := func() string {
		n, ok := p.Take()
		if !ok {
			return ""
		}
		return string(p.Message(n))
	}
	offer(0, "TICK_60") // not wanted
	for serial := range uint64(3) {
		if offer(10+serial, "TICK_5") {
			t.Error("dropped before it is full")
		}
	}
	if !offer(13, "PROCESS_STATE_FATAL") {
		t.Error("nothing was dropped")
	}
	const first = "ver:3.0 server:agentinit serial:11 pool:watch poolserial:1 eventname:TICK_5 len:6\nwhen:5"
	n, _ := p.Take()
	if got := string(p.Message(n)); got != first {
		t.Errorf("got %q", got)
	}
	if p.Return(n) || take() != first { // it keeps its numbers, and its place
		t.Error("what was returned is not the next one")
	}
	offer(14, "TICK_5")
	if !p.Return(n) { // the pool is full: the oldest of the others goes
		t.Error("nothing was dropped for what was returned")
	}
	p.Subscribe([]string{"PROCESS_STATE_FATAL"}, 2)
	if got := take(); !strings.Contains(got, " serial:13 pool:watch poolserial:3 eventname:PROCESS_STATE_FATAL ") {
		t.Errorf("got %q", got)
	}
	if take() != "" || !p.Empty() || p.WantsTicks() {
		t.Error("events that are not wanted any more are left")
	}
}
