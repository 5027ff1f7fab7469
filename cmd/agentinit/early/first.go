//go:build !cgo

package early

import "syscall"

// A program without cgo has this package's handler from the first instant at which
// its runtime has any.
//
// The runtime calls a function named by the variable _cgo_sigaction, if there is one,
// in place of rt_sigaction(2). The variable is made for package runtime/cgo
// (runtime/cgo_sigaction.go), which this program does not have. The function here
// (first_amd64.s, first_arm64.s) puts the handler in the place of the runtime's and
// answers EINVAL, upon which the runtime makes the system call itself, with what it finds
// then. It runs before there is a goroutine, and uses no stack.
//
// At its first call the function also grows the descriptor table of the process, so that it has room
// for some thousand programs. The kernel doubles the table when it is full. In a process with
// threads, each doubling waits 5 to 24 ms for an RCU grace period (fs/file.c, expand_fdtable); at
// that call there are no other threads yet. The soft limit of open files is raised for the moment.
//
// With cgo, as the race detector needs it, install does the same when this package is
// initialised.

// The function uses these variables. They must be global.
var (
	grown         uint32 // 1 after the first call
	limit, raised syscall.Rlimit
)
