package logs

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// reactor reads many pipes with one goroutine. Two thousand silent pipes cost two thousand
// descriptors and small structs, but no goroutines and no buffers. Go's poller watches the epoll
// instance itself, so an idle reactor occupies no thread and never wakes up.
//
// Only this goroutine uses a stream's reading state and closes its descriptor. All others post
// commands. If it waits in a system call, another goroutine takes its place: see call.
type reactor struct {
	epoll *os.File
	raw   syscall.RawConn
	// blocking says that the poller refused the epoll descriptor, as in a sandbox without nested
	// epoll. Then the goroutine occupies a thread in epoll_wait.
	blocking bool
	wake     int // eventfd

	mu     sync.Mutex
	posted []command
	closed bool

	// caller is the stream on whose pipe the goroutine makes a system call, since called; nil if there is
	// none. watch looks after it; nil if it is not armed. All three are guarded by mu.
	caller *stream
	called time.Time
	watch  *time.Timer

	// What the goroutine has taken and not handled yet, so that another one can go on.
	events      [64]unix.EpollEvent
	next, count int
	todo        []command
	stopping    bool // after opStop, or if the reactor's own descriptors fail

	streams  map[int32]*stream
	partials []*stream // streams with an unfinished line that may have to be flushed
	timer    *time.Timer
	tickAt   time.Time // when timer fires for partials; zero: it is not set
	draining bool      // after opDrain
	drained  chan struct{}
	settled  func() // closes drained
	done     chan struct{}
}

type op uint8

const (
	opAdd op = iota
	opResume
	opAbandon
	opEnd     // a pump has read to the end of the stream
	opPartial // a pump has left an unfinished line
	opFlush   // check the unfinished lines
	opSummary // report what the rate limit has suppressed
	opDrain   // abandon every stream
	opStop
)

type command struct {
	op     op
	stream *stream
}

// readSize is how much one read asks for: the default capacity of a pipe.
const readSize = 64 << 10

var readBuffers = sync.Pool{New: func() any { return new([readSize]byte) }}

// newReactor makes a reactor; the caller starts run.
func newReactor() (*reactor, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll instance: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot create an eventfd: %w", joinClose(err, epfd))
	}
	err = unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	if err == nil {
		// os.NewFile uses the poller only for descriptors in non-blocking mode.
		err = unix.SetNonblock(epfd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot set up epoll: %w", joinClose(err, epfd, wake))
	}
	file := os.NewFile(uintptr(epfd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot use the epoll descriptor: %w", joinClose(err, wake))
	}
	r := &reactor{epoll: file, raw: raw, wake: wake, streams: map[int32]*stream{}, drained: make(chan struct{}), done: make(chan struct{})}
	r.blocking = file.SetReadDeadline(time.Time{}) != nil
	r.settled = sync.OnceFunc(func() { close(r.drained) })
	return r, nil
}

// post hands a command to the goroutine. It returns false if the goroutine has ended.
func (r *reactor) post(c command) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.posted = append(r.posted, c)
	if len(r.posted) == 1 {
		one := [8]byte{1}
		// The counter cannot overflow: it is written once per drain.
		retry(func() error { _, err := unix.Write(r.wake, one[:]); return err })
	}
	return true
}

// drain abandons every stream and waits, until ctx ends, for the output that the pipes held.
func (r *reactor) drain(ctx context.Context) {
	r.post(command{op: opDrain})
	select {
	case <-r.drained:
	case <-r.done:
	case <-ctx.Done():
	}
}

// stop ends the goroutine. It closes the streams that are still open without reading them.
func (r *reactor) stop() {
	r.post(command{op: opStop})
	<-r.done
}

func (r *reactor) run() {
	for {
		buf := readBuffers.Get().(*[readSize]byte)
		r.handle(buf[:])
		readBuffers.Put(buf)
		if r.draining && len(r.streams) == 0 {
			r.settled()
		}
		if r.stopping {
			r.shut()
			close(r.done)
			return
		}
		n, err := r.wait(r.events[:])
		r.next, r.count = 0, n
		if err != nil {
			// This happens only if other code has closed one of the reactor's descriptors. Without
			// them no program's output can be read. So close the pipes: the writers get EPIPE
			// instead of blocking for ever.
			r.next, r.count, r.stopping = 0, 0, true
		}
	}
}

