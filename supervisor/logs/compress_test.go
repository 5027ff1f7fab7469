package logs

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/rotated"
)

// rotatedFiles makes the rotated files of a log, the oldest first.
func rotatedFiles(t *testing.T, n int) (a *archive, files []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	a = &archive{path: path, report: func(error) {}, listings: &listings{}, more: make(chan struct{}, 1)}
	for range n {
		if err := os.WriteFile(path, []byte("line\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		name, err := a.shift(func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, name)
	}
	return a, files
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// A program can leave a file of terabytes that takes no space on the disk. It is not compressed, and
// the others are.
func TestAFileWithHolesIsNotCompressed(t *testing.T) {
	a, files := rotatedFiles(t, 3)
	if err := os.Truncate(files[1], 1<<42); err != nil {
		t.Skipf("the file system takes no file of 4 TiB: %v", err)
	}
	if _, err := a.clean(&Options{Backups: -1, Compress: CompressZstd}, 0, time.Now()); !errors.Is(err, errHoles) {
		t.Errorf("error %v", err)
	}
	for i, f := range files {
		if holes := i == 1; exists(t, f) != holes || exists(t, f+".zst") == holes {
			t.Errorf("file %d: there %v, compressed %v", i, exists(t, f), exists(t, f+".zst"))
		}
	}
}

// The report about files that cannot be compressed has a bounded length: a program can make a hundred
// thousand of them.
func TestManyFilesThatCannotBeCompressed(t *testing.T) {
	a, files := rotatedFiles(t, 50)
	for _, f := range files {
		if err := os.Truncate(f, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	_, err := a.clean(&Options{Backups: -1, Compress: CompressZstd}, 0, time.Now())
	if !errors.Is(err, errHoles) || len(err.Error()) > 500 {
		t.Errorf("error of %d bytes: %.500v", len(fmt.Sprint(err)), err)
	}
}

// While a file of another program is being compressed, the files above the limits go all the same.
func TestOldFilesGoWhileAnotherIsCompressed(t *testing.T) {
	busy := make(chan struct{})
	lowPriority() <- func() { <-busy }
	a, files := rotatedFiles(t, 4)
	for most := 3; most > 0; most-- { // the first round waits for its turn to compress
		a.tidy(&Options{Backups: most, Compress: CompressZstd}, 0)
		for exists(t, files[3-most]) {
			runtime.Gosched()
		}
	}
	if !exists(t, files[3]) {
		t.Error("a file within the limits is gone")
	}
	close(busy)
	if err := a.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(t, files[3]) || !exists(t, files[3]+".zst") {
		t.Error("it is not compressed after that")
	}
}

// withoutSync calls f on a thread for which fsync(2) fails, as it does for a broken disk.
func withoutSync(t *testing.T, f func() error) error {
	t.Helper()
	filter := []unix.SockFilter{ // see seccomp(2)
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	refused, result := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with this goroutine
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
			if errno != 0 {
				err = errno
			}
		}
		if refused <- err; err == nil {
			result <- f()
		}
	}()
	if err := <-refused; err != nil {
		t.Skip("needs a kernel with seccomp filters: ", err)
	}
	return <-result
}

// A file is removed only after the disk has its compressed form.
func TestAFileStaysUntilItsCompressedFormIsOnTheDisk(t *testing.T) {
	for _, c := range compressors {
		a, files := rotatedFiles(t, 1)
		err := withoutSync(t, func() error { return inDirectory(files[0], c.replace) })
		left, _ := filepath.Glob(a.path + ".*")
		if !errors.Is(err, unix.EIO) || !slices.Equal(left, files) {
			t.Errorf("%s: error %v, left %q", c.name, err, left)
		}
	}
}

// The age of a rotated file counts from its rotation, whether it was compressed meanwhile or not.
func TestTheAgeOfARotatedFile(t *testing.T) {
	for _, compress := range []Compression{CompressNone, CompressGzip} {
		a, _ := rotatedFiles(t, 0)
		begun := time.Now().Add(-2 * time.Hour)
		name := a.path + "." + begun.UTC().Format(rotated.Layout)
		if err := os.WriteFile(name, []byte("line\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		o := &Options{Backups: -1, MaxAge: 3 * time.Hour, Compress: compress}
		for _, age := range []time.Duration{2 * time.Hour, o.MaxAge - 1} {
			old, err := a.clean(o, 0, begun.Add(age))
			if err != nil || !old.Equal(begun.Add(o.MaxAge)) {
				t.Errorf("%q after %v: too old at %v, error %v", compress, age, old, err)
			}
			if left, _ := archives(t, a.path); len(left) != 1 {
				t.Errorf("%q after %v: left %q", compress, age, left)
			}
		}
		if old, err := a.clean(o, 0, begun.Add(o.MaxAge)); err != nil || !old.IsZero() {
			t.Errorf("%q at its end: too old at %v, error %v", compress, old, err)
		}
		if left, _ := archives(t, a.path); len(left) != 0 {
			t.Errorf("%q at its end: left %q", compress, left)
		}
	}
}

// After a clock that was ahead for one rotation, the names of all rotated files have a time to come. The age of
// a file then counts from its last change.
func TestTheAgeOfAFileWithATimeToCome(t *testing.T) {
	now := time.Now()
	a, _ := rotatedFiles(t, 0)
	o := &Options{Backups: -1, MaxAge: time.Hour}
	var names []string
	for i, modified := range []time.Time{now.Add(time.Hour), now.Add(-2 * time.Hour), now.Add(-time.Minute)} {
		name := a.path + "." + now.AddDate(10, 0, i).UTC().Format(rotated.Layout)
		if err := errors.Join(os.WriteFile(name, []byte("line\n"), 0o600), os.Chtimes(name, modified, modified)); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	old, err := a.clean(o, 0, now)
	left, _ := archives(t, a.path)
	if want := []string{names[0], names[2]}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left %q, want %q; error %v", left, want, err)
	}
	if want := now.Add(-time.Minute + o.MaxAge); !old.Equal(want) {
		t.Errorf("the next one is too old at %v, want %v", old, want)
	}
}

// After a crash at the end of a compression, both forms of a file are one backup, and they go together.
func TestBothFormsOfAFileAreOneBackup(t *testing.T) {
	a, files := rotatedFiles(t, 3)
	if err := os.WriteFile(files[2]+".gz", []byte("packed"), 0o600); err != nil {
		t.Fatal(err)
	}
	for backups := 3; backups >= 0; backups-- {
		var want []string
		if backups > 0 {
			want = append(slices.Clone(files[3-backups:]), files[2]+".gz")
		}
		if _, err := a.clean(&Options{Backups: backups}, 0, time.Now()); err != nil {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(a.path + ".*"); !slices.Equal(left, want) {
			t.Errorf("backups = %d: left %q, want %q", backups, left, want)
		}
	}
}

// A crash during a compression leaves an unfinished file. The next compression replaces it. If there is
// none, it goes with the file that it was made of.
func TestAnUnfinishedCompressionLeavesNothing(t *testing.T) {
	for _, o := range []Options{{Backups: -1, Compress: CompressGzip}, {Backups: 1, Compress: CompressGzip}, {Backups: 1}} {
		a, files := rotatedFiles(t, 2)
		part := files[0] + ".gz.part"
		if err := os.WriteFile(part, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.clean(&o, 0, time.Now()); err != nil {
			t.Fatal(err)
		}
		if exists(t, part) || exists(t, files[0]+".gz") != (o.Backups < 0) || exists(t, files[0]) {
			left, _ := filepath.Glob(a.path + ".*")
			t.Errorf("%+v: left %q", o, left)
		}
	}
}

// counted counts how many of the readers that a compressor has made are open.
type counted struct {
	io.ReadCloser
	open *atomic.Int64
}

func (c counted) Close() error {
	c.open.Add(-1)
	return c.ReadCloser.Close()
}

// The parts of many compressed files that no ring has are between lines that rings have, at the same
// times in all files. To unpack a file takes memory, so a reader unpacks a few at once, and still gets each
// line once.
func TestAReaderUnpacksFewFilesAtOnce(t *testing.T) {
	const programs, parts = 3 * unpackPerReader, 5
	var unpacking atomic.Int64
	c := compressorOf(CompressZstd)
	reader := c.reader
	t.Cleanup(func() { c.reader = reader })
	c.reader = func(r io.Reader) (io.ReadCloser, error) {
		rc, err := reader(r)
		if err != nil {
			return nil, err
		}
		unpacking.Add(1)
		return counted{rc, &unpacking}, nil
	}
	r := newReader(t, newPlane(t, Config{}), Query{})
	dir := t.TempDir()
	var sources []source
	var want []string
	for i := range programs {
		var text strings.Builder
		var spans []span
		for n := range parts {
			fmt.Fprintf(&text, "%d of %d\n", n, i)
			off := int64(text.Len())
			text.WriteString("in a ring\n")
			spans = append(spans, span{off: off, end: int64(text.Len()), seq: uint64(n*programs + i + 1)})
		}
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := errors.Join(os.WriteFile(path, []byte(text.String()), 0o600), c.compress(path, nil)); err != nil {
			t.Fatal(err)
		}
		files := []logFile{{path: path, size: int64(text.Len()), spans: spans}}
		sources = append(sources, &gapSource{reader: r, files: files, limit: math.MaxUint64, frame: framer{max: 1000}})
	}
	for n := range parts {
		for i := range programs {
			want = append(want, fmt.Sprintf("%d of %d", n, i))
		}
	}
	var got []string
	most := int64(0)
	for ln := range merge(t.Context(), sources) {
		got = append(got, ln.Text)
		most = max(most, unpacking.Load())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if most != unpackPerReader {
		t.Errorf("the reader unpacks %d files at once, want %d", most, unpackPerReader)
	}
	if n := unpacking.Load(); n != 0 {
		t.Errorf("the reader has left %d files open", n)
	}
}
