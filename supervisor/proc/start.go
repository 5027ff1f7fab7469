package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Start starts a process in a session and process group of its own. It returns
// when the program has been exec'ed, or with the exact cause, a *StartError,
// when it has not. Files are inherited as declared; nothing else is, and the
// signal mask and dispositions are the default ones.
func (o *Owner) Start(c Command) (Process, error) {
	return o.start(c, o.exits.push, false)
}

// StartTo is Start for one who takes the notices of this process himself: the at
// most two of them go to deliver and not to Exits, perhaps before StartTo returns.
// deliver must neither block nor call the Owner: the reaper waits for it.
func (o *Owner) StartTo(c Command, deliver func(Exit)) (Process, error) {
	return o.start(c, deliver, false)
}

// start also serves Run; beside says so.
func (o *Owner) start(c Command, deliver func(Exit), beside bool) (Process, error) {
	o.score.active()
	proc, err := Process{}, o.checkDescriptors(beside)
	if err == nil {
		proc, err = o.tryStart(&c, deliver)
	}
	o.mu.Lock()
	if err != nil {
		o.stats.Failed++
	} else {
		o.stats.Started++
	}
	o.mu.Unlock()
	return proc, err
}

func (o *Owner) tryStart(c *Command, deliver func(Exit)) (Process, error) {
	path, err := lookPath(c)
	if err != nil {
		return Process{}, err
	}
	token, err := newToken()
	if err != nil {
		return Process{}, &StartError{Op: "token", Err: err}
	}
	io, err := o.openIO(c)
	if err != nil {
		return Process{}, err
	}
	defer io.closeChildSide()

	p := &process{
		token: token, scope: c.Scope, deliver: deliver, starting: true,
		emptied: make(chan struct{}), wake: make(chan struct{}, 1),
		pipes: o.privatePipes(io.fds),
	}
	p.guarded = c.Guard != GuardNone
	if c.Credential != nil {
		p.uid = &c.Credential.UID
		p.grouped = o.marks.group && !p.guarded && !c.Credential.isOurs()
	}
	if err := o.reserve(p); err != nil {
		io.closeOurSide()
		return Process{}, err
	}
	p.cgroup = o.cgroups().create(p.id)
	env := taggedEnv(c.Env, o.tag(p.id, p.token))
	err = o.launch(c, p, path, env, io)
	p.cgroup.started()
	if err != nil {
		o.refused.Load().forget(p.id)
		o.unreserve(p)
		p.cgroup.remove()
		io.closeOurSide()
		return Process{}, err
	}
	return Process{ID: p.id, PID: p.pid, Started: p.started, Stdin: io.stdin, TTY: io.tty}, nil
}

// reserve gives p its id before the fork: the tag in the environment holds it. p
// can own from here on: a program may leave an escapee and be dead before its
// start is registered, and the escapee is asked whose it is only once.
func (o *Owner) reserve(p *process) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrClosed
	}
	o.lastID++
	p.id = o.lastID
	p.mark = -1
	if p.guarded || p.grouped {
		o.marks.take(p)
	}
	o.byID[p.id] = p
	for _, inode := range p.pipes {
		o.byPipe[inode] = p
	}
	return nil
}

// unreserve takes back what reserve did for a process that has never been.
func (o *Owner) unreserve(p *process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.pid != 0 {
		return
	}
	delete(o.byID, p.id)
	o.marks.release(p)
	for _, inode := range p.pipes {
		if o.byPipe[inode] == p {
			delete(o.byPipe, inode)
		}
	}
	o.disown(p)
}

func (c *Command) argv() []string {
	if len(c.Args) == 0 {
		return []string{c.Path}
	}
	return c.Args
}

func (cr *Credential) isOurs() bool {
	if int(cr.UID) != os.Geteuid() || int(cr.GID) != os.Getegid() {
		return false
	}
	if cr.Groups == nil {
		return true
	}
	ours, err := os.Getgroups()
	if err != nil || len(ours) != len(cr.Groups) {
		return false
	}
	have := map[int]bool{}
	for _, g := range ours {
		have[g] = true
	}
	for _, g := range cr.Groups {
		if !have[int(g)] {
			return false
		}
	}
	return true
}

// execPatience is how long a new process may take to its exec: somebody may stop it,
// a lease may hold up its program file (fcntl(2), F_SETLEASE), and the server of a file system
// may be dead.
const execPatience = 10 * time.Second

// prodEvery is how often a start that waits for its exec looks and sends SIGCONT: a
// program that stops all others in a loop leaves the new process little time to run.
const prodEvery = 2 * time.Millisecond

