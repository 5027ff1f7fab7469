package proc

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// Guard says how a program is kept from harming agentinit. It is for programs that the kernel would
// allow to harm agentinit: those of agentinit's own user, and those of root. A guarded program has
// no_new_privs, because an ordinary user may not install a filter without it, and a higher OOM
// score than agentinit.
type Guard int

// The guards.
const (
	GuardNone Guard = iota
	// GuardFull refuses to signal, limit, schedule, trace and re-prioritise agentinit's threads. If
	// the kernel has Landlock scopes (Linux 6.12), GuardFull also refuses to signal or trace
	// processes outside the program's own tree.
	GuardFull
	// GuardControl is GuardFull, but allows the signals that are requests to agentinit.
	GuardControl
	// GuardBeside is GuardFull without the Landlock scope. It is for a command that runs beside a
	// program and may signal it, such as a hook.
	GuardBeside
)

// Requests are the signals that a program with GuardControl may send to agentinit.
var requests = []int{int(unix.SIGTERM), int(unix.SIGINT), int(unix.SIGHUP), int(unix.SIGQUIT), int(unix.SIGUSR1), int(unix.SIGUSR2)}

// guard is what all guarded starts share.
type guard struct {
	scope    int // Landlock ruleset that scopes signals, or -1
	score    int // OOM score of a program
	original int // agentinit's own when it was started
	lowered  bool
	raises   bool // programs without a guard get the score, too
	group    int
	pending  uint64 // highest limit of queued signals for programs; each program gets a little less, see mark.go
	nproc    uint64 // limit of processes for programs; 0 sets none
	unscoped sync.Once
	password [2]uint64 // see filter.Guarded

	threads ownThreads

	mu      sync.Mutex
	made    uint64 // how many threads there were when named was compared with them
	named   []int  // the threads that the filters name
	age     int    // how often named has changed: a filter of a higher age names newer threads
	filters map[Guard]*guardFilter
}

// Constants of landlock(7) that package unix does not have under one name.
const (
	landlockVersion     = 1 // LANDLOCK_CREATE_RULESET_VERSION
	landlockScopeSignal = 1 << 1
	landlockScopeABI    = 6
	landlockRulePath    = 1
	landlockRulePort    = 2
)

// landlockAttr is struct landlock_ruleset_attr.
type landlockAttr struct{ fs, net, scoped uint64 }

// size returns the size of the struct for the ABI of this kernel: an older kernel refuses a larger
// struct.
func (a *landlockAttr) size() uintptr {
	switch {
	case a.scoped != 0:
		return unsafe.Sizeof(*a)
	case a.net != 0:
		return 16
	}
	return 8
}

// LandlockABI is the version of Landlock that the kernel has. It is 0 if the kernel has no Landlock
// or the sandbox around agentinit forbids it.
func LandlockABI() int {
	abi, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, landlockVersion)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// pendingReserve is how many queued signals a program of agentinit's user leaves to agentinit. If
// the user's queue is full, the kernel no longer records who sent a signal (kernel/signal.c,
// __send_signal_locked).
const pendingReserve = 1024

// rlimitSigpending is RLIMIT_SIGPENDING (getrlimit(2)).
const rlimitSigpending = 11

// nprocReserve is how many processes and threads a guarded program leaves to agentinit. The kernel
// counts all processes of the user against the limit of the process that forks.
const nprocReserve = 64

func newGuard(abi int, threads ownThreads) *guard {
	g := &guard{scope: -1, threads: threads, filters: map[Guard]*guardFilter{}}
	g.group, _ = unix.Getpgid(0) // never fails for the caller
	word := unsafe.Slice((*byte)(unsafe.Pointer(&g.password)), unsafe.Sizeof(g.password))
	_, _ = unix.Getrandom(word, 0) // if it fails, so does every start: see newToken
	if abi >= landlockScopeABI {
		attr := landlockAttr{scoped: landlockScopeSignal}
		fd, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), attr.size(), 0)
		if errno == 0 {
			g.scope = int(fd) // always close-on-exec
		}
	}
	if own, err := readNumber(scoreFile); err == nil {
		g.original = own
	}
	g.score = scoreAbove(g.original, 0)
	var lim unix.Rlimit
	if unix.Getrlimit(rlimitSigpending, &lim) == nil && lim.Cur > 1 {
		g.pending = lim.Cur - min(pendingReserve, lim.Cur/2)
	}
	if unix.Getrlimit(unix.RLIMIT_NPROC, &lim) == nil && lim.Cur > 2*nprocReserve && lim.Cur != unix.RLIM_INFINITY {
		g.nproc = lim.Cur - nprocReserve
	}
	return g
}

func (g *guard) close() {
	if g.scope >= 0 {
		unix.Close(g.scope)
	}
}

