package logs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// generation is one log file from its first byte until its last copy is removed: first under its
// own name, then rotated, then compressed. Text in it stays readable by its offset.
type generation struct {
	mu   sync.RWMutex // is not held while the disk is used
	file *os.File     // nil once the sink has closed it
	path string       // where to find the file if file is nil; "" if that is unknown
	ino  uint64
	log  string // the path of the current file of its log

	number uint64 // counts the generations of the plane

	recorded atomic.Int64 // the end of the newest text that a ring has had

	inherited int64  // bytes that were in the file when it was first opened
	queued    []span // places written from the queue's memory, while a ring has the text as text
	marks     []span // places without text: when the text came that rings have forgotten
}

// mostMarks bounds the marks of one file. When it is reached, every second mark goes: the older the text
// is, the less exact is its time.
const mostMarks = 256

// mark records when a chunk came that a ring is about to forget. Otherwise a reader of the file would take
// all text that is forgotten for as new as the first line that is not.
func (g *generation) mark(c *chunk) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.thin(mostMarks)
	g.marks = append(g.marks, span{off: c.off, end: c.off, seq: c.seq, time: c.time})
}

// rotatedMarks bounds the marks of a file when it is rotated, because there may be many such files.
const rotatedMarks = 32

// thin removes every second mark until there are less than most. The caller holds mu.
func (g *generation) thin(most int) {
	for len(g.marks) >= most {
		half := len(g.marks) / 2
		for i := range half {
			g.marks[i] = g.marks[2*i+1]
		}
		g.marks = g.marks[:half]
	}
}

// shrink frees the marks that a rotated file may not have.
func (g *generation) shrink() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.thin(rotatedMarks)
	g.marks = slices.Clone(g.marks)
}

// enqueue records where a piece of the queue was written. What the rings have forgotten meanwhile
// is removed first if there is no more room. So the list grows only with the rings.
func (g *generation) enqueue(off int64, n int, p piece) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queued) == cap(g.queued) {
		g.queued = slices.DeleteFunc(g.queued, span.forgotten)
	}
	g.queued = append(g.queued, span{off: off, end: off + int64(n), seq: p.seq, time: p.time, ring: p.ring})
	g.recorded.Store(off + int64(n))
}

// isForgotten tells whether no ring has text of the file as text any more.
func (g *generation) isForgotten() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queued = slices.DeleteFunc(g.queued, span.forgotten); len(g.queued) > 0 {
		return false
	}
	g.queued = nil
	return true
}

// errGone says that no file has the text any more.
var errGone = errors.New("the log file is gone")

// leave records that the sink is about to rename the file, which it still has open. Done before the
// rename, so that a reader never finds the renamed file in the directory without knowing it.
func (g *generation) leave(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.path = path
}

// retire records that the sink has closed the file, and where it is now.
func (g *generation) retire(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.file, g.path = nil, path
}

// isAt tells whether the sink has closed the file and left it at path.
func (g *generation) isAt(path string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.file == nil && g.path == path
}

// isOpen tells whether the sink has the file open.
func (g *generation) isOpen() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.file != nil
}

// gone tells whether the file cannot be read any more.
func (g *generation) gone() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.file == nil && g.path == ""
}

// reader opens the file where it is now. The file may be moved while it is being opened at its old
// place; then it is opened at its new one.
func (g *generation) reader() (*generationReader, error) {
	for {
		r, path, err := g.duplicate()
		if r != nil || err != nil {
			return r, err
		}
		if r, err = openLog(path, g.ino); err == nil || g.isAt(path) {
			return r, err
		}
	}
}

// duplicate returns a reader of the file if the sink has it open, and otherwise the path of the file.
// It does not open the path, because the disk may hang, and other programs' work waits for mu.
func (g *generation) duplicate() (r *generationReader, path string, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.file != nil {
		// A separate descriptor, because the sink may close the other one at any time.
		fd, err := unix.FcntlInt(uintptr(fileno(g.file)), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, "", os.NewSyscallError("fcntl", err)
		}
		return &generationReader{file: os.NewFile(uintptr(fd), g.file.Name())}, "", nil
	}
	if g.path == "" {
		return nil, "", errGone
	}
	return nil, g.path, nil
}

