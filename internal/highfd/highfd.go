// Package highfd gives high numbers to the descriptors that agentinit holds as long as a program
// runs. The low numbers stay free for what a start passes on, so a new process copies only those
// (supervisor/proc). It must never decide which descriptors a process gets.
package highfd

import "golang.org/x/sys/unix"

// First is the lowest high number. agentinit itself uses fewer descriptors, except for connections.
const First = 256

// Raise gives a descriptor a high number, with close-on-exec, and returns it. The old number is
// closed. If no number from First on is free in the lower three quarters of the limit, the number
// stays: the highest ones are a reserve (proc's checkDescriptors). It is safe for concurrent use.
func Raise(fd int) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || fd >= First {
		return fd
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, First)
	if err != nil {
		return fd
	}
	if uint64(high) >= limit.Cur-limit.Cur/4 {
		unix.Close(high)
		return fd
	}
	unix.Close(fd)
	return high
}
