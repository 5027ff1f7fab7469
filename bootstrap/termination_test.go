package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func checkReport(t *testing.T, r TerminationReport, limit int) TerminationReport {
	t.Helper()
	out := r.Render(limit)
	if len(out) > limit || !utf8.Valid(out) {
		t.Fatalf("%d bytes, limit %d, valid %v", len(out), limit, utf8.Valid(out))
	}
	line, rest, _ := bytes.Cut(out, []byte("\n"))
	if len(line) == 0 || bytes.ContainsAny(line, "\r\x00\x1b") {
		t.Fatalf("first line %q", line)
	}
	var back TerminationReport
	if len(rest) > 0 {
		if err := json.Unmarshal(rest, &back); err != nil {
			t.Fatalf("%v in %q", err, rest)
		}
	}
	return back
}

func TestTerminationReport(t *testing.T) {
	r := TerminationReport{
		Cause: "the required program web is FATAL:\n10 restarts", Program: "web", Phase: "seal", Code: 67, At: time.Unix(1700000000, 0).UTC(),
		Programs: []ProgramEnd{{Name: "web", State: "FATAL", Exit: "exit 3", Stderr: []string{"one", "cannot bind"}}},
	}
	if got := r.Line(); got != "agentinit: exit 67: the required program web is FATAL: 10 restarts (boot phase seal)" {
		t.Fatalf("got %q", got)
	}
	back := checkReport(t, r, MaxTerminationReport)
	if back.Code != 67 || !slices.Equal(back.Programs[0].Stderr, []string{"one", "cannot bind"}) {
		t.Fatalf("got %+v", back)
	}
}

// When space is short, the stderr of the program that caused the end is kept longer than that of
// the other programs.
func TestTerminationReportKeepsTheCulpritsWords(t *testing.T) {
	last := []string{"cannot open /etc/web.conf", "giving up"}
	r := TerminationReport{Cause: "essential: program web: exited with code 9", Program: "web"}
	r.Programs = append(r.Programs, ProgramEnd{Name: "web", State: "STOPPED", Exit: "exit 9", Stderr: last})
	for i := range 25 {
		r.Programs = append(r.Programs, ProgramEnd{
			Name: fmt.Sprint("p", i), State: "STOPPED", Exit: "signal TERM", Reason: "stopped by request",
			Stderr: []string{strings.Repeat("x", 100)},
		})
	}
	back := checkReport(t, r, MaxTerminationReport)
	if !slices.Equal(back.Programs[0].Stderr, last) || len(back.Programs) != 26 {
		t.Errorf("%d programs, first %+v", len(back.Programs), back.Programs[0])
	}
}

// The cause is what the reader needs first. A box of many programs must not shorten it to a few words.
// Fit cuts the programs to Most before it looks at their sizes. If it kept all of these, Most could have
// been too low.
func TestMostPrograms(t *testing.T) {
	for _, p := range []ProgramEnd{
		{},
		{Name: "web", State: "STOPPED", Exit: "exit 0", Reason: "stopped on request"},
		{Name: strings.Repeat("ä", 300), State: "STOPPED", Reason: strings.Repeat("\U0001f680", 300)},
		{Name: "web", State: "STOPPED", Reason: strings.Repeat("\xff", 300)},
	} {
		all := slices.Repeat([]ProgramEnd{p}, 1000)
		most := TerminationReport{Programs: all}.Most(MaxTerminationReport)
		kept := len(TerminationReport{Programs: all}.Fit(MaxTerminationReport).Programs)
		if kept >= most || kept < most/4 {
			t.Errorf("%.40q: at most %d, kept %d", p, most, kept)
		}
	}
}

func TestTerminationReportKeepsTheCause(t *testing.T) {
	cause := "the required program app cannot start: it waits for db to be ready (it is FATAL: not ready within 1m0s: http http://127.0.0.1:8000/healthz: connection refused)"
	r := TerminationReport{Cause: cause}
	for i := range 40 {
		r.Programs = append(r.Programs, ProgramEnd{Name: fmt.Sprint("p", i), State: "FATAL", Reason: strings.Repeat("reason ", 30)})
	}
	if back := checkReport(t, r, MaxTerminationReport); back.Cause != cause || len(back.Programs) < 10 {
		t.Errorf("%d programs, cause %q", len(back.Programs), back.Cause)
	}
}

func TestTerminationReportIsCutNotBroken(t *testing.T) {
	var r TerminationReport
	r.Cause = strings.Repeat("日本語", 3000)
	for i := range 300 {
		r.Programs = append(r.Programs, ProgramEnd{
			Name: fmt.Sprint("p", i), State: "EXITED", Reason: strings.Repeat("\"\\\x01", 300),
			Stderr: slices.Repeat([]string{strings.Repeat("é\xff", 500)}, 20),
		})
	}
	back := checkReport(t, r, MaxTerminationReport)
	if len(back.Programs) == 0 || back.Programs[0].Name != "p0" || len(back.Programs)+back.Omitted != 300 {
		t.Fatalf("%d programs, %d omitted", len(back.Programs), back.Omitted)
	}
	for limit := 256; limit < 3000; limit += 391 {
		checkReport(t, r, limit)
	}
}

