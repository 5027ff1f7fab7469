package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/dreamlab-ai/agentinit/internal/rotated"
)

// Two programs print over several runs while their files rotate and are compressed, also between
// two pages of a reader and during one. Each line comes once, in the order in which it was
// captured, even if the clock jumps.
func TestPagesAcrossRotation(t *testing.T) {
	const rounds = 6
	dir := t.TempDir()
	p := newPlane(t, Config{})
	var want []string
	print := func(round int) {
		for _, program := range []string{"a", "b"} {
			var text strings.Builder
			for i := range 40 {
				fmt.Fprintf(&text, "%s round %d line %d\n", program, round, i)
			}
			capture(t, p, Options{
				Program: program, Run: uint64(round + 1), Path: filepath.Join(dir, program), MaxBytes: 300, Backups: -1, Compress: CompressZstd,
			}, text.String())
			want = append(want, strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")...)
		}
		settle(t, p)
		for _, pl := range p.list(nil) { // the clock is set back by an hour in each round
			pl.mu.Lock()
			for _, seg := range pl.rings[Stdout-1].segs {
				for i := range seg.chunks {
					if seg.chunks[i].run == uint64(round+1) {
						seg.chunks[i].time -= int64(round) * int64(time.Hour)
					}
				}
			}
			pl.mu.Unlock()
		}
	}
	var got []string
	var after uint64
	for round := range rounds {
		print(round)
		n := 0
		for line := range p.Read(t.Context(), Query{After: after}) {
			got, after = append(got, line.Text), line.Seq
			if n++; n == 17 && round%2 == 0 {
				print(round + 10) // these lines are for the next page
			}
		}
	}
	got = append(got, texts(all(p, Query{After: after}))...)
	if !slices.Equal(got, want) {
		t.Errorf("%d lines, want %d: %q", len(got), len(want), got[:min(len(got), 10)])
	}
	if names, _ := archives(t, filepath.Join(dir, "a")); len(names) < rounds {
		t.Errorf("only %v were rotated", names)
	}
}

// Many programs print while a client reads page after page by cursor. Each line comes once, in
// order.
func TestPagesWhileProgramsPrint(t *testing.T) {
	const programs, rounds = 50, 2000
	p := newPlane(t, Config{})
	streams := make([]*stream, programs)
	for i := range streams {
		streams[i] = &stream{plane: p, program: p.program(fmt.Sprint(i)), kind: Stdout}
	}
	var printed atomic.Bool
	go func() {
		defer printed.Store(true)
		for round := range rounds {
			for _, s := range streams {
				s.store(block{text: fmt.Appendf(nil, "%d\n", round), lines: 1}, time.Now())
			}
		}
	}()
	next := map[string]int{}
	for after, ended := uint64(0), false; !ended; {
		ended = printed.Load()
		for line := range p.Read(t.Context(), Query{After: after}) {
			if line.Seq <= after || line.Text != fmt.Sprint(next[line.Program]) {
				t.Fatalf("after line %d of the box came its line %d: %q of program %s, want %d", after, line.Seq, line.Text, line.Program, next[line.Program])
			}
			next[line.Program]++
			after = line.Seq
		}
	}
	for program, n := range next {
		if n != rounds {
			t.Errorf("program %s: %d lines, want %d", program, n, rounds)
		}
	}
}

// agentinit was killed after it had compressed a file and before it removed the original.
func TestFileInBothForms(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	rotated := path + ".20260102T150405.000000000Z"
	for _, name := range []string{rotated, path} {
		if err := os.WriteFile(name, []byte("one\ntwo\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := compressorOf(CompressGzip).compress(path, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".gz", rotated+".gz"); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, Backups: -1}, "three\n")
	if got := texts(all(p, Query{Files: true})); !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("got %q", got)
	}
}

// A reader wants more lines than it keeps in memory: it goes through them twice.
func TestReadingTwice(t *testing.T) {
	const old, wanted = keptLines + 2000, keptLines + 1000
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(numbered(old)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path}, "last\n")
	want := append(strings.Split(strings.TrimSuffix(numbered(old), "\n"), "\n"), "last")
	if got := texts(all(p, Query{Files: true, Lines: wanted})); !slices.Equal(got, want[len(want)-wanted:]) {
		t.Errorf("%d lines from %q to %q", len(got), got[0], got[len(got)-1])
	}
}

// A client resumes after a line of the life before, and the clock was set back meanwhile by more
// than this life has lasted. It gets all lines of this life, even if only the files have them. Of the
// older files it gets those that did not end before the line.
func TestResumeAfterClockWasSetBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	cursor := time.Now().Add(time.Hour)
	old := cursor.Add(-time.Minute)
	for name, text := range map[string]string{path + "." + old.UTC().Format(rotated.Layout): "old\n", path: "inherited\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for life, printed := range [][]string{{"one", "two two two", "three three"}, nil} {
		p := newPlane(t, Config{})
		capture(t, p, Options{Program: "web", Path: path, MaxBytes: 15, Backups: -1}, strings.Join(append(printed, ""), "\n"))
		settle(t, p)
		// What the life has not written to counts by its time.
		want := append([]string{"inherited"}, printed...)[:len(printed)+min(len(printed), 1)]
		for _, forgotten := range []bool{false, true} {
			if got := texts(all(p, Query{Files: true, Resume: cursor})); !slices.Equal(got, want) {
				t.Errorf("life %d, forgotten %v: got %q, want %q", life, forgotten, got, want)
			}
			if got := texts(all(p, Query{Files: true, Since: cursor})); len(got) != 0 {
				t.Errorf("life %d, forgotten %v: since the time there is %q", life, forgotten, got)
			}
			pl := p.program("web")
			pl.mu.Lock()
			for _, seg := range pl.rings[0].segs { // as if newer lines had filled the ring
				seg.chunks = seg.chunks[len(seg.chunks)-1:]
			}
			pl.mu.Unlock()
		}
		if got := texts(all(p, Query{Files: true, Resume: old})); len(got) != 5 || got[0] != "old" {
			t.Errorf("life %d: after an older line comes %q", life, got)
		}
	}
}

// A reader is still in a rotated file when the current file, whose text no ring has, is rotated too.
func TestRotationWhileFilesAreRead(t *testing.T) {
	for _, compress := range []Compression{CompressNone, CompressGzip} {
		path := filepath.Join(t.TempDir(), "web.log")
		before := []string{path + "." + time.Now().Add(-time.Hour).UTC().Format(rotated.Layout), path}
		for i, name := range before {
			if err := os.WriteFile(name, fmt.Appendf(nil, "earlier %d\nearlier %d\n", 2*i, 2*i+1), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p := newPlane(t, Config{})
		o := Options{Program: "web", Path: path, MaxBytes: 30, Backups: -1, Compress: compress}
		capture(t, p, o, "now\n")
		var got []string
		for line := range p.Read(t.Context(), Query{Files: true}) {
			if got = append(got, line.Text); len(got) == 1 {
				o.Run = 2
				capture(t, p, o, "later, so that the file is rotated\n")
				settle(t, p)
			}
		}
		if want := []string{"earlier 0", "earlier 1", "earlier 2", "earlier 3", "now"}; !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", compress, got, want)
		}
	}
}

// One batch fills several files. Until the rings know its lines, a reader must not take those of the files
// that are rotated already for old ones.
func TestReadingWhileABatchRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	if err := os.WriteFile(path, []byte("earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, MaxBytes: 30, Backups: -1}, "now\n")
	settle(t, p)
	f := p.files[path]
	if rest, err := f.deliver([]byte(strings.Repeat("newer\n", 20))); err != nil || len(rest) > 0 {
		t.Fatal(err, len(rest))
	}
	if got, want := texts(all(p, Query{Files: true})), []string{"earlier", "now"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	f.noted()
	f.close()
	if len(f.fresh) > 0 {
		t.Error("the sink holds files of an earlier batch")
	}
}

// The sink has announced the new name of the current file, and has not renamed it yet. The file has text
// that the rings do not know.
func TestReadingBeforeTheRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, Backups: -1}, "now\n")
	settle(t, p)
	f := p.files[path]
	if rest, err := f.deliver([]byte("newer\n")); err != nil || len(rest) > 0 {
		t.Fatal(err, len(rest))
	}
	f.noteFresh()
	f.gen.leave(path + "." + time.Now().UTC().Format(rotated.Layout))
	if got, want := texts(all(p, Query{Files: true})), []string{"now"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	f.noted()
	f.close()
}

// A file was rotated, and will be removed: the program keeps none. The rings have its newest text.
func TestReadingBeforeTheRemoval(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, MaxBytes: 10}, "one\ntwo\nthree\nfour\n")
	settle(t, p)
	old := path + "." + time.Now().Add(time.Hour).UTC().Format(rotated.Layout)
	if err := os.WriteFile(old, []byte("three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := texts(all(p, Query{Files: true})), []string{"one", "two", "three", "four"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// While the files of a directory are listed, one is compressed: the name that the directory had before is
// not there any more.
func TestListWhileAFileIsCompressed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir() + "/"
		base := "web.log." + time.Now().UTC().Format(rotated.Layout)
		if err := os.WriteFile(dir+base+".gz", []byte("old\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := &reading{rotated: map[string][]string{"web.log": {base}}, done: make(chan struct{})}
		a := &archive{path: dir + "web.log", listings: &listings{next: map[string]*reading{dir: before}}}
		var files []archived
		var err error
		go func() { files, err = a.listForReader(&Options{Compress: CompressGzip}) }()
		synctest.Wait()
		a.listings.mu.Lock()
		delete(a.listings.next, dir)
		a.listings.mu.Unlock()
		close(before.done)
		synctest.Wait()
		if err != nil || len(files) != 1 || files[0].path != dir+base+".gz" {
			t.Errorf("got %+v, %v", files, err)
		}
	})
}

// An apply gives the program another log file. The rings forget the lines in the former one, which stays.
func TestReadingAFormerFile(t *testing.T) {
	for name, rate := range map[string]Rate{"pump": {}, "queue": {Lines: 1e9, Interval: time.Hour}} {
		dir := t.TempDir()
		p := newPlane(t, Config{RingBytes: 2000}) // less than the runs below need
		o := Options{Program: "web", Path: filepath.Join(dir, "former"), Rate: rate}
		capture(t, p, o, "one\ntwo\n")
		want := []string{"one", "two"}
		o.Path = filepath.Join(dir, "newer")
		for run := range 40 {
			o.Run = uint64(run + 2)
			line := fmt.Sprintf("run %d %s", run, strings.Repeat("x", 100))
			capture(t, p, o, line+"\n")
			want = append(want, line)
		}
		got := texts(all(p, Query{Files: true}))
		slices.Sort(got) // two files have no order
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// A client goes away in the middle of a file.
func TestReaderClosesItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(numbered(10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path}, "last\n")
	opened := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && to == path {
				n++
			}
		}
		return n
	}
	for range p.Read(t.Context(), Query{Files: true}) {
		if opened() == 0 {
			t.Error("the reader has not opened the file")
		}
		break
	}
	if n := opened(); n != 0 {
		t.Errorf("the file is open %d times", n)
	}
}

// A program has filled its log file with long lines. To read many of them, agentinit does not need
// memory for all of them at once.
func TestNewestOfManyLongLines(t *testing.T) {
	const lines, length = 64, 512 << 10
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat(strings.Repeat("x", length-1)+"\n", lines)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path}, "last\n")
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before, n := heap(), 0
	for line := range p.Read(t.Context(), Query{Files: true, Lines: lines}) {
		if n++; n == 1 {
			if now := heap(); now > before+lines*length/2 {
				t.Errorf("reading needs %d bytes", now-before)
			}
		}
		if n == lines && line.Text != "last" {
			t.Errorf("the last line is %.80q", line.Text)
		}
	}
	if n != lines {
		t.Errorf("read %d lines, want %d", n, lines)
	}
}

