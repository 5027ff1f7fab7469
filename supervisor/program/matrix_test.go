package program

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the generated documents")

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// fullSpec has all features that add a step to a program's life.
func fullSpec() *Spec {
	hook := &Hook{Argv: []string{"true"}, Timeout: 5 * time.Second}
	return &Spec{
		Name: "web", Type: Service, Restart: RestartOnFailure, ExitCodes: []int{0},
		RunningAfter: time.Second, StartTimeout: time.Minute, StartRetries: -1,
		Backoff:      BackoffPolicy{Initial: 2 * time.Second, Factor: 2, Max: 30 * time.Second, ResetAfter: time.Minute},
		RestartLimit: RestartLimit{Count: 3, Window: time.Hour},
		Readiness:    Readiness{Probes: []Probe{{Dialect: "notify"}}},
		Health:       Health{Probes: []Probe{{Dialect: "tcp", Target: "x:1"}}, Failures: 3, Action: HealthRestart},
		Stop:         []StopStep{{Signal: "INT", Wait: 3 * time.Second}, {Signal: "TERM", Wait: 10 * time.Second}},
		StopCommand:  hook, Kill: KillTree,
		Hooks: Hooks{PreStart: hook, PostReady: hook, PreStop: hook, PostExit: hook},
	}
}

// situation is a state with the event that the machine waits for, and a path to it.
type situation struct {
	name  string
	means string
	path  []stimulus
}

// stimulus is a column of the matrix: it makes an event for the given machine.
type stimulus struct {
	name string
	make func(Machine) Event
}

func plain(name string, kind EventKind) stimulus {
	return stimulus{name, func(m Machine) Event { return Event{Kind: kind, Run: m.Run} }}
}

var (
	onStart  = plain("Start", Start)
	onStop   = plain("Stop", Stop)
	onKill   = plain("Kill", Kill)
	onBegan  = stimulus{"Began", func(m Machine) Event { return Event{Kind: Began, Run: m.Run, PID: 42} }}
	onFailed = stimulus{"Failed", func(m Machine) Event {
		return Event{Kind: Failed, Run: m.Run, Reason: "command not found: web", Status: 127}
	}}
	onReady   = plain("Ready", Ready)
	onEnded   = stimulus{"Ended, expected", func(m Machine) Event { return Event{Kind: Ended, Run: m.Run} }}
	onCrash   = stimulus{"Ended, unexpected", func(m Machine) Event { return Event{Kind: Ended, Run: m.Run, Exit: Exit{Code: 1}} }}
	onEmptied = plain("Emptied", Emptied)
	onHook    = stimulus{"HookDone", func(m Machine) Event { return Event{Kind: HookDone, Run: m.Run, Hook: m.hook} }}
	onHookBad = stimulus{"HookDone, failed", func(m Machine) Event {
		return Event{Kind: HookDone, Run: m.Run, Hook: m.hook, Reason: "exited with code 9"}
	}}
	onHealthy   = plain("Healthy", Healthy)
	onUnhealthy = stimulus{"Unhealthy", func(m Machine) Event { return Event{Kind: Unhealthy, Run: m.Run, Reason: "no answer"} }}
	onWithdrawn = stimulus{"Withdrawn", func(m Machine) Event { return Event{Kind: Withdrawn, Run: m.Run, Reason: "it reloads"} }}
	onExtend    = stimulus{"Extend", func(m Machine) Event { return Event{Kind: Extend, Run: m.Run, Extend: time.Hour} }}
	onMoved     = stimulus{"Moved", func(m Machine) Event { return Event{Kind: Moved, Run: m.Run, PID: 43} }}
	onTick      = plain("Tick", Tick)
)

var stimuli = []stimulus{
	onStart, onStop, onKill, onBegan, onFailed, onReady, onEnded, onCrash, onEmptied, onHook, onHookBad,
	onHealthy, onUnhealthy, onWithdrawn, onExtend, onMoved, onTick,
}

func steps(parts ...any) []stimulus {
	var p []stimulus
	for _, part := range parts {
		switch part := part.(type) {
		case stimulus:
			p = append(p, part)
		case []stimulus:
			p = append(p, part...)
		}
	}
	return p
}

var (
	toForking = steps(onStart, onHook)
	toWarming = steps(toForking, onBegan)
	toRunning = steps(toWarming, onReady)
	toLadder  = steps(toRunning, onStop, onHook, onHook)
)

