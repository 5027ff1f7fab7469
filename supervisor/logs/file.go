package logs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fileHold is how long a disk that takes nothing may hold a program before the
// file loses lines instead.
const fileHold = 5 * time.Second

// fileSink appends raw bytes to one file and rotates it on line borders. Programs
// that name the same path share it. All file work is done by its queue's
// goroutine, so that no other program waits for this disk.
type fileSink struct {
	path    string
	options atomic.Pointer[Options]
	queue   *queue
	archive *archive
	report  func(error)
	refs    int // guarded by Plane.mu

	wantReopen, wantClose atomic.Bool

	// The rest belongs to the queue's goroutine.
	file      *os.File
	size      int64
	lineStart bool // the file is empty or ends with a newline
	known     bool // it has been opened before
	failing   bool
	lost      uint64 // bytes not taken since it began to fail
}

// isConsolePath knows the paths by which people mean agentinit's own output.
// Opening them fails for a socket, or for a pipe of another user.
func isConsolePath(path string) bool {
	switch path {
	case "", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2", "/proc/self/fd/1", "/proc/self/fd/2":
		return true
	}
	return false
}

// openFile returns the sink of a path. Of programs that share a path the options
// of the newest run count. A sink stays known when its file is closed, so that a
// path never has two writers; one at rest goes when another path is opened.
func (p *Plane) openFile(o Options) *fileSink {
	path := filepath.Clean(o.Path)
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.files[path]
	if f == nil {
		p.sweep()
		f = &fileSink{path: path, lineStart: true}
		f.report = func(err error) { p.trouble(f.options.Load().Program, err) }
		f.archive = &archive{path: path, report: f.report}
		f.queue = &queue{limit: queueLimit, hold: fileHold, write: f.write, mark: fileMark}
		p.files[path] = f
	}
	f.refs++
	f.options.Store(&o)
	f.wantClose.Store(false)
	f.queue.kick()
	return f
}

// sweep forgets the sinks that nobody uses, that have nothing left to do, and
// nothing left to say to a program that comes back. The caller holds mu, without
// which nothing can wake them.
func (p *Plane) sweep() {
	maps.DeleteFunc(p.files, func(_ string, f *fileSink) bool {
		return f.refs == 0 && f.queue.atRest() && !f.failing && f.lost == 0 && f.archive.atRest()
	})
}

// release lets go of a sink; the last user closes the file.
func (p *Plane) release(f *fileSink) {
	if f == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.refs--; f.refs == 0 {
		f.wantClose.Store(true)
		f.queue.kick()
	}
}

func (f *fileSink) reopen() {
	f.wantReopen.Store(true)
	f.queue.kick()
}

func (f *fileSink) admit(s *stream) bool                    { return f.queue.admit(s) }
func (f *fileSink) put(s *stream, out []byte, raw int) bool { return f.queue.put(s, out, raw) }

func (f *fileSink) encode(b *batch, _ *stream, ln rawLine) []byte {
	out := append(b.out, ln.text...)
	if ln.nl {
		out = append(out, '\n')
	}
	return out
}

func fileMark(dropped uint64) []byte {
	return fmt.Appendf(nil, "agentinit: %d bytes of output dropped: this file did not take them in time\n", dropped)
}

// write is the queue's: it takes a batch to disk, whatever the disk's state.
func (f *fileSink) write(b []byte) (lost int) {
	if f.wantReopen.Swap(false) || f.vanished() {
		f.close()
	}
	closing := f.wantClose.Load()
	if len(b) > 0 || !closing {
		rest, err := f.deliver(b)
		lost = len(rest)
		f.judge(uint64(lost), err)
	}
	if closing {
		f.close()
	}
	return lost
}

func (f *fileSink) deliver(b []byte) (rest []byte, err error) {
	if err := f.open(); err != nil {
		return b, err
	}
	if f.lost > 0 && len(b) > 0 {
		if _, err := f.append(fileMark(f.lost)); err != nil {
			return b, err
		}
		f.lost = 0
	}
	limit := f.options.Load().MaxBytes
	for len(b) > 0 {
		cut := rotationCut(b, limit-f.size, f.lineStart, f.size == 0)
		if limit <= 0 {
			cut = len(b)
		}
		if cut == 0 {
			if err := f.rotate(); err != nil {
				return b, err
			}
			continue
		}
		n, err := f.append(b[:cut])
		b = b[n:]
		if err != nil {
			return b, err
		}
	}
	return nil, nil
}

// judge reports the first failure and the recovery, and sums up for the text what
// is lost between.
func (f *fileSink) judge(lost uint64, err error) {
	if err != nil {
		f.close() // a later batch tries from the start
		f.lost += lost
	}
	if (err != nil) != f.failing {
		f.failing = err != nil
		f.report(err)
	}
}

func (f *fileSink) append(b []byte) (int, error) {
	n, err := f.file.Write(b)
	f.size += int64(n)
	if n > 0 {
		f.lineStart = b[n-1] == '\n'
	}
	return n, err
}

func (f *fileSink) open() error {
	if f.file != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("cannot open log file: %w", err)
	}
	// A program may own the directory: no link may lead elsewhere, and a FIFO
	// must not make the open wait.
	file, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return fmt.Errorf("cannot open log file: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.path)
	}
	if err != nil {
		_ = file.Close() // nothing was written
		return fmt.Errorf("cannot open log file: %w", err)
	}
	f.file, f.size, f.lineStart = file, info.Size(), true
	f.archive.tidy(f.options.Load(), f.size)
	err = f.endOldLine()
	f.known = true
	return err
}

// endOldLine ends a line that an earlier agentinit left unfinished at the end of
// the file. What this one leaves unfinished its queue knows.
func (f *fileSink) endOldLine() error {
	if f.size == 0 || f.known {
		return nil
	}
	var last [1]byte
	if _, err := f.file.ReadAt(last[:], f.size-1); err != nil {
		return fmt.Errorf("cannot read the end of the log file: %w", err)
	}
	if last[0] == '\n' {
		return nil
	}
	_, err := f.append([]byte{'\n'})
	return err
}

// vanished says that the open file has lost its name.
func (f *fileSink) vanished() bool {
	if f.file == nil {
		return false
	}
	info, err := f.file.Stat()
	if err != nil {
		return true
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

func (f *fileSink) close() {
	if f.file == nil {
		return
	}
	if err := f.file.Close(); err != nil {
		// Some file systems tell only now that they lost data.
		f.report(fmt.Errorf("cannot close log file: %w", err))
	}
	f.file = nil
}

func (f *fileSink) rotate() error {
	f.close()
	if err := f.archive.shift(); err != nil {
		return err
	}
	return f.open()
}
