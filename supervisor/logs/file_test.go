package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/rotated"
)

// capture runs one program that prints text to stdout into a file.
func capture(t *testing.T, p *Plane, o Options, text string) {
	t.Helper()
	printTo(t, p, o, text)
	flush(t, p)
}

// captureFailing is capture for a plane with a file that cannot be written to.
func captureFailing(t *testing.T, p *Plane, o Options, text string) {
	t.Helper()
	printTo(t, p, o, text)
	flushFailing(t, p)
}

func printTo(t *testing.T, p *Plane, o Options, text string) {
	t.Helper()
	o.To = ToFile
	c, stdout, stderr := open(t, p, o)
	write(t, stdout, text)
	closeAll(t, stdout, stderr)
	<-c.Done()
}

func flushFailing(t *testing.T, p *Plane) {
	t.Helper()
	mustNotWrite(t, p.Flush(context.Background()))
}

// closeFailing closes a plane with a file that cannot be written to.
func closeFailing(t *testing.T, p *Plane) {
	t.Helper()
	mustNotWrite(t, p.Close(context.Background()))
}

func mustNotWrite(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "cannot write ") {
		t.Errorf("error %v, although a file did not take all bytes", err)
	}
}

func settle(t *testing.T, p *Plane) {
	t.Helper()
	for _, f := range p.files {
		if err := f.archive.wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// archives returns the contents of the rotated files, oldest first.
func archives(t *testing.T, path string) (names []string, contents []string) {
	t.Helper()
	names, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, name := range names {
		contents = append(contents, readLog(t, name))
	}
	return names, contents
}

func readLog(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	for _, c := range compressors {
		if strings.HasSuffix(name, c.suffix) {
			if r, err = c.reader(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %06d %s\n", i, strings.Repeat("z", i%90))
	}
	return b.String()
}

func TestFileIsRawAndRotatesOnLines(t *testing.T) {
	for suffix, compressed := range map[string]Compression{"Z": CompressNone, ".gz": CompressGzip, ".zst": CompressZstd} {
		path := filepath.Join(t.TempDir(), "sub", "web.log")
		p := newPlane(t, Config{})
		text := numbered(20_000) + "binary \x00\xff\r\n"
		capture(t, p, Options{Program: "web", Path: path, MaxBytes: 100_000, Backups: -1, Compress: compressed}, text)
		settle(t, p)
		names, contents := archives(t, path)
		if len(names) < 10 {
			t.Fatalf("%d rotated files", len(names))
		}
		for i, c := range contents {
			if len(c) > 100_000 || !strings.HasSuffix(c, "\n") || !strings.HasSuffix(names[i], suffix) {
				t.Errorf("%s: %d bytes, ends %q", names[i], len(c), c[len(c)-5:])
			}
		}
		if all := strings.Join(contents, "") + readLog(t, path); all != text {
			t.Errorf("%d bytes in the files, want %d, unchanged", len(all), len(text))
		}
	}
}

func TestBackupsAgeAndTotal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	other := path + ".keep"
	if err := os.WriteFile(other, []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, MaxBytes: 50_000, Backups: 3}, numbered(10_000))
	settle(t, p)
	names, _ := archives(t, path)
	if len(names) != 4 || names[3] != other {
		t.Errorf("with backups = 3: %v", names)
	}
	capture(t, p, Options{Program: "web", Path: path, MaxBytes: 50_000, Backups: -1, TotalBytes: 120_000}, numbered(5_000))
	settle(t, p)
	if names, _ := archives(t, path); len(names) != 2 {
		t.Errorf("with total_bytes = 120000: %v", names)
	}
	old := time.Now().Add(-2 * time.Hour)
	names, _ = archives(t, path)
	if err := os.Rename(names[0], path+"."+old.UTC().Format(rotated.Layout)); err != nil {
		t.Fatal(err)
	}
	capture(t, p, Options{Program: "web", Path: path, Backups: -1, MaxAge: time.Hour}, "x\n")
	settle(t, p)
	if names, _ := archives(t, path); len(names) != 1 || names[0] != other {
		t.Errorf("with max_age = 1h: %v", names)
	}
}

func TestRunsAndProgramsShareAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shared.log")
	if err := os.WriteFile(path, []byte("zeroth"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "a", Run: 1, Path: path}, "first\nunfinished")
	capture(t, p, Options{Program: "a", Run: 2, Path: path}, "second\n")
	capture(t, p, Options{Program: "b", Run: 1, Path: path}, "third\n")
	if got := readLog(t, path); got != "zeroth\nfirst\nunfinished\nsecond\nthird\n" {
		t.Errorf("got %q", got)
	}
}

func TestFileMovedAwayAndReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	next, stop := pull(p, context.Background(), Query{Follow: true})
	defer stop()
	say := func(text string) {
		write(t, stdout, text+"\n")
		next()
		flush(t, p)
	}
	say("one")
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	say("two") // goes to the moved file
	p.Reopen()
	say("three")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	say("four") // creates the removed file again
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	if a, b := readLog(t, path+".moved"), readLog(t, path); a != "one\ntwo\n" || b != "four\n" {
		t.Errorf("moved %q, current %q", a, b)
	}
}

