package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose/lingertest"
	"github.com/dreamlab-ai/agentinit/internal/rotated"
)

// Programs print NULs, escape sequences, incomplete characters and carriage returns. The file and
// the ring have every byte. The console gets no byte that controls a terminal.
func TestHostileBytes(t *testing.T) {
	texts := []string{
		strings.Repeat("\x00", 4096), "\x1b]0;owned\x07\x1b[2J\x1b[?1049h", "\xc3", "\xff\xfe\x80", "a\rb\x08\x7f",
		"\u2028\u202e\u009b31m", `{"time":"\u0000","program":"other","msg":"` + "\x1b[31m" + `"}`, "\x1b" + strings.Repeat("[", 70_000),
	}
	input := strings.Join(texts, "\n") + "\n"
	for _, format := range []Format{FormatJSON, FormatConsole} {
		sink := newSinkhole(t)
		p := New(Config{Stdout: sink.w, Format: format, RingBytes: 1 << 20})
		path := filepath.Join(t.TempDir(), "log")
		capture(t, p, Options{Program: "filed", Path: path}, input)
		c, stdout, stderr := open(t, p, Options{Program: "shown", To: ToConsole})
		write(t, stdout, input)
		closeAll(t, stdout, stderr)
		<-c.Done()
		if got := readLog(t, path); got != input {
			t.Errorf("the file has %d bytes, want %d", len(got), len(input))
		}
		for _, program := range []string{"filed", "shown"} {
			lines := all(p, Query{Programs: []string{program}})
			if len(lines) != len(texts) {
				t.Fatalf("%s: %d lines, want %d", program, len(lines), len(texts))
			}
			for i, line := range lines {
				if line.Text != texts[i] {
					t.Errorf("%s: line %d is %.50q", program, i, line.Text)
				}
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		shown := sink.bytes(t)
		if n := bytes.Count(shown, newline); n != len(texts) {
			t.Errorf("%s: %d lines on the console, want %d", format, n, len(texts))
		}
		for i, line := range bytes.Split(bytes.TrimSuffix(shown, newline), newline) {
			if at := bytes.IndexAny(line, "\x00\x07\x08\x1b\x7f\r\u009b"); at >= 0 {
				t.Errorf("%s: line %d has %q", format, i, line[at])
			}
			if format == FormatJSON && (!json.Valid(line) || !bytes.Contains(line, []byte(`"program":"shown"`))) {
				t.Errorf("line %d is %.100q", i, line)
			}
		}
	}
}

// A line without an end fills neither the memory nor the disk. When the line is longer than the
// maximum, the file rotates, and no byte is lost.
func TestEndlessLineRotates(t *testing.T) {
	const maxLine, maxBytes, chunks = 64 << 10, 1 << 20, 24
	for _, backups := range []int{-1, 2} {
		p := newPlane(t, Config{MaxLine: maxLine})
		path := filepath.Join(t.TempDir(), "log")
		c, stdout, stderr := open(t, p, Options{Program: "endless", To: ToFile, Path: path, MaxBytes: maxBytes, Backups: backups})
		chunk := strings.Repeat("endless ", 64<<10)
		for range chunks {
			write(t, stdout, chunk)
		}
		write(t, stdout, "\nend\n")
		closeAll(t, stdout, stderr)
		<-c.Done()
		flush(t, p)
		settle(t, p)
		names, contents := archives(t, path)
		text := strings.Join(contents, "") + readLog(t, path)
		for i, content := range contents {
			if len(content) > maxBytes+pumpSize {
				t.Errorf("%s has %d bytes", names[i], len(content))
			}
		}
		switch {
		case backups < 0 && text != strings.Repeat(chunk, chunks)+"\nend\n":
			t.Errorf("the files have %d bytes, want %d", len(text), chunks*len(chunk)+5)
		case backups >= 0 && (len(names) != backups || len(text) > (backups+1)*(maxBytes+pumpSize)):
			t.Errorf("%d bytes in %v", len(text), names)
		}
		if s := p.Stats()[0]; s.Dropped != 0 || s.Bytes != uint64(chunks*len(chunk)+5) {
			t.Errorf("stats %+v", s)
		}
		if lines := lastLines(c, Stdout, 2); len(lines) != 2 || lines[1].Text != "end" || len(lines[0].Text) > maxLine {
			t.Errorf("the last lines are %.50q", texts(lines))
		}
	}
}

// A program may close its stdout and open it again through a copy of the descriptor.
func TestStdoutClosedAndReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	write(t, stdout, "before\n")
	again, err := os.OpenFile(fmt.Sprint("/proc/self/fd/", fileno(stdout)), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	closeAll(t, stdout)
	write(t, stderr, "between\n")
	write(t, again, "after\n")
	closeAll(t, again)
	write(t, stderr, "at the end\n")
	closeAll(t, stderr)
	<-c.Done()
	flush(t, p)
	got := strings.Split(strings.TrimSuffix(readLog(t, path), "\n"), "\n")
	if len(got) != 4 || strings.Join(texts(lastLines(c, Stdout, -1)), " ") != "before after" {
		t.Errorf("the file has %q", got)
	}
}

// A disk that becomes read-only is reported once. When it is writable again, it gets the lines that
// waited, without new output.
func TestReadOnlyDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("needs root: cannot mount a tmpfs: ", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	reports := make(chan error, 10)
	p := newPlane(t, Config{OnTrouble: func(_ string, err error) { reports <- err }})
	path := filepath.Join(dir, "sub", "log")
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	text := numbered(5000)
	write(t, stdout, text)
	if err := <-reports; err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("the first report is %v", err)
	}
	remount(0)
	if err := <-reports; err != nil {
		t.Errorf("the second report is %v", err)
	}
	write(t, stdout, "after\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	if got := readLog(t, path); got != text+"after\n" {
		t.Errorf("the file has %d bytes, want %d", len(got), len(text)+6)
	}
	if s := p.Stats()[0]; s.Dropped != 0 || len(reports) != 0 {
		t.Errorf("%d more reports, %+v", len(reports), s)
	}
}

// A jump of the clock neither keeps a file from rotating nor makes it rotate at once. An archive
// with a date in the future stays older than the archives of this agentinit.
func TestClockJumps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	future := path + "." + time.Now().AddDate(10, 0, 0).UTC().Format(rotated.Layout)
	if err := os.WriteFile(future, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, Every: time.Hour, Backups: -1})
	print := func(text string, jump func(f *fileSink)) *fileSink {
		t.Helper()
		p.mu.Lock()
		f := p.files[path]
		p.mu.Unlock()
		if jump != nil {
			f.queue.mu.Lock() // the queue's goroutine takes this lock before it checks the time
			jump(f)
			f.queue.mu.Unlock()
		}
		before := p.seq.Load()
		write(t, stdout, text)
		for lines := range p.Read(t.Context(), Query{Follow: true, After: before}) {
			_ = lines // one line has arrived
			break
		}
		flush(t, p)
		return f
	}
	years := func(n int) func(*fileSink) {
		return func(f *fileSink) { f.begun, f.due = f.begun.AddDate(n, 0, 0), f.due.AddDate(n, 0, 0) }
	}
	print("second\n", nil)
	f := print("third\n", years(1)) // the clock is set back by a year
	if wait := time.Until(f.due); wait > time.Hour || wait < 30*time.Minute {
		t.Errorf("after the clock was set back by a year the file is due in %v", wait)
	}
	if names, _ := archives(t, path); len(names) != 1 {
		t.Errorf("a clock that was set back has rotated: %v", names)
	}
	f = print("fourth\n", func(f *fileSink) { // the timer fires, but the clock now says that it is too early
		f.expired.Store(true)
		f.due = f.due.Add(12 * time.Hour)
	})
	if f.expired.Load() || time.Until(f.due) > time.Hour {
		t.Errorf("the timer was not set anew: due in %v", time.Until(f.due))
	}
	print("fifth\n", years(-1)) // the clock is set forward by a year, twice
	print("sixth\n", years(-2))
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	names, contents := archives(t, path)
	if len(names) != 3 || names[0] != future {
		t.Errorf("rotated files: %v", names)
	}
	if got := strings.Join(contents, "") + readLog(t, path); got != "first\nsecond\nthird\nfourth\nfifth\nsixth\n" {
		t.Errorf("the files have %q in this order", got)
	}
	if got := strings.Join(texts(all(p, Query{Files: true})), " "); got != "first second third fourth fifth sixth" {
		t.Errorf("they are read as %q", got)
	}
}

// A process can hold the pipe of a program (splice(2)). Then only this pipe is not read: the output of other
// programs comes, and the plane closes.
func TestHeldPipe(t *testing.T) {
	for name, closed := range map[string]bool{"released": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, Config{})
			holder, heldOut, heldErr := open(t, p, Options{Program: "holder"})
			var others []*os.File
			for range 2 * maxReactors {
				_, stdout, stderr := open(t, p, Options{Program: "other"})
				others = append(others, stdout, stderr)
			}
			release := lingertest.HoldPipe(t, fileno(heldOut))
			holder.Abandon() // so that the reactor reads, though the pipe is empty
			waitForHeld(p, 1)
			for _, f := range others {
				write(t, f, "line\n")
			}
			waitForLines(p, len(others))
			closeAll(t, others...)
			if closed {
				if err := p.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			release()
			closeAll(t, heldOut, heldErr)
			<-holder.Done()
			waitForHeld(p, 0)
		})
	}
}

// waitForHeld waits until n pipes of the program "holder" are held.
func waitForHeld(p *Plane, n int) {
	for p.Held("holder") != n {
		runtime.Gosched()
	}
}
