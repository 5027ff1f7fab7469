// Package highfd gives high numbers to the descriptors that agentinit holds as long as a program
// runs. The low numbers stay free for what a start passes on, so a new process copies only those
// (supervisor/proc). It must never decide which descriptors a process gets.
package highfd

import (
	"os"

	"golang.org/x/sys/unix"
)

// First is the lowest high number. agentinit itself uses fewer descriptors, except for connections.
const First = 256

// Raise gives a descriptor a high number, with close-on-exec, and returns it. The old number is
// closed. If no number from First on is free in the lower three quarters of the limit, the number
// stays: the highest ones are a reserve (proc's checkDescriptors). It is safe for concurrent use.
func Raise(fd int) int {
	high, ok := duplicate(fd)
	if !ok {
		return fd
	}
	unix.Close(fd)
	return high
}

// File is Raise for the end of a pipe. It returns the file to use instead of f, or f if the number stays.
func File(f *os.File) *os.File {
	raw, err := f.SyscallConn()
	if err != nil {
		return f
	}
	high, ok := 0, false
	if err := raw.Control(func(fd uintptr) { high, ok = duplicate(int(fd)) }); err != nil || !ok {
		return f
	}
	name := f.Name()
	_ = f.Close() // the copy stays
	return os.NewFile(uintptr(high), name)
}

// duplicate copies a low descriptor to a high number. ok is false if the number must stay.
func duplicate(fd int) (high int, ok bool) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || fd >= First {
		return 0, false
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, First)
	if err != nil {
		return 0, false
	}
	if uint64(high) >= limit.Cur-limit.Cur/4 {
		unix.Close(high)
		return 0, false
	}
	return high, true
}
