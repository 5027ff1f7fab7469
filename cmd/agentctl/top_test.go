package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/gdamore/tcell/v2"
	"github.com/hinshun/vt10x"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// emulator is a terminal that runs agentctl top.
type emulator struct {
	t       *testing.T
	ptmx    *os.File
	vt      vt10x.Terminal
	mu      sync.Mutex
	raw     bytes.Buffer
	changed chan struct{}
	code    chan int
}

func runTop(t *testing.T, b *controltest.Box, cols, rows int, env map[string]string) *emulator {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	if err := pty.Setsize(ptmx, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)}); err != nil {
		t.Fatal(err)
	}
	e := &emulator{t: t, ptmx: ptmx, vt: vt10x.New(vt10x.WithSize(cols, rows)), changed: make(chan struct{}, 1), code: make(chan int, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := ptmx.Read(buf)
			if err != nil {
				return
			}
			e.mu.Lock()
			e.raw.Write(buf[:n])
			e.mu.Unlock()
			e.vt.Write(buf[:n])
			select {
			case e.changed <- struct{}{}:
			default:
			}
			if bytes.IndexByte(buf[:n], 0) >= 0 {
				return
			}
		}
	}()
	lookup := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	ctx, cancel := context.WithCancel(t.Context())
	socket := controltest.Serve(t, b.Own())
	var stderr bytes.Buffer
	go func() {
		c := &cli{tty: tty.Name(), lookupEnv: lookup, stdin: strings.NewReader(""), stderr: &stderr}
		e.code <- c.run(ctx, []string{"--socket", socket, "top"}, tty)
	}()
	t.Cleanup(func() {
		cancel()
		<-e.code
		// tcell leaves its side of the terminal open, so a byte that top never writes must end the
		// reader. The reader takes everything before it: otherwise the write waits for room forever.
		if _, err := tty.WriteString("\x00"); err == nil {
			<-read
		}
		tty.Close()
		ptmx.Close()
	})
	return e
}

func (e *emulator) keys(text string) {
	if _, err := io.WriteString(e.ptmx, text); err != nil {
		e.t.Fatal(err)
	}
}

// see waits until the screen matches and returns it.
func (e *emulator) see(pattern string) string {
	e.t.Helper()
	want := regexp.MustCompile(pattern)
	limit := time.After(30 * time.Second)
	for {
		screen := e.vt.String()
		if want.MatchString(screen) {
			return screen
		}
		select {
		case <-e.changed:
		case <-limit:
			e.t.Fatalf("never saw %s in\n%s", pattern, screen)
		}
	}
}

