// Package proc is the only place that starts, signals and waits for processes.
//
// A process that calls wait4(-1), as PID 1 must, steals exit statuses from
// anybody else in the same process who waits. So there is one Owner: it forks,
// keeps the table of what it forked, sends the signals and reaps, and all of
// that under one mutex. From this follows what callers may rely on:
//
//   - no exit status is lost or given to the wrong process;
//   - no signal reaches a reused pid: a pid is free only after the Owner has
//     reaped it, and it forgets the pid in the same critical section;
//   - everything that descends from a started process can be found again, even
//     after it made a session of its own and lost its parent (see tree.go).
//
// The package must never decide anything: no restart, no time-out of a program,
// no log. It imports nothing else of this module.
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
)

// ErrNoProcess says that an id names nothing that is left to signal.
var ErrNoProcess = errors.New("no such process")

// ErrClosed says that the Owner was closed.
var ErrClosed = errors.New("process owner is closed")

// Options say how an Owner behaves. The zero value is what a box uses.
type Options struct {
	// KillTimeout is how long Kill tries to empty a tree before it reports what
	// is left as leaked. 0 means 5 s.
	KillTimeout time.Duration
	// Cgroups asks for one cgroup v2 per started process where the hierarchy is
	// writable. Membership is then known to the kernel, and a kill cannot be
	// outrun. Elsewhere the Owner does without, and Report says so.
	Cgroups bool
	// Untagged leaves EnvTag out of environments, for an Owner whose processes must
	// not see that it is there. Descendants that escape their session are then not
	// found.
	Untagged bool
	// LowerOOMScore makes us the last that the OOM killer takes, where the kernel lets us; programs
	// keep the score that we were started with, or get a higher one.
	LowerOOMScore bool
	// ScoreRaised makes the Owner watch its own OOM score and restore it. It is told when
	// somebody has raised the score, from any goroutine, and again at most once a minute; it
	// must not block.
	ScoreRaised func(ScoreRaised)
	// Report receives, at most once each and from any goroutine, what the kernel or
	// the sandbox refused. nil discards it.
	Report func(message string)
}

// Stats counts what an Owner has done since New.
type Stats struct {
	Started uint64 // processes started, one-shots of Run included
	Failed  uint64 // starts that returned an error
	Exited  uint64 // started processes reaped
	Orphans uint64 // adopted processes reaped
	Leaked  uint64 // members given up on by Kill
	Scores  uint64 // times that our OOM score was raised and restored
	Live    int    // started processes that have not ended
	Adopted int    // adopted processes seen alive at the last look
}

// Owner starts, signals and reaps. There must be at most one per process, and
// nobody else in the process may start or wait for children. All methods may be
// called from several goroutines.
type Owner struct {
	killTimeout    time.Duration
	execPatience   time.Duration
	tracerPatience time.Duration
	deaths         deaths
	descriptors    uint64 // how many a start leaves to us
	isInit         bool   // we are PID 1 of a namespace
	selfPID        int    // our pid, as /proc names it
	tagPrefix      string // our own tag when we run below another Owner
	untagged       bool
	ignored        uint64 // mask of the signals that were ignored when we were started
	oomInChild     bool   // a new process may set its OOM score before its exec
	suidDumpable   bool   // a change of the user makes memory dumpable (proc(5))
	guard          *guard
	score          *scoreKeeper // nil: it is not configured, or the kernel refuses it
	landlockABI    int
	lastCap        int // the last capability that the kernel knows
	// What the kernel has refused once: clone3(2), CLONE_INTO_CGROUP.
	noClone3, noCgroupClone atomic.Bool
	hung                    atomic.Int32 // starts that were given up and still hang in the kernel
	noListener              atomic.Bool  // the kernel refused a listener, and we have said so
	refusalsOnce            sync.Once
	mute                    sync.Once                // said that a filter keeps its listener from us
	refused                 atomic.Pointer[refusals] // nil until it is needed, and where the kernel refuses it
	null                    *os.File
	ownPipes                []uint64           // inodes of our own standard streams that are pipes or sockets
	cgroups                 func() *cgroupBase // waits for it; its result may be nil
	report                  func(message string)

	exits   *exitQueue
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
	bySID        map[int]*process    // until emptied; the session a process leads
	byPipe       map[uint64]*process // until emptied; inode of a pipe that only it was given
	adopted      map[int]*adoptee    // children of ours that we did not start, until reaped
	fresh        []int               // adoptees that have not been attributed yet
	pending      int                 // adoptees not yet attributed, fresh ones included
	marks        marks
	lingering    map[*process]bool  // whose leader is gone and whose tree is not
	seen         map[int]seenTask   // members met during kills, until their tree is empty
	forks        int                // starts between fork and registration
	forking      chan struct{}      // closed when they are registered; nil without any
	parked       map[int]parkedExit // exits reaped while forks were in flight
	parkedAt     []int              // pids of parked in the order they came
	reaping      bool               // a batch is under way
	reapedNow    []notice           // of that batch
	dirty        []*process         // to be looked at by settle
	emptyCgroups []*cgroup          // to be removed by the sweeper
	childers     []chan struct{}    // closed when we have no child left
	children     childrenLists
	lookedAt     time.Time     // when the latest look for adoptees began
	lookTook     time.Duration // and how long it took
	departed     departures
	stats        Stats
}

