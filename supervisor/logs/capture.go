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

	"github.com/dreamlab-ai/agentinit/internal/highfd"
	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// Options describe the capture of one run of a program.
type Options struct {
	Program string
	Run     uint64
	To      To

	// PTY, if set, is the master side of the program's terminal. Its output is captured as stdout,
	// and no pipes are made. The caller keeps PTY; the capture reads a duplicate.
	PTY *os.File

	Rate Rate // limit for both streams together

	MaxLine    int           // bytes; 0 is Config.MaxLine
	FlushAfter time.Duration // 0 is Config.FlushAfter; negative: never

	// The fields below are for ToFile.
	Path       string
	StderrPath string        // a file for stderr alone, wherever stdout goes; "" means where stdout goes
	MaxBytes   int64         // rotate above this; 0 never
	Every      time.Duration // rotate a file of this age; 0 never
	At         string        // rotate every day at this local time, "HH:MM"; "" never
	Backups    int           // rotated files to keep; 0 keeps none, negative keeps all
	MaxAge     time.Duration // rotated files older than this are removed; 0 keeps all
	Compress   Compression   // of rotated files, in the background
	TotalBytes int64         // for the file and its rotated files together; 0 is no limit
}

// To says where lines go in addition to the ring.
type To string

// The destinations.
const (
	ToConsole To = "console"
	ToFile    To = "file"
	ToNone    To = "none"
)

// Capture reads what one run of a program prints. Give Stdout and Stderr to the child. Then call
// Started when it runs, or Abandon if it could not be started. All methods may be called from any
// goroutine.
type Capture struct {
	// Stdout and Stderr are the child's ends. They are nil with Options.PTY. Started and Abandon close
	// them and set them to nil.
	Stdout, Stderr *os.File

	program *programLog
	run     uint64
	streams []*stream    // of stdout and stderr; a terminal has only the first
	files   [2]*fileSink // of stdout and stderr; nil if there is no file

	once sync.Once
	left atomic.Int32
	done chan struct{} // nil until Done is called or all output is in; guarded by program.mu
}

// stream is the reading side of one pipe. Only its reactor's goroutine uses the fields that change
// after the start.
type stream struct {
	plane   *Plane
	program *programLog
	kind    Stream
	capture *Capture
	reactor *reactor
	fd      int
	run     uint64
	sink    sink

	flushAfter time.Duration // how long an unfinished line waits; negative: for ever
	flushAt    time.Time     // when the reactor checks the unfinished line
	begun      time.Time     // when the first text of the unfinished line was read
	begunAfter uint64        // frame.blocks then

	queue  *queue // the queue of a file, whose goroutine may pump this stream; otherwise nil
	pumped bool   // the pump has the stream now; guarded by queue.mu
	rated  bool   // whether the program's rate is limited

	midLine bool // with rated: the last block that passed is a piece of a line

	started   bool
	watched   bool // in the epoll set
	polled    bool // whether it was ever impossible to watch it
	grown     bool // the pipe was enlarged, or must not be
	abandoned atomic.Bool
	expected  atomic.Bool // whether it is in the reactor's partials
	ended     atomic.Bool
	held      atomic.Bool // a goroutine that its reactor has replaced waits in a read of it
	pid       int
	credit    int // what was taken of Plane.pipes
	frame     framer
	backlog   []byte // read, but held back by a full queue
	stored    piece  // where the ring has the last block that went through store
}

// Open prepares the capture of one run. It never waits for a disk: a log file is opened in the
// background. If that fails, Config.OnTrouble is called and the ring still works. An error means
// that the kernel gave no pipe or no reader.
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
	c := &Capture{run: o.Run, streams: make([]*stream, 0, 2)}
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
			fd: fd, run: o.Run, sink: to, frame: framer{max: o.MaxLine}, rated: o.Rate.limits(),
			flushAfter: o.FlushAfter,
		}
		s.frame.secrets, s.frame.unfinished = &p.secrets, &p.unfinished
		if file != nil && !s.rated {
			s.queue = file.queue
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

// pipe makes a pipe whose read end does not block. The write end blocks, because programs do not
// expect EAGAIN from their stdout.
func pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, os.NewSyscallError("pipe2", err)
	}
	// A new pipe has no other flag that F_SETFL could clear (fcntl(2)).
	if _, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		return 0, 0, joinClose(os.NewSyscallError("fcntl", err), p[0], p[1])
	}
	// A program that opens /dev/stdout (nginx, Apache) opens the pipe again, with the permissions
	// of its inode (/proc/pid/fd in proc(5)). The pipe belongs to agentinit and has mode 0600, but
	// the program may run as another user. With this mode it may write but not read. If the kernel
	// refuses the change, the program still has its descriptors.
	_ = unix.Fchmod(p[1], 0o622)
	return highfd.Raise(p[0]), p[1], nil
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
			fd = highfd.Raise(fd)
		}
	})
	return fd, errors.Join(ctlErr, err)
}

