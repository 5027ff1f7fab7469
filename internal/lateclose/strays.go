package lateclose

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Strays closes descriptors that other processes have passed to agentinit (SCM_RIGHTS, unix(7)).
// The process that closes a file last may wait for it: a TCP connection with SO_LINGER waits until
// the other end has read everything, which may be never. Each such close would hold one of
// agentinit's threads, and the Go runtime ends the process that gets no more threads.
//
// The kernel gives that wait up if a signal comes. So a close that takes long is interrupted.
type Strays struct {
	threads  chan struct{}
	patience time.Duration // before the first signal
}

// NewStrays returns a Strays that uses at most so many threads at once. Other calls wait for one of
// them, without a thread.
func NewStrays(threads int) *Strays {
	return &Strays{threads: make(chan struct{}, threads), patience: strayPatience}
}

// A close normally takes some microseconds. After strayPatience it is interrupted, and then again
// every strayAgain, because each descriptor that is closed begins another wait.
const (
	strayPatience = 5 * time.Millisecond
	strayAgain    = time.Millisecond
)

// Close closes the descriptors. It ignores errors, because none of them was ever used.
func (s *Strays) Close(fds []int) {
	if len(fds) == 0 {
		return
	}
	// sd_notify_barrier(3) passes a pipe. The close of a pipe never waits.
	rest := fds[:0]
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			_ = unix.Close(fd)
			continue
		}
		rest = append(rest, fd)
	}
	if len(rest) == 0 {
		return
	}
	s.Interrupt(func() {
		for _, fd := range rest {
			_ = unix.Close(fd)
		}
	})
}

// Interrupt calls closing and interrupts it if it takes long. It is for the close of a socket in
// whose queue descriptors may wait.
func (s *Strays) Interrupt(closing func()) {
	s.threads <- struct{}{}
	defer func() { <-s.threads }()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	done, ended := make(chan struct{}), make(chan struct{})
	go s.interrupt(unix.Gettid(), done, ended)
	closing()
	close(done)
	<-ended // from here on the thread does other work
}

// interrupt sends a thread of agentinit URG until done is closed. The Go runtime has a handler for
// that signal on every thread, and expects it at any time.
func (s *Strays) interrupt(tid int, done <-chan struct{}, ended chan<- struct{}) {
	defer close(ended)
	next := time.NewTimer(s.patience)
	defer next.Stop()
	for {
		select {
		case <-done:
			return
		case <-next.C:
			// It cannot fail: the thread is locked until ended is closed.
			_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
			next.Reset(strayAgain)
		}
	}
}