// A tool truncates the file in its place: to nothing, in the middle of a line, and between two runs.
// Readers get every later line, and the file rotates by its new size.
func TestFileTruncatedInItsPlace(t *testing.T) {
	for name, rate := range map[string]Rate{"pump": {}, "queue": {Lines: 1e9, Interval: time.Hour}} {
		path := filepath.Join(t.TempDir(), "web.log")
		p := newPlane(t, Config{})
		o := Options{Program: "web", To: ToFile, Path: path, MaxBytes: 1000, Backups: -1, Rate: rate}
		c, stdout, stderr := open(t, p, o)
		next, stop := pull(p, context.Background(), Query{Follow: true})
		n := 0
		say := func(lines int) (text string) {
			for range lines {
				n++
				line := fmt.Sprintf("line %02d %s", n, strings.Repeat("x", 50))
				write(t, stdout, line+"\n")
				if l := next(); l.Text != line {
					t.Errorf("%s: line %d is read as %q", name, n, l.Text)
				}
				flush(t, p)
				text += line + "\n"
			}
			return text
		}
		truncate := func(size int64) {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
		say(15)
		truncate(0)
		want := say(10)
		truncate(30)
		want = want[:30] + "\n" + say(10)
		if got := readLog(t, path); got != want {
			t.Errorf("%s: the file has %q, want %q", name, got, want)
		}
		if got := strings.Join(texts(all(p, Query{Files: true})), "\n") + "\n"; rate == (Rate{}) && got != want {
			t.Errorf("%s: memory and files have %q, want %q", name, got, want)
		}
		stop()
		closeAll(t, stdout, stderr)
		<-c.Done()
		flush(t, p)
		truncate(0)
		o.Run = 2
		capture(t, p, o, "last\n")
		if got := texts(all(p, Query{Run: 2})); !slices.Equal(got, []string{"last"}) {
			t.Errorf("%s: the last run is read as %q", name, got)
		}
		if names, _ := archives(t, path); len(names) > 0 {
			t.Errorf("%s: %v were rotated, although no file was above the limit", name, names)
		}
	}
}

// An operator, a script or the program itself appends to the log file while agentinit has it open.
func TestFileThatOthersAppendTo(t *testing.T) {
	for name, rate := range map[string]Rate{"pump": {}, "queue": {Lines: 1e9, Interval: time.Hour}} {
		path := filepath.Join(t.TempDir(), "web.log")
		p := newPlane(t, Config{})
		c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, Rate: rate})
		own := []string{"one", "two", "three", "four"}
		for _, line := range own {
			arrived := p.Subscribe("web", 0, regexp.MustCompile("^"+line+"$"))
			write(t, stdout, line+"\n")
			<-arrived.C
			flush(t, p)
			if line == "four" {
				break
			}
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			write(t, f, "others_after_"+line+"\n")
			closeAll(t, f)
		}
		closeAll(t, stdout, stderr)
		<-c.Done()
		flush(t, p)
		if got := texts(all(p, Query{})); !slices.Equal(got, own) {
			t.Errorf("%s: memory has %q, want %q", name, got, own)
		}
		// The lines of others have no number, so their place among the lines of the program does not matter.
		got, want := texts(all(p, Query{Files: true})), strings.Fields(readLog(t, path))
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: memory and files have %q, want %q", name, got, want)
		}
	}
}

