package proc

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/proc/child"
)

// launch is one start. It holds the table of system calls that the new process runs before its
// exec, and what the kernel and the new process report about it.
//
// The new process shares agentinit's memory until its exec. The thread that made it waits for that
// in the kernel (CLONE_VFORK). Because of this wait, the kernel treats the new process like one
// with its own memory in two cases. A change of its OOM score does not change agentinit's
// (fs/proc/base.c, __set_oom_adj). And the OOM killer, which would kill all processes that share
// the memory, does not choose it (mm/oom_kill.c, oom_badness).
type launch struct {
	block child.Block
	pid   uint32 // of the new process; the kernel writes it before the new process runs
	clone cloneArgs

	ruleset int // of Landlock; release closes it; -1 if there is none
	// message sends the descriptor of the filter's listener; nil if there is no listener. jump is
	// the step that skips the filters that have no listener.
	message *message
	jump    int

	steps  []child.Step
	info   []stepInfo // what each step is for
	stores []store
	kept   []any // keeps the values reachable whose addresses are in steps
}

// store puts the result of one step into an argument of a later one.
type store struct{ from, to, arg int }

// stepInfo says what a step is for. StartError shows these words.
type stepInfo struct {
	op   string
	path string
}

// Sizes and flags of clone3(2) that package unix does not have.
const (
	cloneClearSighand = 0x100000000
	cloneIntoCgroup   = 0x200000000
)

// cloneArgs is struct clone_args of clone3(2).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal     uint64
	stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// newLaunch begins an empty table.
func newLaunch() *launch {
	return &launch{ruleset: -1, steps: make([]child.Step, 0, 32), info: make([]stepInfo, 0, 32)}
}

// release closes the descriptors of the table; the new process has its own copies.
func (l *launch) release() {
	if l.ruleset >= 0 {
		unix.Close(l.ruleset)
		l.ruleset = -1
	}
}

// add appends a step whose failure fails the start.
func (l *launch) add(info stepInfo, nr uintptr, args ...uintptr) *child.Step {
	s := child.Step{Nr: nr}
	copy(s.Args[:], args)
	l.steps = append(l.steps, s)
	l.info = append(l.info, info)
	return &l.steps[len(l.steps)-1]
}

// try appends a step whose failure is ignored: the next step follows in any case.
func (l *launch) try(nr uintptr, args ...uintptr) {
	s := l.add(stepInfo{}, nr, args...)
	s.OnError = uintptr(len(l.steps)) // an index until seal
}

// addr keeps a value reachable for the garbage collector and returns its address.
func addr[T any](l *launch, v *T) uintptr {
	l.kept = append(l.kept, v)
	return uintptr(unsafe.Pointer(v))
}

// addrOf keeps a slice reachable and returns the address of its first element.
func addrOf[T any](l *launch, s []T) uintptr {
	if len(s) == 0 {
		return 0
	}
	return addr(l, &s[0])
}

// text returns the address of a C string.
func (l *launch) text(s string) (uintptr, error) {
	b, err := unix.ByteSliceFromString(s)
	if err != nil {
		return 0, err
	}
	return addrOf(l, b), nil
}

// texts returns the address of an array of C strings that ends with a null pointer.
func (l *launch) texts(list []string) (uintptr, error) {
	n := 0
	for _, s := range list {
		n += len(s) + 1
	}
	// One allocation for all strings: an environment has dozens of entries.
	text := make([]byte, 0, max(1, n))
	ptrs := make([]uintptr, 0, len(list)+1)
	base := uintptr(unsafe.Pointer(unsafe.SliceData(text)))
	for _, s := range list {
		for i := range len(s) {
			if s[i] == 0 {
				return 0, syscall.EINVAL
			}
		}
		ptrs = append(ptrs, base+uintptr(len(text)))
		text = append(append(text, s...), 0)
	}
	ptrs = append(ptrs, 0)
	l.kept = append(l.kept, text)
	return addrOf(l, ptrs), nil
}

// seal turns the indexes in OnError into addresses. No step may be added after it.
func (l *launch) seal() {
	base := uintptr(unsafe.Pointer(unsafe.SliceData(l.steps)))
	for i := range l.steps {
		if s := &l.steps[i]; s.OnError != 0 {
			s.OnError = base + s.OnError*child.StepSize
		}
	}
	for _, s := range l.stores {
		l.steps[s.from].Store = uintptr(unsafe.Pointer(&l.steps[s.to].Args[s.arg]))
	}
	l.block.First = base
}

// reached is the index of the last step that the new process has begun.
func (l *launch) reached() int {
	at := atomic.LoadUintptr(&l.block.At)
	if at == 0 {
		return -1
	}
	return int((at - l.block.First) / child.StepSize)
}

// cloneBy fills in how the process is made. The old clone(2) has fewer flags: with it, steps of the
// table reset the signal handlers and enter the cgroup. With share, the new process has agentinit's
// descriptor table until its first step: see leaveTable.
func (l *launch) cloneBy(clone3 bool, cgroup int, share bool) {
	l.clone = cloneArgs{
		flags:     unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PARENT_SETTID | cloneClearSighand,
		parentTID: uint64(uintptr(unsafe.Pointer(&l.pid))), exitSignal: uint64(unix.SIGCHLD),
	}
	if share {
		l.clone.flags |= unix.CLONE_FILES
	}
	if cgroup >= 0 {
		l.clone.flags |= cloneIntoCgroup
		l.clone.cgroup = uint64(cgroup)
	}
	l.block.CloneNr, l.block.CloneArgs = l.clone.call(clone3)
	l.block.AllSignals = ^uint64(0)
}

// call returns the number and the arguments of the system call.
func (a *cloneArgs) call(clone3 bool) (nr uintptr, args [5]uintptr) {
	if clone3 {
		return unix.SYS_CLONE3, [5]uintptr{uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a)}
	}
	flags := uintptr(a.flags&^(cloneClearSighand|cloneIntoCgroup) | a.exitSignal)
	if runtime.GOARCH == "arm64" { // the last two arguments are swapped, see clone(2)
		return unix.SYS_CLONE, [5]uintptr{flags, 0, uintptr(a.parentTID), 0, uintptr(a.childTID)}
	}
	return unix.SYS_CLONE, [5]uintptr{flags, 0, uintptr(a.parentTID), uintptr(a.childTID), 0}
}

// spawn makes the process and waits for its exec or its end.
func (l *launch) spawn() syscall.Errno {
	pid := child.Spawn(&l.block)
	runtime.KeepAlive(l) // the new process has read the memory that the table points to
	if pid < 0 {
		return syscall.Errno(-pid)
	}
	return 0
}

// made is the pid of the new process, 0 before there is one.
func (l *launch) made() int { return int(atomic.LoadUint32(&l.pid)) }

// failure returns the step that failed and why. ok is false if no step failed. Then either the
// program runs or the process was killed; started tells which.
func (l *launch) failure() (info stepInfo, errno syscall.Errno, ok bool) {
	n := atomic.LoadUintptr(&l.block.Errno)
	i := l.reached()
	if n == 0 || i < 0 {
		return stepInfo{}, 0, false
	}
	return l.info[i], syscall.Errno(n), true
}

// executing tells whether the new process got as far as its exec.
func (l *launch) executing() bool {
	i := l.reached()
	return i >= 0 && l.info[i].op == opCommand
}