// handle does what was taken from the kernel and from the other goroutines.
func (r *reactor) handle(buf []byte) {
	r.commands(buf)
	for r.next < r.count {
		ev := r.events[r.next]
		r.next++
		if ev.Fd == int32(r.wake) {
			r.take()
			r.commands(buf)
		} else if s := r.streams[ev.Fd]; s != nil {
			r.readable(s, buf)
		}
	}
}

// callPatience is how long a system call on a pipe may take before another goroutine takes over. It
// normally takes some microseconds.
const callPatience = 100 * time.Millisecond

// call makes a system call on the pipe of a stream. A program can make it wait for ever: see
// lateclose.Masked. The other streams do not wait: another goroutine takes over the reactor, and call
// returns true. The caller then no longer is the reactor's goroutine, and has only the stream.
func (r *reactor) call(s *stream, do func()) (replaced bool) {
	r.mu.Lock()
	r.caller, r.called = s, time.Now()
	if r.watch == nil {
		r.watch = time.AfterFunc(callPatience, r.look)
	}
	r.mu.Unlock()
	lateclose.Masked(do)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.caller != s {
		return true
	}
	r.caller = nil
	return false
}

// look is called by the timer: it replaces a goroutine that waits in a system call.
func (r *reactor) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = nil
	s := r.caller
	if s == nil {
		return
	}
	if left := callPatience - time.Since(r.called); left > 0 {
		r.watch = time.AfterFunc(left, r.look)
		return
	}
	r.caller = nil
	s.held.Store(true)
	s.program.held.Add(1)
	r.unregister(s)
	if r.streams[int32(s.fd)] == s {
		delete(r.streams, int32(s.fd))
	}
	go r.run()
}

// read reads a stream once. If that takes so long that another goroutine has replaced this one, read gives
// the stream back to it and ends this one.
func (r *reactor) read(s *stream, buf []byte) (n int, open bool) {
	if !r.call(s, func() { n, open = s.read(buf) }) {
		return n, open
	}
	s.backlog = append([]byte(nil), buf[:n]...)
	s.program.held.Add(-1)
	s.held.Store(false)
	op := opResume
	if !open {
		op = opEnd
	}
	if !r.post(command{op: op, stream: s}) {
		s.drop() // the plane has been closed
	}
	runtime.Goexit()
	return 0, false
}

func (r *reactor) wait(events []unix.EpollEvent) (n int, err error) {
	if r.blocking {
		retry(func() error { n, err = unix.EpollWait(int(r.epoll.Fd()), events, -1); return err })
		return n, err
	}
	waitErr := r.raw.Read(func(fd uintptr) bool {
		n, err = unix.EpollWait(int(fd), events, 0)
		return n > 0 || (err != nil && err != unix.EINTR)
	})
	if waitErr != nil {
		return 0, waitErr
	}
	return n, err
}

// take takes what other goroutines have posted.
func (r *reactor) take() {
	var count [8]byte
	retry(func() error { _, err := unix.Read(r.wake, count[:]); return err })
	r.mu.Lock()
	r.todo = append(r.todo, r.posted...)
	r.posted = nil
	r.mu.Unlock()
}

func (r *reactor) commands(buf []byte) {
	for len(r.todo) > 0 {
		c := r.todo[0]
		r.todo[0] = command{}
		r.todo = r.todo[1:]
		switch c.op {
		case opAdd:
			r.add(c.stream)
		case opResume:
			r.resume(c.stream, buf)
		case opAbandon:
			r.abandon(c.stream, buf)
		case opEnd:
			r.finish(c.stream)
		case opPartial:
			r.expectRest(c.stream)
		case opSummary:
			if !c.stream.ended.Load() {
				c.stream.summarize()
			}
		case opFlush:
			r.flushPartials()
		case opDrain:
			r.draining = true
			for _, s := range r.streams {
				r.todo = append(r.todo, command{op: opAbandon, stream: s})
			}
		case opStop:
			r.stopping = true
		}
	}
	r.todo = nil
}