// The files of all programs are reopened, although no tool has moved this one away.
func TestReopenedFileInItsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "other", Path: path}, "zero\n")
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	next, stop := pull(p, context.Background(), Query{Programs: []string{"web"}, Follow: true})
	defer stop()
	for _, text := range []string{"one\n", "two\n"} {
		write(t, stdout, text)
		next()
		p.Reopen()
		flush(t, p)
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
	if got := texts(all(p, Query{Files: true})); !slices.Equal(got, []string{"zero", "one", "two"}) {
		t.Errorf("memory and files have %q", got)
	}
	if got := readLog(t, path); got != "zero\none\ntwo\n" {
		t.Errorf("the file has %q", got)
	}
}

// A tool moves the file away while the program does not run. What the ring knows about that file
// does not hold for the next file with its name.
func TestFileMovedAwayBetweenRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{RingBytes: 2000}) // less than the runs below need
	for run := range 40 {
		capture(t, p, Options{Program: "web", Run: uint64(run + 1), Path: path}, "old\n")
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	capture(t, p, Options{Program: "web", Run: 41, Path: path}, "new\n")
	for range 20 { // one of the two files is looked at last
		got := strings.Join(texts(all(p, Query{Files: true})), "\n")
		if n := strings.Count(got, "new"); n != 1 {
			t.Fatalf("memory and files have the new line %d times", n)
		}
	}
}

// If the path cannot be written to, no line is lost. The program runs on, the ring has all lines,
// and the failure and the recovery are each reported once. The file then gets all lines.
func TestFileTroubleIsSaidOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 10)
	p := newPlane(t, Config{OnTrouble: func(program string, err error) {
		if program != "web" {
			t.Errorf("trouble of %q", program)
		}
		reports <- err
	}})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	next, stop := pull(p, context.Background(), Query{Follow: true})
	defer stop()
	for range 3 {
		write(t, stdout, "kept for the file\n")
		if l := next(); l.Text != "kept for the file" {
			t.Errorf("the ring has %q", l.Text)
		}
		flushFailing(t, p)
	}
	if troubles := p.Troubles(); len(troubles) != 1 || troubles["web"] == nil || !strings.Contains(troubles["web"].Error(), path) {
		t.Errorf("troubles now: %v", troubles)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, stdout, "works\n")
	next()
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	if err := p.Troubles()["web"]; err != nil {
		t.Errorf("trouble after it was mended: %v", err)
	}
	if err := <-reports; err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("first report = %v", err)
	}
	if err := <-reports; err != nil || len(reports) != 0 {
		t.Errorf("second report = %v, %d more", err, len(reports))
	}
	if got := readLog(t, path); got != strings.Repeat("kept for the file\n", 3)+"works\n" {
		t.Errorf("file = %q", got)
	}
	if s := p.Stats()[0]; s.Dropped != 0 || s.Bytes != 60 {
		t.Errorf("stats = %+v", s)
	}
}

