package logs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Options describe the capture of one run of a program.
type Options struct {
	Program string
	Run     uint64
	To      To

	// PTY, when set, is the master side of the program's terminal: its output is
	// captured as stdout and no pipes are made. The caller keeps PTY; the capture
	// reads a duplicate.
	PTY *os.File

	Rate Rate // of both streams together

	MaxLine    int           // bytes; 0 is Config.MaxLine
	FlushAfter time.Duration // 0 is Config.FlushAfter; negative: never

	// The rest is for ToFile.
	Path       string
	StderrPath string        // a file of its own for stderr; "" is Path
	MaxBytes   int64         // rotate above this; 0 never
	Every      time.Duration // rotate a file that has lived so long; 0 never
	At         string        // rotate every day at this local time, "HH:MM"; "" never
	Backups    int           // rotated files kept; 0 keeps none, negative keeps all
	MaxAge     time.Duration // rotated files older than this go; 0 keeps all
	Compress   Compression   // of rotated files, in the background
	TotalBytes int64         // the file and its rotated ones together; 0 is no cap
}

// To is where lines go besides the ring.
type To string

// The destinations.
const (
	ToConsole To = "console"
	ToFile    To = "file"
	ToNone    To = "none"
)

// Capture reads what one run of a program prints. Give Stdout and Stderr to the
// child, then call Started when it runs, or Abandon when it could not be started.
// All methods may be called from any goroutine.
type Capture struct {
	// Stdout and Stderr are the child's ends. They are nil with Options.PTY, and
	// closed by Started and Abandon.
	Stdout, Stderr *os.File

	program *programLog
	run     uint64
	streams []*stream
	files   [2]*fileSink // of stdout and stderr; nil where there is none

	once sync.Once
	left atomic.Int32
	done chan struct{}
}

// stream is the reading side of one pipe. Its reactor's goroutine owns every
// field that changes after the start.
type stream struct {
	plane   *Plane
	program *programLog
	kind    Stream
	capture *Capture
	reactor *reactor
	fd      int
	run     uint64
	sink    sink

	flushAfter time.Duration // of an unfinished line; negative: never
	flushAt    time.Time     // when the reactor looks at the unfinished line

	rated  bool   // the program's rate is limited
	queue  *queue // of a file, whose goroutine may pump this stream; else nil
	pumped bool   // it does so now; queue.mu

	pid        int
	started    bool
	watched    bool // in the epoll set
	polled     bool // it could not be watched at least once
	abandoned  atomic.Bool
	expected   atomic.Bool // in the reactor's partials
	blocksSeen uint64      // of frame.blocks, when flushAt was set
	grown      bool        // the pipe has been enlarged, or may not be
	credit     int64       // of Plane.pipeBytes
	frame      framer
	piece      int    // most bytes that go to the sink at once
	backlog    []byte // read but held by a full queue
	ended      atomic.Bool
}

// Open prepares the capture of one run. It never waits for a disk: a log file is
// opened in the background, and if that fails Config.OnTrouble hears of it while
// the ring goes on. An error means that the kernel gave no pipe or no reader.
func (p *Plane) Open(o Options) (*Capture, error) {
	if o.Program == "" {
		return nil, errors.New("cannot capture output: the program has no name")
	}
	reactor, err := p.pickReactor()
	if err != nil {
		return nil, err
	}
	o.MaxLine = max(cmp.Or(max(o.MaxLine, 0), p.cfg.MaxLine), leastLine)
	o.FlushAfter = cmp.Or(o.FlushAfter, p.cfg.FlushAfter)
	c := &Capture{run: o.Run, done: make(chan struct{})}
	fds, err := c.pipes(o.PTY)
	if err != nil {
		return nil, fmt.Errorf("cannot capture the output of %s: %w", o.Program, err)
	}
	c.program = p.program(o.Program)
	c.program.limit.set(o.Rate)
	for i, fd := range fds {
		to, file := p.sinkFor(o, Stream(i+1))
		c.files[i] = file
		s := &stream{
			plane: p, program: c.program, kind: Stream(i + 1), capture: c, reactor: reactor,
			fd: fd, run: o.Run, sink: to, piece: consolePiece, frame: framer{max: o.MaxLine}, rated: o.Rate.limits(),
			flushAfter: o.FlushAfter,
		}
		s.frame.held = func(text []byte) int { return p.secrets.Load().held(text) }
		if file != nil {
			s.piece = pumpSize
			if !s.rated {
				s.queue = file.queue
			}
		}
		c.streams = append(c.streams, s)
	}
	c.left.Store(int32(len(fds)))
	return c, nil
}

