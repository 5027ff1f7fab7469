package logs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/dreamlab-ai/agentinit/supervisor/logs.lowly"))
}

// sinkhole collects what the plane writes to a real pipe.
type sinkhole struct {
	w    *os.File
	done chan []byte
}

func newSinkhole(t testing.TB) *sinkhole {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &sinkhole{w: w, done: make(chan []byte, 1)}
	go func() {
		b, _ := io.ReadAll(r)
		r.Close()
		s.done <- b
	}()
	return s
}

func (s *sinkhole) bytes(t testing.TB) []byte {
	t.Helper()
	if err := s.w.Close(); err != nil {
		t.Fatal(err)
	}
	return <-s.done
}

// newPlane makes a plane in which a line waits for its end, however slow the machine is, unless cfg
// says otherwise.
func newPlane(t testing.TB, cfg Config) *Plane {
	t.Helper()
	cfg.FlushAfter = cmp.Or(cfg.FlushAfter, -1)
	p := New(cfg)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

// waitForLines waits until the plane has read n lines.
func waitForLines(p *Plane, n int) {
	for p.seq.Load() < uint64(n) {
		runtime.Gosched()
	}
}

func open(t testing.TB, p *Plane, o Options) (c *Capture, stdout, stderr *os.File) {
	t.Helper()
	c, err := p.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr = dup(t, c.Stdout), dup(t, c.Stderr)
	c.Started(4242)
	return c, stdout, stderr
}

// dup returns a copy of a write end, as a child process has one.
func dup(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fd, err := duplicateBlocking(f)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

func write(t testing.TB, f *os.File, text string) {
	t.Helper()
	if _, err := io.WriteString(f, text); err != nil {
		t.Errorf("write: %v", err)
	}
}

func closeAll(t testing.TB, files ...*os.File) {
	t.Helper()
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// lastLines returns at most n of the newest lines of a run on one stream, oldest first; if n < 0, all.
func lastLines(c *Capture, kind Stream, n int) []Line { return c.program.tail(kind, c.run, n, 0) }

func texts(lines []Line) []string {
	var out []string
	for _, l := range lines {
		out = append(out, l.Text)
	}
	return out
}

func all(p *Plane, q Query) []Line {
	var lines []Line
	for l := range p.Read(context.Background(), q) {
		lines = append(lines, l)
	}
	return lines
}

func flush(t testing.TB, p *Plane) {
	t.Helper()
	if err := p.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestCaptureToJSON(t *testing.T) {
	out := newSinkhole(t)
	p := newPlane(t, Config{Stdout: out.w, Format: FormatJSON})
	c, stdout, stderr := open(t, p, Options{Program: "web", Run: 3})
	write(t, stdout, "hello\r\nworld\n")
	write(t, stderr, `{"level":"warn","program":"evil","msg":"x"}`+"\n")
	write(t, stdout, "no newline")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)

	got := map[string]map[string]any{}
	for line := range bytes.Lines(out.bytes(t)) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatalf("not JSON: %q: %v", line, err)
		}
		if m["program"] != "web" || m["pid"] != float64(4242) {
			t.Errorf("wrong label: %s", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, m["time"].(string)); err != nil {
			t.Errorf("time: %v", err)
		}
		got[m["msg"].(string)] = m
	}
	for _, msg := range []string{"hello", "world", "no newline"} {
		if got[msg]["stream"] != "stdout" {
			t.Errorf("%q: got %v", msg, got[msg])
		}
	}
	if x := got["x"]; x["stream"] != "stderr" || x["app_level"] != "warn" || x["app_program"] != "evil" {
		t.Errorf("passed-through object: got %v", x)
	}
	if lines := lastLines(c, Stdout, 2); fmt.Sprint(texts(lines)) != "[world no newline]" {
		t.Errorf("LastLines = %q", texts(lines))
	}
}

func TestRawKeepsStreamsApart(t *testing.T) {
	out, errs := newSinkhole(t), newSinkhole(t)
	p := newPlane(t, Config{Stdout: out.w, Stderr: errs.w, Format: FormatRaw})
	c, stdout, stderr := open(t, p, Options{Program: "web"})
	write(t, stdout, "to \x1b[1mout\r\n")
	write(t, stderr, "to err\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	if got := string(out.bytes(t)); got != "to \x1b[1mout\r\n" {
		t.Errorf("stdout = %q", got)
	}
	if got := string(errs.bytes(t)); got != "to err\n" {
		t.Errorf("stderr = %q", got)
	}
}

// Many programs print at once, and agentinit too. Every line arrives complete, once, and in the
// order of its program.
func TestLinesNeverMix(t *testing.T) {
	const programs, lines = 8, 3000
	out := newSinkhole(t)
	p := newPlane(t, Config{Stdout: out.w, Format: FormatRaw})
	var wg sync.WaitGroup
	for i := range programs {
		c, stdout, stderr := open(t, p, Options{Program: fmt.Sprint("p", i)})
		wg.Go(func() {
			w := bufio.NewWriterSize(stdout, 777)
			for n := range lines {
				fmt.Fprintf(w, "p%d %d %s\n", i, n, strings.Repeat("x", n%300))
			}
			if err := w.Flush(); err != nil {
				t.Error(err)
			}
			closeAll(t, stdout, stderr)
			<-c.Done()
		})
	}
	wg.Go(func() {
		for n := range 100 {
			if _, err := fmt.Fprintf(p.Writer(), "own %d \n", n); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	flush(t, p)
	next := map[string]int{}
	for line := range bytes.Lines(out.bytes(t)) {
		var who, xs string
		var n int
		if _, err := fmt.Sscanf(string(line), "%s %d", &who, &n); err != nil {
			t.Fatalf("mixed line %.100q: %v", line, err)
		}
		if f := strings.Fields(string(line)); len(f) == 3 {
			xs = f[2]
		}
		if n != next[who] || (who != "own" && xs != strings.Repeat("x", n%300)) {
			t.Fatalf("%s: line %d is %.100q", who, next[who], line)
		}
		next[who]++
	}
	for i := range programs {
		if who := fmt.Sprint("p", i); next[who] != lines {
			t.Errorf("%s: %d lines, want %d", who, next[who], lines)
		}
	}
	if next["own"] != 100 {
		t.Errorf("own: %d lines, want 100", next["own"])
	}
}

// stdout has no reader, but the program can still write far more than all buffers hold. When a
// reader comes, the loss is in the text and in the counters.
func TestStuckConsoleNeverBlocks(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{Stdout: w, Format: FormatRaw})
	c, stdout, stderr := open(t, p, Options{Program: "flood"})
	line := strings.Repeat("y", 999) + "\n"
	for range 16 << 10 { // 16 MiB
		write(t, stdout, line)
	}
	fmt.Fprintln(p.Writer(), "still here")
	closeAll(t, stdout, stderr)
	<-c.Done()

	stats := p.Stats()
	if stats[0].Bytes != 16<<10*1000 || stats[0].Dropped == 0 {
		t.Errorf("stats = %+v, want 16384000 bytes and some dropped", stats[0])
	}
	read := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(r)
		read <- b
	}()
	flush(t, p)
	fmt.Fprintln(p.Writer(), "later")
	flush(t, p)
	closeAll(t, w)
	got := <-read
	closeAll(t, r)
	for _, want := range []string{"bytes of output dropped", "still here\n", "later\n"} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("the console has no %q", want)
		}
	}
	kept := uint64(bytes.Count(got, []byte("yyy\n"))) * 1000
	if kept+stats[0].Dropped != stats[0].Bytes {
		t.Errorf("%d bytes kept and %d dropped are not %d", kept, stats[0].Dropped, stats[0].Bytes)
	}
}

// The negative test: if the reader keeps up, no line is lost.
func TestReadingConsoleLosesNothing(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int)
	go func() {
		n, buf := 0, make([]byte, 1<<20)
		for {
			k, err := r.Read(buf)
			n += k
			if err != nil {
				got <- n
				return
			}
		}
	}()
	p := newPlane(t, Config{Stdout: w, Format: FormatRaw})
	p.console.out.hold = time.Hour // on a busy machine the reader may be stopped for long
	c, stdout, stderr := open(t, p, Options{Program: "flood"})
	line := []byte(strings.Repeat("y", 99) + "\n")
	chunk := bytes.Repeat(line, 600)
	const chunks = 1100 // 66 MB
	for range chunks {
		if _, err := stdout.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	closeAll(t, w)
	if n := <-got; n != chunks*len(chunk) {
		t.Errorf("console got %d bytes, want %d", n, chunks*len(chunk))
	}
	closeAll(t, r)
}

// If the console fails, its lines are lost. Each program's loss is counted. When the console works
// again, agentinit reports that.
func TestFailingConsoleIsCounted(t *testing.T) {
	for _, format := range []Format{FormatRaw, FormatJSON, FormatConsole} {
		path := filepath.Join(t.TempDir(), "console")
		works, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w, err := os.Open(path) // cannot be written to
		if err != nil {
			t.Fatal(err)
		}
		reports := make(chan error, 10)
		p := newPlane(t, Config{Stdout: w, Format: format, OnTrouble: func(_ string, err error) { reports <- err }})
		web, webOut, webErr := open(t, p, Options{Program: "web"})
		db, dbOut, dbErr := open(t, p, Options{Program: "db"})
		write(t, webOut, "lost\nagain\n")
		write(t, webErr, "an error\n")
		write(t, dbErr, strings.Repeat(strings.Repeat("z", 99)+"\n", 5000))
		closeAll(t, webOut, webErr, dbOut, dbErr)
		<-web.Done()
		<-db.Done()
		flush(t, p)

		if err := unix.Dup3(fileno(works), fileno(w), unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		last, stdout, stderr := open(t, p, Options{Program: "last"})
		write(t, stdout, "works\n")
		closeAll(t, stdout, stderr)
		<-last.Done()
		flush(t, p)
		want := map[string]uint64{"web stdout": 11, "web stderr": 9, "db stderr": 500_000}
		for _, s := range p.Stats() {
			if n := want[s.Program+" "+s.Stream.String()]; s.Dropped != n {
				t.Errorf("%s: %s %s lost %d bytes, want %d", format, s.Program, s.Stream, s.Dropped, n)
			}
		}
		if err := <-reports; err == nil {
			t.Error("no trouble was reported")
		}
		if err := <-reports; err != nil || len(reports) > 0 {
			t.Errorf("second report = %v, %d more", err, len(reports))
		}
		lines := strings.Split(readLog(t, path), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], "bytes of output dropped: writing to this stream failed") ||
			!strings.Contains(lines[1], "works") {
			t.Errorf("%s: the console has %q", format, lines)
		}
		closeAll(t, w, works)
	}
}

// If a reader leaves in the middle of a batch, the writer reports the lost bytes, and the queue
// divides them among the streams.
func TestBatchThatIsCut(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fd := &fdWriter{file: w, trouble: func(string, error) {}}
	batch := bytes.Repeat([]byte("12345678\n"), 1<<20)
	const taken = 1 << 20
	lost := make(chan int)
	go func() { n, _ := fd.write(batch); lost <- n }()
	if _, err := io.ReadFull(r, make([]byte, taken)); err != nil {
		t.Fatal(err)
	}
	closeAll(t, r)
	if n := <-lost; n == 0 || n > len(batch)-taken {
		t.Errorf("lost %d of %d bytes, %d were read", n, len(batch), taken)
	}
	if !fd.failing || fd.lost == 0 {
		t.Errorf("%+v", fd)
	}

	for _, c := range []struct{ lost, size, a, b int }{
		{0, 1000, 0, 0}, {1000, 1000, 300, 100}, {500, 1000, 150, 50}, {1, 1000, 1, 1}, {999, 1000, 300, 100},
	} {
		var a, b atomic.Uint64
		shares{&a: 300, &b: 100}.lose(c.lost, c.size)
		if a.Load() != uint64(c.a) || b.Load() != uint64(c.b) {
			t.Errorf("%d of %d: %d and %d", c.lost, c.size, a.Load(), b.Load())
		}
	}
}

func TestHugeLinesAndBinarySurvive(t *testing.T) {
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "bin", To: ToNone})
	mib := strings.Repeat("m", 1<<20)
	write(t, stdout, mib+"\n")
	write(t, stderr, "\x00\xff\xfe\n")
	write(t, stderr, "h\xc3")
	write(t, stderr, "\xa9\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	if l := lastLines(c, Stdout, 5); len(l) != 1 || l[0].Text != mib || l[0].Truncated {
		t.Errorf("the line of 1 MiB came as %d lines", len(l))
	}
	if got := texts(lastLines(c, Stderr, 5)); fmt.Sprintf("%q", got) != `["\x00\xff\xfe" "hé"]` {
		t.Errorf("stderr = %q", got)
	}
}

