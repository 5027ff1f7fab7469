// Package child is what a new process does between clone(2) and execve(2).
//
// The new process shares the memory of agentinit until its exec (CLONE_VM). The thread that makes
// it waits for that in the kernel (CLONE_VFORK), without a processor of the Go runtime. So
// agentinit goes on, even if the new process hangs. Go code cannot run in the new process. It
// executes one assembly function, which goes through a table of system calls, uses no stack and
// ends in execve or exit_group.
//
// The package must import only unsafe. Go then initialises it before package syscall, which raises
// the soft limit of open files. OpenFiles holds the limit that agentinit was started with.
package child

import "unsafe"

// Step is one system call of the table. The garbage collector does not see the addresses in it as
// pointers. So the caller must keep their targets reachable until the new process has ended or has
// executed the program.
type Step struct {
	Nr   uintptr
	Args [6]uintptr
	// Store is the address of the word that receives the result; 0 discards it.
	Store uintptr
	// OnError is the address of the Step that follows after an error. 0 means to give up: the error
	// number goes to Block.Errno, and the process exits with status 127.
	OnError uintptr
}

// Block is the memory that agentinit and the new process share for one start.
type Block struct {
	// First is the address of the first Step.
	First uintptr
	// At is the address of the Step that the new process has begun last.
	At uintptr
	// Errno is the error number of the Step at At, if that failed.
	Errno uintptr
	// CloneNr and CloneArgs are the system call that makes the new process.
	CloneNr   uintptr
	CloneArgs [5]uintptr
	// AllSignals is the signal mask that is set before the clone. OldSignals receives the mask that
	// the calling thread had.
	AllSignals, OldSignals uint64
}

// Spawn makes the new process and returns its pid. A negative result is an error number. With
// CLONE_VFORK it returns when the new process has executed its program or has ended. The Block must
// not be on a stack, because stacks move. The calling thread gives up its processor of the Go
// runtime meanwhile.
//
//go:nosplit
//go:norace
func Spawn(b *Block) int {
	entersyscall()
	pid := spawn(b)
	exitsyscall()
	return pid
}

// spawn is Spawn, but the runtime does not know of the wait.
//
//go:noescape
func spawn(b *Block) int

// prlimit is prlimit64(2) for the calling process, to read a limit.
//
//go:noescape
func prlimit(resource uintptr, old *[2]uint64) int

//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// rlimitNofile is RLIMIT_NOFILE (getrlimit(2)), the same number on both processors.
const rlimitNofile = 7

// OpenFiles is the soft and the hard limit of open files that this process was started with. The
// soft limit is 0 if the kernel refused to give it.
var OpenFiles = openFiles()

func openFiles() (limit [2]uint64) {
	if prlimit(rlimitNofile, &limit) != 0 {
		return [2]uint64{}
	}
	return limit
}

// StepSize is the distance between two Steps in a table.
const StepSize = unsafe.Sizeof(Step{})