// Programs have printed nothing but newlines, in this life of agentinit or in the one before. A Line
// takes a hundred times as much memory as a newline, so a reader may not have all lines of its texts
// as Lines at once. Every line still comes.
func TestReadingFloodsOfNewlines(t *testing.T) {
	const programs, length = 4, mergeBytes
	for name, tc := range map[string]struct {
		old, text string
		to        To
	}{
		"memory":  {text: strings.Repeat("\n", length), to: ToNone},
		"file":    {text: strings.Repeat("\n", length), to: ToFile},
		"earlier": {old: strings.Repeat("\n", length), to: ToFile},
	} {
		dir := t.TempDir()
		p := newPlane(t, Config{RingBytes: 2 * length})
		for i := range programs {
			path := filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(path, []byte(tc.old), 0o600); err != nil {
				t.Fatal(err)
			}
			c, stdout, stderr := open(t, p, Options{Program: fmt.Sprint(i), To: tc.to, Path: path})
			write(t, stdout, tc.text)
			closeAll(t, stdout)
			defer func() { // if no program uses it, the plane may forget the file
				closeAll(t, stderr)
				<-c.Done()
			}()
		}
		waitForLines(p, programs*len(tc.text))
		flush(t, p)
		before, n := memory().HeapAlloc, 0
		for line := range p.Read(t.Context(), Query{Files: true}) {
			if n++; n == programs*length/2 { // each text is open, and not at its end
				if now := memory().HeapAlloc; now > before+2*programs*length {
					t.Errorf("%s: a reader needs %d bytes", name, now-before)
				}
			}
			if line.Text != "" {
				t.Fatalf("%s: line %d is %+v", name, n, line)
			}
		}
		if n != programs*length {
			t.Errorf("%s: %d lines, want %d", name, n, programs*length)
		}
	}
}