// openLog opens a log file or its compressed form. If ino is given, an uncompressed file must have
// that inode. A compressed file is identified by its name alone.
func openLog(path string, ino uint64) (*generationReader, error) {
	var r generationReader
	err := inDirectory(path, func(d *safeopen.Directory, base string) (err error) {
		r.file, err = d.OpenFile(base, os.O_RDONLY, 0)
		for i := 0; i < len(compressors) && errors.Is(err, fs.ErrNotExist); i++ {
			r.compressor = compressors[i]
			r.file, err = d.OpenFile(base+r.compressor.suffix, os.O_RDONLY, 0)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	if r.compressor == nil && ino != 0 && !isInode(r.file, ino) {
		r.close()
		return nil, errGone
	}
	return &r, nil
}

func isInode(f *os.File, ino uint64) bool {
	info, err := f.Stat()
	return err == nil && inode(info) == ino
}

func inode(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// generationReader reads a file at offsets that mostly ascend.
type generationReader struct {
	file       *os.File
	compressor *compressor   // nil if the file is not compressed
	unpacked   io.ReadCloser // of a compressed file; nil until the first read
	at         int64         // offset in unpacked
}

// read returns n bytes from off on, fewer at the end of the file. With an error it returns what it could
// read.
func (r *generationReader) read(off int64, n int) ([]byte, error) {
	buf := make([]byte, n)
	if r.compressor == nil {
		m, err := r.file.ReadAt(buf, off)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return buf[:m], err
	}
	m, err := 0, r.seek(off)
	for m < n && err == nil { // io.ReadFull does not tell the end of the text from that of a cut file
		var more int
		more, err = r.unpacked.Read(buf[m:])
		m += more
	}
	r.at += int64(m)
	if err != nil && !errors.Is(err, io.EOF) {
		return buf[:m], fmt.Errorf("cannot read %s: %w", r.file.Name(), err)
	}
	return buf[:m], nil
}

// seek moves to off. To go backwards, it reads from the start again.
func (r *generationReader) seek(off int64) error {
	if r.unpacked == nil || off < r.at {
		r.rest()
		if _, err := r.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		unpacked, err := r.compressor.reader(r.file)
		if err != nil {
			return err
		}
		r.unpacked, r.at = unpacked, 0
	}
	n, err := io.CopyN(io.Discard, r.unpacked, off-r.at)
	r.at += n
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// rest frees what unpacking needs, up to some 2 MiB of memory. The next read unpacks from the start
// again.
func (r *generationReader) rest() {
	if r.unpacked != nil {
		_ = r.unpacked.Close() // the file was only read
		r.unpacked = nil
	}
}

func (r *generationReader) close() {
	r.rest()
	_ = r.file.Close() // the file was only read
}

// read returns the chunk's text.
func (c *chunk) read(files *generationFiles) ([]byte, error) {
	if c.file == nil {
		return c.text, nil
	}
	r, err := files.reader(c.file)
	if err != nil {
		return nil, err
	}
	text, err := r.read(c.off, c.n)
	if err == nil && len(text) < c.n {
		err = errGone // another process has truncated the file
	}
	return text, err
}

// generationFiles keeps a few files open for one reader. The zero value is ready.
type generationFiles struct {
	open []*openGeneration // most recently used last
}

type openGeneration struct {
	generation *generation
	reader     *generationReader
}

// openPerReader bounds the descriptors that one reader holds.
const openPerReader = 8

func (f *generationFiles) reader(g *generation) (*generationReader, error) {
	for i, o := range f.open {
		if o.generation == g {
			f.open = append(append(f.open[:i:i], f.open[i+1:]...), o)
			return o.reader, nil
		}
	}
	r, err := g.reader()
	if err != nil {
		return nil, err
	}
	if len(f.open) >= openPerReader {
		f.open[0].reader.close()
		f.open = f.open[1:]
	}
	f.open = append(f.open, &openGeneration{g, r})
	return r, nil
}

func (f *generationFiles) close() {
	for _, o := range f.open {
		o.reader.close()
	}
	f.open = nil
}
