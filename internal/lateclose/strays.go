package lateclose

import (
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Strays has the kernel close descriptors that other processes have passed to agentinit (SCM_RIGHTS,
// unix(7)). The process that closes a file last may wait for it: a TCP connection with SO_LINGER waits
// until the other end has read everything, which may be never. Each such close would hold one of
// agentinit's threads, and the Go runtime ends the process that gets no more threads.
//
// The kernel gives that wait up if a signal comes. So a close that takes long is interrupted. One
// signal ends the waits of all descriptors that the kernel closes at the end of one system call.
type Strays struct {
	threads chan struct{}
}

// NewStrays returns a Strays that uses at most so many threads at once. Other calls wait for one of
// them, without a thread.
func NewStrays(threads int) *Strays { return &Strays{threads: make(chan struct{}, threads)} }

// strayPatience is when a close is interrupted, and then again and again. It normally takes some
// microseconds. While one waits, the messages of other programs wait too.
const strayPatience = time.Millisecond

// Interrupt calls closing and interrupts it if it takes long. closing is the close of a socket in
// whose queue descriptors may wait, or a read that leaves descriptors to the kernel.
func (s *Strays) Interrupt(closing func()) {
	s.threads <- struct{}{}
	defer func() { <-s.threads }()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	var mu sync.Mutex // with it, no signal is sent after the end, when the thread does other work
	ended := false
	var again *time.Timer
	mu.Lock()
	again = time.AfterFunc(strayPatience, func() {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		// The Go runtime has a handler for URG on every thread, and expects it at any time. It cannot
		// fail: the thread is locked until the end.
		_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
		again.Reset(strayPatience)
	})
	mu.Unlock()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		again.Stop()
	}()
	closing()
}