// A program prints its last lines and is removed while a follower is busy, for example with a slow
// collector. The follower gets the lines, or the mark of a loss if they take too much memory. Then
// nothing is kept of the program. A reader that ended before has no part in this.
func TestFollowerOfRemovedProgram(t *testing.T) {
	for name, tc := range map[string]struct {
		to     To
		budget int64
		want   []string
	}{
		"memory":  {ToNone, 0, []string{"one", "two", "three", "end"}},
		"file":    {ToFile, 0, []string{"one", "two", "three", "end"}},
		"no room": {ToNone, 1000, []string{"one", "2 lines dropped: this reader is too slow", "end"}},
	} {
		p := newPlane(t, Config{TotalBytes: tc.budget})
		c, stdout, stderr := open(t, p, Options{Program: "web", To: tc.to, Path: filepath.Join(t.TempDir(), "log")})
		write(t, stdout, "one\n")
		var got []string
		for line := range p.Read(t.Context(), Query{Follow: true}) {
			if got = append(got, line.Text); len(got) == 1 {
				all(p, Query{})
				write(t, stdout, "two\nthree\n")
				closeAll(t, stdout, stderr)
				<-c.Done()
				p.Remove("web")
				c, stdout, stderr := open(t, p, Options{Program: "other", To: ToNone})
				write(t, stdout, "end\n")
				closeAll(t, stdout, stderr)
				<-c.Done()
			}
			if line.Text == "end" {
				break
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
		pl := p.program("other")
		if n := len(p.leaving); n != 0 || pl.readers != 0 || p.budget.used.Load() != int64(pl.rings[0].bytes) {
			t.Errorf("%s: %d programs, %d readers and %d bytes are left", name, n, pl.readers, p.budget.used.Load())
		}
		p.Remove("other") // without a reader, nothing is left at once
		if n := p.budget.used.Load(); n != 0 || len(p.leaving) != 0 {
			t.Errorf("%s: %d bytes of %d programs are left", name, n, len(p.leaving))
		}
	}
}

// A follower that was asked for names gets the lines of programs that come later with such a name.
func TestFollowerOfProgramsThatComeLater(t *testing.T) {
	p := newPlane(t, Config{})
	say := func(program, text string) {
		c, stdout, stderr := open(t, p, Options{Program: program, To: ToNone})
		write(t, stdout, text+"\n")
		closeAll(t, stdout, stderr)
		<-c.Done()
	}
	say("web", "one")
	say("other", "not wanted")
	var got []string
	also := func(name string) bool { return strings.HasPrefix(name, "web:") || name == "last" }
	for line := range p.Read(t.Context(), Query{Programs: []string{"web"}, Also: also, Follow: true}) {
		if got = append(got, line.Program+" "+line.Text); line.Text == "one" {
			say("web:1", "two")
			say("another", "not wanted")
			p.Remove("web:1")
			say("web:1", "three") // it was removed, and is there again
			say("last", "end")
		}
		if line.Text == "end" {
			break
		}
	}
	if want := []string{"web one", "web:1 three", "last end"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func newReader(t *testing.T, p *Plane, q Query) *reader {
	r := &reader{ctx: t.Context(), plane: p, query: q, next: map[*programLog]*[2]uint64{}}
	t.Cleanup(r.close)
	return r
}

// A follower with an end returns at that time, even if no program prints anything.
func TestFollowEndsInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		for line := range New(Config{}).Read(t.Context(), Query{Follow: true, Until: begin.Add(time.Hour)}) {
			t.Errorf("got %+v", line)
		}
		if took := time.Since(begin); took != time.Hour {
			t.Errorf("it ended after %v", took)
		}
	})
}

// A follower that is busy when the box ends gets all lines that were read by then.
func TestFollowEndsWithTheLastLine(t *testing.T) {
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToNone})
	write(t, stdout, "0\n")
	ending, seen, last := make(chan struct{}), 0, ""
	for line := range p.Read(t.Context(), Query{Follow: true, Ending: ending}) {
		if seen, last = seen+1, line.Text; seen == 1 {
			write(t, stdout, numbered(3000))
			closeAll(t, stdout, stderr)
			<-c.Done()
			close(ending)
		}
	}
	if seen != 3001 || !strings.HasSuffix(numbered(3000), last+"\n") {
		t.Errorf("the follower got %d lines, the last one is %q", seen, last)
	}
}