var situations = []situation{
	{"STOPPED", "at rest", nil},
	{"STARTING/clearing", "processes of the run before are still there", steps(toRunning, onEnded, onStart)},
	{"STARTING/preparing", "pre_start runs", steps(onStart)},
	{"STARTING/forking", "asked for, not exec'ed yet", toForking},
	{"STARTING/warming", "alive, not RUNNING yet", toWarming},
	{"RUNNING", "", toRunning},
	{"BACKOFF", "waits for its next start", steps(toRunning, onCrash, onEmptied, onHook)},
	{"BACKOFF, occupied", "and processes of its run are left", steps(toRunning, onCrash)},
	{"BACKOFF, unanswered", "and a start given up has not answered", steps(toForking, onTick)},
	{"STOPPING/unforked", "asked for, not exec'ed yet", steps(toForking, onStop)},
	{"STOPPING/unhooking", "a cancelled pre_start has not ended", steps(onStart, onStop)},
	{"STOPPING/announcing", "pre_stop runs", steps(toRunning, onStop)},
	{"STOPPING/commanding", "stop_command runs", steps(toRunning, onStop, onHook)},
	{"STOPPING/descending", "on a rung of the ladder", toLadder},
	{"STOPPING/descending, leaderless", "the leader is gone, others are left", steps(toLadder, onEnded)},
	{"STOPPING/killing", "KILL sent", steps(toLadder, onTick, onTick, onEnded)},
	{"STOPPING/cleaning", "post_exit runs", steps(toLadder, onEnded, onEmptied)},
	{"STOPPING/cleaning, start queued", "and a start is asked for", steps(toLadder, onStart, onEnded, onEmptied)},
	{"EXITED", "at rest", steps(toRunning, onEnded, onEmptied, onHook)},
	{"EXITED, occupied", "at rest, its last processes are being killed", steps(toRunning, onEnded)},
	{"FATAL", "at rest", steps(onStart, onHookBad, onTick, onHookBad, onTick, onHookBad, onTick, onHookBad)},
}

// reach goes to a situation and lets the deadline pass before each Tick.
func reach(t testing.TB, p []stimulus) (Machine, time.Time) {
	t.Helper()
	now := epoch
	m := NewMachine(fullSpec(), 1, now)
	for _, s := range p {
		m, now, _ = apply(m, now, s)
	}
	return m, now
}

func apply(m Machine, now time.Time, s stimulus) (Machine, time.Time, []Action) {
	if s.name == "Tick" && !m.Deadline.IsZero() {
		now = m.Deadline
	}
	m, actions := m.Step(now, s.make(m))
	return m, now, actions
}

func where(m Machine) string {
	if m.step == idle {
		return m.State.String()
	}
	return m.State.String() + "/" + m.step.String()
}

// cell describes one transition, or "-" if it changes nothing.
func cell(before, after Machine, actions []Action) string {
	var acts []string
	for _, a := range actions {
		acts = append(acts, a.String())
	}
	text := where(after)
	if len(acts) > 0 {
		return text + ": " + strings.Join(acts, ", ")
	}
	if fmt.Sprintf("%+v", before) == fmt.Sprintf("%+v", after) {
		return "-"
	}
	return text
}

// TestMatrix checks every event in every situation.
func TestMatrix(t *testing.T) {
	seen := map[State]bool{}
	for _, s := range situations {
		m, now := reach(t, s.path)
		seen[m.State] = true
		if state, _, _ := strings.Cut(s.name, ","); state != where(m) {
			t.Errorf("the way to %q ends in %q", s.name, where(m))
			continue
		}
		row := matrix[s.name]
		for _, ev := range stimuli {
			after, _, actions := apply(m, now, ev)
			if got, want := cell(m, after, actions), row[ev.name]; got != want {
				t.Errorf("\n\t%q × %q:\n\t got %q\n\twant %q", s.name, ev.name, got, want)
			}
		}
		if len(row) != len(stimuli) {
			t.Errorf("%q has %d cells for %d events", s.name, len(row), len(stimuli))
		}
	}
	for _, state := range States {
		if !seen[state] {
			t.Errorf("state %v has no row", state)
		}
	}
	for st := range stepNames {
		if !slices.ContainsFunc(situations, func(s situation) bool {
			m, _ := reach(t, s.path)
			return m.step == step(st)
		}) {
			t.Errorf("step %v has no row", step(st))
		}
	}
	for i := range eventNames {
		kind := EventKind(i)
		if !slices.ContainsFunc(stimuli, func(s stimulus) bool { return s.make(Machine{}).Kind == kind }) {
			t.Errorf("event %v has no column", kind)
		}
	}
}

// TestNoRunBeginsBeforeItsNeeds sends every event in every situation while a need is not met. An
// event that would begin a run leads to STOPPED instead; all others do the same as ever.
func TestNoRunBeginsBeforeItsNeeds(t *testing.T) {
	awaited := 0
	for _, s := range situations {
		m, now := reach(t, s.path)
		for _, ev := range stimuli {
			free, now, actions := apply(m, now, ev)
			e := ev.make(m)
			e.Unmet = true
			held, heldActions := m.Step(now, e)
			begins := free.Run > m.Run || free.step == clearing && m.step != clearing
			switch {
			case !begins:
				if got, want := cell(m, held, heldActions), cell(m, free, actions); got != want {
					t.Errorf("%q × %q: %q, with a need that does not hold %q", s.name, ev.name, want, got)
				}
			case held.State != Stopped || held.Run != m.Run || held.Restarts != m.Restarts:
				t.Errorf("%q × %q: %s", s.name, ev.name, cell(m, held, heldActions))
			case heldActions[len(heldActions)-1].Kind != AwaitNeeds:
				t.Errorf("%q × %q: %v", s.name, ev.name, heldActions)
			default:
				awaited++
			}
		}
	}
	if awaited == 0 {
		t.Error("no event begins a run")
	}
}

