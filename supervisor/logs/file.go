package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// fileHold is how long a disk that takes no data may hold a program. After that, lines of the file
// are lost instead.
const fileHold = 5 * time.Second

// fileSink appends raw bytes to one file and rotates it between lines. Programs that name the same
// path share it. Only its queue's goroutine works on the file, so that no other program waits for
// this disk.
type fileSink struct {
	plane   *Plane
	path    string
	options atomic.Pointer[Options]
	queue   *queue
	archive *archive
	report  func(error)
	refs    int                        // guarded by Plane.mu
	kind    Stream                     // Stderr for a file of stderr only; guarded by Plane.mu
	current atomic.Pointer[generation] // the same as gen, for readers
	queued  []*generation              // files with text that a ring has as text; guarded by Plane.mu, changed by the queue's goroutine
	fresh   []*generation              // rotated files with text of parts; guarded as queued
	past    []*generation              // the newest rotated files, for their marks; guarded as queued

	wantReopen, wantClose atomic.Bool
	failure               atomic.Pointer[error] // why the last attempt to write failed; nil if it did not

	// Only the queue's goroutine uses the fields below.
	file      *os.File
	gen       *generation
	parts     []filePart // where deliver has written its last batch
	size      int64
	lineStart bool      // the file is empty or ends with a newline
	lineBytes int       // length of the unfinished line at the end, up to Options.MaxLine
	known     bool      // the end of its text, if it has some, was written by this sink
	begun     time.Time // when the file was begun, for rotation by time
	due       time.Time // when rotation by time is due; zero: never
	planned   *Options  // what due was computed from
	retryAt   time.Time // when a rotation that was refused is tried again; zero: the last one was not
	timer     *time.Timer
	expired   *atomic.Bool // whether the timer has fired; a new one for each timer
}

// filePart is a place in a file.
type filePart struct {
	gen *generation
	off int64
	n   int
}

// isConsolePath recognises the paths by which people mean agentinit's own output. To open them
// fails for a socket, or for a pipe of another user.
func isConsolePath(path string) bool {
	switch path {
	case "", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2", "/proc/self/fd/1", "/proc/self/fd/2":
		return true
	}
	return false
}

func (f *fileSink) reopen() {
	f.wantReopen.Store(true)
	f.queue.kick()
}

func (f *fileSink) admit(s *stream) bool                    { return f.queue.admit(s) }
func (f *fileSink) put(s *stream, out []byte, raw int) bool { return f.queue.put(s, out, raw) }

func (f *fileSink) encode(b *batch, _ *stream, blk block) []byte { return append(b.out, blk.text...) }

func fileMark(dropped uint64) []byte {
	return fmt.Appendf(nil, "agentinit: %s of output dropped: this file did not take them in time\n", plural.Of(dropped, "byte"))
}

// write is called by the queue: it writes a batch to disk. What the disk does not take is kept,
// because a disk that is full, read-only or missing may work again later.
func (f *fileSink) write(b []byte) (lost, kept int) {
	f.refresh()
	closing := f.wantClose.Load()
	if len(b) > 0 || !closing {
		rest, err := f.deliver(b)
		f.judge(err)
		kept = len(rest)
		f.noteQueued(f.queue.taken)
	}
	if closing && kept == 0 {
		f.close()
	}
	return 0, kept
}

// noteQueued records in the generations where deliver has written a batch that no ring refers to.
func (f *fileSink) noteQueued(pieces []piece) {
	done := 0 // bytes of pieces[0]
	for _, p := range f.parts {
		f.noteFile(p.gen)
		for p.n > 0 && len(pieces) > 0 {
			n := min(p.n, pieces[0].n-done)
			p.gen.enqueue(p.off, n, pieces[0])
			p.off, p.n, done = p.off+int64(n), p.n-n, done+n
			if done == pieces[0].n {
				pieces, done = pieces[1:], 0
			}
		}
	}
	f.noted()
}

// noted ends a batch: readers can find out which ring has the text in parts.
func (f *fileSink) noted() {
	f.parts = f.parts[:0]
	if len(f.fresh) > 0 {
		f.plane.mu.Lock()
		defer f.plane.mu.Unlock()
		f.fresh = nil
	}
}

// noteFresh tells readers, before the current file is rotated, that no ring refers to its newest text
// yet. Otherwise they would take that text for older than all text in the rings, and get it twice.
func (f *fileSink) noteFresh() {
	if n := len(f.parts); n == 0 || f.parts[n-1].gen != f.gen {
		return
	}
	f.plane.mu.Lock()
	defer f.plane.mu.Unlock()
	f.fresh = append(f.fresh, f.gen)
}