// A reader whose client is gone reads no further, even if nothing in the files is wanted.
func TestReaderWithoutClientStops(t *testing.T) {
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: filepath.Join(t.TempDir(), "log")}, numbered(10_000))
	for _, gone := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		if gone {
			cancel()
		}
		r := newReader(t, p, Query{Grep: regexp.MustCompile("nosuch")})
		for _, s := range r.sources()() {
			s, had := s.(*chunkSource), len(s.(*chunkSource).chunks)
			next, stop := iter.Pull(merge(ctx, []source{s}))
			if _, ok := next(); ok || had > 0 && (len(s.chunks) == had) != gone {
				t.Errorf("client gone %v: %d of %d chunks are left", gone, len(s.chunks), had)
			}
			stop()
		}
		cancel()
	}
}

// A compressed file is damaged. Its lines are reported as lost, the others are shown.
func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	for i, text := range []string{"one\n", "two\n", "three\n"} {
		capture(t, p, Options{Program: "web", Run: uint64(i + 1), Path: path, MaxBytes: 1, Backups: -1, Compress: CompressZstd}, text)
	}
	settle(t, p)
	files, err := filepath.Glob(path + ".*.zst")
	if err != nil || len(files) < 2 {
		t.Fatalf("rotated files %q, %v", files, err)
	}
	if err := os.WriteFile(files[1], []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, q := range []Query{{}, {Files: true}} {
		if got := texts(all(p, q)); !slices.Equal(got, []string{"one", "1 line lost: the log file cannot be read", "three"}) {
			t.Errorf("%+v: %q", q, got)
		}
	}
}

