// Package proc is the only place that starts, signals and waits for processes.
//
// A process that calls wait4(-1), as PID 1 must, takes exit statuses away from any other part of
// the process that waits. So there is one Owner. It forks, keeps the table of its processes, sends
// the signals and reaps, all under one mutex. Callers can therefore rely on this:
//
//   - no exit status is lost or given to the wrong process;
//   - no signal reaches a reused pid: a pid becomes free when the Owner reaps it, and the Owner
//     forgets the pid in the same critical section;
//   - every descendant of a started process can be found again, even after it made a session of
//     its own and lost its parent (see tree.go).
//
// The package must not decide anything: it restarts no program, has no time-out for programs and
// writes no log.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// ErrNoProcess says that no process is left under an id.
var ErrNoProcess = errors.New("no such process")

// ErrClosed says that the Owner was closed.
var ErrClosed = errors.New("process owner is closed")

// Options say how an Owner behaves. Every field may be left zero.
type Options struct {
	// KillTimeout is how long Kill tries to empty a tree before it reports the remaining processes
	// as leaked. 0 means 5 s.
	KillTimeout time.Duration
	// Cgroups asks for one cgroup v2 for each started process, if the hierarchy is writable. The
	// kernel then knows the members, and no member can escape a kill by forking. If the hierarchy
	// is not writable, the Owner works without cgroups, and Report is told.
	Cgroups bool
	// Lone is for an Owner that starts one process, which must not see that the Owner is there
	// (init mode). EnvTag stays out of the environment, and the Owner does not prepare for more processes.
	// A descendant that leaves its session can then no longer be found.
	Lone bool
	// LowerOOMScore makes agentinit the last process that the OOM killer kills: its own score is
	// lowered, or that of every program is raised where the kernel does not allow it.
	LowerOOMScore bool
	// Ready is called before each start, from any goroutine. The start waits until it returns. nil
	// makes no start wait.
	Ready func()
	// ScoreRaised makes the Owner watch its own OOM score and restore it. The function is called
	// from any goroutine when another process has raised the score, and at most once a minute after
	// that. It must not block.
	ScoreRaised func(ScoreRaised)
	// Report is told what the kernel or the sandbox refused: each message at most once, from any
	// goroutine. nil discards the messages.
	Report func(message string)
}

// Stats counts what an Owner has done since New.
type Stats struct {
	Exited  uint64 // started processes reaped
	Orphans uint64 // adopted processes reaped
	Leaked  uint64 // members that Kill gave up on
	Scores  uint64 // times that agentinit's OOM score was raised and restored
	Live    int    // started processes that have not ended
	Adopted int    // adopted processes alive when they were last listed
}