// noteFile lets readers find out, even after the file was rotated, which of its lines a ring has as
// text.
func (f *fileSink) noteFile(gen *generation) {
	if n := len(f.queued); n > 0 && f.queued[n-1] == gen {
		return
	}
	// Each generation has a lock, and Plane.mu, which all programs need, must not wait for it.
	queued := slices.DeleteFunc(slices.Clone(f.queued), (*generation).isForgotten)
	f.plane.mu.Lock()
	defer f.plane.mu.Unlock()
	f.queued = append(queued, gen)
}

// refresh closes a file that has lost its name or its text or that must be reopened, and rotates a
// file whose time has come.
func (f *fileSink) refresh() {
	switch lost, emptied := f.vanished(); {
	case f.wantReopen.Swap(false) && f.moved():
		f.abandon()
	case lost:
		f.abandon()
		f.report(fmt.Errorf("the log file %s was removed; new output goes into a new file", f.path))
	case emptied:
		f.abandon()
	}
	if f.file == nil {
		return
	}
	if f.options.Load() != f.planned {
		f.schedule(f.begun) // a newer run may have other times
	}
	if f.due.IsZero() {
		return
	}
	switch now := time.Now(); {
	case now.Round(0).Before(f.begun.Round(0)):
		f.schedule(now) // the clock was set back
	case now.Before(f.due):
		if f.expired.Load() {
			f.schedule(f.begun) // the clock was set back a little
		}
	case f.lineStart: // an unfinished line must end first
		if err := f.rotate(); err != nil {
			f.judge(err)
		}
	}
}

// deliver appends b and records in parts where it was written.
func (f *fileSink) deliver(b []byte) (rest []byte, err error) {
	f.parts = f.parts[:0]
	if err := f.open(); err != nil {
		return b, err
	}
	limit := f.maxBytes()
	for len(b) > 0 {
		cut := len(b)
		if limit > 0 {
			// A line longer than MaxLine is in pieces everywhere, so it may be cut here too.
			// Otherwise a program that never ends its line could fill the disk.
			endless := f.lineBytes >= f.options.Load().MaxLine
			cut = rotationCut(b, limit-f.size, f.lineStart || endless, f.size == 0)
		}
		if cut == 0 {
			f.noteFresh()
			if err := f.rotate(); err != nil {
				return b, err
			}
			limit = f.maxBytes() // another one if the file could not be renamed
			continue
		}
		n, err := f.append(b[:cut])
		if n > 0 {
			f.parts = append(f.parts, filePart{f.gen, f.size - int64(n), n})
		}
		b = b[n:]
		if err != nil {
			return b, err
		}
	}
	return nil, nil
}

// judge reports the first failure and the recovery.
func (f *fileSink) judge(err error) {
	was := f.failure.Load() != nil
	if err != nil {
		f.close() // a later batch opens the file again
		f.failure.Store(&err)
	} else if was {
		f.failure.Store(nil)
	}
	if (err != nil) != was {
		f.report(err)
	}
}

// missing is the error about bytes that the file has not taken.
func (f *fileSink) missing(n int) error {
	err := fmt.Errorf("cannot write %s to %s", plural.Of(n, "byte"), f.path)
	failure := f.failure.Load()
	if failure == nil {
		return err // it has just begun to work again
	}
	why := *failure
	if errno, ok := errors.AsType[syscall.Errno](why); ok {
		why = errno // the errors around it name the path again
	}
	return fmt.Errorf("%w: %w", err, why)
}

func (f *fileSink) append(b []byte) (int, error) {
	n, err := f.file.Write(b)
	first := f.size == 0 && n > 0
	f.size += int64(n)
	if n > 0 {
		// Another process may have appended to the file as well. After a write with O_APPEND, the offset
		// of the descriptor is the end of what was written. If it is less than the size, the file was
		// truncated, which vanished finds out.
		if end, err := f.file.Seek(0, io.SeekCurrent); err == nil {
			f.size = max(f.size, end)
		}
	}
	if first {
		f.schedule(time.Now())
	}
	if n > 0 {
		end := bytes.LastIndexByte(b[:n], '\n') + 1
		if f.lineStart = end == n; end > 0 {
			f.lineBytes = 0
		}
		f.lineBytes = min(f.lineBytes+n-end, f.options.Load().MaxLine)
	}
	if f.lineStart && !f.due.IsZero() && !time.Now().Before(f.due) {
		f.queue.kick() // the line that the rotation has waited for has ended, and no output may follow
	}
	return n, err
}

