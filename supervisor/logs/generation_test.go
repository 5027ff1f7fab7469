package logs

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// heldOpens makes every open of a file wait, as a dead file server does (fanotify(7)). next waits for
// such an open and returns the function that lets it go on.
func heldOpens(t *testing.T, path string) (next func() (allow func())) {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err == nil {
		t.Cleanup(func() {
			if err := unix.Close(fd); err != nil { // lets go on what still waits
				t.Error(err)
			}
		})
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path)
	}
	if err != nil {
		t.Skip("needs root: cannot hold the open of a file: ", err)
	}
	return func() (allow func()) {
		t.Helper()
		var event unix.FanotifyEventMetadata
		buf := unsafe.Slice((*byte)(unsafe.Pointer(&event)), unsafe.Sizeof(event))
		var err error
		retry(func() error { _, err = unix.Read(fd, buf); return err })
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			answer := unix.FanotifyResponse{Fd: event.Fd, Response: unix.FAN_ALLOW}
			buf := unsafe.Slice((*byte)(unsafe.Pointer(&answer)), unsafe.Sizeof(answer))
			if _, err := unix.Write(fd, buf); err != nil {
				t.Error(err)
			}
			if err := unix.Close(int(event.Fd)); err != nil {
				t.Error(err)
			}
		}
	}
}

// While a reader waits for the disk of a rotated file, all other work with the file goes on. The file may
// be moved meanwhile, and the reader finds it at its new place.
func TestReaderWaitsForADiskWithoutALock(t *testing.T) {
	for name, want := range map[string]error{"moved": nil, "left in its place": errGone} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			moved := path + ".moved"
			if err := errors.Join(os.WriteFile(moved, []byte("old"), 0o600), os.WriteFile(path, []byte("new"), 0o600)); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(moved)
			if err != nil {
				t.Fatal(err)
			}
			g := &generation{path: path, ino: inode(info)}
			next := heldOpens(t, path)
			type result struct {
				reader *generationReader
				err    error
			}
			results := make(chan result)
			go func() {
				r, err := g.reader()
				results <- result{r, err}
			}()
			allow := next()
			if g.mu.TryLock() {
				if g.mu.Unlock(); want == nil {
					g.retire(moved)
				}
			} else {
				t.Error("a reader that waits for the disk holds the lock of the file")
			}
			allow()
			got := <-results
			if !errors.Is(got.err, want) {
				t.Fatalf("error %v, want %v", got.err, want)
			}
			if got.err != nil {
				return
			}
			defer got.reader.close()
			if text, err := got.reader.read(0, 3); err != nil || string(text) != "old" {
				t.Errorf("read %q, %v", text, err)
			}
		})
	}
}

// Every program needs the lock of the plane, so it does not wait for the lock of one file.
func TestThePlaneDoesNotWaitForAFile(t *testing.T) {
	p := newPlane(t, Config{})
	was, is := &generation{}, &generation{}
	f := &fileSink{plane: p, queued: []*generation{was}}
	was.mu.RLock()
	noted := make(chan struct{})
	go func() {
		f.noteFile(is)
		close(noted)
	}()
	for was.mu.TryRLock() { // until noteFile waits for this lock: then it refuses new readers
		was.mu.RUnlock()
		runtime.Gosched()
	}
	if p.mu.TryLock() {
		p.mu.Unlock()
	} else {
		t.Error("the lock of the plane is held")
	}
	was.mu.RUnlock()
	<-noted
	if len(f.queued) != 1 || f.queued[0] != is {
		t.Errorf("the list of files is %v", f.queued)
	}
}