// launch makes the process, waits for its exec and registers it. The mutex is not
// held meanwhile: that may take long, and many may do it at once. An exit that the
// reaper meets before it knows whose it is is parked and claimed in register.
func (o *Owner) launch(c *Command, p *process, path string, env []string, io *childIO) error {
	for {
		err := o.attempt(c, p, path, env, io)
		if !errors.Is(err, errCgroupRefused) {
			return err
		}
		if !o.noCgroupClone.Swap(true) {
			o.report("the kernel refuses to start processes in cgroups of their own: " + err.Error())
		}
	}
}

func (o *Owner) attempt(c *Command, p *process, path string, env []string, io *childIO) error {
	o.beginFork()
	l, pid, err := o.spawn(c, p, path, env, io)
	o.mu.Lock()
	if err != nil {
		o.endFork()
		o.mu.Unlock()
		return err
	}
	p.launch = l
	if l.viaHelper {
		o.registerHelper(pid, l)
	}
	o.mu.Unlock()
	err = o.awaitExec(l, p, pid, path)
	if err == nil {
		err = l.verdict(c, path)
	}
	if err == nil {
		o.listening(l, p.id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dismissHelper(l)
	if program := l.program(pid); p.pid == 0 && program != 0 {
		o.register(p, program)
	}
	if p.pid == 0 {
		o.endFork() // there is nothing to register any more
	}
	if score := o.guard.scoreOf(c); err == nil && score != nil && !o.oomInChild {
		err = p.adjustOOM(*score)
	}
	if !errors.Is(err, errCgroupRefused) {
		p.answered(err)
	}
	return err
}

// adjustOOM sets the score of a program that runs: our files in /proc belong to root,
// so a new process of an ordinary user cannot open them before its exec. The mutex is held,
// so the pid is the program's. One that has ended needs no score; one that only root
// may read (execve(2) of a file that is not readable) keeps ours.
func (p *process) adjustOOM(score int) error {
	if p.reaped {
		return nil
	}
	err := os.ErrPermission
	// We hear of the exec a moment before the kernel makes the new memory dumpable
	// (begin_new_exec in fs/exec.c); until then the file is root's.
	for range 50 {
		err = os.WriteFile("/proc/"+strconv.Itoa(p.pid)+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
		if !errors.Is(err, os.ErrPermission) {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || score > 0 && errors.Is(err, os.ErrPermission) {
		return nil
	}
	p.sentKill = true
	_ = unix.Kill(p.pid, syscall.SIGKILL) // a start that fails leaves no program behind
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return &StartError{Op: opOOM, Err: err, Hint: stepHints[opOOM]}
}

// program is the pid of the program's process: the one we made or, once there is
// one, the one its helper made.
func (l *launch) program(made int) int {
	if l.viaHelper {
		return int(atomic.LoadUint32(&l.pid))
	}
	return made
}

// answered decides what becomes of the notices of a start: they are the caller's if
// it went well, and nobody's if not.
func (p *process) answered(err error) {
	held := p.held
	p.held, p.starting = nil, false
	if err != nil {
		p.silent = true
		return
	}
	p.started, p.launch = time.Now(), nil
	for _, e := range held {
		p.deliver(e)
	}
}

// tell delivers a notice, or keeps it until the start has been answered: what
// happens before the program runs is nobody's business.
func (p *process) tell(e Exit) {
	if p.starting {
		p.held = append(p.held, e)
		return
	}
	p.deliver(e)
}

// awaitExec waits until the process has executed the program or is dead. At the end
// of its patience it kills the process, and waits a little for the kernel to do so: a
// helper may just be making the program's process. What hangs in the kernel even
// then stays registered, or a helper, until it is reaped.
func (o *Owner) awaitExec(l *launch, p *process, pid int, path string) error {
	began := time.Now()
	for {
		l.wait(prodEvery)
		waited := time.Since(began)
		late := waited >= o.execPatience
		if l.finished() || waited >= o.execPatience+time.Second {
			if late {
				return &StartError{Op: opCommand, Path: path, Err: fmt.Errorf("%w within %v", errNoExec, o.execPatience),
					Hint: "something holds up the program file, or stops the process"}
			}
			return nil
		}
		sig := syscall.SIGCONT
		if late {
			sig = syscall.SIGKILL
		}
		o.mu.Lock()
		if program := l.program(pid); p.pid == 0 && program != 0 {
			o.register(p, program)
		}
		if p.pid != 0 && !p.reaped {
			_ = unix.Kill(p.pid, sig) // EPERM: it has another user by now, and we may not; the end of the patience tells
		}
		if o.helpers[l.helper] == l {
			_ = unix.Kill(l.helper, sig)
		}
		o.mu.Unlock()
	}
}

// errNoExec is the end of the patience with a process.
var errNoExec = errors.New("its exec did not happen")

// errKilled is the end of a process before its exec.
var errKilled = errors.New("the process was killed before it could execute the program")

// errCgroupRefused is the refusal of CLONE_INTO_CGROUP.
var errCgroupRefused = errors.New("CLONE_INTO_CGROUP")

// verdict is nil when the program runs.
func (l *launch) verdict(c *Command, path string) error {
	if info, errno, failed := l.failure(); failed {
		if l.second.cgroup != 0 && info.op == opFork && errno != syscall.EAGAIN && errno != syscall.ENOMEM {
			return fmt.Errorf("%w: %w", errCgroupRefused, errno)
		}
		return explainStep(c, path, info, errno)
	}
	if !l.executing() {
		return &StartError{Op: opCommand, Path: path, Err: errKilled}
	}
	return nil
}

// spawn makes the process, without what the kernel refuses for good: clone3(2) is
// ENOSYS on old kernels and EPERM under old seccomp profiles, and a cgroup may refuse
// to be entered.
func (o *Owner) spawn(c *Command, p *process, path string, env []string, io *childIO) (*launch, int, error) {
	for {
		l, err := o.plan(c, p, path, env, io)
		if err != nil {
			return nil, 0, err
		}
		pid, errno := o.forkHere(l)
		l.release()
		switch {
		case errno == 0:
			return l, pid, nil
		case l.block.CloneNr == unix.SYS_CLONE3 && slices.Contains([]syscall.Errno{syscall.ENOSYS, syscall.EPERM, syscall.EINVAL}, errno):
			o.noClone3.Store(true)
		default:
			return nil, 0, &StartError{Op: opFork, Err: errno, Hint: stepHints[opFork]}
		}
	}
}

// forkHere forks from a thread whose children are listed: what a program makes with
// CLONE_PARENT (clone(2)) is a child of that very thread.
func (o *Owner) forkHere(l *launch) (pid int, errno syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o.mu.Lock()
	err := o.children.of(unix.Gettid())
	o.mu.Unlock()
	if err != nil && !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	if errno != 0 {
		return 0, errno
	}
	return l.spawn()
}

// beginFork and endFork bracket the time in which an exit may be that of a process
// which is not registered yet. The mutex is held at endFork, which register does too.
func (o *Owner) beginFork() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forks++; o.forking == nil {
		o.forking = make(chan struct{})
	}
}

func (o *Owner) endFork() {
	o.forks--
	// Whoever waits looks again at each: the one it waits for may be this.
	close(o.forking)
	if o.forking = nil; o.forks > 0 {
		o.forking = make(chan struct{})
	} else {
		o.forgetParked()
	}
}

// registerHelper notes a helper, unless it is dead and reaped by now.
func (o *Owner) registerHelper(pid int, l *launch) {
	if a := o.adopted[pid]; a != nil {
		o.dropAdoptee(pid, a)
	}
	if _, ok := o.parked[pid]; ok && !isChild(pid) {
		delete(o.parked, pid)
		o.stats.Orphans--
		return
	}
	l.helper = pid
	o.helpers[pid] = l
}

// dismissHelper ends a helper whose work is done. It ends by itself, unless
// somebody stopped it.
func (o *Owner) dismissHelper(l *launch) {
	if l.helper != 0 && o.helpers[l.helper] == l {
		_ = unix.Kill(l.helper, syscall.SIGKILL) // ours and unreaped: it cannot fail
	}
}

func (o *Owner) register(p *process, pid int) {
	p.pid, p.started = pid, time.Now()
	if a := o.adopted[pid]; a != nil {
		// Listed between fork and now: not an orphan after all.
		o.dropAdoptee(pid, a)
	}
	o.byPID[pid] = p
	o.bySID[pid] = p
	if e, ok := o.parked[pid]; ok && !isChild(pid) {
		delete(o.parked, pid)
		o.stats.Orphans-- // it was none
		o.leaderEnded(p, e)
		o.settle()
	} else {
		o.watchDeath(p)
	}
	o.endFork()
}

// isChild tells whether we have a child with that pid, dead or alive: a parked
// exit with the pid of a living child belongs to an orphan that had it before.
func isChild(pid int) bool {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WCONTINUED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}