// Owner starts, signals and reaps. There must be at most one in a process, and no other code in the
// process may start or wait for children. All methods may be called from several goroutines.
type Owner struct {
	ready          func()
	killTimeout    time.Duration
	execPatience   time.Duration
	tracerPatience time.Duration
	deaths         deaths
	descriptors    uint64 // how many descriptors a start leaves free
	isInit         bool   // agentinit is PID 1 of a namespace
	selfPID        int    // agentinit's pid, as /proc names it
	tagPrefix      string // agentinit's own tag, if it runs below another Owner
	tags           *tagReader
	lone           bool
	ignored        uint64 // mask of the signals that were ignored when agentinit was started
	oomInChild     bool   // a new process may set its OOM score before its exec
	suidDumpable   bool   // a change of the user makes memory dumpable (proc(5))
	threads        ownThreads
	guard          *guard
	launchers      launchers
	score          *scoreKeeper // nil if it is not configured or the kernel refuses it
	landlockABI    int
	ownTable       bool // a new process makes its descriptor table, see leaveTable
	lastCap        int  // the last capability that the kernel knows
	// What the kernel has refused once: clone3(2), CLONE_INTO_CGROUP.
	noClone3, noCgroupClone atomic.Bool
	hung                    hungStarts
	noListener              atomic.Bool // the kernel refused a listener, and Report was told
	refusalsOnce            sync.Once
	mute                    sync.Once                // Report was told that another filter prevents a listener
	refused                 atomic.Pointer[refusals] // nil until the first use, and if the kernel refuses it
	null                    *os.File
	ownPipes                []uint64           // inodes of agentinit's own standard streams that are pipes or sockets
	cgroups                 func() *cgroupBase // returns when the directory was made; nil if that failed
	report                  func(message string)

	exits   *exitQueue
	deliver func(Exit) // exits.push, made once for all processes
	sigchld chan os.Signal
	sweepC  chan struct{}
	stop    chan struct{}
	loops   sync.WaitGroup

	// attributing is taken before mu; it is held while /proc is read.
	attributing sync.Mutex

	mu           sync.Mutex
	closed       bool
	lastID       uint64
	byID         map[uint64]*process // until emptied
	byPID        map[int]*process    // until reaped
	bySID        map[int]*process    // until emptied; by the session that a process leads
	byPipe       map[uint64]*process // until emptied; by the inode of a pipe that only this process was given
	mains        map[int]*process    // by the pid of the process that is followed, see Follow
	adopted      map[int]*adoptee    // children that the Owner did not start, until reaped
	fresh        []int               // adoptees whose program is not known yet
	pending      int                 // as fresh, plus those that are being attributed now
	marks        marks
	lingering    map[*process]bool  // processes whose leader has ended and whose tree is not empty
	seen         map[int]seenTask   // members met during kills, until their tree is empty
	forks        int                // starts that have forked but are not registered yet
	forking      chan struct{}      // closed when these starts are registered; nil if there are none
	parked       map[int]parkedExit // exits reaped while such starts were under way
	parkedAt     []int              // pids of parked in the order they came
	reaping      bool               // a batch of reaping is under way
	reapedNow    []notice           // the notices of that batch
	dirty        []*process         // processes that settle has to check
	owing        []*process         // processes that owe a signal, in the order it is due; see othersDue
	toSignal     []*process         // those whose members the sweeper has to signal now
	emptyCgroups []*cgroup          // the sweeper removes these
	childers     []chan struct{}    // closed when agentinit has no child left
	children     childrenLists
	lookedAt     time.Time     // when the last listing of adoptees began
	lookTook     time.Duration // and how long it took
	ownPeak      int64         // see mayBeOurs
	departed     departures
	far          rate.Bucket // for steps beyond freeAncestors
	calm         rate.Bucket // one token for each orphan that has ended, see fewOrphans
	storm        bool        // more orphans have ended than calm allows; drain resets it
	stats        Stats
}

// process is one started process with all its descendants.
type process struct {
	id      uint64
	pid     int
	token   string // secret part of the environment tag
	scope   Scope
	uid     *uint32 // nil: agentinit's own
	started time.Time
	deliver func(Exit)
	bounds  []Bound // only its start uses them

	// Owner.mu guards the fields below.
	reaped   bool // the leader was reaped; its pid may now belong to another process
	silent   bool // a start that failed after the fork: its end is not reported
	starting bool // Start has not returned yet
	sentKill bool
	killing  bool
	gone     bool          // Emptied was delivered
	guarded  bool          // the mark is a limit
	grouped  bool          // the mark is a group
	mark     int           // slot of Owner.marks, or -1
	held     []Exit        // notices of a start that has not returned yet
	emptied  chan struct{} // made by Kill; closed when the last member has ended or Kill gave up on it
	wake     chan struct{} // made by Kill; tells the killer that members were found
	adopted  int           // adoptees attributed to this process
	pipes    [3]uint64     // inodes, see privatePipes
	pidfd    int           // Owner.deaths watches this descriptor; 0 means none
	main     *followed
	owed     *owed
	cgroup   *cgroup
	spent    Rusage // of the members that agentinit reaped
	peakCPU  time.Duration
}