func xterm(more ...string) map[string]string {
	env := map[string]string{"TERM": "xterm"}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

func topBox() *controltest.Box {
	b := controltest.New(controltest.Program("web"), controltest.Program("db"), controltest.Program("worker"))
	furnish(b)
	return b
}

func TestTopControls(t *testing.T) {
	b := topBox()
	e := runTop(t, b, 80, 24, xterm())
	e.see(`(?s)3 RUNNING.*> web +RUNNING.*q quit`)
	e.keys("x")
	e.see(`stop web\? y/n`)
	e.keys("n")
	e.see(`q quit`)
	e.keys("x")
	e.see(`stop web\? y/n`)
	e.keys("y")
	e.see(`(?s)> web +STOPPED.*stop web: done`)
	e.keys("s")
	e.see(`start web\? y/n`)
	e.keys("y")
	e.see(`> web +RUNNING`)
	e.keys("\x1b[B") // down
	e.see(`> db`)
	e.keys("k")
	e.see(`signal to db: `)
	e.keys("HUP\r")
	e.see(`signal HUP db\? y/n`)
	e.keys("y")
	e.see(`signal db: done`)
	if got := strings.Join(b.Signals(), ","); got != "db HUP" {
		t.Errorf("signals: %s", got)
	}
	e.keys("/wor\r")
	screen := e.see(`> worker`)
	if strings.Contains(screen, "> web") || strings.Contains(screen, "  db ") {
		t.Errorf("the filter leaves others:\n%s", screen)
	}
	e.keys("q")
	if code := <-e.code; code != exitOK {
		t.Errorf("exit status %d", code)
	}
	e.code <- 0 // for the cleanup
}

// A terminal with another character set sends bytes that are no UTF-8, and so does a broken paste.
func TestTopReadsOnAfterInvalidInput(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8")
	e := runTop(t, topBox(), 80, 24, xterm())
	e.see(`> web`)
	e.keys("\xff\xe9\xc3\x1b[B")
	e.see(`> db`)
	e.keys("/\xc3")
	e.keys("\xa9wor")
	e.see(`éwor`)
}

// TestValidInput: a character may come in two reads, and bytes that belong to none are dropped.
func TestValidInput(t *testing.T) {
	text := "a\xffé\xe2\x82q€\U0001F600\xf0\x9f."
	for size := utf8.UTFMax; size < 10; size++ {
		in := &validInput{Tty: reads{Reader: iotest.OneByteReader(strings.NewReader(text))}}
		var got []byte
		for p := make([]byte, size); ; {
			n, err := in.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
		}
		if string(got) != "aéq€\U0001F600." {
			t.Errorf("%d bytes at a time: %q", size, got)
		}
	}
}

// reads is a terminal of which only the input is used.
type reads struct {
	tcell.Tty
	io.Reader
}

func (r reads) Read(p []byte) (int, error) { return r.Reader.Read(p) }

func TestTopViews(t *testing.T) {
	b := topBox()
	e := runTop(t, b, 80, 24, xterm())
	e.see(`> web`)
	e.keys("\r")
	e.see(`(?s)output of web.*listening.*bad \\xff byte`)
	e.keys("&listen\r")
	if screen := e.see(`only: listen`); strings.Contains(screen, "byte") {
		t.Errorf("the filter leaves others:\n%s", screen)
	}
	e.keys("&\r/byte\r")
	e.see(`(?s)bad.*no other line has byte|bad.*back`)
	e.keys("q")
	e.see(`> web`)
	e.keys("L")
	e.see(`db \| warming up`)
	e.keys("qb")
	e.see(`(?s)sealed, .*db .*web .*critical chain: db > web`)
	e.keys("qd")
	e.see(`(?s)\n? *db\s+web`)
	e.keys("q?")
	e.see(`start, stop, restart`)
}

// TestTopSizes: top works in every size. With NO_COLOR it writes no colour.
func TestTopSizes(t *testing.T) {
	for _, size := range [][2]int{{20, 5}, {80, 24}, {300, 60}, {1, 1}, {10, 2}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			e := runTop(t, topBox(), size[0], size[1], xterm("NO_COLOR", "1"))
			if size[0] >= 20 {
				e.see(`> web`)
			}
			e.keys("\rqbqdq?q")
			if size[0] >= 20 {
				e.see(`> web`)
			}
			e.keys("q")
			if code := <-e.code; code != exitOK {
				t.Errorf("exit status %d", code)
			}
			e.code <- 0
			e.mu.Lock()
			defer e.mu.Unlock()
			if coloured := regexp.MustCompile(`\x1b\[[0-9;]*3[0-7]m`).FindString(e.raw.String()); coloured != "" {
				t.Errorf("colour in spite of NO_COLOR: %q", coloured)
			}
		})
	}
}

// TestTopIsNotDeceived: names, reasons and output reach the terminal as plain text.
func TestTopIsNotDeceived(t *testing.T) {
	evil := "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r\n"
	p := controltest.Program("evil" + evil)
	p.State, p.Reason, p.Text = program.Fatal, "because"+evil, "I say"+evil
	b := controltest.New(p)
	b.Lines = []logs.Line{{Seq: 1, Time: controltest.Epoch, Program: p.Name, Stream: logs.Stdout, PID: 1, Run: 1, Text: "line" + evil + "end"}}
	e := runTop(t, b, 120, 24, xterm())
	e.see(`> evil\\x1b\]0;owned`)
	e.keys("L")
	e.see(`line\\x1b\]0;owned\\x07\\x1b\[2J\\u202e.*end`)
	e.mu.Lock()
	defer e.mu.Unlock()
	if raw := e.raw.String(); strings.Contains(raw, "\x1b]0;owned") || strings.Contains(raw, "\u202e") {
		t.Errorf("it reached the terminal: %q", raw)
	}
}