// TestStaleRun sends every event of another run in every situation.
func TestStaleRun(t *testing.T) {
	for _, s := range situations {
		m, now := reach(t, s.path)
		for _, ev := range stimuli {
			e := ev.make(m)
			if e.Kind == Start || e.Kind == Stop || e.Kind == Kill || e.Kind == Tick {
				continue
			}
			e.Run++
			after, actions := m.Step(now, e)
			if c := cell(m, after, actions); c != "-" {
				t.Errorf("%q × %q of run %d: %s", s.name, ev.name, e.Run, c)
			}
		}
	}
}

// TestDocument keeps docs/states.md equal to the matrix.
func TestDocument(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "states.md")
	want := document()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current; run: go test ./supervisor/program -run TestDocument -update", file)
	}
}

// shownWords is the section about Status.Shown.
var shownWords = strings.ReplaceAll(`
## Words of agentctl status

~agentctl status~, ~agentctl why~ and ~agentctl top~ show one of these words instead of the state:

| word | state | when |
|---|---|---|
| COMPLETED | EXITED | The latest run of a oneshot or a schedule has ended as expected. The next run of a schedule starts at its time. |
| SCHEDULED | STOPPED | A schedule waits for its next run. It has not run yet, or its latest run was stopped. |
| PAUSED | STOPPED, EXITED or FATAL | A schedule was stopped. No run starts until ~agentctl start NAME~; ~agentctl run NAME~ starts one run. |

A service that has ended as expected is EXITED, and so is a schedule whose latest run has failed. If the schedule has used up the restarts
that its keys allow a run, it is FATAL until its next run.

~/health~, the metric ~agentinit_program_state~ and the event ~ProgramStateChanged~ have the state. In the event, ~completed~ is true
with COMPLETED, and ~reason~ says that a schedule waits or is paused. ~agentctl status --json~ and ~GET /v1/programs~ have both: ~state~ is
the state, ~shown~ the word. ~shown~ is absent if ~agentctl status~ shows the state itself.

~agentctl status~ exits 0 for COMPLETED and SCHEDULED, as for RUNNING, and 3 for PAUSED. It exits 0 too for a schedule whose run goes on
(STARTING) or is stopped while the next one stays planned (STOPPING, as with ~overlap = "kill"~), and for one whose latest run has failed,
because the next run comes.
`, "~", "`")

func document() string {
	var b strings.Builder
	b.WriteString(`# The states of a program

Generated from the transition matrix that the tests of ` + "`supervisor/program`" + ` check; do not edit.

The matrix is that of a service that declares everything: all hooks, a stop
command, readiness, health checks with ` + "`action = \"restart\"`" + `, a stop that sends INT and then
TERM, ` + "`kill = \"tree\"`" + ` and a back-off. What is not declared is passed over. An event
that is not listed has no effect, and neither has an event of another run.

While something that the program ` + "`needs`" + ` does not hold, no run begins: what leads to
STARTING/preparing or STARTING/clearing in the tables then leads to STOPPED, with the
action AwaitNeeds. agentinit starts the program when its needs hold.

Where a table says BACKOFF, the program becomes FATAL instead if ` + "`restart_limit`" + ` or
` + "`start_retries`" + ` is used up, or if ` + "`restart`" + ` is ` + "`never`" + `.
A start for which the box or the machine had no process, memory or open file left does not count
for ` + "`restart_limit`" + `.

The less obvious events: *Tick*: a time has run out. *Emptied*: the last process of the run
is gone. *Moved*: another process is the main one from now on (MAINPID of sd_notify). *Withdrawn*: the
program says that it is not ready any more (RELOADING, STOPPING), or that it is ready again. *Extend*: the
program asks for more time (EXTEND_TIMEOUT_USEC). *Kill*: the time for the shutdown of
the box is used up.

Numbers are supervisord's: `)
	for i, s := range States {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%v %d", s, int(s))
	}
	b.WriteString(".\n" + shownWords)
	for _, s := range situations {
		fmt.Fprintf(&b, "\n## %s\n\n", s.name)
		if s.means != "" {
			fmt.Fprintf(&b, "%s%s.\n\n", strings.ToUpper(s.means[:1]), s.means[1:])
		}
		b.WriteString("| event | next | actions |\n|---|---|---|\n")
		for _, ev := range stimuli {
			c := matrix[s.name][ev.name]
			if c == "-" {
				continue
			}
			next, acts, _ := strings.Cut(c, ": ")
			fmt.Fprintf(&b, "| %s | %s | %s |\n", ev.name, next, acts)
		}
	}
	return b.String()
}