// A long line leaves the ring as a short one does: when newer lines have filled the ring, and not
// at the next line.
func TestLongLinesStayInTheRing(t *testing.T) {
	const ringBytes = 64 << 10
	short := strings.Repeat("f", 99) + "\n"
	for _, size := range []int{ringBytes / 8, ringBytes - 100, ringBytes, 4 * ringBytes, 1 << 20} {
		long := strings.Repeat("l", size)
		for _, c := range []struct {
			name, after string
			stays       bool
		}{
			{"nothing", "", true},
			{"a line", "last\n", true},
			{"half a ring of lines", strings.Repeat(short, ringBytes/200), true},
			{"a ring of lines", strings.Repeat(short, ringBytes/100), false},
			{"another long line", strings.Repeat("a", ringBytes) + "\nlast\n", false},
		} {
			p := newPlane(t, Config{RingBytes: ringBytes})
			capture, stdout, stderr := open(t, p, Options{Program: "p", To: ToNone})
			write(t, stdout, "first\n"+long+"\n"+c.after)
			closeAll(t, stdout, stderr)
			<-capture.Done()
			lines := lastLines(capture, Stdout, -1)
			found := slices.ContainsFunc(lines, func(l Line) bool { return l.Text == long && !l.Truncated })
			if found != c.stays {
				t.Errorf("a line of %d bytes and %s: kept %v", size, c.name, found)
			}
			if c.after != "" && !strings.HasSuffix(c.after, lines[len(lines)-1].Text+"\n") {
				t.Errorf("a line of %d bytes and %s: the end is lost", size, c.name)
			}
			if used, most := p.budget.used.Load(), int64(ringBytes+max(size, ringBytes)+4*chunkSize); used > most {
				t.Errorf("a line of %d bytes and %s: the ring holds %d bytes, more than %d", size, c.name, used, most)
			}
		}
	}
}