// Started closes this process's copies of the child's ends and begins to read. The lines are
// labelled with pid. Only the first call has an effect.
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

// Abandon stops reading: what the pipes hold at this moment is still taken, then Done closes. It is
// for a failed start, and for a dead program whose pipe is still held by a process outside its
// tree.
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
			_ = lateclose.Pipe{File: f}.Close()
		}
	}
	c.Stdout, c.Stderr = nil, nil
}

// Done is closed when all output of the run is in the ring and was handed to the console or file.
// By then all write ends are closed, or Abandon was called.
func (c *Capture) Done() <-chan struct{} {
	c.program.mu.Lock()
	defer c.program.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
	}
	return c.done
}

// finish makes Done report the end of all streams.
func (c *Capture) finish(p *Plane) {
	c.program.mu.Lock()
	defer c.program.mu.Unlock()
	if c.done == nil {
		c.done = p.ended
		return
	}
	close(c.done)
}

// tailBytes and ExcerptLine bound what is kept of a run's last words. Without them a program could
// make agentinit keep lines of megabytes.
const (
	tailBytes = 16 << 10
	// ExcerptLine is the Query.Cut for a few lines that explain something.
	ExcerptLine = 4 << 10
)

// Tail returns at most n of the newest lines of this run on both streams, in the order in which they
// were read. Each has at most ExcerptLine bytes, and all together 16 KiB. The result is complete once
// Done is closed.
func (c *Capture) Tail(n int) []Line {
	all := append(c.program.tail(Stdout, c.run, n, ExcerptLine), c.program.tail(Stderr, c.run, n, ExcerptLine)...)
	slices.SortStableFunc(all, func(a, b Line) int { return cmp.Compare(a.Seq, b.Seq) })
	all = all[max(0, len(all)-n):]
	size := 0
	for i, line := range slices.Backward(all) {
		if size += len(line.Text); size > tailBytes {
			return slices.Clone(all[i+1:])
		}
	}
	return all
}

// dropped counts the bytes that did not reach the console or the file.
func (s *stream) dropped() *atomic.Uint64 { return &s.program.dropped[s.kind-1] }

// read reads once and processes the result; open is false at the end of the stream.
func (s *stream) read(buf []byte) (n int, open bool) {
	var err error
	retry(func() error { n, err = unix.Read(s.fd, buf); return err })
	if err == unix.EAGAIN {
		return 0, true
	}
	s.program.bytes[s.kind-1].Add(uint64(max(n, 0)))
	// When no process has a terminal open any more, reading its master gives EIO: that is the end.
	return max(n, 0), err == nil && n > 0
}

// unread tells whether the pipe has output that was not read yet.
func (s *stream) unread() bool {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLIN != 0
}

// owned tells whether another goroutine has the stream: a pump, or one that waits in a read.
func (s *stream) owned() bool { return s.held.Load() || s.queue != nil && s.queue.owns(s) }

// unfinished tells whether there is an unfinished line that is not in the reactor's list yet.
func (s *stream) unfinished() bool {
	return len(s.frame.carry) > 0 && s.flushAfter > 0 && !s.expected.Load()
}

// grownPipe is the size to which a full pipe is enlarged. The program can then go on writing while
// its output is on the way to the disk.
const grownPipe = 256 << 10

