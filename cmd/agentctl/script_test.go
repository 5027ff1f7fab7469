package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		// Without /proc: the tests may run in a box, where only PID 1's sockets are accepted. In place
		// of /etc, the directory of that name in the script's.
		"agentctl":      func() { os.Exit(start("none", "etc")) },
		"supervisorctl": func() { os.Exit(start("none", "etc")) },
	})
}

// run is agentctl in this process.
func run(ctx context.Context, args []string, lookupEnv func(string) (string, bool), stdin io.Reader, stdout, stderr io.Writer) int {
	return (&cli{lookupEnv: lookupEnv, stdin: stdin, stderr: stderr}).run(ctx, args, stdout)
}

// TestScripts runs testdata/script. UPDATE_SCRIPTS=1 rewrites the expected output.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			// No socket until the script makes a box, and never the socket of the machine.
			e.Setenv("AGENTCTL_SOCKET", "none")
			e.Setenv("NO_COLOR", "1")
			// The race detector would delay each exit by a second.
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			e.Values[boxKey{}] = new(*controltest.Box)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"box": box, "change": change, "exits": exits, "asked": asked},
	})
}

// boxKey finds the script's box.
type boxKey struct{}

// box is `box WORD...`: it serves a box and sets AGENTCTL_SOCKET to its socket. A word is a program
// (NAME, NAME=STATE or NAME=STATE:REASON) or a setting: +fails=NAME, +hold=NAME, +refuse=NAME,
// +limits=NAME, +logtrouble=NAME, +unready, +booting, +invalid, +rollback, +before, +meta=FILE, +health=FILE.
func box(ts *testscript.TestScript, neg bool, args []string) {
	b := controltest.New()
	b.ProbeJSON = map[string]string{}
	furnish(b)
	for _, word := range args {
		if setting, ok := strings.CutPrefix(word, "+"); ok {
			set(ts, b, setting)
			continue
		}
		p := controltest.Program("")
		name, state, found := strings.Cut(word, "=")
		p.Name, p.Group, p.PID = name, strings.Split(name, ":")[0], 100+len(name)
		p.Spec = &program.Spec{Name: name, Type: program.Service, Argv: []string{"/bin/" + name}, Autostart: true, StartRetries: -1}
		if found {
			enter(ts, &p, state)
		}
		b.Add(p)
	}
	dir, err := os.MkdirTemp("", "ctl")
	ts.Check(err)
	ts.Defer(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	stop, err := controltest.Start(b.Own(), socket)
	ts.Check(err)
	ts.Defer(func() { ts.Check(stop()) })
	ts.Setenv("AGENTCTL_SOCKET", socket)
	*ts.Value(boxKey{}).(**controltest.Box) = b
}

// enter sets the state of a program to "STATE" or "STATE:REASON". COMPLETED, UNREADY and ODD are
// additional states of the tests.
func enter(ts *testscript.TestScript, p *supervisor.Status, to string) {
	name, reason, _ := strings.Cut(to, ":")
	deadline := controltest.Epoch.Add(2100 * time.Millisecond)
	p.Reason, p.Ready, p.PID, p.Deadline, p.Completed = reason, false, 0, nil, false
	switch name {
	case "COMPLETED":
		p.State, p.Completed, p.Spec.Type = program.Exited, true, program.Oneshot
	case "UNREADY":
		p.State, p.PID = program.Running, 7
	case "ODD":
		p.State, p.PID, p.Ready, p.Text = program.Running, 7, true, "\x1b[2J\x1b]0;owned\a done\nweb FATAL \u202e"
	case "BACKOFF":
		p.State, p.Deadline, p.Restarts, p.LastExit = program.Backoff, &deadline, 4, &program.Exit{Code: 1}
	case "RUNNING":
		p.State, p.PID, p.Ready = program.Running, 7, true
	default:
		ts.Check(p.State.UnmarshalText([]byte(name)))
	}
}

func set(ts *testscript.TestScript, b *controltest.Box, setting string) {
	key, value, _ := strings.Cut(setting, "=")
	switch key {
	case "fails":
		b.Fails = append(b.Fails, value)
	case "hold":
		b.Hold = append(b.Hold, value)
	case "refuse":
		b.Refuse = append(b.Refuse, value)
	case "limits":
		b.Bounds = map[string][]api.ProgramLimit{value: {
			{Name: "pids", Max: 225, Source: api.LimitDefault, Counts: api.LimitOfProgram},
			{Name: "memory", Soft: 48 << 20, Max: 64 << 20, Source: api.LimitManifest, Counts: api.LimitOfProgram},
		}}
		b.Set(value, func(p *supervisor.Status) {
			p.Spec.Limits.Rlimits = map[string]program.Limit{"memory": {Soft: 48 << 20, Hard: 64 << 20}, "nofile": {Soft: 7, Hard: 8}}
		})
	case "logtrouble":
		b.LogTroubles = map[string]error{value: errors.New("cannot open /log/" + value + ": permission denied")}
	case "unready":
		b.SetReadiness(api.Readiness{Reason: "starting", Missing: []api.Requirement{{ID: "program:web", Kind: "program", Reason: "STARTING"}}})
	case "invalid":
		e := api.Errorf(api.CodeInvalid, "the manifest is invalid; the box is unchanged")
		e.Findings = []api.Finding{{Code: "E016", Severity: "error", File: "agentbox.toml", Line: 3, Column: 1, Message: `unknown key "comand"`, Hint: `write "command"`}}
		b.ApplyErr = e
	case "booting":
		b.Phase = supervisor.Idle
		b.BootData = api.Boot{StartedAt: controltest.Epoch, Outcome: api.BootUnderWay, Phases: []api.BootPhase{
			{Number: 0, Name: "load", StartedAt: controltest.Epoch, Outcome: "ok"},
			{Number: 5, Name: "artifacts", StartedAt: controltest.Epoch, Outcome: api.PhaseUnderWay},
		}}
	case "manifest":
		b.BootData.Manifest = value
	case "meta":
		b.ProbeJSON["/v1/meta"] = ts.ReadFile(value)
	case "health":
		b.ProbeJSON["/health"] = ts.ReadFile(value)
	case "before":
		b.BootBefore = b.BootData
		b.BootBefore.StartedAt = b.BootData.StartedAt.Add(-time.Hour)
		sealed := b.BootBefore.StartedAt.Add(2 * time.Second)
		b.BootBefore.SealedAt = &sealed
	case "rollback":
		b.Result.RolledBack, b.Result.Reason = true, "web did not return"
	default:
		ts.Fatalf("unknown setting %s", setting)
	}
}

// furnish gives the box logs, events, a boot and the result of an apply.
func furnish(b *controltest.Box) {
	at := func(ms int) time.Time { return controltest.Epoch.Add(time.Duration(ms) * time.Millisecond) }
	b.Lines = []logs.Line{
		{Seq: 1, Time: at(0), Program: "web", Stream: logs.Stdout, PID: 103, Run: 1, Text: "listening"},
		{Seq: 2, Time: at(5), Program: "db", Stream: logs.Stderr, PID: 102, Run: 1, Text: "warming up"},
		{Seq: 3, Time: at(9), Program: "web", Stream: logs.Stderr, PID: 103, Run: 1, Text: "bad \xff byte"},
	}
	b.Bus.Publish(event.Event{Time: at(0), Level: event.Info, Stage: "bootstrap", Name: "BootstrapStarted", Fields: map[string]any{"box": "test"}})
	b.Bus.Publish(event.Event{
		Time: at(10), Level: event.Warn, Stage: "supervisor", Name: event.ProgramStateChanged, Program: "web", Run: 1,
		Change: &event.Change{From: "STARTING", To: "RUNNING", PID: 103, Ready: true},
	})
	b.Result.Changes = []api.ApplyChange{
		{Program: "db", Action: api.ApplyUnchanged}, {Program: "web", Action: api.ApplyRestart, Keys: []string{"command", "environment"}},
		{Program: "cache", Action: api.ApplyAdd},
	}
	moment := func(ms int) *time.Time { t := at(ms); return &t }
	b.BootData = api.Boot{
		StartedAt: at(0), SealedAt: moment(1500), Outcome: "sealed",
		Phases: []api.BootPhase{
			{Number: 0, Name: "load", StartedAt: at(0), DurationMS: 3.25, Outcome: "ok"},
			{Number: 0.5, Name: "immutable-root", StartedAt: at(3), DurationMS: 0.1, Outcome: "warning", Detail: "/opt/agentbox is writable"},
			{Number: 9, Name: "start", StartedAt: at(20), DurationMS: 1480, Outcome: "ok"},
		},
		Programs: []api.BootProgram{
			{Name: "db", StartedAt: moment(21), RunningAt: moment(400), ReadyAt: moment(900)},
			{Name: "web", Required: true, Needs: []string{"db"}, StartedAt: moment(901), RunningAt: moment(950), ReadyAt: moment(1500)},
			{Name: "late", StartedAt: moment(21)},
		},
		Artifacts:     []api.BootArtifact{{ID: "ffmpeg", Reason: "not found", DurationMS: 1}},
		CriticalChain: []string{"db", "web"},
	}
}

// change is `change NAME=STATE`.
func change(ts *testscript.TestScript, neg bool, args []string) {
	for _, word := range args {
		name, state, _ := strings.Cut(word, "=")
		theBox(ts).Set(name, func(p *supervisor.Status) { enter(ts, p, state) })
	}
}

func theBox(ts *testscript.TestScript) *controltest.Box {
	b := *ts.Value(boxKey{}).(**controltest.Box)
	if b == nil {
		ts.Fatalf("no box has been made")
	}
	return b
}

// asked is `asked WHAT...`: it compares the signals and shutdowns that the box got.
func asked(ts *testscript.TestScript, neg bool, args []string) {
	b := theBox(ts)
	got := append(b.Signals(), b.Shutdowns()...)
	if slices.Equal(got, args) == neg {
		ts.Fatalf("asked for %q", got)
	}
}

// exits is `exits STATUS COMMAND...`.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if (got == want) == neg {
		ts.Fatalf("%s exited with %d", fmt.Sprint(args[1:]), got)
	}
}