// A file that an earlier agentinit has written is damaged, and later the directory is replaced. A
// reader is told at the place of the lines, and gets the lines of the other files.
func TestUnreadableHistory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	path := filepath.Join(dir, "log")
	p := newPlane(t, Config{})
	for i, text := range []string{"one\n", "two\n", "three\n"} {
		capture(t, p, Options{Program: "web", Run: uint64(i + 1), Path: path, MaxBytes: 1, Backups: -1, Compress: CompressZstd}, text)
	}
	settle(t, p)
	names, _ := archives(t, path)
	if err := os.WriteFile(names[1], []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	later := newPlane(t, Config{})
	capture(t, later, Options{Program: "web", Path: path, Backups: -1}, "new\n")
	flush(t, later)
	got := strings.Join(texts(all(later, Query{Files: true})), "; ")
	if want := "one; 1 line or more lost: cannot read " + names[1] + ": invalid input: magic number mismatch; three; new"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	got = strings.Join(texts(all(later, Query{Files: true})), "; ")
	if !strings.HasPrefix(got, "1 line or more lost: ") || !strings.HasSuffix(got, dir+": not a directory; 1 line lost: the log file cannot be read") {
		t.Errorf("without the directory: %s", got)
	}
}

// Many programs have printed long lines, to files of an earlier box and to files that rings refer to. A
// reader of all has only the text in memory whose turn has come.
func TestAReaderOfManyLogsHoldsLittleText(t *testing.T) {
	const programs, most = 20, 1 << 20
	dir := t.TempDir()
	p := newPlane(t, Config{MaxLine: 2 * most})
	long := strings.Repeat("x", most/2) + "\n"
	for i := range programs {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(long+long), 0o600); err != nil {
			t.Fatal(err)
		}
		capture(t, p, Options{Program: fmt.Sprint(i), To: ToFile, Path: path}, long+long)
	}
	sources := newReader(t, p, Query{Files: true}).sources()()
	lines := 0
	for range merge(t.Context(), sources) {
		lines++
		held := 0
		for _, s := range sources {
			var texts [][]byte
			switch s := s.(type) {
			case *chunkSource:
				texts = [][]byte{s.lines.text}
			case *gapSource:
				texts = [][]byte{s.lines.text, s.text}
				held += cap(s.frame.carry)
			}
			for _, text := range texts {
				if held += cap(text); len(text) == 0 && text != nil {
					t.Fatalf("after %d lines, an empty slice keeps its array", lines)
				}
			}
		}
		if held > 2*most {
			t.Fatalf("after %d lines, %d bytes of text are in memory", lines, held)
		}
	}
	if lines != programs*4 {
		t.Errorf("%d lines, want %d", lines, programs*4)
	}
}

// A program can make a compressed file that takes much memory to unpack. It is not unpacked.
func TestCompressedFileWithLargeWindow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	old := path + ".20261101T000000.000000000Z.zst"
	f, err := os.Create(old)
	if err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(f, zstd.WithWindowSize(2*zstdWindow))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, numbered(100_000)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, Backups: -1}, "new\n")
	flush(t, p)
	got := strings.Join(texts(all(p, Query{Files: true})), "; ")
	if want := "1 line or more lost: cannot read " + old + ": window size exceeded; new"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A crash has cut a compressed file. A reader gets the lines that can be unpacked, and is then told that
