package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Start starts a process in a session and process group of its own. It returns when the program has
// been exec'ed, or with a *StartError that names the exact cause. The process inherits the declared
// files and no others. Its signal mask and dispositions are the default ones.
func (o *Owner) Start(c Command) (Process, error) {
	return o.start(c, o.deliver, false)
}

// StartTo is Start for a caller that takes the notices of this process itself. At most two notices
// go to deliver instead of Exits, perhaps before StartTo returns. deliver must neither block nor
// call the Owner, because the reaper waits for it.
func (o *Owner) StartTo(c Command, deliver func(Exit)) (Process, error) {
	return o.start(c, deliver, false)
}

// start also serves Run; beside is true then.
func (o *Owner) start(c Command, deliver func(Exit), beside bool) (Process, error) {
	o.ready()
	o.score.active()
	if err := o.checkDescriptors(beside); err != nil {
		return Process{}, err
	}
	path, err := lookPath(&c)
	if err != nil {
		return Process{}, err
	}
	token, err := newToken()
	if err != nil {
		return Process{}, &StartError{Op: "token", Err: err}
	}
	io, err := o.openIO(&c)
	if err != nil {
		return Process{}, err
	}
	defer io.closeChildSide()

	p := &process{
		token: token, scope: c.Scope, deliver: deliver, starting: true,
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
	err = o.launch(&c, p, path, env, io)
	p.cgroup.started()
	if err != nil {
		o.refused.Load().forget(p.id)
		o.unreserve(p)
		p.cgroup.remove()
		io.closeOurSide()
		return Process{}, err
	}
	return Process{ID: p.id, PID: p.pid, Started: p.started, Stdin: io.stdin, TTY: io.tty, Slave: io.slave, Bounds: p.bounds}, nil
}

// reserve gives p its id before the fork, because the tag in the environment contains it. From here
// on p can own adoptees: a program may leave an escaped process and be dead before its start is
// registered, and each adoptee is attributed only once.
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
		if inode != 0 {
			o.byPipe[inode] = p
		}
	}
	return nil
}

// unreserve undoes reserve for a process that never existed.
func (o *Owner) unreserve(p *process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.pid != 0 {
		return
	}
	o.releaseMark(p)
	o.forget(p)
}

// forget undoes reserve, except for the mark. The caller holds the mutex.
func (o *Owner) forget(p *process) {
	delete(o.byID, p.id)
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
	return err == nil && len(ours) == len(cr.Groups) &&
		!slices.ContainsFunc(cr.Groups, func(g uint32) bool { return !slices.Contains(ours, int(g)) })
}

// execPatience is how long a new process may take until its exec. Another process may stop it; a
// lease may block the opening of its program file (fcntl(2), F_SETLEASE); the server of a file
// system may not answer.
const execPatience = 10 * time.Second

// prodEvery is how often a start that waits for its exec checks the process, and sends SIGCONT if it
// is stopped. A program that stops all others in a loop leaves the new process only short times to
// run.
const prodEvery = 2 * time.Millisecond

// maxHung is how many starts may hang in the kernel where not even SIGKILL ends them. Each keeps
// one of agentinit's threads.
const maxHung = 8

var errHang = errors.New("starts hang in the kernel")

// hungStarts counts, by program file, the starts that were given up but still hang in the kernel.
type hungStarts struct {
	mu    sync.Mutex
	files map[string]int
}

func (h *hungStarts) add(file string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files == nil {
		h.files = map[string]int{}
	}
	if h.files[file] += n; h.files[file] == 0 {
		delete(h.files, file)
	}
}

// count returns how many starts hang, and whether one of them is of that file.
func (h *hungStarts) count(file string) (n int, own bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, of := range h.files {
		n += of
	}
	return n, h.files[file] > 0
}