// When the plane closes, lines that the file never took count as lost, for each program and stream.
func TestLossesOfASharedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shared.log")
	if err := os.Mkdir(path, 0o700); err != nil { // the path cannot be written to
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	a, aOut, aErr := open(t, p, Options{Program: "a", To: ToFile, Path: path})
	b, bOut, bErr := open(t, p, Options{Program: "b", To: ToFile, Path: path})
	write(t, aOut, "one\n")
	write(t, bOut, "seven..\n")
	write(t, bErr, "unfinished")
	closeAll(t, aOut, aErr, bOut, bErr)
	<-a.Done()
	<-b.Done()
	losses := func() (lost []uint64) {
		for _, s := range p.Stats() {
			lost = append(lost, s.Dropped)
		}
		return lost
	}
	flushFailing(t, p)
	if got := losses(); !slices.Equal(got, make([]uint64, 4)) {
		t.Errorf("lost %v while there is hope", got)
	}
	if err, want := p.Close(context.Background()), "cannot write 22 bytes to "+path+": is a directory"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %v", err, want)
	}
	if got := losses(); !slices.Equal(got, []uint64{4, 0, 8, 10}) {
		t.Errorf("lost %v", got)
	}
}

// If a disk fails for long, a limited number of bytes waits for it. The rest is counted, and the
// file says so when the disk works again. The ring had all lines.
func TestFileThatFailsForLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	p.fileHold = time.Millisecond
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	text := numbered(100_000)
	write(t, stdout, text)
	write(t, stdout, "last\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	if lines := lastLines(c, Stdout, 1); len(lines) != 1 || lines[0].Text != "last" {
		t.Errorf("the ring ends with %v", texts(lines))
	}
	lost := p.Stats()[0].Dropped
	if lost == 0 || lost >= uint64(len(text)) {
		t.Fatalf("%d of %d bytes dropped", lost, len(text))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	flush(t, p) // tries again now
	capture(t, p, Options{Program: "web", Path: path}, "again\n")
	got := readLog(t, path)
	if !strings.HasPrefix(text, got[:100_000]) || !strings.HasSuffix(got, "again\n") {
		t.Errorf("the file ends with %q", got[len(got)-100:])
	}
	if said := markedIn(t, got); said != lost {
		t.Errorf("the file says that %d bytes are missing, not %d", said, lost)
	}
}

// A program that prints nothing more after the disk works again must not leave a file that seems to be
// complete. The mark is on a line of its own, also after an unfinished line.
func TestTheEndOfAFileSaysWhatIsMissing(t *testing.T) {
	for name, text := range map[string]string{"lines": numbered(200_000), "one line": strings.Repeat("x", 4<<20)} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.Mkdir(path, 0o700); err != nil { // the path cannot be written to
				t.Fatal(err)
			}
			p := newPlane(t, Config{})
			p.fileHold = time.Millisecond
			c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, MaxLine: 64 << 10})
			write(t, stdout, text)
			closeAll(t, stdout, stderr)
			<-c.Done()
			lost := p.Stats()[0].Dropped
			if lost == 0 {
				t.Fatal("nothing was dropped")
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			flush(t, p) // tries again now
			got := readLog(t, path)
			_, marked, _ := strings.Cut(got, "\nagentinit: ")
			if said := markedIn(t, got); said != lost || strings.Count(marked, "\n") != 1 {
				t.Errorf("the file says that %d bytes are missing, not %d; it ends with %q", said, lost, got[max(0, len(got)-100):])
			}
		})
	}
}

// markedIn adds up what a log file says was dropped.
func markedIn(t *testing.T, text string) (dropped uint64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`agentinit: (\d+) bytes? of output dropped: this file`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		dropped += n
	}
	return dropped
}

