package logs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// Output that went straight to a file is read from the file: before and after rotation, compressed,
// and by a reader of all lines.
func TestReadingWhatIsInFiles(t *testing.T) {
	for _, compress := range []Compression{CompressNone, CompressGzip, CompressZstd} {
		path := filepath.Join(t.TempDir(), "web.log")
		if err := os.WriteFile(path, []byte("of an earlier box\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := newPlane(t, Config{})
		text := numbered(20_000)
		capture(t, p, Options{Program: "web", Path: path, MaxBytes: 300_000, Backups: -1, Compress: compress}, text)
		settle(t, p)
		want := "of an earlier box\n" + text
		got := strings.Join(texts(all(p, Query{Files: true})), "\n") + "\n"
		if got != want {
			t.Errorf("%q: read %d bytes, want %d", compress, len(got), len(want))
		}
		if held := all(p, Query{}); len(held) != 20_000 {
			t.Errorf("%q: the ring knows %d lines", compress, len(held))
		}
		if last := all(p, Query{Lines: 3}); len(last) != 3 || last[2].Text != strings.TrimSuffix(numbered(20_000)[strings.LastIndex(numbered(20_000)[:len(text)-1], "\n")+1:], "\n") {
			t.Errorf("%q: the last lines are %q", compress, texts(last))
		}
		if n := len(all(p, Query{Files: true, Lines: 15_000})); n != 15_000 {
			t.Errorf("%q: %d of 15000 lines", compress, n)
		}
	}
}

// A program that has printed a long line and rests keeps no memory for it.
func TestALongLineLeavesNoMemory(t *testing.T) {
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: filepath.Join(t.TempDir(), "log")})
	write(t, stdout, strings.Repeat("x", 1<<19)+"\n")
	waitForLines(p, 1)
	flush(t, p) // until the pump has come to the end of the pipe
	for _, s := range c.streams {
		if n := cap(s.frame.carry); n > keepCarry {
			t.Errorf("%d bytes are kept", n)
		}
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
}

// Lines that the ring has forgotten come from the files, once each.
func TestReadingWhatTheRingForgot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{RingBytes: 4096})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, MaxBytes: 20_000, Backups: -1, Compress: CompressZstd})
	var want bytes.Buffer
	for line := range bytes.Lines([]byte(numbered(2000))) {
		want.Write(line)
		if _, err := stdout.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	settle(t, p)
	got := strings.Join(texts(all(p, Query{Files: true})), "\n") + "\n"
	if got != want.String() {
		t.Errorf("read %d bytes, want %d", len(got), want.Len())
	}
}

// The output of a program with a rate limit goes to its file through the queue, and the ring has it
// as text. All lines come once: those of which the ring has forgotten the text too. Another program
// has printed one line long before.
func TestReadingWhatWentThroughTheQueue(t *testing.T) {
	for _, maxBytes := range []int64{0, 20_000} {
		p := newPlane(t, Config{RingBytes: 128 << 10})
		capture(t, p, Options{Program: "quiet", Path: filepath.Join(t.TempDir(), "quiet")}, "once\n")
		text := numbered(50_000)
		capture(t, p, Options{
			Program: "web", Path: filepath.Join(t.TempDir(), "web"), MaxBytes: maxBytes, Backups: -1, Rate: Rate{Lines: 1e9, Interval: time.Hour},
		}, text)
		settle(t, p)
		got := strings.Join(texts(all(p, Query{Programs: []string{"web"}, Files: true})), "\n") + "\n"
		if got != text {
			t.Errorf("max_bytes %d: read %d bytes, want %d", maxBytes, len(got), len(text))
		}
		if n := len(all(p, Query{Programs: []string{"web"}})); n == 0 || n == 50_000 {
			t.Errorf("max_bytes %d: the ring has %d lines", maxBytes, n)
		}
		since := all(p, Query{Programs: []string{"web"}, Files: true, Since: time.Now().Add(-time.Hour)})
		if len(since) != 50_000 || since[0].Time.Year() < 2000 {
			t.Errorf("max_bytes %d: %d lines of the last hour", maxBytes, len(since))
		}
	}
}

// What a disk could not take at first goes to several files later.
func TestReadingWhatWasKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	o := Options{Program: "web", Run: 1, Path: filepath.Join(dir, "log"), MaxBytes: 3000, Backups: -1}
	text := numbered(1000)
	captureFailing(t, p, o, text)
	if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	o.Run = 2
	capture(t, p, o, "again\n")
	settle(t, p)
	got := strings.Join(texts(all(p, Query{Files: true})), "\n") + "\n"
	if got != text+"again\n" {
		t.Errorf("read %d bytes, want %d", len(got), len(text)+6)
	}
	if names, _ := archives(t, o.Path); len(names) < 2 {
		t.Errorf("only %v were rotated", names)
	}
}

func TestBackupsZeroKeepsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{})
	text := numbered(5000)
	capture(t, p, Options{Program: "web", Path: path, MaxBytes: 50_000}, text)
	settle(t, p)
	if names, _ := archives(t, path); len(names) != 0 {
		t.Errorf("backups = 0 keeps %v", names)
	}
	if held := all(p, Query{}); len(held) < 2000 || held[len(held)-1].Text+"\n" != text[strings.LastIndexByte(text[:len(text)-1], '\n')+1:] {
		t.Errorf("the ring has %d lines", len(held))
	}
}

func TestStderrFile(t *testing.T) {
	for _, to := range []To{ToFile, ToConsole} {
		t.Run(string(to), func(t *testing.T) {
			dir := t.TempDir()
			p := newPlane(t, Config{})
			o := Options{Program: "web", To: to, Path: filepath.Join(dir, "out"), StderrPath: filepath.Join(dir, "err")}
			c, stdout, stderr := open(t, p, o)
			write(t, stdout, "fine\n")
			write(t, stderr, "bad\n")
			closeAll(t, stdout, stderr)
			<-c.Done()
			flush(t, p)
			if to == ToFile && readLog(t, o.Path) != "fine\n" {
				t.Errorf("stdout %q", readLog(t, o.Path))
			}
			if err := readLog(t, o.StderrPath); err != "bad\n" {
				t.Errorf("stderr %q", err)
			}
			if got := all(p, Query{Files: true, Streams: []Stream{Stderr}}); len(got) != 1 || got[0].Text != "bad" {
				t.Errorf("stderr is read as %q", texts(got))
			}
		})
	}
}

// If a disk hangs, a write to its file delays the program only for the hold time. The ring has all
// lines, and the file gets them unchanged when the disk answers.
func TestPumpLetsGoOfADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{limit: 1 << 20, hold: fileHold, write: func([]byte) (int, int) { return 0, 0 }, mark: fileMark}
		p := &Plane{cfg: Config{MaxLine: 1 << 20}}
		p.budget.max.Store(1 << 20)
		pl := &programLog{name: "web"}
		for i := range pl.rings {
			pl.rings[i] = ring{max: 64 << 10, budget: &p.budget}
		}
		s := &stream{plane: p, program: pl, kind: Stdout, reactor: &reactor{wake: -1}, queue: q, frame: framer{max: 1 << 20}}
		release := make(chan struct{})
		q.pump = func(s *stream) pumped {
			// The line comes in two parts, so the framer joins them in an array of its own.
			s.frame.next([]byte("st"), pumpSize)
			blk, _, _ := s.frame.next([]byte("uck\n"), pumpSize)
			q.takeOff(s, blk, time.Now())
			<-release
			if string(blk.text) != "stuck\n" {
				t.Errorf("the block that was being written became %q", blk.text)
			}
			if _, detached := q.land(); !detached {
				t.Error("the flight was not given up")
			}
			return pumpedMore
		}
		if !q.offer(s) {
			t.Fatal("an idle queue refuses a stream")
		}
		time.Sleep(fileHold - time.Second)
		synctest.Wait()
		if !q.owns(s) {
			t.Error("the stream is let go of too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if q.owns(s) || len(s.reactor.posted) != 1 || q.offer(s) {
			t.Error("the stream is still the pump's")
		}
		if lines := pl.tail(Stdout, 0, -1, 0); len(lines) != 1 || lines[0].Text != "stuck" {
			t.Errorf("the ring has %q", texts(lines))
		}
		s.frame.next([]byte("more"), readSize) // what the reactor reads meanwhile
		close(release)
		synctest.Wait()
		if !q.atRest() {
			t.Error("the queue's goroutine has not ended")
		}
	})
}

