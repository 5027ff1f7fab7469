package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// A box that ends before it has read the manifest says why, as any other.
func TestEndBeforeTheManifest(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "report"), nil, 0o600); err != nil { // the kubelet makes it
		t.Fatal(err)
	}
	b, err := newBox(options{root: root}, []string{"AGENTBOX_TERMINATION_LOG=/report"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if code := b.neverStarted(errors.New("cannot reserve memory")); code != int(bootstrap.ExitInternal) {
		t.Errorf("exit status %d", code)
	}
	if report, err := os.ReadFile(filepath.Join(root, "report")); err != nil || !strings.Contains(string(report), "cannot reserve memory") {
		t.Errorf("the report is %q, %v", report, err)
	}
}

// What programs print before they end comes before the report about the end of the box, which is the last
// line of the log and has their last lines of stderr.
func TestTheReportIsTheLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	defer func(stdout *os.File) { os.Stdout = stdout }(os.Stdout)
	os.Stdout = out
	b, err := newBox(options{root: t.TempDir()}, nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	b.speak(errors.New("no manifest"))
	var result supervisor.Result
	for i := range 8 {
		name := fmt.Sprint("p", i)
		c, err := b.plane.Open(logs.Options{Program: name, Run: 1, To: logs.ToConsole})
		if err != nil {
			t.Fatal(err)
		}
		// A pipe holds it before anyone reads.
		if _, err := io.WriteString(c.Stderr, strings.Repeat(strings.Repeat("x", 999)+"\n", 60)+"last words\n"); err != nil {
			t.Fatal(err)
		}
		c.Started(1)
		result.Programs = append(result.Programs, supervisor.Status{Name: name, Run: 1, State: program.Stopped})
	}
	b.end(nil, result)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	last := lines[len(lines)-1]
	if len(lines) != 8*61+1 || !strings.Contains(last, `"Terminated"`) || strings.Count(last, "last words") != 8 {
		t.Errorf("%d lines, the last one is %s", len(lines), last[:min(len(last), 1000)])
	}
}

// The final status of a box comes from its failed boot, or from the event that interrupted the
// boot.
func TestFinalStatus(t *testing.T) {
	interrupted := &bootstrap.Failure{Phase: "seal", Code: bootstrap.ExitOK, Reason: "the boot was interrupted"}
	fatal := &bootstrap.Failure{Phase: "seal", Code: bootstrap.ExitRequiredFatal, Reason: "web is FATAL"}
	ended := func(kind supervisor.CauseKind, code int) supervisor.Result {
		return supervisor.Result{Cause: supervisor.Cause{Kind: kind, Code: code, Detail: "detail"}, Code: code}
	}
	for _, c := range []struct {
		name    string
		bootErr error
		result  supervisor.Result
		code    int
		cause   string
	}{
		{"a sealed box", nil, ended(supervisor.CauseRequested, 0), 0, "requested"},
		{"interrupted by a request", interrupted, ended(supervisor.CauseRequested, 0), 0, "requested"},
		{"interrupted by the end of all", interrupted, ended(supervisor.CauseAllExited, 3), 3, "all-exited"},
		{"interrupted by on_fatal", interrupted, ended(supervisor.CauseFatal, 3), 3, "fatal"},
		{"interrupted by a health check", interrupted, ended(supervisor.CauseUnhealthy, 1), 1, "unhealthy"},
		{"interrupted by a bug", interrupted, ended(supervisor.CauseInternal, 1), 1, "internal"},
		{"interrupted by an essential program", interrupted, ended(supervisor.CauseEssential, 7), 7, "essential"},
		{"interrupted before there was a supervisor", interrupted, supervisor.Result{}, 0, "interrupted"},
		{"required FATAL", fatal, ended(supervisor.CauseRequested, 0), 67, "web is FATAL"},
		{"required FATAL with on_fatal", fatal, ended(supervisor.CauseFatal, 3), 67, "web is FATAL"},
		{"essential FATAL", fatal, ended(supervisor.CauseEssential, 7), 7, "essential"},
		{"an error without a status", errors.New("odd"), ended(supervisor.CauseRequested, 0), 1, "odd"},
	} {
		code := finalStatus(c.bootErr, c.result)
		r := new(box).report(code, c.bootErr, c.result)
		if code != c.code || r.Code != c.code || !strings.Contains(r.Cause, c.cause) {
			t.Errorf("%s: %d, report %d %q; want %d, %q", c.name, code, r.Code, r.Cause, c.code, c.cause)
		}
		if bootFailed := r.Phase != ""; bootFailed && strings.HasPrefix(r.Cause, c.result.Cause.String()) {
			t.Errorf("%s: the phase %s is none of the cause %q", c.name, r.Phase, r.Cause)
		}
	}
}

// The report begins with the program that the boot failed for, before others that have given up.
func TestReportBeginsWithTheCulpritOfTheBoot(t *testing.T) {
	failure := &bootstrap.Failure{Phase: "seal", Code: bootstrap.ExitRequiredFatal, Reason: "web is FATAL", Program: "web"}
	result := supervisor.Result{Cause: supervisor.Cause{Kind: supervisor.CauseRequested, Detail: "detail"}, Programs: []supervisor.Status{
		{Name: "extra", State: program.Fatal}, {Name: "web", State: program.Fatal, Reason: "no disk"},
	}}
	b := &box{plane: logs.New(logs.Config{}), stopped: t.Context()}
	r := b.report(67, failure, result)
	if r.Program != "web" || r.Programs[0].Name != "web" || r.Programs[0].Reason != "no disk" {
		t.Errorf("got %+v", r)
	}
}

// What is known about an end replaces its signal, which it names if the signal matters.
func TestReportOfAnEnd(t *testing.T) {
	for want, exit := range map[string]*program.Exit{
		"":                       nil,
		"exit 3":                 {Code: 3},
		"signal SEGV":            {Code: -1, Signal: "SEGV"},
		"ended by signal TERM …": {Code: -1, Signal: "TERM", Cause: "ended by signal TERM …"},
	} {
		if got := new(box).programEnd(&supervisor.Status{LastExit: exit}).Exit; got != want {
			t.Errorf("%+v: %q", exit, got)
		}
	}
}