func TestEndlessLineIsBounded(t *testing.T) {
	p := newPlane(t, Config{MaxLine: 64 << 10})
	c, stdout, stderr := open(t, p, Options{Program: "endless", To: ToNone})
	chunk := strings.Repeat("e", 1<<20)
	for range 16 {
		write(t, stdout, chunk)
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
	lines := all(p, Query{})
	if len(lines) == 0 || !lines[0].Truncated || len(lines[0].Text) != 64<<10 {
		t.Fatalf("%d lines, want cut ones of 64 KiB", len(lines))
	}
	if used := p.budget.used.Load(); used > defaultRingBytes+(64<<10)+1024 {
		t.Errorf("the ring holds %d bytes", used)
	}
}

// A grandchild keeps the pipe open. Abandon still reads what is in the pipe.
func TestAbandon(t *testing.T) {
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "daemon", To: ToNone})
	write(t, stdout, "one\ntail")
	c.Abandon()
	<-c.Done()
	if got := texts(lastLines(c, Stdout, 9)); fmt.Sprint(got) != "[one tail]" {
		t.Errorf("lines = %q", got)
	}
	c.Abandon()
	closeAll(t, stdout, stderr)

	never, err := p.Open(Options{Program: "never", To: ToNone})
	if err != nil {
		t.Fatal(err)
	}
	never.Abandon()
	<-never.Done()
}