// The OOM killer first kills the process that uses most memory, and a score counts as memory: 1000
// stands for all of the box (proc(5)). A program gets at least scoreAboveOurs more than agentinit had
// at its start, and so much more that it goes first even when agentinit needs mostOurs: otherwise
// many small programs could fill the box, and agentinit would be the largest process in it.
// scoreLowered is agentinit's own score if agentinit may lower it.
const (
	maxScore       = 1000
	scoreAboveOurs = 100
	scoreLowered   = -900
	mostOurs       = 640 << 20 // see docs/security.md
)

const scoreFile = "/proc/self/oom_score_adj"

// readNumber reads a file that holds one number.
func readNumber(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// scoreAbove is the score of programs in a box with a limit of memory in bytes; 0 means none.
func scoreAbove(ours int, limit uint64) int {
	above := scoreAboveOurs
	if limit > 0 {
		above = max(above, int(min(maxScore, mostOurs*maxScore/limit)))
	}
	return min(maxScore, max(ours, 0)+above)
}

// BoxMemory tells how much memory the box may use, in bytes; 0 means any amount. The less that is,
// the higher are the OOM scores of programs. It is called before the first start.
func (o *Owner) BoxMemory(limit uint64) {
	if !o.guard.lowered {
		o.guard.score = scoreAbove(o.guard.original, limit)
	}
}

// lower makes agentinit the last process that the OOM killer kills. That needs CAP_SYS_RESOURCE,
// which containers seldom have. From then on every program gets an explicit score.
func (g *guard) lower() {
	if g.original > scoreLowered && os.WriteFile(scoreFile, []byte(strconv.Itoa(scoreLowered)), 0) == nil {
		g.lowered = true
	}
}

// scoreOf is the OOM score for a command; nil keeps agentinit's score.
func (g *guard) scoreOf(c *Command) *int {
	switch {
	case c.OOMScoreAdj != nil:
		return c.OOMScoreAdj
	case c.Guard != GuardNone || g.raises:
		return &g.score
	case g.lowered:
		return &g.original
	}
	return nil
}

// guardFilter is the filter of one kind of guard. Starts share it.
type guardFilter struct {
	plain    []unix.SockFilter
	notifies []unix.SockFilter // plain for a process with a listener
	judge    *filterJudge      // of plain
	age      int               // of the guard, when it was made
}

// filter returns the filter of a guard. The filter names agentinit's threads, so a new one is made
// when there is a thread that it does not name. That is rare: a supervisor makes its threads at the
// start. It is looked for when the number of threads has changed.
func (g *guard) filter(kind Guard, pid int) (*guardFilter, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.threads.count(); n != g.made {
		g.made = n
		tasks, _ := threadsIn(taskDir) // without /proc only the first thread is known
		if slices.ContainsFunc(tasks, func(tid int) bool { return !slices.Contains(g.named, tid) }) {
			g.named = tasks
			g.age++
			clear(g.filters)
		}
	}
	if f := g.filters[kind]; f != nil {
		return f, nil
	}
	who := filter.Guarded{PID: pid, Tasks: g.named, Password: g.password, Group: g.group, Scoped: g.scope >= 0 && kind == GuardFull}
	if kind == GuardControl {
		who.Signals = requests
	}
	plain, err := filter.Guard(runtime.GOARCH, who)
	if err != nil {
		return nil, err
	}
	f := &guardFilter{plain, filter.Notify(plain), newFilterJudge(plain), g.age}
	g.filters[kind] = f
	return f, nil
}

// guardFilter is the filter of a command's guard; without a guard, its fields are nil.
func (o *Owner) guardFilter(c *Command) (*guardFilter, error) {
	if c.Guard == GuardNone {
		return &guardFilter{}, nil
	}
	f, err := o.guard.filter(c.Guard, o.selfPID)
	if err != nil {
		return nil, &StartError{Op: opGuard, Err: err}
	}
	return f, nil
}

// addScope puts the Landlock scope of the guard into force.
func (o *Owner) addScope(l *launch, c *Command) {
	g := o.guard
	if c.Guard == GuardNone {
		return
	}
	if g.scope < 0 {
		g.unscoped.Do(func() {
			o.report("the kernel has no Landlock scope for signals (Linux 6.12), or forbids it here: guarded programs of one user can signal each other")
		})
	}
	if g.scope >= 0 && c.Guard == GuardFull && !c.Sandbox.scopes() {
		l.add(stepInfo{op: opGuard}, unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(g.scope), 0)
	}
}

// addFilter installs a seccomp filter with SECCOMP_FILTER_FLAG_SPEC_ALLOW. Without this flag,
// kernels before 5.16 slow down the whole program (PR_SPEC_STORE_BYPASS, seccomp(2)).
func (l *launch) addFilter(info stepInfo, f []unix.SockFilter) {
	prog := &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	l.kept = append(l.kept, f)
	l.add(info, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, addr(l, prog))
}
