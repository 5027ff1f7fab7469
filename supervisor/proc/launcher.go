package proc

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launcher is a thread of agentinit that is under the filter of GuardFull itself. What it starts
// inherits the filter. Otherwise the kernel would check and translate the filter anew for each
// program, and make a listener for each: a fifth of agentinit's own time for a start.
//
// The thread runs forkHere alone. The Go runtime interrupts threads that run long with
// tgkill(2), from any thread. The filter lets that pass only where Landlock keeps programs from it,
// so without Landlock's scope for signals there are no launchers.
type launcher struct {
	filter *guardFilter
	jobs   chan launchJob // closing it ends the thread
}

type launchJob struct {
	l    *launch
	done chan<- syscall.Errno
}

// launchers are the threads that can start programs.
type launchers struct {
	mu      sync.Mutex
	idle    []*launcher
	stale   []*launcher // an older filter
	serving int         // how many are not known to be stale; some of them may be busy or being made
	left    int         // how many may still be made
	closed  bool
}

const (
	// launchersServing is how many there are at a time. A start that finds none idle goes without.
	launchersServing = 4
	// launchersEver is how many are made at most; after that, starts go without. If agentinit has a
	// new thread, new ones are made, because a filter cannot change. The old ones stay: if a thread
	// ended, a later thread could take its place in the count of threads, unnoticed (see
	// guard.filter).
	launchersEver = 12
)

// launcher takes a launcher for a command. It returns nil if none is free, if the kernel refuses
// one, or if the command needs a filter of its own.
func (o *Owner) launcher(c *Command, p *process) (*launcher, error) {
	if c.Guard != GuardFull || o.guard.scope < 0 || c.Refused == nil || p.mark < 0 || c.Sandbox != nil && c.Sandbox.Filter != nil {
		return nil, nil
	}
	f, err := o.guardFilter(c)
	if err != nil {
		return nil, err
	}
	if w, more := o.launchers.take(f); !more {
		return w, nil
	}
	made := make(chan *launcher, 1)
	go o.launchUnder(f, made)
	return <-made, nil
}

// take returns an idle launcher with the filter, or with a newer one: a thread may have appeared since
// the start asked for its filter. If there is none, more tells whether to make one.
func (s *launchers) take(f *guardFilter) (w *launcher, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.idle) > 0 {
		w := s.idle[len(s.idle)-1]
		s.idle = s.idle[:len(s.idle)-1]
		if w.filter.age >= f.age {
			return w, false
		}
		s.stale = append(s.stale, w)
		s.serving--
	}
	if s.closed || s.serving == launchersServing || s.left == 0 {
		return nil, false
	}
	s.serving++
	s.left--
	return nil, true
}

// put gives a launcher back.
func (s *launchers) put(w *launcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		close(w.jobs)
		return
	}
	s.idle = append(s.idle, w)
}

// stop makes no more launchers.
func (s *launchers) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = 0
}

// close ends the idle launchers, and the others when they come back.
func (s *launchers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, w := range append(s.idle, s.stale...) {
		close(w.jobs)
	}
	s.idle, s.stale = nil, nil
}

// launchUnder puts a thread under the filter and lets it start programs. It hands over nil if the
// kernel refuses that.
func (o *Owner) launchUnder(f *guardFilter, made chan<- *launcher) {
	onThread(func() {
		if !o.enterFilter(f) {
			o.launchers.stop()
			made <- nil
			<-o.stop // a thread that ends now could be replaced by one that no filter names
			return
		}
		w := &launcher{filter: f, jobs: make(chan launchJob, 1)}
		made <- w
		for j := range w.jobs {
			errno := o.forkHere(j.l)
			o.launchers.put(w)
			j.done <- errno
		}
	})
}

// enterFilter puts the calling thread under the filter, with a listener. It fails if the kernel
// has no listeners (before Linux 5.19), or if a filter around agentinit already has one. Programs
// then install the filter themselves.
func (o *Owner) enterFilter(f *guardFilter) bool {
	r := o.refusals()
	if r == nil || unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != nil {
		return false
	}
	prog := unix.SockFprog{Len: uint16(len(f.notifies)), Filter: &f.notifies[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, listenerFlags, uintptr(unsafe.Pointer(&prog)))
	return errno == 0 && r.add(int(fd), &watched{guard: f.judge, shared: true, tell: func(Refusal) {}})
}