// If the runtime's poller refuses the epoll descriptor, the reactor waits in epoll_wait.
func TestReactorWithoutPoller(t *testing.T) {
	p := newPlane(t, Config{})
	for range maxReactors {
		r, err := newReactor()
		if err != nil {
			t.Fatal(err)
		}
		r.blocking = true
		go r.run()
		p.reactors = append(p.reactors, r)
	}
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToNone})
	write(t, stdout, "one\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	if got := texts(lastLines(c, Stdout, 9)); fmt.Sprint(got) != "[one]" {
		t.Errorf("lines = %q", got)
	}
}

// A program of our user can use up all epoll watches of the user (epoll(7)). A pipe that the kernel
// does not watch is still read, its unfinished line is shown after a while, and its writer lives on.
// The test makes the kernel refuse by watching the pipe twice.
func TestStreamThatCannotBeWatched(t *testing.T) {
	told := make(chan error, 9)
	p := newPlane(t, Config{FlushAfter: time.Millisecond, OnTrouble: func(_ string, err error) { told <- err }})
	c, err := p.Open(Options{Program: "web", To: ToNone})
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := dup(t, c.Stdout), dup(t, c.Stderr)
	s := c.streams[0]
	if err := unix.EpollCtl(s.reactor.epollFD(), unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{}); err != nil {
		t.Fatal(err)
	}
	next, stop := pull(p, t.Context(), Query{Follow: true})
	defer stop()
	c.Started(4242)
	if err := <-told; !errors.Is(err, unix.EEXIST) {
		t.Errorf("told %v", err)
	}
	for _, text := range []string{"polled\n", "password: "} {
		write(t, stdout, text)
		if l := next(); l.Text != strings.TrimSuffix(text, "\n") {
			t.Errorf("got %+v", l)
		}
	}
	if err := unix.EpollCtl(s.reactor.epollFD(), unix.EPOLL_CTL_DEL, s.fd, nil); err != nil {
		t.Fatal(err)
	}
	write(t, stdout, "\nagain\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	if got := texts(lastLines(c, Stdout, 9)); fmt.Sprint(got) != "[polled password:  again]" || len(told) > 0 {
		t.Errorf("lines = %q, told %d times more", got, len(told))
	}
}

