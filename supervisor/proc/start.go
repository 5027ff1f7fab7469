package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
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

// maxHung is how many starts may hang in the kernel, where not even SIGKILL ends them: each
// keeps a thread of ours.
const maxHung = 8

// launch makes the process, waits for its exec and registers it. The mutex is not
// held meanwhile: that may take long, and many may do it at once. An exit that the
// reaper meets before it knows whose it is is parked and claimed in register.
func (o *Owner) launch(c *Command, p *process, path string, env []string, io *childIO) error {
	if n := o.hung.Load(); n >= maxHung {
		return &StartError{Op: opFork, Err: fmt.Errorf("%d starts hang in the kernel", n),
			Hint: "the server of a file system with program files does not answer"}
	}
	for {
		err := o.attempt(c, p, path, env, io)
		switch {
		case errors.Is(err, errNoClone3):
			o.noClone3.Store(true)
		case errors.Is(err, errCgroupRefused):
			if !o.noCgroupClone.Swap(true) {
				o.report("the kernel refuses to start processes in cgroups of their own: " + err.Error())
			}
		default:
			return err
		}
	}
}

// These errors mean: another attempt, in another way.
var (
	errNoClone3      = errors.New("clone3")
	errCgroupRefused = errors.New("CLONE_INTO_CGROUP")
)

func (o *Owner) attempt(c *Command, p *process, path string, env []string, io *childIO) error {
	o.beginFork()
	l, err := o.plan(c, p, path, env, io)
	if err == nil {
		err = o.execute(l, p, path)
		l.release()
	}
	if err == nil {
		err = l.verdict(c, path)
	}
	if err == nil {
		o.listening(l, p.id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if l != nil && p.pid == 0 && l.made() != 0 {
		o.register(p, l.made())
	}
	if p.pid == 0 {
		o.endFork() // there is nothing to register any more
	}
	if score := o.guard.scoreOf(c); err == nil && score != nil && !o.oomInChild {
		err = p.adjustOOM(*score)
	}
	if !errors.Is(err, errNoClone3) && !errors.Is(err, errCgroupRefused) {
		p.answered(err)
	}
	return err
}

// execute makes the process and waits until it has executed the program or is dead. At the end
// of its patience it kills the process, and waits a little for the kernel to do so. What hangs
// in the kernel even then stays registered until it is reaped.
func (o *Owner) execute(l *launch, p *process, path string) error {
	done := make(chan syscall.Errno, 1)
	go func() { done <- o.forkHere(l) }()
	began := time.Now()
	look := time.NewTicker(prodEvery)
	defer look.Stop()
	late := false
	for {
		select {
		case errno := <-done:
			if late && errno == 0 {
				return o.errLate(path)
			}
			return l.cloneError(errno)
		case <-look.C:
		}
		waited := time.Since(began)
		late = waited >= o.execPatience
		if waited >= o.execPatience+time.Second {
			o.hung.Add(1)
			go func() { <-done; o.hung.Add(-1) }()
			return o.errLate(path)
		}
		o.mu.Lock()
		if p.pid == 0 && l.made() != 0 {
			o.register(p, l.made())
		}
		if p.pid != 0 && !p.reaped {
			sig := syscall.SIGCONT
			if late {
				sig = syscall.SIGKILL
			}
			_ = unix.Kill(p.pid, sig) // EPERM: it has another user by now, and we may not; the end of the patience tells
		}
		o.mu.Unlock()
	}
}

func (o *Owner) errLate(path string) error {
	return &StartError{Op: opCommand, Path: path, Err: fmt.Errorf("%w within %v", errNoExec, o.execPatience),
		Hint: "something holds up the program file, or stops the process"}
}

// cloneError is nil if there was a process. clone3(2) is ENOSYS on old kernels and EPERM under
// old seccomp profiles, and a cgroup may refuse to be entered.
func (l *launch) cloneError(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case syscall.EAGAIN, syscall.ENOMEM:
	case syscall.ENOSYS, syscall.EPERM, syscall.EINVAL:
		if l.block.CloneNr == unix.SYS_CLONE3 {
			return fmt.Errorf("%w: %w", errNoClone3, errno)
		}
	default:
		if l.clone.cgroup != 0 {
			return fmt.Errorf("%w: %w", errCgroupRefused, errno)
		}
	}
	return &StartError{Op: opFork, Err: errno, Hint: stepHints[opFork]}
}

// forkHere forks from a thread whose children are listed: what a program makes with
// CLONE_PARENT (clone(2)) is a child of that very thread.
func (o *Owner) forkHere(l *launch) (errno syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o.mu.Lock()
	err := o.children.of(unix.Gettid())
	o.mu.Unlock()
	if err != nil && !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	if errno != 0 {
		return errno
	}
	return l.spawn()
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
		if st, err := readStat(p.pid); err == nil && st.dead() {
			return nil // its files are root's again
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

// answered decides what becomes of the notices of a start: they are the caller's if
// it went well, and nobody's if not.
func (p *process) answered(err error) {
	held := p.held
	p.held, p.starting = nil, false
	if err != nil {
		p.silent = true
		return
	}
	p.started = time.Now()
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

// errNoExec is the end of the patience with a process.
var errNoExec = errors.New("its exec did not happen")

// errKilled is the end of a process before its exec.
var errKilled = errors.New("the process was killed before it could execute the program")

// verdict is nil when the program runs.
func (l *launch) verdict(c *Command, path string) error {
	if info, errno, failed := l.failure(); failed {
		return explainStep(c, path, info, errno)
	}
	if !l.executing() {
		return &StartError{Op: opCommand, Path: path, Err: errKilled}
	}
	return nil
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
