package lateclose

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Masked makes a system call that may wait and that no signal interrupts, with all signals blocked on its
// thread. A signal to a process goes to one thread that does not block it (complete_signal in
// kernel/signal.c). If that thread waits in such a call, no other thread takes the signal: agentinit would
// hear neither of TERM nor of the end of a process.
//
// Reading and closing a pipe are such calls. While a program splices a silent terminal or socket into the
// pipe (splice(2)), the kernel lets no other process read or close it (pipe_lock in fs/pipe.c).
func Masked(call func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	// The kernel refuses neither call.
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before)
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	call()
}