// pipes makes the pipes and returns the descriptors to read.
func (c *Capture) pipes(pty *os.File) ([]int, error) {
	if pty != nil {
		fd, err := duplicate(pty)
		if err != nil {
			return nil, err
		}
		return []int{fd}, nil
	}
	outR, outW, err := pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := pipe()
	if err != nil {
		return nil, joinClose(err, outR, outW)
	}
	c.Stdout = os.NewFile(uintptr(outW), "|stdout")
	c.Stderr = os.NewFile(uintptr(errW), "|stderr")
	return []int{outR, errR}, nil
}

// pipe makes a pipe whose read end does not block and whose write end does:
// programs do not expect EAGAIN from their stdout.
func pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(p[0], true); err != nil {
		return 0, 0, joinClose(os.NewSyscallError("fcntl", err), p[0], p[1])
	}
	// A program that opens /dev/stdout (nginx, Apache) opens the pipe again, with the permissions of its inode: proc(5),
	// /proc/pid/fd. A pipe is its maker's, mode 0600, and the program may be another user: it may write and never read.
	// If the kernel refuses this, the program still has its descriptors.
	_ = unix.Fchmod(p[1], 0o622)
	return p[0], p[1], nil
}

func duplicate(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(p uintptr) {
		fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
	})
	return fd, errors.Join(ctlErr, err)
}

// Started closes this process's copies of the child's ends and begins to read.
// pid is what the lines are labelled with. Only the first call counts.
func (c *Capture) Started(pid int) {
	c.once.Do(func() {
		c.closeWriteEnds()
		for _, s := range c.streams {
			s.pid, s.started = pid, true
			if !s.reactor.post(command{op: opAdd, stream: s}) {
				s.drop()
			}
		}
	})
}

// Abandon stops reading: what the pipes hold at this moment is still taken, then
// Done closes. It is for a start that failed, and for a dead program whose pipe
// somebody outside its tree still holds.
func (c *Capture) Abandon() {
	c.once.Do(c.closeWriteEnds)
	for _, s := range c.streams {
		if !s.reactor.post(command{op: opAbandon, stream: s}) {
			s.drop()
		}
	}
}

func (c *Capture) closeWriteEnds() {
	for _, f := range []*os.File{c.Stdout, c.Stderr} {
		if f != nil {
			_ = f.Close() // the write end of a pipe we never wrote to
		}
	}
}

// Done is closed when everything the run printed is in the ring and handed to
// the console or file: all write ends are closed, or Abandon was called.
func (c *Capture) Done() <-chan struct{} { return c.done }

// LastLines returns at most n of the newest lines of this run, oldest first. It
// is complete once Done is closed.
func (c *Capture) LastLines(kind Stream, n int) []Line {
	return c.program.tail(kind, c.run, n)
}

// Tail returns at most n of the newest lines of this run on both streams, in the
// order in which they were read.
func (c *Capture) Tail(n int) []Line {
	all := append(c.LastLines(Stdout, n), c.LastLines(Stderr, n)...)
	slices.SortStableFunc(all, func(a, b Line) int { return cmp.Compare(a.Seq, b.Seq) })
	return all[max(0, len(all)-n):]
}

// dropped counts what did not reach the console or the file.
func (s *stream) dropped() *atomic.Uint64 { return &s.program.dropped[s.kind-1] }

// read takes what one read gives; open is false at the end of the stream.
func (s *stream) read(buf []byte) (n int, open bool) {
	var err error
	retry(func() error { n, err = unix.Read(s.fd, buf); return err })
	if err == unix.EAGAIN {
		return 0, true
	}
	s.program.bytes[s.kind-1].Add(uint64(max(n, 0)))
	// A terminal whose last user is gone answers EIO; that is its end.
	return max(n, 0), err == nil && n > 0
}

// owned says whether a pump has the stream.
func (s *stream) owned() bool { return s.queue != nil && s.queue.owns(s) }

// unfinished says whether there is a begun line that the reactor does not know of.
func (s *stream) unfinished() bool {
	return len(s.frame.carry) > 0 && s.flushAfter > 0 && !s.expected.Load()
}

// grownPipe is the capacity of a pipe that was found full: the program then writes
// on while its output is on the way to the disk.
const grownPipe = 256 << 10