// there were more.
func TestCutCompressedFile(t *testing.T) {
	for _, c := range compressors {
		path := filepath.Join(t.TempDir(), "log")
		var packed bytes.Buffer
		w, err := c.writer(&packed)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200_000 {
			fmt.Fprintln(w, i)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		old := path + ".20261101T000000.000000000Z" + c.suffix
		if err := os.WriteFile(old, packed.Bytes()[:packed.Len()/2], 0o600); err != nil {
			t.Fatal(err)
		}
		p := newPlane(t, Config{})
		capture(t, p, Options{Program: "web", Path: path, Backups: -1}, "new\n")
		flush(t, p)
		got := texts(all(p, Query{Files: true}))
		n := len(got) - 3 // the last line of the file may be cut
		if n < 10_000 || got[n+1] != "1 line or more lost: cannot read "+old+": unexpected EOF" || got[n+2] != "new" {
			t.Fatalf("%s: %d lines, at the end %q", c.name, len(got), got[max(0, len(got)-3):])
		}
		for i, line := range got[:n] {
			if line != strconv.Itoa(i) {
				t.Fatalf("%s: line %d is %q", c.name, i, line)
			}
		}
	}
}

// A file that is gone is no trouble for a reader of the past, also if its directory went with it. A file
// that is there and cannot be opened is.
func TestFileThatCannotBeOpened(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	path := filepath.Join(dir, "log")
	p := newPlane(t, Config{})
	for i, text := range []string{"one\n", "two\n", "three\n"} {
		capture(t, p, Options{Program: "web", Run: uint64(i + 1), Path: path, MaxBytes: 1, Backups: -1}, text)
	}
	settle(t, p)
	names, _ := archives(t, path)
	if err := errors.Join(os.Rename(names[0], path+".moved"), os.Symlink(path+".moved", names[0])); err != nil {
		t.Fatal(err)
	}
	if got := texts(all(p, Query{})); !slices.Equal(got, []string{"1 line lost: the log file cannot be read", "two", "three"}) {
		t.Errorf("with a link in the place of the first file: %q", got)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if got := texts(all(p, Query{})); len(got) > 0 {
		t.Errorf("without the directory: %q", got)
	}
}

// Rotation removes files while a reader is at an older one. It is told of the hole, once, also if it does
// not follow. That older files are removed before it comes to the first one is no hole.
func TestFilesRemovedDuringRead(t *testing.T) {
	for name, tc := range map[string]struct {
		ring int
		hole string
	}{
		"the ring knows the files":    {0, "2 lines lost: the log file is gone"},
		"the ring has forgotten them": {1, "1 line or more lost: the log file is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			p := newPlane(t, Config{RingBytes: tc.ring})
			for run := range 6 {
				capture(t, p, Options{Program: "web", Run: uint64(run + 1), Path: path, MaxBytes: 1, Backups: -1}, strconv.Itoa(run)+"\n")
			}
			settle(t, p)
			names, _ := archives(t, path)
			if err := os.Remove(names[0]); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range p.Read(context.Background(), Query{Files: true}) {
				if got = append(got, line.Text); len(got) == 1 {
					if err := errors.Join(os.Remove(names[2]), os.Remove(names[3])); err != nil {
						t.Fatal(err)
					}
				}
			}
			if want := []string{"1", tc.hole, "4", "5"}; !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			if got := texts(all(p, Query{Files: true, Lines: 2})); !slices.Equal(got, []string{"4", "5"}) {
				t.Errorf("the newest lines: %q", got)
			}
		})
	}
}

// Rotation removes all files that there were when a reader began, before it has read a line. It is told of
// those of the current file.
func TestAllFilesRemovedDuringRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, MaxBytes: 4, Backups: 1})
	write(t, stdout, "1\n2\n3\n")
	waitForLines(p, 3)
	flush(t, p)
	r := &reader{ctx: t.Context(), plane: p, next: map[*programLog]*[2]uint64{}}
	defer r.close()
	sources := r.sources()
	write(t, stdout, "4\n5\n6\n7\n8\n9\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	settle(t, p)
	var got []string
	for ln := range merge(t.Context(), sources()) {
		got = append(got, ln.Text)
	}
	if want := []string{"1 line lost: the log file is gone"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A program, or another one, uses a file again after it was forgotten. The rings still have lines of the
// earlier run in that file, even after its rotation.
func TestFileIsForgottenBetweenRuns(t *testing.T) {
	for name, programs := range map[string][]string{"one program": {"web", "web", "web"}, "several programs": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, Config{})
			o := Options{Path: filepath.Join(t.TempDir(), "web"), MaxBytes: 30, Backups: -1, Compress: CompressZstd}
			var want []string
			for run, program := range programs {
				o.Program, o.Run = program, uint64(run+1)
				text := fmt.Sprintf("run %d line 0\nrun %d line 1\n", run, run)
				capture(t, p, o, text)
				want = append(want, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
				settle(t, p)
				for _, f := range p.files {
					for !f.queue.atRest() {
						runtime.Gosched() // the file is being closed
					}
				}
				p.mu.Lock()
				p.programs[program].files = [2]*fileSink{} // as if it had used another file since
				p.sweep()
				left := len(p.files)
				p.mu.Unlock()
				if left != 0 {
					t.Fatalf("%d files are known", left)
				}
			}
			if got := texts(all(p, Query{})); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// If the ring has forgotten lines after a reader's cursor, the reader gets a notice.
func TestCursorOfForgottenLines(t *testing.T) {
	p := newPlane(t, Config{RingBytes: 4096})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToNone})
	write(t, stdout, numbered(1000))
	closeAll(t, stdout, stderr)
	<-c.Done()
	lines := all(p, Query{After: 10})
	if len(lines) < 2 {
		t.Fatalf("the lines are %+v", lines)
	}
	if gap := lines[1].Seq - 11; lines[0].Dropped != gap || gap == 0 {
		t.Errorf("%d lines are said to be gone, want %d", lines[0].Dropped, gap)
	}
	// The number may be that of other programs' lines too.
	if want := fmt.Sprintf("%d lines or fewer ", lines[0].Dropped); !strings.HasPrefix(lines[0].Text, want) {
		t.Errorf("the notice says %q, want %q", lines[0].Text, want)
	}
	for _, after := range []uint64{0, lines[1].Seq} {
		if lines := all(p, Query{After: after}); len(lines) == 0 || lines[0].Dropped != 0 {
			t.Errorf("after %d: %+v", after, lines[:min(len(lines), 1)])
		}
	}
}

// The ring has forgotten most of a file. A reader of the file still knows roughly when the lines came.
func TestTimesOfForgottenLines(t *testing.T) {
	const runs = 5 * mostMarks // a mark for four of them, so that every second mark goes
	const inexact = 16
	p := newPlane(t, Config{RingBytes: 4096})
	path := filepath.Join(t.TempDir(), "log")
	var border time.Time
	for run := range uint64(runs) {
		if run == runs/2 {
			border = time.Now()
		}
		capture(t, p, Options{Program: "web", Run: run + 1, Path: path}, "hello\n")
	}
	if n := len(all(p, Query{Files: true, Lines: runs})); n != runs {
		t.Errorf("there are %d lines, want %d", n, runs)
	}
	if n := len(all(p, Query{Files: true, Until: border})); n > runs/2 || n < runs/2-inexact {
		t.Errorf("%d lines of the first half, want about %d", n, runs/2)
	}
	if n := len(all(p, Query{Files: true, Since: border})); n < runs/2 || n > runs/2+inexact {
		t.Errorf("%d lines of the second half, want about %d", n, runs/2)
	}
}

// The rings have forgotten whole rotated files. A reader still knows roughly when their lines came.
func TestTimesOfForgottenFiles(t *testing.T) {
	const lines, inexact = 1000, 100
	for _, compress := range []Compression{CompressNone, CompressZstd} {
		p := newPlane(t, Config{RingBytes: 4096})
		o := Options{Program: "web", Path: filepath.Join(t.TempDir(), "log"), MaxBytes: lines * 2 / 3 * 11, Backups: -1, Compress: compress}
		var border time.Time // within the first file
		for i := range lines {
			if i == lines/2 {
				border = time.Now()
			}
			o.Run = uint64(i + 1) // lines of one run that come at once would count as one arrival
			capture(t, p, o, fmt.Sprintf("line %05d\n", i))
		}
		capture(t, p, Options{Program: "web", To: ToNone}, numbered(1000)) // the ring forgets all of the files
		if n := len(all(p, Query{Files: true, Until: border})); n > lines/2 || n < lines/2-inexact {
			t.Errorf("%q: %d lines of the first half, want about %d", compress, n, lines/2)
		}
	}
}

// stdout and stderr share a file, and the rings have forgotten most of it. The reader gets the lines
// in the order of the file, wherever they come from.
func TestOrderOfTwoStreamsInOneFile(t *testing.T) {
	p := newPlane(t, Config{RingBytes: 4096})
	path := filepath.Join(t.TempDir(), "log")
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path})
	for i := range 600 {
		write(t, []*os.File{stdout, stderr}[min(i%3, 1)], fmt.Sprintf("%03d\n", i))
		waitForLines(p, i+1)
	}
	flush(t, p)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(texts(all(p, Query{Files: true})), "\n") + "\n"; got != string(text) {
		t.Errorf("got %q, the file is %q", got, text)
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
}

// A follower that was away takes some lines at once: what it has taken stays in memory until it is
// used. In the end it has all lines, in order.
func TestFollowerTakesSomeLinesAtOnce(t *testing.T) {
	const lines = 3*keptLines + 1
	p := newPlane(t, Config{RingBytes: 8 << 20})
	r := newReader(t, p, Query{})
	r.sources()
	for i := range lines {
		s := &stream{plane: p, program: p.program(fmt.Sprint(i % 3)), kind: Stdout}
		s.store(block{text: []byte("x\n"), lines: 1}, time.Now())
	}
	seen, last := 0, uint64(0)
	for more := true; more; {
		var sources []source
		sources, more = r.news()
		n := 0
		for it := range merge(t.Context(), sources) {
			if it.Seq != last+1 {
				t.Fatalf("line %d follows line %d", it.Seq, last)
			}
			last = it.Seq
			n++
		}
		if n > keptLines {
			t.Errorf("%d lines at once", n)
		}
		seen += n
	}
	if seen != lines {
		t.Errorf("%d lines, want %d", seen, lines)
	}
}

// A program prints lines of megabytes. What is kept of its last words is short, and a reader that
// wants the beginning of a line does not get all of it. In the file and in memory the lines stay
// whole.
func TestCutLines(t *testing.T) {
	letters := 1 << 19
	if testing.Short() {
		letters = 1 << 16
	}
	for _, to := range []To{ToNone, ToFile} {
		p := newPlane(t, Config{MaxLine: 4 * letters, RingBytes: 32 * letters})
		long := strings.Repeat("é", letters)
		c, stdout, stderr := open(t, p, Options{Program: "web", To: to, Path: filepath.Join(t.TempDir(), "log")})
		for range 6 {
			write(t, stdout, long+"\n")
		}
		waitForLines(p, 6) // until then the plane may read stderr first
		write(t, stderr, "end\n")
		closeAll(t, stdout, stderr)
		<-c.Done()
		flush(t, p)
		tail := c.Tail(50)
		if n := len(tail); n != 4 || len(tail[0].Text) != ExcerptLine || !tail[0].Truncated || tail[3].Text != "end" || tail[3].Truncated {
			t.Errorf("%s: the tail has %d lines", to, n)
		}
		for _, line := range all(p, Query{Cut: 101, Streams: []Stream{Stdout}, Grep: regexp.MustCompile("é$")}) {
			if line.Text != long[:100] || !line.Truncated {
				t.Errorf("%s: cut to %d bytes", to, len(line.Text))
			}
		}
		if line := all(p, Query{Lines: 1, Streams: []Stream{Stdout}})[0]; line.Text != long {
			t.Errorf("%s: whole line of %d bytes", to, len(line.Text))
		}
	}
}

// Queries about times that int64 nanoseconds cannot hold.
func TestTimesFarAway(t *testing.T) {
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", To: ToNone}, "line\n")
	past, future := time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		q    Query
		want int
	}{
		{Query{Since: past}, 1}, {Query{Since: future}, 0}, {Query{Until: past}, 0}, {Query{Until: future}, 1},
		{Query{Since: past, Until: future}, 1},
	} {
		if n := len(all(p, tc.q)); n != tc.want {
			t.Errorf("%+v gives %d lines, want %d", tc.q, n, tc.want)
		}
	}
}