// process is one started process and all that descends from it.
type process struct {
	id      uint64
	pid     int
	token   string // secret part of the environment tag
	scope   Scope
	uid     *uint32 // nil: our own
	started time.Time
	deliver func(Exit)
	emptied chan struct{} // closed when the last member is gone or given up on
	wake    chan struct{} // tells the killer that members were found

	// The rest is guarded by Owner.mu.
	reaped   bool   // the leader is gone and its pid may be another's
	silent   bool   // a start that failed after the fork: its end is not reported
	starting bool   // Start has not been answered
	held     []Exit // notices of a start that has not been answered
	sentKill bool
	killing  bool
	gone     bool // Emptied was delivered
	adopted  int  // adoptees attributed to this process
	pipes    []uint64
	mark     int  // slot of Owner.marks, or -1
	guarded  bool // the mark is a limit
	grouped  bool // the mark is a group
	pidfd    int  // in Owner.deaths; 0: none
	cgroup   *cgroup
	spent    Rusage // of members we reaped
	peakCPU  time.Duration
}

// New makes the calling process ready to own others: it becomes a child
// subreaper unless it is PID 1, closes its memory and environment to other
// processes of the same uid (prctl(2), PR_SET_DUMPABLE), keeps descriptors it
// inherited from leaking into programs, and begins to reap. What the kernel
// refuses is reported and otherwise done without.
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
		untagged:       opts.Untagged,
		exits:          newExitQueue(),
		sigchld:        make(chan os.Signal, 1),
		sweepC:         make(chan struct{}, 1),
		stop:           make(chan struct{}),
		byID:           map[uint64]*process{},
		byPID:          map[int]*process{},
		bySID:          map[int]*process{},
		byPipe:         map[uint64]*process{},
		adopted:        map[int]*adoptee{},
		seen:           map[int]seenTask{},
		lingering:      map[*process]bool{},
		parked:         map[int]parkedExit{},
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
	o.isInit = o.selfPID == 1
	o.adoptOrphans(report)
	if opts.ScoreRaised != nil { // before our files become root's
		if o.score, err = newScoreKeeper(opts.ScoreRaised); err != nil {
			report("own OOM score is not watched: " + err.Error())
		}
	}
	o.hardenSelf(report)
	o.lookAtSelf(report)
	if opts.LowerOOMScore && o.oomInChild { // else programs could not be given another
		o.guard.lower()
	}
	o.watchScore(report)
	if o.deaths = newDeaths(); o.deaths.ep.ok() {
		o.loops.Go(func() { o.deaths.run(o) })
	}
	if err := o.children.of(o.selfPID); err != nil {
		report("cannot list own children quickly, walking /proc instead: " + err.Error())
		o.children.absent = true
	}
	o.cgroups = cgroupsWanted(opts.Cgroups, report)
	go o.cgroups() // beside what else a box makes before its first program
	// Before the first look, so that no SIGCHLD falls between.
	signal.Notify(o.sigchld, syscall.SIGCHLD)
	o.loops.Go(growDescriptorTable)
	o.loops.Add(2)
	go o.reapLoop()
	go o.sweepLoop()
	return o, nil
}

// nullDevice is what programs have where they are given no file. A small image may
// have no /dev at all: then it is a pipe without a writer, which reads as empty.
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
	_ = w.Close() // nothing was written
	return r, nil
}

func cgroupsWanted(wanted bool, report func(string)) func() *cgroupBase {
	return sync.OnceValue(func() *cgroupBase {
		if !wanted {
			return nil
		}
		base, err := openCgroupBase()
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
		report(fmt.Sprintf("the kernel refuses PR_SET_DUMPABLE (%v): processes of the same uid can read our memory", err))
	}
	if err := closeOnExecFrom(3); err != nil {
		report(fmt.Sprintf("cannot mark inherited descriptors close-on-exec (%v): programs may see them", err))
	}
}

// watchScore begins to keep our OOM score where it is now.
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

// Close stops reaping and releases what New took. Processes are left alone.
// It is for tests and for the very end of a box.
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
	o.mu.Unlock()
	signal.Stop(o.sigchld)
	o.score.stop()
	o.deaths.ep.close()
	o.refusalsOnce.Do(func() {}) // none is made from here on
	refused := o.refused.Load()
	refused.stop()
	o.loops.Wait()
	o.score.close()
	refused.close()
	o.exits.close()
	o.children.close()
	o.guard.close()
	o.removeCgroups()
	o.cgroups().close()
	return o.null.Close()
}

// Exits is the stream of what ended. It never blocks the reaper: what is not
// received is queued in memory. It is never closed before Close.
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

// growDescriptorTable makes room for the descriptors of some thousand programs. The
// kernel doubles the table when it is full, and in a process with threads each time
// waits for an RCU grace period, 5 to 24 ms (fs/file.c, expand_fdtable). A lower limit of open
// files refuses it, and then the table stays small anyway.
func growDescriptorTable() {
	const tableEnd = 4095
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, tableEnd); err == nil {
		unix.Close(fd)
	}
}

// lookAtSelf finds out what new processes must be given differently from what they
// inherit. A signal that was ignored when we were started (nohup, a careless
// runtime) would stay ignored in every program.
func (o *Owner) lookAtSelf(report func(string)) {
	st, err := readSelfSignals()
	if err != nil {
		report("cannot read own signal state: " + err.Error())
	}
	o.ignored = st.ignored
	// Undumpable, our files in /proc belong to root.
	fd, err := openFlags("/proc/self/oom_score_adj", unix.O_WRONLY)
	if err == nil {
		unix.Close(fd)
	}
	o.oomInChild = err == nil
	o.landlockABI = LandlockABI()
	o.guard = newGuard(o.landlockABI)
	o.marks = newMarks(o.guard.pending)
	if n, err := readNumber("/proc/sys/kernel/cap_last_cap"); err == nil {
		o.lastCap = n
	} else {
		o.lastCap = maxCapability
	}
	b, err := os.ReadFile("/proc/sys/fs/suid_dumpable")
	o.suidDumpable = err == nil && strings.TrimSpace(string(b)) != "0"
}