// Each new manifest may have other paths. A path without a writer is forgotten in time, unless its file
// must still report a loss or is the newest of a program, which can then be read.
func TestPathsOfThePastAreForgotten(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.log")
	if err := os.Mkdir(bad, 0o700); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	used := filepath.Join(dir, "used.log")
	c, stdout, stderr := open(t, p, Options{Program: "used", To: ToFile, Path: used})
	captureFailing(t, p, Options{Program: "bad", Path: bad}, "lost\n")
	p.Remove("bad")
	ended := filepath.Join(dir, "ended.log")
	captureFailing(t, p, Options{Program: "ended", Path: ended}, "done\n")
	paths := 0
	newPaths := func() {
		for range 2 * leastSweep {
			settle(t, p)
			path := filepath.Join(dir, fmt.Sprint(paths, ".log"))
			paths++
			captureFailing(t, p, Options{Program: "web", Path: path}, "unfinished")
		}
		settle(t, p)
		if n := len(p.files); n > leastSweep {
			t.Errorf("%d files are known", n)
		}
	}
	newPaths()
	if p.files[ended] == nil || p.files[bad] == nil || p.files[used] == nil {
		t.Errorf("known are %v", p.files)
	}
	p.Remove("ended")
	newPaths()
	if p.files[ended] != nil {
		t.Error("the file of a program that was removed is known for ever")
	}
	first := filepath.Join(dir, "0.log")
	captureFailing(t, p, Options{Program: "web", Path: first}, "again\n")
	if got := readLog(t, first); got != "unfinished\nagain\n" {
		t.Errorf("a file that had been forgotten holds %q", got)
	}
	write(t, stdout, "still\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flushFailing(t, p)
	if got := readLog(t, used); got != "still\n" {
		t.Errorf("the file in use holds %q", got)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	capture(t, p, Options{Program: "bad", Path: bad}, "works\n")
	if got := readLog(t, bad); got != "lost\nworks\n" {
		t.Errorf("the file that had failed holds %q", got)
	}
}

func TestFileNeverFollowsTraps(t *testing.T) {
	dir := t.TempDir()
	target, link, fifo := filepath.Join(dir, "secret"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 10)
	p := newPlane(t, Config{OnTrouble: func(_ string, err error) { reports <- err }})
	for _, path := range []string{link, fifo} {
		captureFailing(t, p, Options{Program: "web", Path: path}, "x\n")
		if err := <-reports; err == nil {
			t.Errorf("%s was opened", path)
		}
	}
	closeFailing(t, p)
	if got := readLog(t, target); got != "precious" {
		t.Errorf("the link's target is %q", got)
	}
}

func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 10)
	p := newPlane(t, Config{Stdout: f, Format: FormatRaw, OnTrouble: func(_ string, err error) { reports <- err }})
	c, stdout, stderr := open(t, p, Options{Program: "web"})
	write(t, stdout, numbered(1000))
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	if err := <-reports; err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("report = %v", err)
	}
	if n := len(lastLines(c, Stdout, -1)); n != 1000 {
		t.Errorf("the ring has %d lines", n)
	}
	closeAll(t, f)
}

func TestDevStdoutMeansTheConsole(t *testing.T) {
	out := newSinkhole(t)
	p := newPlane(t, Config{Stdout: out.w, Format: FormatRaw})
	capture(t, p, Options{Program: "web", Path: "/dev/stdout"}, "inherited\n")
	if got := string(out.bytes(t)); got != "inherited\n" {
		t.Errorf("got %q", got)
	}
}