// What a disk has taken too slowly is in the ring as text and in the file. A reader of both gets it once.
func TestReadingWhatWasWrittenTooSlowly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	o := Options{Program: "web", To: ToFile, Path: path, MaxLine: 1 << 20, MaxBytes: 1, Backups: -1}
	s := &stream{plane: p, program: p.program("web"), kind: Stdout, reactor: &reactor{wake: -1}}
	f := p.openFile(o, Stdout)
	flush(t, p) // the goroutine of the queue has ended, so the test can do its work
	move := func(text string, begun time.Time) bool {
		return f.moveBlock(s, block{text: []byte(text), lines: 1}, begun)
	}
	move("before\n", time.Now())
	// The next write begins with a rotation. It fails, and while that is reported, the queue finds
	// that the write takes too long.
	f.archive.newest = "not a time"
	f.report = func(error) { f.queue.look() }
	if move("slow\n", time.Now().Add(-fileHold)) {
		t.Error("the pump still has the stream")
	}
	move("after\n", time.Now())
	want := []string{"before", "slow", "after"}
	if got := texts(all(p, Query{})); !slices.Equal(got, want) {
		t.Errorf("the ring has %q", got)
	}
	if got := readLog(t, path); got != "before\nslow\nafter\n" {
		t.Errorf("the file has %q", got)
	}
	if got := texts(all(p, Query{Files: true})); !slices.Equal(got, want) {
		t.Errorf("ring and file have %q", got)
	}
	p.release(f)
}

// A prompt without a newline is shown after a while. In the file it is still one line.
func TestUnfinishedLineIsFlushed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{FlushAfter: 10 * time.Millisecond})
	for _, o := range []Options{{Program: "ring", To: ToNone}, {Program: "file", To: ToFile, Path: path}} {
		c, stdout, stderr := open(t, p, o)
		next, stop := pull(p, context.Background(), Query{Programs: []string{o.Program}, Follow: true})
		write(t, stdout, "password: ")
		if l := next(); l.Text != "password: " || !l.Truncated {
			t.Errorf("%s: prompt came as %+v", o.Program, l)
		}
		write(t, stdout, "\nnext\n")
		if l := next(); l.Text != "next" || l.Truncated {
			t.Errorf("%s: then came %+v", o.Program, l)
		}
		stop()
		closeAll(t, stdout, stderr)
		<-c.Done()
	}
	flush(t, p)
	if got := readLog(t, path); got != "password: \nnext\n" {
		t.Errorf("the file holds %q", got)
	}
}

// steppedReactor returns a reactor that does not run, because the test takes its steps, and a capture for
// it to read.
func steppedReactor(t *testing.T, flushAfter time.Duration) (*reactor, *Capture) {
	t.Helper()
	p := newPlane(t, Config{FlushAfter: flushAfter})
	c, err := p.Open(Options{Program: "web", To: ToNone})
	if err != nil {
		t.Fatal(err)
	}
	r, err := newReactor()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.timer.Stop()
		if err := errors.Join(r.epoll.Close(), unix.Close(r.wake)); err != nil {
			t.Error(err)
		}
		c.Abandon()
		<-c.Done()
	})
	return r, c
}

// The time of an unfinished line begins with its own first text, and not when the time of another
// line before it is over.
func TestEachUnfinishedLineHasItsOwnTime(t *testing.T) {
	const flushAfter = time.Hour
	r, c := steppedReactor(t, flushAfter)
	s, buf := c.streams[0], make([]byte, readSize)
	for _, text := range []string{"a li", "ne\nprompt", "> "} {
		write(t, c.Stdout, text)
		r.serve(s, buf)
	}
	read := time.Now()
	s.flushAt = time.Time{} // the time of the first line is over
	r.flushPartials()
	if got := texts(lastLines(c, Stdout, 9)); !slices.Equal(got, []string{"a line"}) {
		t.Errorf("the lines are %q", got)
	}
	if s.flushAt.After(read.Add(flushAfter)) {
		t.Errorf("the second line waits until %v after it was read", s.flushAt.Sub(read))
	}
}

// If agentinit itself is late, and the rest of a line is in the pipe when its time has come, the
// line is not cut.
func TestLateReaderCutsNoLine(t *testing.T) {
	r, c := steppedReactor(t, time.Hour)
	s, buf := c.streams[0], make([]byte, readSize)
	comes := func() []string { // the time of the unfinished line
		s.begun, s.flushAt = time.Time{}, time.Time{}
		r.flushPartials()
		return texts(lastLines(c, Stdout, 9))
	}
	write(t, c.Stdout, "a line")
	r.serve(s, buf)
	write(t, c.Stdout, " and more")
	if got := comes(); len(got) > 0 {
		t.Errorf("cut while its rest was in the pipe: %q", got)
	}
	r.serve(s, buf)
	if got := comes(); !slices.Equal(got, []string{"a line and more"}) {
		t.Errorf("after the pipe was read: %q", got)
	}
}