// New makes the calling process ready to own others. It becomes a child subreaper unless it is PID
// 1. It closes its memory and environment to other processes of the same uid (PR_SET_DUMPABLE,
// prctl(2)). It keeps descriptors that it inherited from programs, and begins to reap. If the
// kernel refuses one of these steps, New reports that and goes on.
func New(opts Options) (*Owner, error) {
	report := opts.Report
	if report == nil {
		report = func(string) {}
	}
	o := &Owner{
		killTimeout:    opts.KillTimeout,
		execPatience:   execPatience,
		tracerPatience: tracerPatience,
		descriptors:    descriptorReserve,
		report:         report,
		selfPID:        os.Getpid(),
		tagPrefix:      os.Getenv(EnvTag),
		tags:           newTagReader(readTag),
		lone:           opts.Lone,
		exits:          newExitQueue(),
		sigchld:        make(chan os.Signal, 1),
		sweepC:         make(chan struct{}, 1),
		stop:           make(chan struct{}),
		byID:           map[uint64]*process{},
		far:            farAncestors(time.Now()),
		calm:           rate.Full(fewOrphans, time.Now()),
		byPID:          map[int]*process{},
		bySID:          map[int]*process{},
		byPipe:         map[uint64]*process{},
		mains:          map[int]*process{},
		adopted:        map[int]*adoptee{},
		seen:           map[int]seenTask{},
		lingering:      map[*process]bool{},
		parked:         map[int]parkedExit{},
		launchers:      launchers{left: launchersEver},
	}
	o.deliver = o.exits.push
	if o.ready = opts.Ready; o.ready == nil {
		o.ready = func() {}
	}
	if o.killTimeout <= 0 {
		o.killTimeout = 5 * time.Second
	}
	var err error
	if o.null, err = nullDevice(report); err != nil {
		return nil, err
	}
	for fd := range 3 {
		if ino, ok := pipeInode(fd); ok {
			o.ownPipes = append(o.ownPipes, ino)
		}
	}
	o.threads = newOwnThreads()
	o.isInit = o.selfPID == 1
	o.adoptOrphans(report)
	if opts.ScoreRaised != nil { // while agentinit's files in /proc still belong to its user
		if o.score, err = newScoreKeeper(opts.ScoreRaised, o.threads); err != nil {
			report("own OOM score is not watched: " + err.Error())
		}
	}
	o.hardenSelf(report)
	o.lookAtSelf(report)
	if opts.LowerOOMScore && o.oomInChild { // otherwise programs could not be given another score
		o.guard.lower()
	}
	o.guard.raises = opts.LowerOOMScore && !o.guard.lowered
	o.watchScore(report)
	if o.deaths = newDeaths(); o.deaths.ep.ok() {
		o.loops.Go(func() { o.deaths.run(o) })
	}
	if err := o.children.of(o.selfPID); err != nil {
		report("cannot list own children quickly, walking /proc instead: " + err.Error())
		o.children.absent = true
	}
	o.cgroups = cgroupsWanted(opts.Cgroups, o.isInit, report)
	go o.cgroups() // in parallel with the rest of the boot
	// Before the first listing of children, so that no SIGCHLD is missed.
	signal.Notify(o.sigchld, syscall.SIGCHLD)
	o.loops.Go(o.reapLoop)
	o.loops.Go(o.sweepLoop)
	return o, nil
}

// nullDevice returns the file that programs get where they are given none. A small image may have
// no /dev: then the file is a pipe without a writer, which reads as empty.
func nullDevice(report func(string)) (*os.File, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		return null, nil
	}
	report("programs get an empty pipe in place of the null device: " + err.Error())
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make the file that programs read from: %w", err)
	}
	_ = w.Close() // no data was written
	return r, nil
}