func TestRotationCut(t *testing.T) {
	tests := []struct {
		name             string
		in               string
		room             int64
		lineStart, empty bool
		want             int
	}{
		{"all fits", "a\nb\n", 4, true, false, 4},
		{"whole lines", "aa\nbb\ncc\n", 7, true, false, 6},
		{"nothing fits", "aaaa\n", 3, true, false, 0},
		{"nothing fits an empty file", "aaaa\nb\n", 3, true, true, 5},
		{"in the middle of a line", "aaaa\nb\n", 3, false, false, 5},
		{"already over", "a\n", -5, true, false, 0},
		{"endless piece", "aaaa", 3, false, false, 4},
	}
	for _, tt := range tests {
		if got := rotationCut([]byte(tt.in), tt.room, tt.lineStart, tt.empty); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestArchiveNamesGrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	a := &archive{path: path, newest: "20990101T000000.999999999Z", listings: &listings{}} // the clock was set back
	for range 3 {
		before := a.newest
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.shift(func(string) {}); err != nil {
			t.Fatal(err)
		}
		if a.newest <= before {
			t.Errorf("%s after %s", a.newest, before)
		}
	}
	if names, _ := archives(t, path); len(names) != 3 {
		t.Errorf("names = %v", names)
	}
}

// After a change of the manifest, the next run has its new times of rotation, whether another program
// has kept the file open or not. No time of the run before remains.
func TestANewerRunHasOtherTimesOfRotation(t *testing.T) {
	for _, tt := range []struct {
		name        string
		before, now Options
		rotations   int
	}{
		{"by age no more", Options{Every: time.Hour}, Options{}, 0},
		{"daily no more", Options{At: "00:40"}, Options{}, 0}, // the clock of a bubble begins at midnight
		{"by age now", Options{}, Options{Every: time.Hour}, 1},
		{"sooner", Options{Every: 24 * time.Hour}, Options{Every: time.Hour}, 1},
		{"later", Options{Every: time.Hour}, Options{Every: 24 * time.Hour}, 0},
	} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shared %v", tt.name, shared), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "log")
					tt.before.Path, tt.before.Backups, tt.now.Path, tt.now.Backups = path, -1, path, -1
					p := newPlane(t, Config{})
					s := &stream{program: &programLog{}, kind: Stdout}
					f := p.openFile(tt.before, Stdout)
					put := func(text string) {
						f.put(s, []byte(text), len(text))
						synctest.Wait()
					}
					put("one\n")
					time.Sleep(30 * time.Minute)
					if !shared {
						p.release(f)
						synctest.Wait()
					}
					p.openFile(tt.now, Stdout)
					time.Sleep(2 * time.Hour)
					for range 3 {
						put("two\n")
					}
					names, contents := archives(t, path)
					if len(names) != tt.rotations {
						t.Errorf("rotated files %v", names)
					}
					if got := strings.Join(contents, "") + readLog(t, path); got != "one\ntwo\ntwo\ntwo\n" {
						t.Errorf("the files have %q", got)
					}
					for f.refs > 0 {
						p.release(f)
					}
					synctest.Wait()
				})
			})
		}
	}
}

// A file that cannot be renamed grows on. That is reported once, and the rotation is tried again
// later, until it succeeds. The test makes the kernel refuse by a directory with the name that the
// rotated file is to get.
func TestRotationThatIsRefused(t *testing.T) {
	for name, o := range map[string]Options{"size": {MaxBytes: 100}, "time": {Every: time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			o.Path, o.Backups = filepath.Join(t.TempDir(), "log"), -1
			wait := max(o.Every, time.Second) // until the next rotation
			reports := make(chan error, 100)
			p := newPlane(t, Config{OnTrouble: func(_ string, err error) { reports <- err }})
			s := &stream{program: &programLog{}, kind: Stdout}
			f := p.openFile(o, Stdout)
			line := strings.Repeat("x", 59) + "\n"
			lines := 0
			put := func(after time.Duration) {
				time.Sleep(after)
				synctest.Wait()
				lines++
				f.put(s, []byte(line), len(line))
				synctest.Wait()
			}
			refuse := func(after time.Duration) {
				obstacle := o.Path + "." + time.Now().Add(after).UTC().Format(rotated.Layout)
				if err := os.Mkdir(obstacle, 0o700); err != nil {
					t.Fatal(err)
				}
				put(after)
				if err := os.Remove(obstacle); err != nil {
					t.Fatal(err)
				}
			}
			check := func(when string, rotated, reported int) {
				t.Helper()
				names, contents := archives(t, o.Path)
				if len(names) != rotated || len(reports) != reported {
					t.Errorf("%s, %s: rotated files %v, %d reports", name, when, names, len(reports))
				}
				if got := strings.Join(contents, "") + readLog(t, o.Path); got != strings.Repeat(line, lines) {
					t.Errorf("%s, %s: the files have %d bytes of %d lines", name, when, len(got), lines)
				}
			}
			put(0)
			put(wait)
			check("at first", 1, 0)
			refuse(wait)
			for range 20 {
				put(time.Millisecond)
			}
			check("refused", 1, 1)
			refuse(retryMost - 20*time.Millisecond)
			check("refused again", 1, 1)
			put(retryMost)
			check("possible again", 2, 1)
			refuse(wait)
			check("refused later", 2, 2)
			for range 2 {
				if err := <-reports; err == nil || !strings.Contains(err.Error(), "cannot rotate") {
					t.Errorf("%s: the report is %v", name, err)
				}
			}
			p.release(f)
			synctest.Wait()
		})
	}
}