// Each program can have its own maximum line length and flush time.
func TestLineOptionsOfAProgram(t *testing.T) {
	for _, to := range []To{ToNone, ToFile} {
		p := newPlane(t, Config{FlushAfter: DefaultFlushAfter})
		dir := t.TempDir()
		programs := []Options{
			{Program: "default"}, {Program: "prompt", FlushAfter: time.Millisecond}, {Program: "patient", FlushAfter: -1},
			{Program: "short", FlushAfter: -1, MaxLine: 20},
		}
		var ends []*os.File
		for _, o := range programs {
			o.To, o.Path = to, filepath.Join(dir, o.Program)
			_, stdout, stderr := open(t, p, o)
			write(t, stdout, strings.Repeat("0123456789", 3))
			ends = append(ends, stdout, stderr)
		}
		next, stop := pull(p, t.Context(), Query{Follow: true, Lines: 0})
		got := map[string]Line{}
		for len(got) < 3 { // the default flush time is one second
			line := next()
			got[line.Program] = line
		}
		stop()
		if _, ok := got["patient"]; ok || len(got["prompt"].Text) != 30 || len(got["default"].Text) != 30 || len(got["short"].Text) != 20 {
			t.Errorf("%s: %+v", to, got)
		}
		if !got["short"].Truncated || got["default"].Time.Before(got["prompt"].Time) {
			t.Errorf("%s: %+v", to, got)
		}
		closeAll(t, ends...)
	}
}

// Both streams go to one file, faster than they are read, with lines that cross all buffer limits.
// Each line arrives complete.
func TestPumpOfTwoStreams(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, MaxBytes: 1 << 20, Backups: -1})
	text := numbered(50_000)
	var wg sync.WaitGroup
	for _, w := range []*os.File{stdout, stderr} {
		wg.Go(func() { write(t, w, text) })
	}
	wg.Wait()
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	_, contents := archives(t, path)
	want := map[string]int{}
	for line := range strings.Lines(text) {
		want[line] += 2
	}
	for line := range strings.Lines(strings.Join(contents, "") + readLog(t, path)) {
		want[line]--
	}
	for line, n := range want {
		if n != 0 {
			t.Fatalf("%q: %d missing", line, n)
		}
	}
	for _, kind := range []Stream{Stdout, Stderr} {
		var got strings.Builder
		for l := range p.Read(context.Background(), Query{Streams: []Stream{kind}}) {
			got.WriteString(l.Text + "\n")
		}
		if !strings.HasSuffix(text, got.String()) || got.Len() < len(text)/2 {
			t.Errorf("%v: %d of %d bytes are read back", kind, got.Len(), len(text))
		}
	}
}

func TestNextRotation(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no time zones here: ", err)
	}
	at := func(text string) time.Time {
		v, err := time.ParseInLocation("2006-01-02 15:04", text, berlin)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		o           Options
		begun, want string
	}{
		{Options{At: "03:30"}, "2026-01-01 00:00", "2026-01-01 03:30"},
		{Options{At: "03:30"}, "2026-01-01 03:30", "2026-01-02 03:30"},
		{Options{At: "00:00"}, "2026-12-31 12:00", "2027-01-01 00:00"},
		{Options{At: "03:30", Every: time.Hour}, "2026-01-01 00:00", "2026-01-01 01:00"},
		{Options{At: "03:30", Every: 24 * time.Hour}, "2026-01-01 00:00", "2026-01-01 03:30"},
		{Options{At: "12:00"}, "2026-03-28 13:00", "2026-03-29 12:00"}, // the day has 23 hours
		{Options{At: "12:00"}, "2026-10-24 13:00", "2026-10-25 12:00"}, // the day has 25 hours
	} {
		if got := nextRotation(&c.o, at(c.begun)); !got.Equal(at(c.want)) {
			t.Errorf("%+v begun %s: %s, want %s", c.o, c.begun, got, c.want)
		}
	}
	if got := nextRotation(&Options{}, at("2026-01-01 00:00")); !got.IsZero() {
		t.Errorf("without either: %s", got)
	}
}