func (r *reactor) add(s *stream) {
	if s.ended.Load() {
		return
	}
	if err := r.register(s); err != nil {
		r.poll(s, err)
	}
}

// pollEvery is the time between two reads of a stream that the kernel does not watch.
const pollEvery = 100 * time.Millisecond

// poll reads a stream that cannot be watched, and then tries again to watch it. A program of
// agentinit's user can use up all watches that epoll(7) allows that user. To close the pipe instead
// would end the other programs at their next write.
func (r *reactor) poll(s *stream, why error) {
	if !s.polled {
		s.polled = true
		s.plane.cfg.OnTrouble(s.program.name, fmt.Errorf("cannot watch the %s of %s: %w; reading it every %s", s.kind, s.program.name, why, pollEvery))
	}
	buf := readBuffers.Get().(*[readSize]byte)
	defer readBuffers.Put(buf)
	if r.serve(s, buf[:]) {
		time.AfterFunc(pollEvery, func() { r.post(command{op: opAdd, stream: s}) })
	}
}

func (r *reactor) register(s *stream) error {
	r.streams[int32(s.fd)] = s
	if s.watched {
		return r.arm(s)
	}
	err := unix.EpollCtl(r.epollFD(), unix.EPOLL_CTL_ADD, s.fd, s.interest())
	s.watched = err == nil
	return err
}

// interest is level-triggered. If a pump may take the stream, it is for one event only: output that
// the pump has not read yet must not wake the reactor meanwhile.
func (s *stream) interest() *unix.EpollEvent {
	e := &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)}
	if s.queue != nil {
		e.Events |= unix.EPOLLONESHOT
	}
	return e
}

func (r *reactor) arm(s *stream) error {
	return unix.EpollCtl(r.epollFD(), unix.EPOLL_CTL_MOD, s.fd, s.interest())
}

// rearm is arm for a pump. False means that the reactor itself must handle the stream.
func (r *reactor) rearm(s *stream) bool { return !s.abandoned.Load() && r.arm(s) == nil }

// epollFD does not use File.Fd, which would remove the descriptor from the poller.
func (r *reactor) epollFD() (fd int) {
	if err := r.raw.Control(func(p uintptr) { fd = int(p) }); err != nil {
		return -1
	}
	return fd
}

func (r *reactor) unregister(s *stream) {
	if !s.watched {
		return
	}
	s.watched = false
	// The descriptor is open and belongs to this reactor, so an error does not matter: the close
	// would remove it as well.
	_ = unix.EpollCtl(r.epollFD(), unix.EPOLL_CTL_DEL, s.fd, nil)
}

// readable serves a stream that has output, or hands it to the pump.
func (r *reactor) readable(s *stream, buf []byte) {
	if s.queue != nil && s.queue.offer(s) {
		return
	}
	if r.serve(s, buf) && s.queue != nil {
		r.add(s)
	}
}

// serve reads once, so that a program with much output does not keep the others waiting. False means
// that the stream has ended, or that its sink holds it and will resume it.
func (r *reactor) serve(s *stream, buf []byte) bool {
	n, open := r.read(s, buf)
	if n > 0 && !s.consume(buf[:n], false) {
		// EPOLLHUP cannot be masked, so a held stream leaves the epoll set.
		r.unregister(s)
		return false
	}
	if !open {
		r.finish(s)
		return false
	}
	r.expectRest(s)
	return true
}

// expectRest remembers a stream with an unfinished line. If no more text follows, the line is
// passed on after Options.FlushAfter.
func (r *reactor) expectRest(s *stream) {
	if s.flushAfter <= 0 || s.ended.Load() || s.owned() || len(s.frame.carry) == 0 || !s.expected.CompareAndSwap(false, true) {
		return
	}
	s.flushAt = time.Now().Add(s.flushAfter)
	r.partials = append(r.partials, s)
	r.tick(s.flushAt)
}

