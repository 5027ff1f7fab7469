package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// pathWatch reports when a path may name another file, or when the content of the file may have
// changed. It uses inotify(7) on the file, its directory and the directories above, and poll(2) on
// the list of mounts (proc(5)) for mounts over any of them. Without a change it does not wake up.
//
// pathWatch does not detect bytes written through a shared mapping, or a changed link among the
// directories above, because inotify does not report them.
type pathWatch struct {
	path    string
	broken  error // why the watch has ended
	inotify *os.File
	fd      int // the inotify descriptor; os.File.Fd would make it blocking
	mounts  *os.File
	armed   map[uint32]bool // watches of the latest call of arm
	// events is where readInotify reads to. It is a field so that it is on the heap: a variable would
	// be on the stack, which would grow to 128 KiB and stay in memory.
	events []byte

	// changed is unbuffered, so that the readers of the kernel's events are not faster
	// than the receiver. An error ends the watch.
	changed chan error
	stop    chan struct{}
	readers sync.WaitGroup
}

// The events watched for the file, in addition for its directory, and for all directories above it.
// Reading any of them causes none of these events.
const (
	fileEvents      = unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_DONT_FOLLOW
	directoryEvents = ancestorEvents | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	ancestorEvents  = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_ONLYDIR
)

// newPathWatch returns a watch that begins with arm. If watching is impossible, arm returns the
// error. The caller closes the watch.
func newPathWatch(path string) *pathWatch {
	w := &pathWatch{path: path, changed: make(chan error), stop: make(chan struct{})}
	if w.mounts, w.broken = os.OpenFile("/proc/self/mountinfo", os.O_RDONLY|unix.O_NONBLOCK, 0); w.broken != nil {
		return w
	}
	if w.fd, w.broken = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); w.broken != nil {
		return w
	}
	w.inotify, w.events = os.NewFile(uintptr(w.fd), "inotify"), make([]byte, 64<<10)
	w.readers.Go(w.readInotify)
	w.readers.Go(w.readMounts)
	return w
}

// arm watches the file that the path leads to now. A caller that first calls arm and then reads the
// file misses no change. fs.ErrNotExist means that there is no directory to watch.
func (w *pathWatch) arm() error {
	if w.broken != nil {
		return w.broken
	}
	armed := make(map[uint32]bool)
	add := func(path string, events uint32) error {
		wd, err := unix.InotifyAddWatch(w.fd, path, events)
		if err != nil {
			return fmt.Errorf("inotify_add_watch %s: %w", path, err)
		}
		armed[uint32(wd)] = true
		return nil
	}
	dir := filepath.Dir(w.path)
	if err := add(dir, directoryEvents); err != nil {
		return err
	}
	for dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		// A directory that agentinit may not read cannot be watched.
		if err := add(dir, ancestorEvents); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	// If the file does not exist, the watch of its directory reports when it appears. If agentinit
	// may not read the file, check finds that out.
	if err := add(w.path, fileEvents); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	for wd := range w.armed {
		if !armed[wd] {
			// EINVAL: the watched file is gone, and the kernel has removed its watch.
			_, _ = unix.InotifyRmWatch(w.fd, wd)
		}
	}
	w.armed = armed
	return nil
}

// readInotify ignores the content of the events. One check of the file covers all of them,
// including those that the kernel dropped (IN_Q_OVERFLOW).
func (w *pathWatch) readInotify() {
	for {
		_, err := w.inotify.Read(w.events)
		if !w.tell(err) || err != nil {
			return
		}
	}
}

// readMounts waits until the poller reports a change in the list of mounts. The list itself is not
// read.
func (w *pathWatch) readMounts() {
	conn, err := w.mounts.SyscallConn()
	for err == nil {
		woken := false
		err = conn.Read(func(uintptr) bool {
			was := woken
			woken = true
			return was
		})
		if !w.tell(err) {
			return
		}
	}
}

func (w *pathWatch) tell(err error) bool {
	select {
	case w.changed <- err:
		return true
	case <-w.stop:
		return false
	}
}

// wait returns when something may have changed since arm, when the watch has ended with an error,
// or when ctx ends.
func (w *pathWatch) wait(ctx context.Context) {
	select {
	case w.broken = <-w.changed:
	case <-ctx.Done():
	}
}

func (w *pathWatch) close() {
	close(w.stop)
	// Both files were only read, so an error of Close does not matter.
	if w.inotify != nil {
		_ = lateclose.Hand(w.fd, w.inotify.Close)
	}
	if w.mounts != nil {
		_ = w.mounts.Close()
	}
	w.readers.Wait()
}
