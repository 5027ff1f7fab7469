package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/rivo/uniseg"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// onTerminal runs agentctl with a terminal of 80 columns as stdout and returns the output.
func onTerminal(t *testing.T, env map[string]string, args ...string) string {
	t.Helper()
	return onTerminalOf(t, 80, 24, env, args...)
}

func onTerminalOf(t *testing.T, columns, rows uint16, env map[string]string, args ...string) string {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	defer ptmx.Close()
	if err := pty.Setsize(ptmx, &pty.Winsize{Cols: columns, Rows: rows}); err != nil {
		t.Fatal(err)
	}
	lookup := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	var stderr bytes.Buffer
	done := make(chan string, 1)
	go func() {
		var out bytes.Buffer
		_, _ = out.ReadFrom(ptmx) // ends with EIO when the other side is closed
		done <- out.String()
	}()
	run(context.Background(), args, lookup, strings.NewReader(""), tty, &stderr)
	tty.Close()
	if stderr.Len() > 0 {
		t.Error(stderr.String())
	}
	return strings.ReplaceAll(<-done, "\r\n", "\n")
}

func TestStatusFitsTheTerminal(t *testing.T) {
	long := controltest.Program(strings.Repeat("n", 63))
	long.State, long.Reason = program.Fatal, strings.Repeat("reason ", 40)
	socket := controltest.Serve(t, controltest.New(long, controltest.Program("web")).Own())
	plain := onTerminal(t, map[string]string{"NO_COLOR": "1"}, "--socket", socket, "status")
	for l := range strings.SplitSeq(plain, "\n") {
		if n := uniseg.StringWidth(l); n > 80 {
			t.Errorf("%d columns: %s", n, l)
		}
	}
	if strings.Contains(plain, "\x1b") {
		t.Errorf("colour in spite of NO_COLOR: %q", plain)
	}
	cjk := controltest.Program("db")
	cjk.State, cjk.Reason = program.Fatal, strings.Repeat("数据库 e\u0301 ", 30)
	wide := onTerminal(t, map[string]string{"NO_COLOR": "1"}, "--socket", controltest.Serve(t, controltest.New(cjk).Own()), "status")
	for l := range strings.SplitSeq(wide, "\n") {
		if n := uniseg.StringWidth(l); n > 80 {
			t.Errorf("%d columns: %s", n, l)
		}
	}
	if !strings.Contains(wide, "数据库") {
		t.Errorf("the reason is missing:\n%s", wide)
	}
	page := onTerminal(t, map[string]string{"TERM": "dumb"}, "--socket", socket, "status", strings.Repeat("n", 63))
	for l := range strings.SplitSeq(page, "\n") {
		if n := uniseg.StringWidth(l); n > 80 && !strings.Contains(l, "agentctl ") || strings.Contains(l, "\x1b") {
			t.Errorf("page: %d columns: %q", n, l)
		}
	}
	coloured := onTerminal(t, map[string]string{"TERM": "xterm"}, "--socket", socket, "status")
	if !strings.Contains(coloured, "\x1b[31mFATAL\x1b[0m") || !strings.Contains(coloured, "\x1b[32mRUNNING\x1b[0m") {
		t.Errorf("no colours: %q", coloured)
	}
}

// TestEveryTerminal: every terminal shows the names and states of all programs. A wide terminal
// shows the whole reason. A terminal without TERM gets no colour.
func TestEveryTerminal(t *testing.T) {
	ill := controltest.Program("ill")
	ill.State, ill.Reason = program.Fatal, strings.Repeat("reason ", 30)+"end"
	b := controltest.New(ill, controltest.Program("web"))
	furnish(b)
	socket := controltest.Serve(t, b.Own())
	for _, verb := range [][]string{{"status"}, {"status", "ill"}, {"why", "ill"}, {"boot"}, {"events"}, {"logs"}, {"crash"}, {"help", "states"}} {
		for _, size := range [][2]uint16{{20, 5}, {80, 24}, {300, 50}} {
			text := onTerminalOf(t, size[0], size[1], map[string]string{}, append([]string{"--socket", socket}, verb...)...)
			if text == "" || strings.Contains(text, "\x1b") {
				t.Errorf("%v on %v without TERM: %q", verb, size, text)
			}
			if verb[0] != "status" || len(verb) > 1 {
				continue
			}
			for _, want := range []string{"ill", "FATAL", "web", "RUNNING"} {
				if !strings.Contains(text, want) {
					t.Errorf("no %s on %v:\n%s", want, size, text)
				}
			}
			if wide := size[0] == 300; strings.Contains(text, " end") != wide {
				t.Errorf("the end of the reason on %v: %t\n%s", size, !wide, text)
			}
		}
	}
}

