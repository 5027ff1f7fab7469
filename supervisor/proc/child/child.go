// Package child is what a new process does between clone(2) and execve(2).
//
// The new process shares the memory of agentinit until its exec (CLONE_VM). The thread that
// makes it waits for that in the kernel (CLONE_VFORK), without a processor of the Go runtime:
// whatever happens to the new process meanwhile, agentinit goes on. Go code cannot run there.
// The new process executes one assembly function that walks through a table of system calls,
// uses no stack and ends in execve or exit_group.
//
// The package must never import anything but unsafe. Package initialisation order
// then puts it before package syscall, which raises the soft limit of open files of
// the calling process; OpenFiles holds the limit that agentinit was started with.
package child

import "unsafe"

// Step is one system call of the table. The addresses in it are not pointers to the
// garbage collector: the caller keeps what they point to reachable until the new
// process has ended or has executed the program.
type Step struct {
	Nr   uintptr
	Args [6]uintptr
	// Store is the address of the word that receives the result; 0 discards it.
	Store uintptr
	// OnError is the address of the Step that follows an error; 0 gives up: the
	// error number goes to Block.Errno, and the process exits with status 127.
	OnError uintptr
}

// Block is the memory that agentinit and the new process share about one start.
type Block struct {
	// First is the address of the first Step.
	First uintptr
	// At is the address of the Step that the new process has begun.
	At uintptr
	// Errno is the error number of the Step at At, once it has failed.
	Errno uintptr
	// CloneNr and CloneArgs are the system call that makes the new process.
	CloneNr   uintptr
	CloneArgs [5]uintptr
	// AllSignals is the mask in force from before the clone on; OldSignals
	// receives the mask of the calling thread.
	AllSignals, OldSignals uint64
}

// Spawn makes the new process and returns its pid. A negative result is an error
// number. With CLONE_VFORK it returns when the new process has executed its program or has
// ended. The Block must not be on a stack, which moves. The calling thread gives up its
// processor meanwhile.
//
//go:nosplit
//go:norace
func Spawn(b *Block) int {
	entersyscall()
	pid := spawn(b)
	exitsyscall()
	return pid
}

// spawn is Spawn without the runtime's knowledge of it.
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

// OpenFiles is the soft and the hard limit of open files that this process was
// started with; the soft one is 0 if the kernel refused to tell.
var OpenFiles = openFiles()

func openFiles() (limit [2]uint64) {
	if prlimit(rlimitNofile, &limit) != 0 {
		return [2]uint64{}
	}
	return limit
}

// StepSize is the distance of two Steps of a table.
const StepSize = unsafe.Sizeof(Step{})
