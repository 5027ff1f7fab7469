package listing

import (
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/table"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func TestAllRunning(t *testing.T) {
	for want, programs := range map[bool][]api.Program{
		true: {
			{State: "RUNNING"}, {State: "EXITED", Shown: "COMPLETED"}, {State: "STOPPED", Shown: "SCHEDULED"},
			{State: "EXITED", Schedule: &api.Schedule{}}, {State: "FATAL", Schedule: &api.Schedule{}}, {State: "STARTING", PID: 7, Schedule: &api.Schedule{}},
			{State: "STOPPING", PID: 7, Schedule: &api.Schedule{}},
		},
		false: {
			{State: "STARTING"}, {State: "STOPPED"}, {State: "BACKOFF"}, {State: "FATAL"}, {State: "EXITED"},
			{State: "STOPPING", PID: 7}, {State: "STOPPING", PID: 7, Schedule: &api.Schedule{Paused: true}},
			{State: "STOPPED", Shown: "PAUSED"}, {State: "BACKOFF", Schedule: &api.Schedule{}}, {State: "EXITED", PID: 7, Schedule: &api.Schedule{}},
		},
	} {
		for _, p := range programs {
			if got := AllRunning([]Program{{Program: api.Program{State: "RUNNING"}}, {Program: p}}); got != want {
				t.Errorf("%+v: %v", p, got)
			}
		}
	}
	if !AllRunning(nil) {
		t.Error("no program: false")
	}
}

// TestAProgramAtRestUsesNoMemory: its usage can have been read before it ended.
func TestAProgramAtRestUsesNoMemory(t *testing.T) {
	for state, want := range map[string]int64{"STOPPED": 0, "EXITED": 0, "FATAL": 0, "RUNNING": 4096, "STOPPING": 4096, "BACKOFF": 4096} {
		p := Program{Program: api.Program{State: state, Usage: &api.ProgramUsage{CPUSeconds: 75, MemoryBytes: 4096}}}
		if p.Memory() != want || p.CPU() != 75 {
			t.Errorf("%s: memory %d, CPU %v", state, p.Memory(), p.CPU())
		}
	}
}

// TestTableIsHarmless: the names and texts of programs are escaped.
func TestTableIsHarmless(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := Table([]Program{{Share: -1, Program: api.Program{
		Name: "a\x1b[2J", State: "RUNNING", Ready: true, Healthy: true, PID: 7, Since: now.Add(-time.Minute), Text: "x\nweb FATAL\u202e",
		Usage: &api.ProgramUsage{CPUSeconds: 75, MemoryBytes: 4096},
	}}}, now, false, table.Terminal{})
	want := "NAME      STATE    PID    FOR    CPU  MEMORY  RESTARTS  INFO\n" +
		`a\x1b[2J  RUNNING    7  1m00s  1m15s    4.0K         0  x\nweb FATAL\u202e` + "\n"
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// A long cause of an exit leaves room for the column INFO on a terminal.
func TestWideTableOnATerminal(t *testing.T) {
	got := Table([]Program{{Share: -1, Program: api.Program{
		Name: "web", State: "BACKOFF", Type: "service", Reason: "unhealthy: refused",
		LastExit: &api.Exit{Cause: "ended by signal TERM when agentinit stopped it: unhealthy: " + strings.Repeat("x", 100)},
	}}}, time.Time{}, true, table.Terminal{Width: 160})
	for line := range strings.Lines(got) {
		if n := table.Width(strings.TrimSuffix(line, "\n")); n > 160 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(got, "ended by signal TERM when agentinit…  unhealthy: refused") {
		t.Errorf("got:\n%s", got)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1024: "1.0K", 102348: "99.9K", 102400: "100K", 1 << 20: "1.0M", 1<<20 - 1: "1.0M", 3 << 40: "3.0T", 1 << 62: "4.0E"} {
		if got := Bytes(n); got != want || len(got) > 6 {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