// A full disk has lost lines that the ring still has. Before them in the file are lines that the ring
// has forgotten, and they come first.
func TestOrderAfterAFullDisk(t *testing.T) {
	p := newPlane(t, Config{RingBytes: 8192})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: filepath.Join(t.TempDir(), "log")})
	read := func(n int) {
		waitForLines(p, n)
		flush(t, p)
	}
	old := numbered(10_000)
	for lines := range slices.Chunk(strings.SplitAfter(old, "\n"), 10) {
		write(t, stdout, strings.Join(lines, ""))
	}
	read(10_000)
	s := c.streams[0]
	var lost strings.Builder
	for i := range 500 { // more than the ring holds, so that it has forgotten all that is in the file
		text := fmt.Sprintf("lost %d\n", i)
		lost.WriteString(text)
		s.store(block{text: []byte(text), lines: 1}, time.Now())
	}
	write(t, stdout, "new\n")
	read(10_501)
	got := strings.Join(texts(all(p, Query{Files: true})), "\n") + "\n"
	_, rest, ok := strings.Cut(got, old)
	if !ok || !strings.HasSuffix(lost.String()+"new\n", rest) || rest == "new\n" {
		t.Errorf("%d bytes of %q, then %q", len(got)-len(rest), got[:min(len(got), 50)], rest[max(0, len(rest)-200):])
	}
	closeAll(t, stdout, stderr)
	<-c.Done()
}