func cgroupsWanted(wanted, init bool, report func(string)) func() *cgroupBase {
	return sync.OnceValue(func() *cgroupBase {
		if !wanted {
			return nil
		}
		base, err := openCgroupBase(init, report)
		if err != nil {
			report("no cgroup per program: " + err.Error())
		}
		return base
	})
}

func (o *Owner) adoptOrphans(report func(string)) {
	if o.isInit {
		return
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		report(fmt.Sprintf("not PID 1, and the kernel refuses PR_SET_CHILD_SUBREAPER (%v): orphans go to another process", err))
		return
	}
	report(fmt.Sprintf("not PID 1 but pid %d: became a child subreaper, orphans are reaped here", o.selfPID))
}

func (o *Owner) hardenSelf(report func(string)) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		report(fmt.Sprintf("the kernel refuses PR_SET_DUMPABLE (%v): processes of the same uid can read agentinit's memory", err))
	}
	ranges, err := closeOnExecFrom(3)
	if err != nil {
		report(fmt.Sprintf("cannot mark inherited descriptors close-on-exec (%v): programs may see them", err))
	}
	o.ownTable = ranges && copiesTables()
}

// watchScore begins to keep agentinit's OOM score at its present value.
func (o *Owner) watchScore(report func(string)) {
	if o.score == nil {
		return
	}
	o.score.keep()
	if err := o.score.watch(); err != nil {
		report("writes to our own OOM score are not watched, so it is looked at only now and then: " + err.Error())
	}
	if o.score.ep.ok() {
		o.loops.Go(o.score.run)
	}
}

// Close stops reaping and releases what New took. Processes keep running. It is for tests and for
// the very end of a box.
func (o *Owner) Close() error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return ErrClosed
	}
	o.closed = true
	close(o.stop)
	for _, p := range o.byPID {
		o.forgetDeath(p)
	}
	for _, p := range o.mains {
		o.unfollow(p)
	}
	o.mu.Unlock()
	signal.Stop(o.sigchld)
	o.score.stop()
	o.deaths.ep.close()
	o.refusalsOnce.Do(func() {}) // no refusals are made from here on
	refused := o.refused.Load()
	o.launchers.close()
	refused.stop()
	o.loops.Wait()
	o.score.close()
	refused.close()
	o.exits.close()
	o.children.close()
	o.guard.close()
	o.threads.close()
	o.removeCgroups()
	o.cgroups().close()
	return o.null.Close()
}

// Exits is the stream of notices. It never blocks the reaper: notices that are not received yet are
// queued in memory. It is not closed before Close.
func (o *Owner) Exits() <-chan Exit { return o.exits.out }

// IsInit tells whether the Owner is PID 1 of its namespace.
func (o *Owner) IsInit() bool { return o.isInit }

// Stats returns the counters.
func (o *Owner) Stats() Stats {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.stats
	s.Live, s.Adopted, s.Scores = len(o.byPID), len(o.adopted), o.score.restored()
	return s
}

// lookAtSelf finds out what a new process must not inherit from agentinit. For example, a signal
// that was ignored when agentinit was started (nohup, a careless runtime) would stay ignored in
// every program.
func (o *Owner) lookAtSelf(report func(string)) {
	var err error
	if o.ignored, err = ignoredSignals(); err != nil {
		report("cannot read own signal state: " + err.Error())
	}
	// An undumpable process's files in /proc belong to root.
	fd, err := openFlags("/proc/self/oom_score_adj", unix.O_WRONLY)
	if err == nil {
		unix.Close(fd)
	}
	o.oomInChild = err == nil
	o.landlockABI = LandlockABI()
	o.guard = newGuard(o.landlockABI, o.threads)
	o.marks = newMarks(o.guard.pending)
	if n, err := readNumber("/proc/sys/kernel/cap_last_cap"); err == nil {
		o.lastCap = n
	} else {
		o.lastCap = maxCapability
	}
	b, err := os.ReadFile("/proc/sys/fs/suid_dumpable")
	o.suidDumpable = err == nil && strings.TrimSpace(string(b)) != "0"
}