func TestTopRefusesWhatIsNoTerminal(t *testing.T) {
	socket := controltest.Serve(t, topBox().Own())
	var stdout, stderr bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	if code := run(t.Context(), []string{"--socket", socket, "top"}, none, strings.NewReader(""), &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "status -w") {
		t.Errorf("through a pipe: %d, %s", code, &stderr)
	}
	for _, env := range []map[string]string{nil, {"TERM": "dumb"}} {
		e := runTop(t, topBox(), 80, 24, env)
		if code := <-e.code; code != exitUsage {
			t.Errorf("%v: exit status %d", env, code)
		}
		e.code <- 0
	}
}

// grid is a screen in memory.
type grid struct{ rows map[int]string }

func (g *grid) Clear() { g.rows = map[int]string{} }

func (g *grid) Put(_, y int, text string, _ tcell.Style) (string, int) {
	_, size := utf8.DecodeRuneInString(text)
	g.rows[y] += text[:size]
	return text[size:], 1
}

// TestTopOfManyPrograms: a drawing of 10,000 programs writes only the visible rows, and the
// selection stays visible.
func TestTopOfManyPrograms(t *testing.T) {
	state := newTopState(80, 24)
	var s api.Status
	for i := range 10000 {
		s.Programs = append(s.Programs, api.Program{Name: fmt.Sprintf("p:%d", i), State: "RUNNING", Ready: true, Healthy: true})
	}
	state.setStatus(s)
	g := new(grid)
	for _, move := range []int{0, 9000, 1 << 30, -1 << 30, 1} {
		state.move(move)
		drawTop(state, g)
		if len(g.rows) != 24 {
			t.Errorf("%d rows", len(g.rows))
		}
		found := false
		for _, row := range g.rows {
			found = found || strings.HasPrefix(row, "> "+state.selected+" ") || strings.HasPrefix(row, "> "+state.selected+"RUNNING")
		}
		if !found {
			t.Errorf("%s is out of sight", state.selected)
		}
	}
	state.filter = "p:9999"
	if list := state.shown(); len(list) != 1 {
		t.Errorf("%d programs", len(list))
	}
}

// TestTopFollowsEvents: an event changes the shown state before the next status does.
func TestTopFollowsEvents(t *testing.T) {
	state := newTopState(80, 24)
	state.setStatus(api.Status{Programs: []api.Program{{Name: "web", State: "RUNNING"}}})
	state.event(api.Event{Program: "web", Time: controltest.Epoch, Change: &api.Change{From: "RUNNING", To: "BACKOFF", Reason: "exit"}})
	if p := state.programs[0]; p.State != "BACKOFF" || p.Reason != "exit" || !p.Since.Equal(controltest.Epoch) || !state.stale {
		t.Errorf("got %+v", p)
	}
	state.event(api.Event{Program: "unknown", Change: &api.Change{To: "RUNNING"}})
	// After lost events, top reads everything again.
	state.stale = false
	state.event(api.Event{Name: api.EventLagged})
	if !state.stale {
		t.Error("lost events are not made up for")
	}
	for i := range 3 {
		state.setUsage(api.Usage{Time: controltest.Epoch.Add(time.Duration(i) * time.Second), Programs: []api.ProgramUsage{{Name: "web", CPUSeconds: float64(i) / 2}}})
	}
	if got := fmt.Sprint(state.shares["web"]); got != "[0.5 0.5]" {
		t.Errorf("shares %s", got)
	}
	if got := sparkline(state.shares["web"], true); got != "        ▅▅" {
		t.Errorf("sparkline %q", got)
	}
	state.setStatus(api.Status{})
	if len(state.shares) != 0 {
		t.Error("a program that is gone is remembered")
	}
	drawTop(state, new(grid))
}