// tick makes the timer call flushPartials at that time or earlier.
func (r *reactor) tick(at time.Time) {
	if !r.tickAt.IsZero() && !at.Before(r.tickAt) {
		return
	}
	r.tickAt = at
	if r.timer != nil {
		r.timer.Reset(time.Until(at))
		return
	}
	r.timer = time.AfterFunc(time.Until(at), func() { r.post(command{op: opFlush}) })
}

// flushPartials passes on the unfinished lines whose time has come. A line whose rest is in the pipe
// already waits: agentinit is late then, and not the program.
func (r *reactor) flushPartials() {
	now := time.Now()
	r.tickAt = time.Time{}
	var next time.Time
	r.partials = slices.DeleteFunc(r.partials, func(s *stream) bool {
		if s.ended.Load() {
			return true
		}
		switch {
		case now.Before(s.flushAt):
		case s.owned() || len(s.backlog) > 0 || s.unread():
			s.flushAt = now.Add(s.flushAfter)
		case len(s.frame.carry) > 0 && now.Before(s.begun.Add(s.flushAfter)):
			s.flushAt = s.begun.Add(s.flushAfter) // it is another line
		default:
			if blk, ok := s.frame.flush(); ok {
				s.take(blk, now)
			}
			s.expected.Store(false)
			return true
		}
		if next.IsZero() || s.flushAt.Before(next) {
			next = s.flushAt
		}
		return false
	})
	if !next.IsZero() {
		r.tick(next)
	}
}

func (r *reactor) resume(s *stream, buf []byte) {
	if s.ended.Load() || s.owned() {
		return
	}
	if s.abandoned.Load() {
		r.abandon(s, buf)
		return
	}
	backlog := s.backlog
	s.backlog = nil
	if len(backlog) > 0 && !s.consume(backlog, false) {
		return
	}
	r.add(s)
}

// abandon reads what is in the pipe now and closes it, because another process may hold the other
// end for ever.
func (r *reactor) abandon(s *stream, buf []byte) {
	s.abandoned.Store(true)
	if s.ended.Load() || s.owned() {
		return // a pump that has the stream will return it for this
	}
	if backlog := s.backlog; len(backlog) > 0 {
		s.backlog = nil
		s.consume(backlog, true)
	}
	// A pipe holds at most /proc/sys/fs/pipe-max-size, 1 MiB unless an administrator changed that.
	// Its writer may be faster than this loop.
	for taken := 0; s.started && taken < 1<<20; {
		n, open := r.read(s, buf)
		if n > 0 {
			s.consume(buf[:n], true)
			taken += n
		}
		if n <= 0 || !open {
			break
		}
	}
	r.finish(s)
}

func (r *reactor) finish(s *stream) {
	if !s.ended.CompareAndSwap(false, true) {
		return
	}
	r.unregister(s)
	if r.streams[int32(s.fd)] == s {
		delete(r.streams, int32(s.fd))
	}
	// Closing the read end of a pipe loses no data.
	replaced := r.call(s, func() { _ = unix.Close(s.fd) })
	s.end()
	if replaced {
		s.program.held.Add(-1)
		runtime.Goexit()
	}
}

func (r *reactor) shut() {
	r.mu.Lock()
	r.closed = true
	left := r.posted
	r.posted = nil
	r.mu.Unlock()
	for _, c := range left {
		if c.stream != nil && !c.stream.ended.Load() {
			r.streams[int32(c.stream.fd)] = c.stream
		}
	}
	for _, s := range r.streams {
		// A pump that has the stream can no longer return it, and drops it.
		if s.abandoned.Store(true); !s.owned() {
			r.finish(s)
		}
	}
	_ = r.epoll.Close()
	_ = unix.Close(r.wake)
}

// retry repeats a system call that a signal interrupted.
func retry(f func() error) {
	for f() == unix.EINTR {
	}
}

func joinClose(err error, fds ...int) error {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return err
}