// resize gives a pipe a capacity, whatever the page size of the kernel makes the default.
func resize(t *testing.T, s *stream, size int) {
	t.Helper()
	if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_SETPIPE_SZ, size); err != nil {
		t.Fatal(err)
	}
}

// With pages of 64 KiB, a new pipe holds 1 MiB.
func TestALargePipeStaysLarge(t *testing.T) {
	p := newPlane(t, Config{})
	c, err := p.Open(Options{Program: "web", Run: 1, To: ToNone})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.streams {
		resize(t, s, 1<<20)
		s.enlarge()
		if size, err := unix.FcntlInt(uintptr(s.fd), unix.F_GETPIPE_SZ, 0); err != nil || size != 1<<20 {
			t.Errorf("the pipe holds %d bytes, %v", size, err)
		}
	}
	c.Abandon()
	<-c.Done()
	if n := p.pipes.used.Load(); n != 0 {
		t.Errorf("%d bytes of the budget are used", n)
	}
}

// The pipes of runs that have ended do not count against the budget for enlarged pipes.
func TestPipesOfPastRunsFreeTheirBudget(t *testing.T) {
	p := newPlane(t, Config{})
	for run := range 2 * maxPipeBytes / grownPipe {
		c, err := p.Open(Options{Program: "web", Run: uint64(run), To: ToNone})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range c.streams {
			resize(t, s, 64<<10)
			if s.enlarge(); s.credit == 0 {
				t.Fatalf("the pipes of run %d cannot be enlarged", run)
			}
		}
		if run%2 == 0 {
			c.Started(4242) // no process has the pipes, so they end at once
		} else {
			c.Abandon()
		}
		<-c.Done()
	}
	if n := p.pipes.used.Load(); n != 0 {
		t.Errorf("%d bytes still count", n)
	}
}

func TestCloseEndsRunningCaptures(t *testing.T) {
	p := New(Config{})
	c, stdout, stderr := open(t, p, Options{Program: "held", To: ToNone})
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	c.Abandon()
	closeAll(t, stdout, stderr)
	if _, err := p.Open(Options{Program: "late"}); err == nil {
		t.Error("Open after Close succeeded")
	}
}

// Drain waits for the output of all programs, also for output that is on the way to a file. It is then in the
// rings, and on the console it comes before what is written afterwards.
func TestDrain(t *testing.T) {
	hole := newSinkhole(t)
	p := newPlane(t, Config{Stdout: hole.w, Format: FormatRaw})
	dir := t.TempDir()
	text := numbered(1000)
	want := slices.Collect(strings.Lines(text))
	var captures []*Capture
	for i := range 40 {
		o := Options{Program: fmt.Sprint("web", i), To: ToConsole}
		if i%2 == 0 {
			o.To, o.Path = ToFile, filepath.Join(dir, o.Program)
		}
		c, stdout, stderr := open(t, p, o)
		write(t, stdout, text)
		defer closeAll(t, stdout, stderr) // as if a process outside the tree had them
		captures = append(captures, c)
	}
	p.Drain(t.Context())
	fmt.Fprintln(p.Writer(), "the end")
	for i, c := range captures {
		if got := lastLines(c, Stdout, -1); len(got) != len(want) {
			t.Errorf("web%d: %d lines, want %d", i, len(got), len(want))
		}
	}
	if _, err := p.Open(Options{Program: "late"}); err == nil {
		t.Error("Open after Drain succeeded")
	}
	p.Drain(t.Context()) // again: there is nothing to wait for
	flush(t, p)
	if got := string(hole.bytes(t)); !strings.HasSuffix(got, "\nthe end\n") {
		t.Errorf("the console ends in %q", got[max(0, len(got)-100):])
	}
}