func (f *fileSink) open() error {
	if f.file != nil {
		return nil
	}
	// A program may own the directory. So a link must not lead elsewhere, and a FIFO must not block
	// the open.
	dir, err := safeopen.MakeDirectory(filepath.Dir(f.path), 0o755)
	if err != nil {
		return fmt.Errorf("cannot open log file %s: %w", f.path, err)
	}
	file, err := dir.OpenFile(filepath.Base(f.path), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o640)
	if err = errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("cannot open log file %s: %w", f.path, err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close() // no data was written
		return fmt.Errorf("cannot open log file %s: %w", f.path, err)
	}
	if f.gen == nil && !f.known {
		f.gen = f.plane.remembered(f.path, info)
	}
	f.adopt(file, info)
	f.archive.tidy(f.options.Load(), f.size)
	if err := f.endOldLine(); err != nil {
		return err
	}
	f.known = true
	return nil
}

// adopt makes an open file the current one. A file that was closed for a while is still the same
// generation, unless it was truncated meanwhile.
func (f *fileSink) adopt(file *os.File, info os.FileInfo) {
	same := f.gen != nil && f.gen.ino == inode(info) && info.Size() >= f.size
	f.file, f.size = file, info.Size()
	if !same {
		if f.gen != nil {
			f.gen.retire("") // a tool has moved it away or truncated it while it was closed
		}
		f.gen, f.lineStart, f.lineBytes = &generation{log: f.path, ino: inode(info), inherited: f.size, number: f.plane.born.Add(1)}, true, 0
		f.known = false
	}
	f.gen.mu.Lock()
	f.gen.file, f.gen.path = file, f.path
	f.gen.mu.Unlock()
	f.current.Store(f.gen)
	f.schedule(begun(file, info))
}

// endOldLine ends a line that an earlier agentinit, or a tool that has truncated the file, left
// unfinished at the end of the file. For this agentinit's own unfinished lines, the queue does that.
func (f *fileSink) endOldLine() error {
	if f.size == 0 || f.known {
		return nil
	}
	var last [1]byte
	if _, err := f.file.ReadAt(last[:], f.size-1); err != nil {
		return fmt.Errorf("cannot read the end of the log file %s: %w", f.path, err)
	}
	if last[0] == '\n' {
		return nil
	}
	_, err := f.append([]byte{'\n'})
	return err
}

// moved tells whether the path leads to another file than the open one, or to none. A file that is
// still in its place is not opened again: the rings would no longer know which of its lines they
// have.
func (f *fileSink) moved() bool {
	if f.file == nil {
		return false
	}
	is, err := f.file.Stat()
	at, pathErr := os.Lstat(f.path)
	return err != nil || pathErr != nil || !os.SameFile(is, at)
}

// vanished tells whether the open file has lost its name, or was truncated in its place (the
// copytruncate of logrotate). What the rings know about a truncated file does not hold for its new text.
func (f *fileSink) vanished() (lost, emptied bool) {
	if f.file == nil {
		return false, false
	}
	info, err := f.file.Stat()
	if err != nil {
		return true, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0, info.Mode().IsRegular() && info.Size() < f.size
}

// close closes the file, which keeps its name.
func (f *fileSink) close() {
	if f.file != nil {
		f.gen.retire(f.path)
		f.closeFile()
	}
}

// abandon closes a file whose name is gone or no longer known. What the rings refer to in it is
// copied into memory.
func (f *fileSink) abandon() {
	if f.file != nil {
		f.rescue()
		f.gen.retire("")
		f.gen = nil
		f.closeFile()
	}
}

func (f *fileSink) closeFile() {
	disarm(&f.timer)
	if err := f.file.Close(); err != nil {
		// Some file systems report lost data only at the close.
		f.report(fmt.Errorf("cannot close log file %s: %w", f.path, err))
	}
	f.file = nil
}

// rescue copies the newest text that the rings refer to in the current file into memory.
func (f *fileSink) rescue() {
	for _, pl := range f.plane.list(nil) {
		for i := range pl.rings {
			pl.rescue(&pl.rings[i], f.gen)
		}
	}
}

// rescue reads without the lock: only the calling goroutine adds places in this file.
func (pl *programLog) rescue(ring *ring, gen *generation) {
	pl.mu.Lock()
	chunks := ring.chunks(0)
	pl.mu.Unlock()
	texts, room := map[uint64][]byte{}, ring.max // by chunk.first
	var files generationFiles
	defer files.close()
	for _, c := range slices.Backward(chunks) {
		if c.file != gen {
			continue
		}
		if room < c.n {
			break
		}
		text, err := c.read(&files)
		if err != nil {
			break
		}
		room -= c.n
		texts[c.first] = text
	}
	if len(texts) == 0 && !slices.ContainsFunc(chunks, func(c chunk) bool { return c.file == gen }) {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	ring.relocate(gen, texts)
}