// Where the clock is put forward, a time of day can be missing, also midnight. The rotation comes then as
// late as the clock is put forward, once, and never at a moment that is over already.
func TestNextRotationAtATimeThatIsSkipped(t *testing.T) {
	for _, c := range []struct{ zone, at, begun, want, next string }{
		{"Europe/Berlin", "02:30", "2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"},
		{"America/New_York", "02:30", "2026-03-08T05:00:00Z", "2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z"},
		{"America/Havana", "00:00", "2026-03-07T20:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},
		{"America/Havana", "00:00", "2026-03-08T04:10:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"}, // 23:10
		{"America/Havana", "00:30", "2026-03-08T04:50:00Z", "2026-03-08T05:30:00Z", "2026-03-09T04:30:00Z"},
		{"Australia/Lord_Howe", "02:15", "2026-10-03T00:00:00Z", "2026-10-03T15:45:00Z", "2026-10-04T15:15:00Z"}, // by half an hour
		{"Pacific/Apia", "00:00", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},        // a whole day
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Skip("no time zones here: ", err)
		}
		from, err := time.Parse(time.RFC3339, c.begun)
		if err != nil {
			t.Fatal(err)
		}
		due := nextRotation(&Options{At: c.at}, from.In(zone))
		next := nextRotation(&Options{At: c.at}, due)
		if got := due.UTC().Format(time.RFC3339); got != c.want || next.UTC().Format(time.RFC3339) != c.next {
			t.Errorf("%s in %s from %s: %s, then %s, want %s, then %s", c.at, c.zone, c.begun, got, next.UTC().Format(time.RFC3339), c.want, c.next)
		}
	}
}

func TestRotationByAge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, Every: time.Nanosecond, Backups: -1})
	next, stop := pull(p, context.Background(), Query{Follow: true})
	defer stop()
	for range 3 {
		write(t, stdout, "x\n")
		next()
		flush(t, p)
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	names, contents := archives(t, path)
	rest, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 || strings.Join(contents, "")+string(rest) != "x\nx\nx\n" {
		t.Errorf("%v: %q and %q", names, contents, rest)
	}
}