func FuzzTerminationReport(f *testing.F) {
	f.Add("cause", "reason", "stderr", 3, 4096)
	f.Add("日本\xff", "\x1b[31m", strings.Repeat("é", 5000), 40, 300)
	f.Fuzz(func(t *testing.T, cause, reason, stderr string, n, limit int) {
		if limit < 256 || limit > 1<<16 || n < 0 || n > 200 {
			t.Skip()
		}
		r := TerminationReport{Cause: cause, Phase: reason}
		for range n {
			r.Programs = append(r.Programs, ProgramEnd{Name: reason, Reason: reason, Stderr: []string{stderr, stderr}})
		}
		checkReport(t, r, limit)
	})
}

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 3, "abc"}, {"abcdef", 5, "ab…"}, {"ééé", 5, "é…"}, {"éé", 3, "é"}, {"日", 2, ""}, {"", 0, ""}, {"a\xffb", 9, "a�b"},
	} {
		if got := truncate(c.in, c.n); got != c.want || len(got) > c.n {
			t.Errorf("truncate(%q, %d) = %q", c.in, c.n, got)
		}
	}
}

// text returns a render function for s.
func text(s string) func() []byte { return func() []byte { return []byte(s) } }

func TestWriteTerminationReport(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	if ok, err := WriteTerminationReport(file, text("x")); ok || err != nil {
		t.Fatalf("created: %v %v", ok, err)
	}
	write(t, file, "an older and longer report", 0o644)
	if ok, err := WriteTerminationReport(file, text("new")); !ok || err != nil || read(t, file) != "new" {
		t.Fatalf("%v %v", ok, err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, err := WriteTerminationReport(fifo, text("new")); ok || err != nil {
		t.Fatalf("a pipe without a reader: %v %v", ok, err)
	}
	full := fullPipe(t, fifo)
	if ok, err := WriteTerminationReport(fifo, text("new")); ok || !errors.Is(err, syscall.EAGAIN) {
		t.Fatalf("a pipe that is full: %v %v", ok, err)
	}
	if _, err := full.Read(make([]byte, 1<<16)); err != nil {
		t.Fatal(err)
	}
	if ok, err := WriteTerminationReport(fifo, text("new")); !ok || err != nil {
		t.Fatalf("a pipe that is read: %v %v", ok, err)
	}
	if os.Geteuid() != 0 {
		if err := os.Chmod(file, 0o400); err != nil {
			t.Fatal(err)
		}
		if ok, err := WriteTerminationReport(file, text("")); ok || err != nil {
			t.Fatalf("not writable: %v %v", ok, err)
		}
	}
}

// fullPipe opens the FIFO for reading and fills it.
func fullPipe(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for err == nil {
		err = writeNow(f, make([]byte, 4096))
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	return f
}

func at(s int) time.Time { return time.Unix(1700000000+int64(s), 0) }

func TestCriticalChain(t *testing.T) {
	need := func(names ...string) (out []program.Need) {
		for _, n := range names {
			out = append(out, program.Need{Program: n})
		}
		return out
	}
	runs := []Run{
		{Name: "db", Priority: 10, Started: at(0), Ready: at(4)},
		{Name: "cache", Priority: 10, Started: at(0), Ready: at(1)},
		{Name: "migrate", Priority: 999, Needs: need("db"), Started: at(4), Ready: at(6)},
		{Name: "web", Priority: 999, Needs: need("migrate", "cache"), Required: true, Started: at(6), Ready: at(9)},
		{Name: "late", Priority: 999, Started: at(6), Ready: at(30)},
		{Name: "never", Priority: 1, Required: true},
	}
	if chain := CriticalChain(runs); strings.Join(chain, " ") != "db migrate web" {
		t.Fatalf("got %q", chain)
	}
	runs[3].Required = false
	if chain := CriticalChain(runs); chain[len(chain)-1] != "late" {
		t.Fatalf("without required ones: %q", chain)
	}
	if CriticalChain(nil) != nil || CriticalChain([]Run{{Name: "x"}}) != nil {
		t.Fatal("a chain of nothing")
	}
	// A cycle of programs that claim to need each other must not cause an endless loop.
	loop := []Run{
		{Name: "a", Required: true, Needs: need("b"), Started: at(1), Ready: at(1)},
		{Name: "b", Required: true, Needs: need("a"), Started: at(1), Ready: at(1)},
	}
	if got := CriticalChain(loop); len(got) != 2 {
		t.Fatalf("got %q", got)
	}
}
