package lingertest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// HoldPipe keeps the lock of a pipe whose write end is fd, as a program can: it splices a socket without
// data into the pipe (splice(2)). No one can read or close the pipe until release is called. The test closes
// fd.
func HoldPipe(t testing.TB, fd int) (release func()) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tid, ended := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the thread ends with the goroutine
		// A signal would interrupt the call, and release the lock for a moment.
		var all unix.Sigset_t
		for i := range all.Val {
			all.Val[i] = ^all.Val[i]
		}
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil)
		tid <- unix.Gettid()
		// The result is 0: the other end of the socket is closed.
		_, _ = unix.Splice(pair[0], nil, own, nil, 1, 0)
		unix.Close(pair[0])
		unix.Close(own)
	}()
	// The file names the function of the kernel in which the thread waits.
	file := fmt.Sprintf("/proc/self/task/%d/wchan", <-tid)
	for waits := false; !waits; {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		waits = strings.HasPrefix(string(b), "unix_stream")
	}
	released := false
	release = func() {
		if !released {
			released = true
			unix.Close(pair[1])
			<-ended
		}
	}
	t.Cleanup(release)
	return release
}
