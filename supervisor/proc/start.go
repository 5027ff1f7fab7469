package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Start starts a process in a session and process group of its own. It returns
// when the program has been exec'ed, or with the exact cause, a *StartError,
// when it has not. Files are inherited as declared; nothing else is, and the
// signal mask and dispositions are the default ones.
func (o *Owner) Start(c Command) (Process, error) {
	return o.start(c, o.exits.push)
}

// StartTo is Start for one who takes the notices of this process himself: the at
// most two of them go to deliver and not to Exits, perhaps before StartTo returns.
// deliver must neither block nor call the Owner: the reaper waits for it.
func (o *Owner) StartTo(c Command, deliver func(Exit)) (Process, error) {
	return o.start(c, deliver)
}

func (o *Owner) start(c Command, deliver func(Exit)) (Process, error) {
	proc, err := o.tryStart(&c, deliver)
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
		token: token, scope: c.Scope, deliver: deliver,
		emptied: make(chan struct{}), wake: make(chan struct{}, 1),
		pipes: o.privatePipes(io.fds),
	}
	if c.Credential != nil {
		p.uid = &c.Credential.UID
	}
	if err := o.reserve(p); err != nil {
		io.closeOurSide()
		return Process{}, err
	}
	p.cgroup = o.cgroups().create(p.id)
	env := taggedEnv(c.Env, o.tag(p.id, p.token))
	shim := c.needsShim() || o.forceShim
	if !shim && p.id > 1 { // before the first one, nobody is there to hang it
		hold, ok := holdExec(c, path)
		defer hold.close()
		shim = !ok
	}
	if shim {
		err = o.startShim(c, p, path, env, io)
	} else {
		err = o.startPlain(c, p, path, env, io)
	}
	p.cgroup.started()
	if err != nil {
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
	for _, inode := range p.pipes {
		if o.byPipe[inode] == p {
			delete(o.byPipe, inode)
		}
	}
	o.disown(p)
}

func (o *Owner) startPlain(c *Command, p *process, path string, env []string, io *childIO) error {
	sys := sysProcAttr(c, p, io)
	if err := o.fork(p, path, c.argv(), &syscall.ProcAttr{Dir: c.Dir, Env: env, Files: io.fds, Sys: sys}); err != nil {
		return explain(c, path, err)
	}
	return nil
}

func (c *Command) argv() []string {
	if len(c.Args) == 0 {
		return []string{c.Path}
	}
	return c.Args
}

func sysProcAttr(c *Command, p *process, io *childIO) *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{Credential: c.Credential.sys()}
	switch {
	case c.Foreground:
		sys.Foreground, sys.Ctty = true, c.TTYFD
	case c.SameSession:
		sys.Setpgid = true
	default:
		sys.Setsid = true
		sys.Setctty, sys.Ctty = c.TTY, io.ctty
	}
	if fd, ok := p.cgroup.fd(); ok {
		sys.UseCgroupFD, sys.CgroupFD = true, fd
	}
	return sys
}

// sys leaves out what would change nothing: without CAP_SETGID even that is
// refused.
func (cr *Credential) sys() *syscall.Credential {
	if cr == nil || cr.isOurs() {
		return nil
	}
	return &syscall.Credential{Uid: cr.UID, Gid: cr.GID, Groups: cr.Groups}
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

// fork forks, execs and registers. The mutex is not held while the kernel execs:
// that may take long (a slow file system, see hold.go), and many may do it at once.
// An exit that the reaper meets meanwhile is parked and claimed here.
func (o *Owner) fork(p *process, path string, argv []string, attr *syscall.ProcAttr) error {
	o.mu.Lock()
	if o.forks++; o.forking == nil {
		o.forking = make(chan struct{})
	}
	o.mu.Unlock()

	pid, err := o.forkHere(path, argv, attr)
	started := time.Now()

	o.mu.Lock()
	defer o.mu.Unlock()
	o.forks--
	if err == nil {
		o.register(p, pid, started)
	}
	// Whoever waits looks again at each: the one it waits for may be this.
	close(o.forking)
	if o.forking = nil; o.forks > 0 {
		o.forking = make(chan struct{})
	} else {
		o.forgetParked()
	}
	return err
}

// forkHere forks from a thread whose children are listed: what a program makes with
// CLONE_PARENT (clone(2)) is a child of that very thread.
func (o *Owner) forkHere(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o.mu.Lock()
	err = o.children.of(unix.Gettid())
	o.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return syscall.ForkExec(path, argv, attr)
}

func (o *Owner) register(p *process, pid int, started time.Time) {
	p.pid, p.started = pid, started
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
	}
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

// childIO are the two sides of what a process gets as descriptors.
type childIO struct {
	fds   []uintptr  // for the child, in order
	child []*os.File // ours to close after the fork
	stdin *os.File   // the caller's
	tty   *os.File   // the caller's
	ctty  int        // with tty: the child's descriptor that is the terminal
}

func (o *Owner) openIO(c *Command) (*childIO, error) {
	if c.TTY && (c.Foreground || c.SameSession) {
		return nil, &StartError{Op: "terminal", Err: errors.New("a new terminal needs a session of its own")}
	}
	io := &childIO{}
	n := max(3, len(c.Files))
	files := make([]*os.File, n)
	copy(files, c.Files)
	if c.StdinPipe {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, &StartError{Op: "standard input", Err: err}
		}
		files[0], io.stdin, io.child = r, w, append(io.child, r)
	}
	if c.TTY {
		master, slave, err := openPTY()
		if err != nil {
			io.closeOurSide()
			io.closeChildSide()
			return nil, &StartError{Op: "terminal", Err: err}
		}
		io.tty, io.child = master, append(io.child, slave)
		io.ctty = -1
		for i := range 3 {
			if files[i] == nil {
				files[i] = slave
				io.ctty = max(io.ctty, i)
			}
		}
		if io.ctty < 0 {
			io.closeOurSide()
			io.closeChildSide()
			return nil, &StartError{Op: "terminal", Err: errors.New("descriptors 0, 1 and 2 are all taken by files")}
		}
	}
	io.fds = make([]uintptr, n)
	for i, f := range files {
		if f == nil {
			f = o.null
		}
		// Fd also makes the description blocking, which is what a program
		// expects of its standard streams.
		io.fds[i] = f.Fd()
	}
	return io, nil
}

func (io *childIO) closeChildSide() {
	for _, f := range io.child {
		f.Close()
	}
}

func (io *childIO) closeOurSide() {
	if io.stdin != nil {
		io.stdin.Close()
	}
	if io.tty != nil {
		io.tty.Close()
	}
}

// privatePipes returns the inodes of pipes and sockets among the first three
// descriptors that are not our own standard streams: holding one of those is
// evidence of belonging to the process that was given it.
func (o *Owner) privatePipes(fds []uintptr) []uint64 {
	var out []uint64
	for _, fd := range fds[:3] {
		if ino, ok := pipeInode(int(fd)); ok && !slices.Contains(o.ownPipes, ino) {
			out = append(out, ino)
		}
	}
	return out
}

func pipeInode(fd int) (uint64, bool) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFSOCK:
		return st.Ino, true
	}
	return 0, false
}

// openPTY makes a new pseudo-terminal (pty(7)).
func openPTY() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	rc, err := master.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var n int
	var ioErr error
	err = rc.Control(func(fd uintptr) {
		if ioErr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioErr == nil {
			n, ioErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err = errors.Join(err, ioErr); err != nil {
		return nil, nil, err
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	return master, slave, err
}
