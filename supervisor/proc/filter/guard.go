package filter

import (
	"math"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Guarded says which process the guard protects.
type Guarded struct {
	PID   int   // of agentinit
	Tasks []int // its threads, the first one included
	Group int   // its process group
	// Scoped says that Landlock keeps signals inside the program's own tree, so the filter need
	// not. If it is false, calls that can send signals through descriptors fail with ENOSYS or
	// EPERM, whatever their target.
	Scoped bool
	// Signals are those that the program may nevertheless send to agentinit: the control requests
	// of a program with control = true.
	Signals []int
	// Password allows a new process of agentinit to set its limit of queued signals, which no
	// program may: a new process is already under the filter when it does so. It is what the process
	// has in the fifth and sixth argument of prlimit64(2), which has four. Programs cannot learn it,
	// because they can read neither agentinit's memory nor the filter (ptrace(2),
	// PTRACE_SECCOMP_GET_FILTER). The zero value allows no change.
	Password [2]uint64
}

// Numbers that the kernel headers define but package unix does not.
const (
	ptraceAttach, ptraceSeize = 16, 0x4206
	fSetOwn, fSetOwnEx        = 8, 15
	fioSetOwn, siocSPGRP      = 0x8901, 0x8902
	prioProcess, prioGroup    = 0, 1
	ioprioProcess             = 1
	x32Bit                    = 0x40000000
	rlimitSigpending          = 11
)

// calls are the numbers of the guarded system calls on one architecture; 0 means that the
// architecture does not have the call.
type calls struct {
	arch                                                                uint32
	kill, tkill, tgkill, sigqueue, tgsigqueue, pidfdOpen, pidfdSend     uint32
	prlimit, schedParam, schedScheduler, schedAffinity, schedAttr       uint32
	setpriority, ioprio, ptrace, readv, writev, movePages, migratePages uint32
	fcntl, fcntl64, ioctl, reboot, setrlimit                            uint32
}

// The tables of seccomp(2) architectures: linux/audit.h, and the syscall tables of
// arch/x86 and arch/arm.
var (
	callsAMD64 = calls{
		arch: unix.AUDIT_ARCH_X86_64, kill: 62, tkill: 200, tgkill: 234, sigqueue: 129, tgsigqueue: 297, pidfdOpen: 434, pidfdSend: 424,
		prlimit: 302, schedParam: 142, schedScheduler: 144, schedAffinity: 203, schedAttr: 314,
		setpriority: 141, ioprio: 251, ptrace: 101, readv: 310, writev: 311, movePages: 279, migratePages: 256,
		fcntl: 72, ioctl: 16, reboot: 169, setrlimit: 160,
	}
	calls386 = calls{
		arch: unix.AUDIT_ARCH_I386, kill: 37, tkill: 238, tgkill: 270, sigqueue: 178, tgsigqueue: 335, pidfdOpen: 434, pidfdSend: 424,
		prlimit: 340, schedParam: 154, schedScheduler: 156, schedAffinity: 241, schedAttr: 351,
		setpriority: 97, ioprio: 289, ptrace: 26, readv: 347, writev: 348, movePages: 317, migratePages: 294,
		fcntl: 55, fcntl64: 221, ioctl: 54, reboot: 88, setrlimit: 75,
	}
	callsARM64 = calls{
		arch: unix.AUDIT_ARCH_AARCH64, kill: 129, tkill: 130, tgkill: 131, sigqueue: 138, tgsigqueue: 240, pidfdOpen: 434, pidfdSend: 424,
		prlimit: 261, schedParam: 118, schedScheduler: 119, schedAffinity: 122, schedAttr: 274,
		setpriority: 140, ioprio: 30, ptrace: 117, readv: 270, writev: 271, movePages: 239, migratePages: 238,
		fcntl: 25, ioctl: 29, reboot: 142, setrlimit: 164,
	}
	callsARM = calls{
		arch: unix.AUDIT_ARCH_ARM, kill: 37, tkill: 238, tgkill: 268, sigqueue: 178, tgsigqueue: 363, pidfdOpen: 434, pidfdSend: 424,
		prlimit: 369, schedParam: 154, schedScheduler: 156, schedAffinity: 241, schedAttr: 380,
		setpriority: 97, ioprio: 314, ptrace: 26, readv: 376, writev: 377, movePages: 344, migratePages: 400,
		fcntl: 55, fcntl64: 221, ioctl: 54, reboot: 88, setrlimit: 75,
	}
)

// tables are the tables of a machine: one for native programs and one for 32-bit programs.
func tables(goarch string) []calls {
	if goarch == "arm64" {
		return []calls{callsARM64, callsARM}
	}
	return []calls{callsAMD64, calls386}
}

// Guard is the filter for one machine ("amd64" or "arm64"). It allows all calls that it does not
// name. Callers of other architectures, x32 among them, get ENOSYS.
func Guard(goarch string, g Guarded) ([]unix.SockFilter, error) {
	p := newProgram()
	p.load(offArch)
	all := tables(goarch)
	for i, c := range all {
		p.when(bpf.JumpEqual, c.arch, archLabel(i))
	}
	p.ret(errno(uint32(unix.ENOSYS)))
	for i, c := range all {
		p.label(archLabel(i))
		if i > 0 {
			// When a filter is installed, the kernel runs it once for every number of either table, to
			// learn which calls need no filter later. It stops at the first look at an argument
			// (seccomp_is_const_allow in kernel/seccomp.c). So 32-bit programs, which are rare, have the
			// filter at every call, and each start takes less.
			p.load(low(0))
		}
		p.dispatch(c, g)
	}
	p.processCalls(g)
	p.limitCalls(g)
	p.otherCalls(g)
	p.label("target") // the accumulator holds a process or thread id
	p.tasks(g)
	p.label("allow")
	p.ret(retAllow)
	p.label("deny")
	p.ret(errno(uint32(unix.EPERM)))
	p.label("absent")
	p.ret(errno(uint32(unix.ENOSYS)))
	return p.assemble()
}

func archLabel(i int) string { return "arch" + string(rune('0'+i)) }

// dispatch jumps to the handler of the call, by binary search.
func (p *program) dispatch(c calls, g Guarded) {
	p.load(offNr)
	if c.arch == unix.AUDIT_ARCH_X86_64 {
		p.when(bpf.JumpGreaterOrEqual, x32Bit, "absent")
	}
	handlers := map[int]string{}
	handle := func(label string, numbers ...uint32) {
		for _, n := range numbers {
			if n != 0 {
				handlers[int(n)] = label
			}
		}
	}
	handle("kill", c.kill, c.sigqueue)
	handle("both", c.tgkill, c.tgsigqueue)
	handle("first", c.tkill, c.pidfdOpen, c.schedParam, c.schedScheduler, c.schedAffinity, c.schedAttr,
		c.readv, c.writev, c.movePages, c.migratePages)
	handle("prlimit", c.prlimit)
	handle("setrlimit", c.setrlimit)
	handle("setpriority", c.setpriority)
	handle("ioprio", c.ioprio)
	handle("ptrace", c.ptrace)
	handle("deny", c.reboot)
	if !g.Scoped {
		handle("absent", c.pidfdSend)
		handle("fcntl", c.fcntl, c.fcntl64)
		handle("ioctl", c.ioctl)
	}
	p.search(ranges(handlers, true), math.MaxInt)
}

// processCalls checks the arguments of the calls whose first one names a process or a thread. A pid
// is an int, so its upper half is ignored.
func (p *program) processCalls(g Guarded) {
	p.label("kill")
	if len(g.Signals) > 0 {
		other := p.unique()
		p.load(low(0))
		p.when(bpf.JumpNotEqual, uint32(g.PID), other)
		p.load(low(1))
		for _, s := range g.Signals {
			p.when(bpf.JumpEqual, uint32(s), "allow")
		}
		p.label(other)
	}
	p.load(low(0))
	if !g.Scoped {
		p.when(bpf.JumpEqual, ^uint32(0), "deny") // kill(-1) reaches all processes
	}
	p.group(g)
	p.jump("target")

	p.label("both") // tgkill(tgid, tid, sig): each of the two ids may name agentinit's thread
	asks := p.unique()
	if g.Scoped {
		// The Go runtime interrupts agentinit's threads with SIGURG, also from a thread under the
		// filter. If that had to wait for the listener's answer, the goroutine that answers could be
		// what the runtime stops. Landlock refuses the signal to programs.
		p.load(low(2))
		p.when(bpf.JumpNotEqual, uint32(unix.SIGURG), asks)
		p.load(low(0))
		p.when(bpf.JumpEqual, uint32(g.PID), "allow")
	}
	p.label(asks)
	p.load(low(1))
	p.tasks(g)
	p.label("first")
	p.load(low(0))
	p.jump("target")
}

func (p *program) limitCalls(g Guarded) {
	p.label("prlimit")
	p.load(low(0))
	ask := p.unique()
	p.when(bpf.JumpNotEqual, 0, ask) // every thread id of agentinit names agentinit
	p.load(low(1))
	p.when(bpf.JumpNotEqual, rlimitSigpending, "allow")
	if g.Password != [2]uint64{} {
		p.password(g.Password)
	}
	p.label(ask) // without a new limit
	p.load(low(2))
	p.when(bpf.JumpNotEqual, 0, "deny")
	p.load(high(2))
	p.when(bpf.JumpNotEqual, 0, "deny")
	p.jump("allow")
	p.label("setrlimit") // the limit that is the mark of the program must not change
	p.load(low(0))
	p.when(bpf.JumpEqual, rlimitSigpending, "deny")
	p.jump("allow")
}

func (p *program) otherCalls(g Guarded) {
	p.label("setpriority")
	p.which(prioProcess, prioGroup, g)
	p.label("ioprio")
	p.which(ioprioProcess, ioprioProcess+1, g)

	p.label("ptrace")
	p.load(low(0))
	attach := p.unique()
	p.when(bpf.JumpEqual, ptraceAttach, attach)
	p.when(bpf.JumpEqual, ptraceSeize, attach)
	p.jump("allow")
	p.label(attach)
	if g.Scoped { // Landlock already keeps it inside the tree
		p.load(low(1))
		p.jump("target")
	} else {
		p.jump("deny")
	}

	if g.Scoped {
		return
	}
	// With fcntl(2), F_SETSIG, the owner of a descriptor can be sent any signal.
	p.label("fcntl")
	p.load(low(1))
	owner := p.unique()
	p.when(bpf.JumpEqual, fSetOwnEx, "deny")
	p.when(bpf.JumpEqual, fSetOwn, owner)
	p.jump("allow")
	p.label(owner)
	p.load(low(2))
	p.group(g)
	p.jump("target")
	p.label("ioctl")
	p.load(low(1))
	p.when(bpf.JumpEqual, fioSetOwn, "deny")
	p.when(bpf.JumpEqual, siocSPGRP, "deny")
	p.jump("allow")
}

// password allows the call if its fifth and sixth argument are the password.
func (p *program) password(words [2]uint64) {
	wrong := p.unique()
	for i, w := range words {
		p.load(low(4 + i))
		p.when(bpf.JumpNotEqual, uint32(w), wrong)
		p.load(high(4 + i))
		p.when(bpf.JumpNotEqual, uint32(w>>32), wrong)
	}
	p.jump("allow")
	p.label(wrong)
}

// tasks denies the ids of agentinit's threads in the accumulator.
func (p *program) tasks(g Guarded) {
	for _, r := range taskRanges(g) {
		next := p.unique()
		p.when(bpf.JumpLessThan, uint32(r[0]), next)
		p.when(bpf.JumpLessOrEqual, uint32(r[1]), "deny")
		p.label(next)
	}
}

// group denies the negative process group of agentinit.
func (p *program) group(g Guarded) {
	if g.Group > 0 {
		p.when(bpf.JumpEqual, uint32(-g.Group), "deny")
	}
}

// which handles setpriority(2) and ioprio_set(2): by process, by group or by user. By user reaches
// all processes of the user, agentinit included.
func (p *program) which(process, group uint32, g Guarded) {
	one, many := p.unique(), p.unique()
	p.load(low(0))
	p.when(bpf.JumpEqual, process, one)
	p.when(bpf.JumpEqual, group, many)
	p.jump("deny")
	p.label(many)
	p.load(low(1))
	if g.Group > 0 {
		p.when(bpf.JumpEqual, uint32(g.Group), "deny")
	}
	p.jump("allow")
	p.label(one)
	p.load(low(1))
	p.jump("target")
}

// taskRanges are the thread ids in as few ranges as possible. agentinit's threads are few ranges,
// because most of them are made one after the other at its start. A number between two ranges may be
// the pid of a program: the program began before agentinit's latest thread did.
func taskRanges(g Guarded) [][2]int {
	ids := append(slices.Clone(g.Tasks), g.PID)
	slices.Sort(ids)
	var out [][2]int
	for _, id := range ids {
		last := len(out) - 1
		if last >= 0 && id <= out[last][1]+1 {
			out[last][1] = id
			continue
		}
		out = append(out, [2]int{id, id})
	}
	return out
}