// enlarge makes the pipe larger, once, as long as the plane's budget lasts: for a user without
// CAP_SYS_RESOURCE the kernel limits all pipes together (pipe(7), pipe-user-pages-soft).
func (s *stream) enlarge() {
	if s.grown {
		return
	}
	s.grown = true
	// With pages of 16 KiB or more, a new pipe is at least that large: F_SETPIPE_SZ could only make it smaller.
	if size, err := unix.FcntlInt(uintptr(s.fd), unix.F_GETPIPE_SZ, 0); err != nil || size >= grownPipe {
		return
	}
	if s.plane.pipes.add(grownPipe); s.plane.pipes.exceeds(0) {
		s.plane.pipes.add(-grownPipe)
		return
	}
	s.credit = grownPipe
	// The kernel refuses this if the user's limit is used up; the pipe then stays as it is.
	_, _ = unix.FcntlInt(uintptr(s.fd), unix.F_SETPIPE_SZ, grownPipe)
}

// consume passes data through the framer to the ring and the sink. It returns false if the sink is
// full: the rest then waits in the backlog, and the sink resumes the stream. With force, all data
// passes.
func (s *stream) consume(data []byte, force bool) bool {
	now := time.Now()
	for len(data) > 0 {
		if !force && s.sink != nil && !s.sink.admit(s) {
			s.backlog = append([]byte(nil), data...)
			return false
		}
		blk, rest, ok := s.frame.next(data, sinkPiece)
		data = rest
		if ok {
			s.take(blk, now)
		}
	}
	s.frame.trim()
	s.noteUnfinished(now)
	return true
}

// noteUnfinished records when an unfinished line has begun, after text was read at that time.
func (s *stream) noteUnfinished(now time.Time) {
	if len(s.frame.carry) > 0 && (s.begun.IsZero() || s.begunAfter != s.frame.blocks) {
		s.begun, s.begunAfter = now, s.frame.blocks
	}
}

// take sends one block to ring and sink, after its secrets are masked and its rate is checked.
func (s *stream) take(blk block, now time.Time) {
	s.plane.secrets.Load().mask(blk.text)
	if s.rated {
		s.limited(blk, now)
		return
	}
	s.pass(blk, now)
}

// pass is take for a block that was masked and checked.
func (s *stream) pass(blk block, now time.Time) {
	s.store(blk, now)
	if s.sink == nil {
		s.plane.wakeFollowers()
		return
	}
	b := s.plane.batches.Get().(*batch)
	b.reset(now)
	b.out = s.sink.encode(b, s, blk)
	// A block encodes to no bytes if it is only the newline of a line that was cut before.
	if len(b.out) > 0 && !s.sink.put(s, b.out, len(blk.text)) {
		s.dropped().Add(uint64(len(blk.text)))
	}
	s.plane.wakeFollowers()
	s.plane.putBatch(b)
}

// store puts a block into the ring and offers it to subscriptions.
func (s *stream) store(blk block, now time.Time) {
	s.program.mu.Lock()
	c := s.chunk(blk, now)
	ring := &s.program.rings[s.kind-1]
	ring.append(blk.text, c)
	s.stored = piece{ring: ring, seq: c.seq, time: c.time}
	s.program.show(s.kind, c, blk.text)
	s.program.mu.Unlock()
}

// chunk describes a block of this stream. The caller holds the program's mu
// until the block is in the ring. So a reader that has locked all rings after it has read Plane.seq
// has all lines up to that number.
func (s *stream) chunk(blk block, now time.Time) chunk {
	n := uint64(blk.lines)
	return chunk{
		seq: s.plane.seq.Add(n) - n + 1, time: now.UnixNano(), run: s.run, pid: int32(s.pid),
		lines: int32(blk.lines), cut: blk.cut, cont: blk.cont,
	}
}

// end passes on an unfinished last line and reports the stream as done. The caller that set ended
// calls it, once, after closing the descriptor.
func (s *stream) end() {
	s.plane.pipes.add(-s.credit)
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
		s.capture.finish(s.plane)
	}
}

// drop closes a stream whose reactor has ended.
func (s *stream) drop() {
	if s.ended.CompareAndSwap(false, true) {
		lateclose.Masked(func() { _ = unix.Close(s.fd) })
		s.end()
	}
}

// batch is the scratch space for lines that are being encoded.
type batch struct {
	now     time.Time
	stamped time.Time // the time that stamp shows
	stamp   []byte
	out     []byte
}

// sinkPiece is the most output that goes to a sink at once, unless a line is longer. In JSON it may
// become a hundred times as long. A ring forgets it at once (see span.forgotten).
const sinkPiece = 8 << 10

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