// TestWhyOfAStart: a message or a log line that does not come is not tried, so no reason names it.
func TestWhyOfAStart(t *testing.T) {
	web := controltest.Program("web")
	web.State, web.Ready, web.Reason = program.Starting, false, "started, not ready yet"
	web.Spec.Readiness.Probes = []program.Probe{{Dialect: program.DialectNotify}}
	if got := answerOf(t, web, "why", "web"); !strings.Contains(got, "\nready:   by READY=1 on its notify socket\n") {
		t.Errorf("got %s", got)
	}
}

// answerOf is what agentctl prints about a box with the program p.
func answerOf(t *testing.T, p supervisor.Status, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	run(t.Context(), append([]string{"--socket", controltest.Serve(t, controltest.New(p).Own())}, args...), none, strings.NewReader(""), &stdout, &stderr)
	return stdout.String() + stderr.String()
}

// TestWhyOfARunOfASchedule: the end of the run before is not shown as that of the present run.
func TestWhyOfARunOfASchedule(t *testing.T) {
	job := controltest.Program("job")
	began := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	job.State, job.LastExit = program.Starting, &program.Exit{Code: 3}
	job.Schedule = &program.ScheduleStatus{LastRun: &began, LastResult: "exited with code 3"}
	if got := answerOf(t, job, "why", "job"); !strings.Contains(got, "\nlast:    exited with code 3; restarted") || !strings.Contains(got, "\nrun:     the latest began at 2026-01-02T03:00:00Z\n") {
		t.Errorf("got %s", got)
	}
}

// TestStatusOfTenThousand: a pipe gets all programs, one per line, without cuts.
func TestStatusOfTenThousand(t *testing.T) {
	programs := make([]supervisor.Status, 10_000)
	for i := range programs {
		programs[i] = controltest.Program(fmt.Sprintf("crowd:%d", i))
		programs[i].Reason = strings.Repeat("long ", 50) + "end"
		programs[i].State = program.Fatal
	}
	socket := controltest.Serve(t, controltest.New(programs...).Own())
	var stdout, stderr bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	run(t.Context(), []string{"--socket", socket, "status"}, none, strings.NewReader(""), &stdout, &stderr)
	rows := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
	if len(rows) != 1+len(programs) || stderr.Len() > 0 {
		t.Fatalf("%d rows, %s", len(rows), &stderr)
	}
	for i, row := range rows[1:] {
		if !strings.HasPrefix(row, programs[i].Name+" ") || !strings.HasSuffix(row, " end") {
			t.Fatalf("row %d: %s", i, row)
		}
	}
}

// TestStatusWatchFollows: -w shows the state again after an event. An interrupt ends it without an
// error.
func TestStatusWatchFollows(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	socket := controltest.Serve(t, b.Own())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &waiter{shown: make(chan string, 100)}
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		none := func(string) (string, bool) { return "", false }
		ended <- run(ctx, []string{"--socket", socket, "status", "-w", "--json"}, none, strings.NewReader(""), out, &stderr)
	}()
	if first := <-out.shown; !strings.Contains(first, `"state":"RUNNING"`) {
		t.Errorf("first: %s", first)
	}
	b.Set("web", func(p *supervisor.Status) { p.State, p.PID = program.Stopped, 0 })
	if second := <-out.shown; !strings.Contains(second, `"state":"STOPPED"`) {
		t.Errorf("second: %s", second)
	}
	cancel()
	if code := <-ended; code != exitOK || stderr.Len() > 0 {
		t.Errorf("exit %d, %s", code, stderr.String())
	}
}

// waiter sends each write to a channel.
type waiter struct{ shown chan string }

func (w *waiter) Write(p []byte) (int, error) {
	w.shown <- string(p)
	return len(p), nil
}

// A backup would write control characters to the terminal, as tar refuses to.
func TestBackupRefusesATerminal(t *testing.T) {
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	defer ptmx.Close()
	defer tty.Close()
	var stderr bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	if code := run(t.Context(), []string{"backup", "-"}, none, strings.NewReader(""), tty, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "name a FILE") {
		t.Errorf("%d, %s", code, stderr.String())
	}
}