// enlarge makes the pipe larger, once, as long as the plane's share lasts: what
// pipes may hold in all is limited for a user without CAP_SYS_RESOURCE (pipe(7),
// pipe-user-pages-soft).
func (s *stream) enlarge() {
	if s.grown {
		return
	}
	s.grown = true
	if s.plane.pipeBytes.Add(grownPipe) > maxPipeBytes {
		s.plane.pipeBytes.Add(-grownPipe)
		return
	}
	s.credit = grownPipe
	// Refused where the user's limit is used up; the pipe stays as it is.
	_, _ = unix.FcntlInt(uintptr(s.fd), unix.F_SETPIPE_SZ, grownPipe)
}

// consume takes data through the framer into the ring and the sink. It returns
// false when the sink is full: the rest waits in the backlog, and the sink
// resumes the stream. With force nothing is held.
func (s *stream) consume(data []byte, force bool) bool {
	now := time.Now()
	for len(data) > 0 {
		if !force && s.sink != nil && !s.sink.admit(s) {
			s.backlog = append([]byte(nil), data...)
			return false
		}
		blk, rest, ok := s.frame.next(data, s.piece)
		data = rest
		if ok {
			s.take(blk, now)
		}
	}
	s.frame.trim()
	return true
}

// take carries one block to ring and sink: what of it may be seen.
func (s *stream) take(blk block, now time.Time) {
	s.plane.secrets.Load().mask(blk.text)
	if s.rated {
		s.limited(blk, now)
		return
	}
	s.pass(blk, now)
}

// pass is take of what has been looked at.
func (s *stream) pass(blk block, now time.Time) {
	s.store(blk, now)
	if s.sink == nil {
		s.plane.wakeFollowers()
		return
	}
	b := s.plane.batches.Get().(*batch)
	b.reset(now)
	b.out = s.sink.encode(b, s, blk)
	// What encodes to nothing is the newline of a line that was cut before.
	if len(b.out) > 0 && !s.sink.put(s, b.out, len(blk.text)) {
		s.dropped().Add(uint64(len(blk.text)))
	}
	s.plane.wakeFollowers()
	s.plane.putBatch(b)
}

// store puts a block into the ring and shows it to subscriptions.
func (s *stream) store(blk block, now time.Time) {
	c := s.chunk(blk, now)
	s.program.mu.Lock()
	s.program.rings[s.kind-1].append(blk.text, c)
	s.program.show(s.kind, c, blk.text)
	s.program.mu.Unlock()
}

// chunk describes a block of this stream and counts its lines.
func (s *stream) chunk(blk block, now time.Time) chunk {
	n := uint64(blk.lines)
	s.program.lines[s.kind-1].Add(n)
	return chunk{
		seq: s.plane.seq.Add(n) - n + 1, time: now.UnixNano(), run: s.run, pid: int32(s.pid),
		lines: int32(blk.lines), cut: blk.cut, cont: blk.cont,
	}
}

// end passes on an unfinished last line and reports the stream as done. Whoever
// set ended calls it, once, after closing the descriptor.
func (s *stream) end() {
	if len(s.backlog) > 0 {
		backlog := s.backlog
		s.backlog = nil
		s.consume(backlog, true)
	}
	if blk, ok := s.frame.last(); ok {
		s.plane.secrets.Load().maskBegun(blk.text)
		s.take(blk, time.Now())
	}
	s.summarize()
	if s.capture.left.Add(-1) == 0 {
		for _, f := range s.capture.files {
			s.plane.release(f)
		}
		close(s.capture.done)
	}
}

// drop closes a stream whose reactor has ended.
func (s *stream) drop() {
	if s.ended.CompareAndSwap(false, true) {
		_ = unix.Close(s.fd)
		s.end()
	}
}

// batch is the scratch space for lines on their way out.
type batch struct {
	now     time.Time
	stamped time.Time // the time that stamp was made for
	stamp   []byte
	out     []byte
}

// consolePiece is how much output is encoded at once. A batch of JSON may be a
// hundred times as long.
const consolePiece = 8 << 10

func (b *batch) reset(now time.Time) { b.now, b.out = now, b.out[:0] }

// timestamp formats b.now once for all lines of a batch.
func (b *batch) timestamp(layout string, utc bool) []byte {
	if !b.stamped.Equal(b.now) || len(b.stamp) == 0 {
		t := b.now
		if utc {
			t = t.UTC()
		}
		b.stamped, b.stamp = b.now, t.AppendFormat(b.stamp[:0], layout)
	}
	return b.stamp
}