// If a program's output cannot be taken, Drain waits no longer than it may.
func TestDrainIsBounded(t *testing.T) {
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToNone})
	c.program.mu.Lock() // the reactor now waits at the ring
	write(t, stdout, "a line\n")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.Drain(ended)
	c.program.mu.Unlock()
	p.Drain(t.Context())
	if got := texts(lastLines(c, Stdout, -1)); len(got) != 1 {
		t.Errorf("lines = %q", got)
	}
	closeAll(t, stdout, stderr)
}

func TestReadMergesFiltersAndFollows(t *testing.T) {
	p := newPlane(t, Config{})
	a, aOut, aErr := open(t, p, Options{Program: "a", Run: 1, To: ToNone})
	b, bOut, bErr := open(t, p, Options{Program: "b", Run: 9, To: ToNone})
	next, stop := pull(p, t.Context(), Query{Follow: true})
	defer stop()
	// The test waits for each line before it writes the next, so the order is known.
	for i, f := range []*os.File{aOut, bOut, aErr, bErr, aOut} {
		write(t, f, fmt.Sprintf("line %d\n", i))
		if l := next(); l.Text != fmt.Sprint("line ", i) {
			t.Fatalf("follow gave %q for line %d", l.Text, i)
		}
	}
	closeAll(t, aOut, aErr, bOut, bErr)
	<-a.Done()
	<-b.Done()
	tests := []struct {
		name string
		q    Query
		want string
	}{
		{"all", Query{}, "[line 0 line 1 line 2 line 3 line 4]"},
		{"last two", Query{Lines: 2}, "[line 3 line 4]"},
		{"none", Query{Lines: -1}, "[]"},
		{"program", Query{Programs: []string{"b"}}, "[line 1 line 3]"},
		{"stream", Query{Streams: []Stream{Stderr}}, "[line 2 line 3]"},
		{"run", Query{Run: 9}, "[line 1 line 3]"},
		{"grep", Query{Grep: regexp.MustCompile("[04]$")}, "[line 0 line 4]"},
		{"grep last", Query{Grep: regexp.MustCompile("[04]$"), Lines: 1}, "[line 4]"},
		{"future", Query{Since: time.Now().Add(time.Hour)}, "[]"},
		{"after", Query{After: all(p, Query{})[2].Seq}, "[line 3 line 4]"},
	}
	for _, tt := range tests {
		if got := fmt.Sprint(texts(all(p, tt.q))); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if rows := p.Stats("b"); len(rows) != 2 || rows[0].Program != "b" || rows[1].Program != "b" {
		t.Errorf("Stats of b: %+v", rows)
	}
	p.Remove("a")
	if got := fmt.Sprint(texts(all(p, Query{}))); got != "[line 1 line 3]" {
		t.Errorf("after Remove: %s", got)
	}
	if n := len(p.Stats()); n != 2 {
		t.Errorf("Stats has %d rows after Remove, want 2", n)
	}
}

// pull returns a blocking next for a Read.
func pull(p *Plane, ctx context.Context, q Query) (next func() Line, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	lines, done := make(chan Line), make(chan struct{})
	go func() {
		defer close(done)
		for l := range p.Read(ctx, q) {
			select {
			case lines <- l:
			case <-ctx.Done():
			}
		}
	}()
	return func() Line { return <-lines }, func() { cancel(); <-done }
}

func TestSlowFollowerIsTold(t *testing.T) {
	p := newPlane(t, Config{RingBytes: 8 << 10})
	c, stdout, stderr := open(t, p, Options{Program: "fast", To: ToNone})
	seen, dropped, last := 0, uint64(0), ""
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	write(t, stdout, "first\n")
	for l := range p.Read(ctx, Query{Follow: true}) {
		if l.Dropped > 0 {
			dropped += l.Dropped
			continue
		}
		seen++
		last = l.Text
		if seen == 1 {
			// While the follower is busy with this line, thousands follow.
			for i := range 5000 {
				write(t, stdout, fmt.Sprintf("n%d\n", i))
			}
			closeAll(t, stdout, stderr)
			<-c.Done()
		}
		if last == "n4999" {
			cancel()
		}
	}
	if dropped == 0 || seen+int(dropped) != 5001 {
		t.Errorf("%d seen and %d marked as dropped are not 5001", seen, dropped)
	}
}

// While a reader is busy, files that it has not read are removed: some that it has found at its
// start, and some that came later.
func TestReaderIsToldOfLinesWhoseFileIsGone(t *testing.T) {
	const runs, lines = 10, 100
	p := newPlane(t, Config{})
	o := Options{Program: "web", Path: filepath.Join(t.TempDir(), "log"), MaxBytes: 300, Backups: 1}
	printed := 0
	print := func() {
		for range runs {
			var text strings.Builder
			for range lines {
				printed++
				fmt.Fprintf(&text, "line %d\n", printed)
			}
			capture(t, p, o, text.String())
			settle(t, p)
			o.Run++
		}
	}
	print()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	seen, dropped, marks := 0, 0, 0
	for l := range p.Read(ctx, Query{Follow: true}) {
		if l.Dropped > 0 {
			dropped += int(l.Dropped)
			marks++
		} else if seen++; seen == 1 {
			print()
		}
		if l.Text == fmt.Sprintf("line %d", printed) {
			cancel()
		}
	}
	if seen+dropped != printed || marks != 3 {
		t.Errorf("%d lines seen and %d lost in %d marks of %d", seen, dropped, marks, printed)
	}
	// A client that has read the first line goes on after it.
	seen, dropped = 0, 0
	for l := range p.Read(t.Context(), Query{After: 1}) {
		if dropped += int(l.Dropped); l.Dropped == 0 {
			seen++
		}
	}
	if seen+dropped != printed-1 {
		t.Errorf("after the first line: %d lines seen and %d lost of %d", seen, dropped, printed-1)
	}
}

func TestSubscribe(t *testing.T) {
	p := newPlane(t, Config{RingBytes: 8 << 10})
	re := regexp.MustCompile(`^ready on \d+$`)
	before := p.Subscribe("web", 2, re)
	defer before.Close()
	old, oOut, oErr := open(t, p, Options{Program: "web", Run: 1, To: ToNone})
	write(t, oOut, "ready on 1\n")
	closeAll(t, oOut, oErr)
	<-old.Done()
	c, stdout, stderr := open(t, p, Options{Program: "web", Run: 2, To: ToNone})
	write(t, stdout, "starting\nready on 80\n")
	if l := <-before.C; l.Text != "ready on 80" || l.Run != 2 {
		t.Errorf("subscription got %+v", l)
	}
	late := p.Subscribe("web", 2, re)
	defer late.Close()
	if l := <-late.C; l.Text != "ready on 80" {
		t.Errorf("a late subscription got %+v", l)
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
	select {
	case l := <-before.C:
		t.Errorf("a second line came: %+v", l)
	default:
	}
}

// The disk of a log file hangs while a subscription reads what its run has printed there. New output
// is stored meanwhile. A subscription to another run does not read from that disk at all.
func TestSubscribeOnHangingDisk(t *testing.T) {
	p := newPlane(t, Config{})
	pl, hanging := p.program("web"), &generation{path: "/nonexistent"}
	s := &stream{plane: p, program: pl, kind: Stdout, run: 1}
	s.record([]filePart{{hanging, 0, 4}}, block{text: []byte("old\n"), lines: 1}, nil, time.Now())
	hanging.mu.Lock()
	p.Subscribe("web", 2, regexp.MustCompile("ready")).Close()
	subscribed := make(chan *Subscription)
	go func() { subscribed <- p.Subscribe("web", 1, regexp.MustCompile("ready")) }()
	for begun := false; !begun; runtime.Gosched() {
		pl.mu.Lock()
		begun = len(pl.subs) > 0
		pl.mu.Unlock()
	}
	s.store(block{text: []byte("ready\n"), lines: 1}, time.Now())
	hanging.mu.Unlock()
	if l := <-(<-subscribed).C; l.Text != "ready" {
		t.Errorf("got %+v", l)
	}
}