// 64 MiB of lines of many lengths pass through rotation unchanged.
func TestMuchToFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.log")
	p := newPlane(t, Config{})
	chunk := []byte(numbered(20_000)) // about 1.2 MB
	c, stdout, stderr := open(t, p, Options{Program: "big", To: ToFile, Path: path, MaxBytes: 10 << 20, Backups: -1})
	const chunks = 55
	for range chunks {
		if _, err := stdout.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	_, contents := archives(t, path)
	all := strings.Join(contents, "") + readLog(t, path)
	if all != string(bytes.Repeat(chunk, chunks)) {
		t.Errorf("%d bytes in the files, want %d unchanged", len(all), chunks*len(chunk))
	}
	if s := p.Stats()[0]; s.Dropped != 0 || p.seq.Load() != 20_000*chunks {
		t.Errorf("stats = %+v", s)
	}
}

// The rotated files of a program that prints nothing are removed when they are too old, with at most one
// check in an hour.
func TestAQuietProgramsOldFilesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		begin := time.Now()
		for i, age := range []time.Duration{10 * time.Hour, 9*time.Hour + 30*time.Minute, time.Hour} {
			name := filepath.Join(dir, "web.log."+begin.Add(-age).UTC().Format(rotated.Layout))
			if err := os.WriteFile(name, []byte{byte(i)}, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a := &archive{path: filepath.Join(dir, "web.log"), report: func(err error) { t.Error(err) }, listings: new(listings)}
		left := func() int {
			synctest.Wait()
			all, err := os.ReadDir(dir)
			if err != nil {
				t.Error(err)
			}
			return len(all)
		}
		a.tidy(&Options{Backups: -1, MaxAge: 12 * time.Hour}, 0)
		if n := left(); n != 3 {
			t.Errorf("%d files at first", n)
		}
		if a.atRest() {
			t.Error("the sink may be forgotten, and with it the next check")
		}
		time.Sleep(2*time.Hour + time.Second)
		if n := left(); n != 2 {
			t.Errorf("%d files after two hours", n)
		}
		// The second file is too old half an hour later: the next check is after an hour.
		time.Sleep(time.Until(begin.Add(2*time.Hour + 50*time.Minute)))
		if n := left(); n != 2 {
			t.Errorf("%d files: there was a check after less than an hour", n)
		}
		time.Sleep(time.Until(begin.Add(3*time.Hour + time.Minute)))
		if n := left(); n != 1 {
			t.Errorf("%d files after the second check", n)
		}
		time.Sleep(time.Until(begin.Add(12 * time.Hour)))
		if n := left(); n != 0 {
			t.Errorf("%d files at the end", n)
		}
		if !a.atRest() {
			t.Error("a timer runs although no file is left")
		}
	})
}

func TestAFailedCheckOfTheAgesIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "logs")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		name := "web.log." + time.Now().UTC().Format(rotated.Layout)
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		reports := 0
		a := &archive{path: filepath.Join(dir, "web.log"), report: func(error) { reports++ }, listings: new(listings)}
		a.tidy(&Options{Backups: -1, MaxAge: 2 * time.Hour}, 0)
		synctest.Wait()
		// Meanwhile the directory is something else.
		if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Hour + time.Minute)
		synctest.Wait()
		if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
			t.Fatal(err)
		}
		if reports != 1 {
			t.Errorf("the trouble was reported %d times", reports)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the old file: %v", err)
		}
	})
}

// total_bytes bounds the current file too, whatever max_bytes says.
func TestTotalBytesBoundsTheCurrentFile(t *testing.T) {
	for _, maxBytes := range []int64{0, 50_000_000, 120_001, 120_000} {
		path := filepath.Join(t.TempDir(), "log")
		p := newPlane(t, Config{})
		capture(t, p, Options{Program: "web", Path: path, MaxBytes: maxBytes, Backups: -1, TotalBytes: 120_000}, numbered(50_000))
		settle(t, p)
		total := int64(0)
		names, _ := archives(t, path)
		for _, name := range append(names, path) {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			total += info.Size()
		}
		if total > 120_000 || len(names) > 1 {
			t.Errorf("max_bytes = %d: %d bytes, rotated are %v", maxBytes, total, names)
		}
	}
}

// A program that owns the directory may have made a file with the last name of all. Rotated files still
// get names that agentinit knows, so the limits hold for them.
func TestRotationAfterTheLastNameOfAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	last := path + ".99991231T235959.999999999Z"
	if err := os.WriteFile(last, []byte("made by the program\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, MaxBytes: 10, Backups: 1}, "1111111\n2222222\n3333333\n4444444\n")
	settle(t, p)
	names, contents := archives(t, path)
	names = slices.DeleteFunc(names, func(name string) bool { return name == last })
	if len(names) != 1 || !isRotated(names[0]) || contents[0] != "3333333\n" {
		t.Errorf("rotated files %v with %q, want one, with the third line", names, contents)
	}
}

// A program that owns the directory can make files of any size that take no space.
func TestTotalBytesWithHugeFiles(t *testing.T) {
	var files []archived
	for _, size := range []int64{10, math.MaxInt64, math.MaxInt64, 40} {
		files = append(files, archived{path: filepath.Join(t.TempDir(), "log"), size: size})
	}
	kept, err := prune(files, &Options{Backups: -1, TotalBytes: 100, MaxBytes: 50}, 0, time.Now())
	if err != nil || len(kept) != 1 || kept[0].size != 40 {
		t.Errorf("kept %v, error %v; want the newest file alone", kept, err)
	}
}

// A file for both streams has both, whether stderr_path names it too or not.
func TestOneFileForBothStreamsIsNotOfStderrAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	if err := os.WriteFile(path, []byte("earlier\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, StderrPath: path, Backups: -1}, "now\n")
	got := texts(all(p, Query{Files: true, Streams: []Stream{Stdout}}))
	if !slices.Equal(got, []string{"earlier", "now"}) {
		t.Errorf("stdout %q, want both lines, as without stderr_path", got)
	}
}

// A rotation by time waits until an unfinished line ends, and not for the output after that.
func TestRotationByTimeWhenALineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log")
		p := newPlane(t, Config{})
		s := &stream{program: &programLog{}, kind: Stdout}
		f := p.openFile(Options{Path: path, Backups: -1, Every: time.Hour}, Stdout)
		put := func(text string) {
			f.put(s, []byte(text), len(text))
			synctest.Wait()
		}
		put("50 % ")
		time.Sleep(2 * time.Hour)
		put("100 %\n")
		if _, contents := archives(t, path); !slices.Equal(contents, []string{"50 % 100 %\n"}) {
			t.Errorf("the rotated files have %q", contents)
		}
		p.release(f)
		synctest.Wait()
	})
}
