package lateclose

import (
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Masked makes a system call that may wait and that no signal interrupts, with all signals blocked on its
// thread. A signal to a process goes to one thread that does not block it, SIGCHLD first to the one that
// made the child (complete_signal and do_notify_parent in kernel/signal.c). If that thread waits in such a
// call, no other thread takes the signal: agentinit would hear neither of TERM nor of the end of a process.
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

// Pipe is agentinit's end of a pipe of a program, which has the other end. Its calls are made by Masked.
type Pipe struct{ File *os.File }

// Read implements io.Reader.
func (p Pipe) Read(b []byte) (n int, err error) {
	raw, err := p.File.SyscallConn()
	if err != nil {
		return 0, err
	}
	waitErr := raw.Read(func(fd uintptr) bool {
		Masked(func() { n, err = unix.Read(int(fd), b) })
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return 0, waitErr
	}
	if err == nil && n == 0 && len(b) > 0 {
		err = io.EOF
	}
	return max(0, n), err
}

// SetReadDeadline is that of the file.
func (p Pipe) SetReadDeadline(t time.Time) error { return p.File.SetReadDeadline(t) }

// Close closes the file. Closing an end of a pipe loses no data.
func (p Pipe) Close() (err error) {
	Masked(func() { err = p.File.Close() })
	return err
}