// A program cannot redirect the writes of root by a symbolic link in place of the directory.
func TestLogDirectorySwappedForALink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: links of other users are followed otherwise")
	}
	dir := t.TempDir()
	for _, d := range []string{"mine", "secret"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for path, uid := range map[string]int{dir: 65534, filepath.Join(dir, "mine"): 65534} {
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	reports := make(chan error, 10)
	p := newPlane(t, Config{OnTrouble: func(_ string, err error) { reports <- err }})
	path := filepath.Join(dir, "mine", "log")
	capture(t, p, Options{Program: "web", Path: path}, "x\n")
	if err := os.Rename(filepath.Join(dir, "mine"), filepath.Join(dir, "was")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("secret", filepath.Join(dir, "mine")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Lchown(filepath.Join(dir, "mine"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	captureFailing(t, p, Options{Program: "web", Path: path}, "y\n")
	if err := <-reports; err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("report = %v", err)
	}
	closeFailing(t, p)
	if names, err := os.ReadDir(filepath.Join(dir, "secret")); err != nil || len(names) != 0 {
		t.Errorf("root wrote %v, %v", names, err)
	}
}

// smallDisk returns a directory on a file system of that size.
func smallDisk(t *testing.T, size string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a small tmpfs")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("needs root: cannot mount a tmpfs: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// The disk becomes full, then the directory is removed. Each is reported once, no captured line is
// lost, and writing continues without help.
func TestDiskThatFillsAndDirectoryThatGoes(t *testing.T) {
	dir := smallDisk(t, "256k")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 10)
	p := newPlane(t, Config{OnTrouble: func(_ string, err error) { reports <- err }})
	path := filepath.Join(dir, "sub", "log")
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	text := numbered(3600) // about 200 kB: more than fits now, less than fits later
	write(t, stdout, text)
	if err := <-reports; err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the first report is %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := <-reports; err != nil { // without new output
		t.Errorf("the second report is %v", err)
	}
	flush(t, p)
	if got := readLog(t, path); got != text {
		t.Errorf("the file has %d bytes, want %d", len(got), len(text))
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	write(t, stdout, "after\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	if got := readLog(t, path); got != "after\n" {
		t.Errorf("the new directory's file has %q", got)
	}
	if lines := lastLines(c, Stdout, -1); len(lines) != 3601 {
		t.Errorf("the ring has %d lines", len(lines))
	}
	if err := <-reports; err == nil || !strings.Contains(err.Error(), path+" was removed") {
		t.Errorf("the third report is %v", err)
	}
	for len(reports) > 0 {
		t.Errorf("one more report: %v", <-reports)
	}
}

// The disk becomes full within the line that says how many bytes were dropped. The ring gets the
// program's line and no part of that one, and the file gets both lines later.
func TestDiskThatFillsWithinAMark(t *testing.T) {
	for _, length := range []int{1, 500} { // less and more than the part of the mark that the disk takes
		const room = 41
		dir := smallDisk(t, "64k")
		path, filler := filepath.Join(dir, "log"), filepath.Join(dir, "filler")
		old := strings.Repeat("x", os.Getpagesize()-room-1) + "\n"
		if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filler, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
		p := newPlane(t, Config{})
		o := Options{Program: "web", To: ToFile, Path: path, MaxLine: 1 << 20}
		s := &stream{plane: p, program: p.program("web"), kind: Stdout}
		f := p.openFile(o, Stdout)
		flush(t, p) // the goroutine of the queue has ended, so the test can do its work
		f.queue.dropped = 100
		mark, line := string(fileMark(100)), strings.Repeat("z", length)
		f.moveBlock(s, block{text: []byte(line + "\n"), lines: 1}, time.Now())
		if got := readLog(t, path); got != old+mark[:room] {
			t.Errorf("%d bytes: the full disk has %d bytes, and the file ends with %q", length, len(got), got[len(old):])
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		flush(t, p)
		if got, want := readLog(t, path), old+mark+line+"\n"; got != want {
			t.Errorf("%d bytes: the file ends with %q", length, got[len(old):])
		}
		if got := texts(all(p, Query{})); !slices.Equal(got, []string{line}) {
			t.Errorf("%d bytes: the ring has %q", length, got)
		}
		if got, want := strings.Join(texts(all(p, Query{Files: true})), "\n")+"\n", old+line+"\n"; got != want {
			t.Errorf("%d bytes: ring and file have %q", length, got[min(len(got), len(old)):])
		}
		p.release(f)
	}
}

// The line that an earlier agentinit left unfinished is ended before the first new line, also if the
// disk was full at first.
func TestFullDiskWithAnUnfinishedLine(t *testing.T) {
	dir := smallDisk(t, "64k")
	path, filler := filepath.Join(dir, "log"), filepath.Join(dir, "filler")
	old := strings.Repeat("x", os.Getpagesize()) // one more byte needs a new page
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	reports := make(chan error, 10)
	p := newPlane(t, Config{OnTrouble: func(_ string, err error) { reports <- err }})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	if err := <-reports; !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the first report is %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	write(t, stdout, "first\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	if got := readLog(t, path); got != old+"\nfirst\n" {
		t.Errorf("the file ends with %q", got[len(old):])
	}
}

// If another process still writes to the pipe of a dead program, Abandon closes the pipe.
func TestAbandonOfAStreamThatIsPumped(t *testing.T) {
	p := newPlane(t, Config{})
	path := filepath.Join(t.TempDir(), "log")
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, MaxBytes: 1 << 20})
	var writer sync.WaitGroup
	chunk := []byte(numbered(1000))
	begun := make(chan struct{})
	writer.Go(func() {
		for i := 0; ; i++ {
			if i == 10 {
				close(begun)
			}
			if _, err := stdout.Write(chunk); err != nil {
				return // EPIPE: the pipe has no reader any more
			}
		}
	})
	<-begun
	c.Abandon()
	<-c.Done()
	writer.Wait()
	closeAll(t, stdout, stderr)
	flush(t, p)
	if len(lastLines(c, Stdout, 1)) != 1 {
		t.Error("nothing was taken")
	}
}

// The newline of a prompt is no line that a limit could suppress, and none beside a suppressed prompt.
func TestRateOfPrompts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	s := &stream{
		plane: p, program: p.program("web"), kind: Stdout, rated: true,
		reactor: &reactor{closed: true}, frame: framer{max: 1 << 10},
	}
	s.program.limit.set(Rate{Lines: 2, Interval: time.Hour})
	f := p.openFile(Options{Program: "web", Path: path, Backups: -1}, Stdout)
	s.sink = f
	for _, text := range []string{"one?", "\n", "two?", "\r\n", "three?", "\n", "four\n"} {
		s.consume([]byte(text), true)
		if blk, ok := s.frame.flush(); ok {
			s.take(blk, time.Now())
		}
	}
	s.summarize()
	p.release(f)
	flush(t, p)
	want := "one?\ntwo?\r\nagentinit: 2 lines (11 bytes) suppressed: more than 2 lines in 1h0m0s\n"
	if got := readLog(t, path); got != want {
		t.Errorf("the file has %q\nwant %q", got, want)
	}
}