// The newline of a prompt that was shown before has a number, but is no line. A reader that wants n lines
// gets n nevertheless.
func TestNewestLinesAfterPrompts(t *testing.T) {
	for _, files := range []bool{false, true} {
		p := newPlane(t, Config{})
		c, stdout, stderr := open(t, p, Options{Program: "web", To: ToNone, FlushAfter: time.Millisecond})
		want := []string{"one", "two", "three"}
		for _, prompt := range want {
			follow, stop := context.WithCancel(t.Context())
			write(t, stdout, prompt)
			for line := range p.Read(follow, Query{Follow: true}) {
				if line.Text == prompt {
					break
				}
			}
			stop()
			write(t, stdout, "\n")
		}
		closeAll(t, stdout, stderr)
		<-c.Done()
		for n := 1; n <= 3; n++ {
			if got := texts(all(p, Query{Lines: n, Files: files})); !slices.Equal(got, want[3-n:]) {
				t.Errorf("files %v: the newest %d lines are %q", files, n, got)
			}
			if got := texts(c.Tail(n)); !slices.Equal(got, want[3-n:]) {
				t.Errorf("the last %d lines are %q", n, got)
			}
		}
	}
}

// A program may have given a file the name of a time that int64 cannot hold in nanoseconds.
func TestRotatedFileOfTheFarFuture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path+".24000101T000000.000000000Z", []byte("late\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{})
	capture(t, p, Options{Program: "web", Path: path, Backups: -1}, "now\n")
	now := time.Now()
	for name, tt := range map[string]struct {
		query Query
		want  bool
	}{
		"since": {Query{Files: true, Since: now}, true},
		"until": {Query{Files: true, Until: now}, false},
	} {
		if got := slices.Contains(texts(all(p, tt.query)), "late"); got != tt.want {
			t.Errorf("%s: the line is shown: %v", name, got)
		}
	}
}

// A line longer than max_line may go on in the next file, or begin in text that a ring has forgotten. A reader of
// the files gets it in parts, each marked but the last one.
func TestPartsOfLongLinesInFilesAreMarked(t *testing.T) {
	var text strings.Builder
	for i := range 3000 {
		text.WriteString(strings.Repeat(string(rune('a'+i%26)), i%7*40) + "\n")
	}
	for _, rate := range []Rate{{}, {Lines: 1_000_000}} { // through a pump, and through the queue
		for _, compress := range []Compression{CompressNone, CompressGzip} {
			p := newPlane(t, Config{RingBytes: 8 << 10})
			path := filepath.Join(t.TempDir(), "log")
			capture(t, p, Options{Program: "web", Path: path, MaxLine: 32, MaxBytes: 1000, Backups: -1, Rate: rate, Compress: compress}, text.String())
			settle(t, p)
			var got strings.Builder
			for _, l := range all(p, Query{Files: true}) {
				got.WriteString(l.Text)
				if !l.Truncated {
					got.WriteByte('\n')
				}
			}
			if got.String() != text.String() {
				at := 0
				for got.String()[at] == text.String()[at] {
					at++
				}
				t.Errorf("%+v, %q: another text from byte %d on: %.80q, want %.80q", rate, compress, at, got.String()[at:], text.String()[at:])
			}
		}
	}
}
