package proc

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childSignal is what this process does when it receives a SIGCHLD.
var childSignal signalAction

// signalAction turns the handler of the Go runtime for SIGCHLD off and on. While it is off, the action
// is the default one (SIG_DFL): the kernel drops the signal and wakes no thread for it, and an ended
// child stays until it is reaped. SIG_IGN would discard the status of the child (wait(2)).
// os/signal can only leave the handler in place or set SIG_IGN.
type signalAction struct {
	mu      sync.Mutex
	mutes   int
	handler kernelAction
}

// kernelAction is struct sigaction of the kernel on amd64 and arm64; all zero is SIG_DFL.
type kernelAction [4]uint64

// mute drops each SIGCHLD until unmute is called as often as mute.
func (s *signalAction) mute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mutes++; s.mutes == 1 {
		s.set(&kernelAction{}, &s.handler)
	}
}

// unmute puts the handler back. No signal comes for the children that ended meanwhile: the caller has to
// look for them.
func (s *signalAction) unmute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mutes--; s.mutes == 0 {
		s.set(&s.handler, nil)
	}
}

// set cannot fail: both addresses are valid, and SIGCHLD can have any action.
func (s *signalAction) set(next, before *kernelAction) {
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD),
		uintptr(unsafe.Pointer(next)), uintptr(unsafe.Pointer(before)), unsafe.Sizeof(next[0]), 0, 0)
}