// launch makes the process, waits for its exec and registers it. The mutex is not held meanwhile,
// because that may take long and several starts may run at once. If the reaper meets an exit whose
// process it does not know yet, it parks the exit; register takes it.
func (o *Owner) launch(c *Command, p *process, path string, env []string, io *childIO) error {
	if n, own := o.hung.count(path); n >= maxHung {
		err := &StartError{Op: opFork, Err: fmt.Errorf("%d %w", n, errHang),
			Hint: "the server of a file system with program files does not answer"}
		if own { // it is one of those that take the threads: see Starved
			err.Op, err.Path = opCommand, path
		}
		return err
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

// After these errors, launch tries again in another way.
var (
	errNoClone3      = errors.New("clone3")
	errCgroupRefused = errors.New("CLONE_INTO_CGROUP")
)

func (o *Owner) attempt(c *Command, p *process, path string, env []string, io *childIO) error {
	o.beginFork()
	by, err := o.launcher(c, p)
	var l *launch
	if err == nil {
		if l, err = o.plan(c, p, path, env, io, by); err == nil {
			err = o.execute(l, p, path, by)
			l.release()
		} else if by != nil {
			o.launchers.put(by)
		}
	}
	if err == nil {
		err = l.verdict(c, path)
	}
	if err == nil {
		o.listening(l, p.id)
	}
	o.mu.Lock()
	if l != nil && p.pid == 0 && l.made() != 0 {
		o.register(p, l.made())
	}
	if p.pid == 0 {
		o.endFork() // no process is left to register
	}
	o.mu.Unlock()
	if score := o.guard.scoreOf(c); err == nil && score != nil && !o.oomInChild {
		err = o.adjustOOM(p, *score, writeScore)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !errors.Is(err, errNoClone3) && !errors.Is(err, errCgroupRefused) {
		p.answered(err)
	}
	return err
}

// execute makes the process and waits until it has executed the program or is dead. When
// execPatience has passed, it kills the process and waits a little for its end. A process that
// still hangs in the kernel then stays registered until it is reaped.
func (o *Owner) execute(l *launch, p *process, path string, by *launcher) error {
	done := make(chan syscall.Errno, 1)
	if by != nil {
		by.jobs <- launchJob{l, done}
	} else {
		go func() { done <- o.forkHere(l) }()
	}
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
			o.hung.add(path, 1)
			go func() { <-done; o.hung.add(path, -1) }()
			return o.errLate(path)
		}
		o.mu.Lock()
		if p.pid == 0 && l.made() != 0 {
			o.register(p, l.made())
		}
		switch {
		case p.pid == 0 || p.reaped:
		case late:
			_ = unix.Kill(p.pid, unix.SIGKILL) // an error: as below
		case isStopped(p.pid):
			_ = unix.Kill(p.pid, unix.SIGCONT) // EPERM: the process already has another user and agentinit may not signal it; execPatience ends the wait
		}
		o.mu.Unlock()
	}
}

// isStopped tells whether a process is stopped. A program that runs already could have a use for
// SIGCONT, and would be surprised by it.
func isStopped(pid int) bool {
	st, err := readStat(pid)
	return err == nil && (st.state == 'T' || st.state == 't')
}

func (o *Owner) errLate(path string) error {
	return &StartError{Op: opCommand, Path: path, Err: fmt.Errorf("%w within %v", errNoExec, o.execPatience),
		Hint: "something holds up the program file, or stops the process"}
}

// cloneError is nil if the process was made. clone3(2) fails with ENOSYS on old kernels and with
// EPERM under old seccomp profiles. The kernel may also refuse to put the process into its cgroup.
func (l *launch) cloneError(errno syscall.Errno) error {
	hint := ""
	switch errno {
	case 0:
		return nil
	case syscall.EAGAIN, syscall.ENOMEM:
		hint = "the limit of processes or memory is reached"
	case syscall.ENOSYS, syscall.EPERM, syscall.EINVAL:
		if l.block.CloneNr == unix.SYS_CLONE3 {
			return fmt.Errorf("%w: %w", errNoClone3, errno)
		}
		if errno == syscall.EINVAL {
			hint = "emulators such as qemu-user cannot do it: run an image for the architecture of this machine"
		}
	default:
		if l.clone.cgroup != 0 {
			return fmt.Errorf("%w: %w", errCgroupRefused, errno)
		}
	}
	return &StartError{Op: opFork, Err: errno, Hint: hint}
}

// forkHere forks from a thread whose children are listed. What a program makes with CLONE_PARENT
// (clone(2)) becomes a child of the same thread.
func (o *Owner) forkHere(l *launch) syscall.Errno {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o.mu.Lock()
	err := o.children.of(unix.Gettid())
	o.mu.Unlock()
	if err == nil {
		return l.spawn()
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EIO
}

// adjustOOM sets the score of a program that runs. Before its exec, a new process of an ordinary
// user cannot open the file, because agentinit's files in /proc belong to root. agentinit sees the
// exec a moment before the kernel makes the new memory dumpable (begin_new_exec in fs/exec.c), and
// until then the file belongs to root. Therefore adjustOOM tries several times. The mutex is not held
// between two attempts, so that agentinit reaps and signals meanwhile.
func (o *Owner) adjustOOM(p *process, score int, write func(pid, score int) error) error {
	const attempts = 50
	for n := 1; ; n++ {
		if again, err := o.tryOOM(p, score, write, n == attempts); !again {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// tryOOM is one attempt of adjustOOM. It holds the mutex from the check to the write, so the pid is
// the program's. A program that has ended needs no score. A program that only root may read
// (execve(2) of an unreadable file) keeps agentinit's score.
func (o *Owner) tryOOM(p *process, score int, write func(pid, score int) error, last bool) (again bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.reaped {
		return false, nil
	}
	err = write(p.pid, score)
	if errors.Is(err, os.ErrPermission) {
		if st, err := readStat(p.pid); err == nil && st.dead() {
			return false, nil // the files of an ended process belong to root again
		}
		if !last {
			return true, nil
		}
	}
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || score > 0 && errors.Is(err, os.ErrPermission) {
		return false, nil
	}
	p.sentKill = true
	_ = unix.Kill(p.pid, syscall.SIGKILL) // a start that fails leaves no program behind
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}
	return false, &StartError{Op: opOOM, Err: err, Hint: stepHints[opOOM]}
}

func writeScore(pid, score int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
}

// answered decides about the notices of a start: if it succeeded, the caller gets them; otherwise
// they are dropped.
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

// tell delivers a notice, or keeps it until the start has returned: what happens before the program
// runs is not reported.
func (p *process) tell(e Exit) {
	if p.starting {
		p.held = append(p.held, e)
		return
	}
	p.deliver(e)
}

// errNoExec says that execPatience has passed.
var errNoExec = errors.New("its exec did not happen")

// errKilled says that the process ended before its exec.
var errKilled = errors.New("the process was killed before it could execute the program")

// verdict returns nil if the program runs.
func (l *launch) verdict(c *Command, path string) error {
	if info, errno, failed := l.failure(); failed {
		return explainStep(c, path, info, errno)
	}
	if !l.executing() {
		return &StartError{Op: opCommand, Path: path, Err: errKilled}
	}
	return nil
}

// beginFork and endFork enclose the time in which an exit may belong to a process that is not
// registered yet. The caller of endFork and of register holds the mutex.
func (o *Owner) beginFork() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forks++; o.forking == nil {
		o.forking = make(chan struct{})
	}
}

func (o *Owner) endFork() {
	o.forks--
	// All waiters wake and check again: this may be the start they wait for.
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
		// It was listed between fork and now, so it is not an orphan.
		o.dropAdoptee(pid, a)
	}
	o.byPID[pid] = p
	o.bySID[pid] = p
	if e, ok := o.parked[pid]; ok && !isChild(pid) {
		delete(o.parked, pid)
		o.stats.Orphans-- // it was not an orphan
		o.departed.correct(pid, p.id)
		o.leaderEnded(p, e)
		o.settle()
	} else {
		o.watchDeath(p)
	}
	o.endFork()
}

// isChild tells whether agentinit has a child with that pid, dead or alive. If it has, a parked
// exit with the same pid belongs to an orphan that had the pid before.
func isChild(pid int) bool {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WCONTINUED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}
