package proc

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/proc/child"
)

// The words of a StartError for the steps that have no key in the manifest.
const (
	opFork        = "fork"
	opSession     = "session"
	opTerminal    = "terminal"
	opDescriptors = "descriptors"
	opSignals     = "signals"
	opOOM         = "oom_score_adj"
	opGuard       = "guard"
	opLimit       = "limit " // and its name
)

var stepHints = map[string]string{
	opCredential:                "changing the user needs CAP_SETUID and CAP_SETGID",
	"nice":                      "below the present value needs CAP_SYS_NICE",
	"ionice":                    "the realtime class needs CAP_SYS_ADMIN or CAP_SYS_NICE",
	opOOM:                       "below the present value needs CAP_SYS_RESOURCE",
	"cpus":                      "at least one of them must be among the processors of the box",
	opGuard:                     "guard = false starts it without",
	opSandbox + " read":         "a path that may be missing begins with \"-\"",
	opSandbox + " write":        "a path that may be missing begins with \"-\"",
	opSandbox + " execute":      "a path that may be missing begins with \"-\"",
	opSandbox + " private_tmp":  "mounts of its own need CAP_SYS_ADMIN",
	opSandbox + " capabilities": "agentinit has no capability that it could hand on",
}

// rlimitOrder is the order in which limits are set.
var rlimitOrder = []string{"core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "stack", "as"}

// plan writes the table for a command. Steps that need a privilege come before the change of the
// user, steps that must have the user's rights after it, and steps that may forbid others at the
// end. by is the launcher that makes the process, or nil.
func (o *Owner) plan(c *Command, p *process, path string, env []string, io *childIO, by *launcher) (*launch, error) {
	l := newLaunch()
	if err := o.fill(l, c, p, path, env, io, by); err != nil {
		l.release()
		return nil, err
	}
	l.seal()
	return l, nil
}

func (o *Owner) fill(l *launch, c *Command, p *process, path string, env []string, io *childIO, by *launcher) error {
	cgroup, hasCgroup := p.cgroup.fd()
	if !hasCgroup || o.noCgroupClone.Load() {
		cgroup = -1
	}
	within := p.cgroup
	if cgroup < 0 {
		within = nil
	}
	clone3 := !o.noClone3.Load()
	score := o.guard.scoreOf(c)
	oomHere := score != nil && o.oomInChild
	l.cloneBy(clone3, cgroup, o.ownTable)
	if o.ownTable {
		l.leaveTable()
	}
	o.addSignalActions(l, clone3)
	if cgroup >= 0 && !clone3 {
		if err := l.enterCgroup(cgroup); err != nil {
			return err
		}
	}
	if oomHere {
		if err := l.addOOM(*score); err != nil {
			return err
		}
	}
	if err := o.openSandbox(l, c); err != nil {
		return err
	}
	addSession(l, c)
	if err := addPriorities(l, c); err != nil {
		return err
	}
	addDescriptors(l, io)
	if c.TTY {
		l.add(stepInfo{op: opTerminal}, unix.SYS_IOCTL, uintptr(io.ctty), unix.TIOCSCTTY, 1)
	}
	if err := addLimits(l, c, within, o.guard.nproc); err != nil {
		return err
	}
	p.bounds = within.bounds(c.Rlimits)
	if c.EnterFirst {
		if err := l.enter(c.Dir); err != nil {
			return err
		}
	}
	mark := o.addMark(l, p)
	if c.Sandbox != nil && c.Sandbox.Capabilities != nil {
		c.Sandbox.dropBounding(l, o.lastCap)
		o.addCredential(l, c.Credential, mark)
		c.Sandbox.keepCapabilities(l)
	} else {
		o.addCredential(l, c.Credential, mark)
	}
	if !c.EnterFirst {
		if err := l.enter(c.Dir); err != nil {
			return err
		}
	}
	if by == nil && (c.NoNewPrivs || c.Guard != GuardNone) {
		l.add(stepInfo{op: "no_new_privs"}, unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	l.restrict()
	// All descriptors of agentinit are close-on-exec. This covers those that a library may have
	// opened otherwise. Kernels before 5.11 do not have this call.
	l.try(unix.SYS_CLOSE_RANGE, uintptr(len(io.fds)), uintptr(^uint32(0)>>1), unix.CLOSE_RANGE_CLOEXEC)
	o.addScope(l, c)
	if err := o.addFilters(l, c, p, by); err != nil {
		return err
	}
	if o.ownTable {
		o.keepInTable(l, c, io, cgroup)
	}
	l.add(stepInfo{op: opSignals}, unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, addr(l, new(uint64)), 0, 8)
	return addExec(l, path, c.argv(), env)
}

// enter changes the working directory.
func (l *launch) enter(dir string) error {
	if dir == "" {
		return nil
	}
	text, err := l.text(dir)
	if err != nil {
		return &StartError{Op: opDirectory, Path: dir, Err: err}
	}
	l.add(stepInfo{opDirectory, dir}, unix.SYS_CHDIR, text)
	return nil
}

// openSandbox adds the steps of the sandbox that must come before limits and the change of the
// user.
func (o *Owner) openSandbox(l *launch, c *Command) error {
	if c.Sandbox == nil {
		return nil
	}
	if c.Sandbox.PrivateTmp {
		l.addPrivateTmp()
	}
	return l.addLandlock(c, o.landlockABI)
}

// addSignalActions resets signals to their default action. Ignored signals would stay ignored after
// an exec. Without clone3, signals with a handler are reset too, because the handler would run in
// the memory shared with agentinit.
func (o *Owner) addSignalActions(l *launch, clone3 bool) {
	if clone3 && o.ignored == 0 {
		return
	}
	// struct kernel_sigaction with SIG_DFL: handler, flags, restorer, mask.
	action := addr(l, new([4]uint64))
	for n := 1; n <= int(signame.Last); n++ {
		if n == int(unix.SIGKILL) || n == int(unix.SIGSTOP) || clone3 && o.ignored&(1<<(n-1)) == 0 {
			continue
		}
		l.add(stepInfo{op: opSignals}, unix.SYS_RT_SIGACTION, uintptr(n), action, 0, 8)
	}
}

// writeFile opens a file relative to a directory, writes the text and closes it.
func (l *launch) writeFile(info stepInfo, dirfd int, name, text string) error {
	file, err := l.text(name)
	if err != nil {
		return err
	}
	open := len(l.steps)
	l.add(info, unix.SYS_OPENAT, uintptr(dirfd), file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	l.add(info, unix.SYS_WRITE, 0, addrOf(l, []byte(text)), uintptr(len(text)))
	l.stores = append(l.stores, store{from: open, to: open + 1, arg: 0})
	return nil
}

// addOOM sets the score. Only the new process itself may do that: see launch.
func (l *launch) addOOM(score int) error {
	return l.writeFile(stepInfo{op: opOOM}, unix.AT_FDCWD, "/proc/self/oom_score_adj", strconv.Itoa(score))
}

// enterCgroup does what CLONE_INTO_CGROUP does, for a kernel without clone3.
func (l *launch) enterCgroup(dirfd int) error {
	return l.writeFile(stepInfo{op: "cgroup"}, dirfd, "cgroup.procs", "0")
}

func addSession(l *launch, c *Command) {
	session := stepInfo{op: opSession}
	if !c.Foreground && !c.SameSession {
		l.add(session, unix.SYS_SETSID)
		return
	}
	l.add(session, unix.SYS_SETPGID, 0, 0)
	if c.Foreground {
		// The pid needs its own word in memory, because TIOCSPGRP takes an address.
		pgrp := new(uint64)
		l.add(session, unix.SYS_GETPID).Store = addr(l, pgrp)
		l.add(stepInfo{op: opTerminal}, unix.SYS_IOCTL, uintptr(c.TTYFD), unix.TIOCSPGRP, addr(l, pgrp))
	}
}

func addPriorities(l *launch, c *Command) error {
	if c.Nice != nil {
		l.add(stepInfo{op: "nice"}, unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, uintptr(*c.Nice))
	}
	if c.IONice != "" {
		n, err := parseIONice(c.IONice)
		if err != nil {
			return &StartError{Op: "ionice", Err: err}
		}
		const whoProcess = 1
		l.add(stepInfo{op: "ionice"}, unix.SYS_IOPRIO_SET, whoProcess, 0, uintptr(n))
	}
	if len(c.CPUs) > 0 {
		var set unix.CPUSet
		for _, n := range c.CPUs {
			set.Set(n)
		}
		l.add(stepInfo{op: "cpus"}, unix.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), addr(l, &set))
	}
	if c.Umask != nil {
		l.add(stepInfo{op: "umask"}, unix.SYS_UMASK, uintptr(*c.Umask))
	}
	return nil
}

// addDescriptors puts the files into their places. A file whose descriptor is lower than the number
// of files could be overwritten before its turn. So it is moved away first.
func addDescriptors(l *launch, io *childIO) {
	info := stepInfo{op: opDescriptors}
	n := len(io.fds)
	moved := make([]int, n) // index of the step that moved the file away, plus one
	for i, fd := range io.fds {
		if int(fd) < n && int(fd) != i {
			l.add(info, unix.SYS_FCNTL, fd, unix.F_DUPFD_CLOEXEC, uintptr(n))
			moved[i] = len(l.steps)
		}
	}
	for i, fd := range io.fds {
		if int(fd) == i { // dup3 refuses equal numbers; the copy must survive the exec
			l.add(info, unix.SYS_FCNTL, fd, unix.F_SETFD, 0)
			continue
		}
		l.add(info, unix.SYS_DUP3, fd, uintptr(i), 0)
		if moved[i] > 0 {
			l.stores = append(l.stores, store{from: moved[i] - 1, to: len(l.steps) - 1, arg: 0})
		}
	}
}

// addLimits sets the limits that the command asks for. It always sets the limit of open files:
// package syscall raises the soft limit of agentinit (see child.OpenFiles), but a program that
// calls select(2) needs the low one. nproc is the limit of processes for a guarded program that
// asks for none; 0 sets none.
func addLimits(l *launch, c *Command, in *cgroup, nproc uint64) error {
	limits, err := in.limit(c.Rlimits)
	if err != nil {
		return err
	}
	for name := range limits {
		if _, ok := rlimits[name]; !ok {
			return &StartError{Op: opLimit + name, Err: errors.New("no such limit")}
		}
	}
	for _, name := range rlimitOrder {
		_, asked := limits[name]
		switch {
		case asked:
			lim := limits[name] // declared here, because it is allocated
			l.add(stepInfo{op: opLimit + name}, unix.SYS_PRLIMIT64, 0, uintptr(rlimits[name]), addr(l, &lim), 0)
		case name == "nproc" && c.Guard != GuardNone && nproc != 0:
			l.try(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, addr(l, &Rlimit{nproc, nproc}), 0)
		case name == "nofile" && child.OpenFiles[0] != 0:
			// It fails if another process has lowered agentinit's limit since. Then the program
			// inherits that lower limit.
			l.try(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, addr(l, &child.OpenFiles), 0)
		}
	}
	return nil
}

// addCredential changes the user; mark is an additional group.
func (o *Owner) addCredential(l *launch, cr *Credential, mark []uint32) {
	if cr == nil || cr.isOurs() {
		return
	}
	info := stepInfo{opCredential, cr.String()}
	groups := slices.Concat(cr.Groups, mark)
	l.add(info, unix.SYS_SETGROUPS, uintptr(len(groups)), addrOf(l, groups))
	l.add(info, unix.SYS_SETRESGID, uintptr(cr.GID), uintptr(cr.GID), uintptr(cr.GID))
	l.add(info, unix.SYS_SETRESUID, uintptr(cr.UID), uintptr(cr.UID), uintptr(cr.UID))
	if o.suidDumpable {
		// The change of the user made the shared memory dumpable (proc(5), suid_dumpable).
		l.add(info, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
}

func addExec(l *launch, path string, argv, env []string) error {
	file, err := l.text(path)
	if err == nil {
		var args, vars uintptr
		if args, err = l.texts(argv); err == nil {
			if vars, err = l.texts(env); err == nil {
				l.add(stepInfo{opCommand, path}, unix.SYS_EXECVE, file, args, vars)
				return nil
			}
		}
	}
	return &StartError{Op: opCommand, Path: path, Err: err, Hint: "an argument or a variable holds a NUL byte"}
}

// explainStep makes the error for the step that failed.
func explainStep(c *Command, path string, info stepInfo, errno syscall.Errno) error {
	switch info.op {
	case opCommand:
		return explainFile(inDir(c.Dir, path), errno)
	case opDirectory:
		if e := explainDir(c.Dir, errno); e != nil {
			return e
		}
	}
	hint := stepHints[info.op]
	switch {
	case errno == unix.EMFILE, errno == unix.ENFILE:
		hint = "the limit of open files is reached"
	case errno == unix.EPERM && strings.HasPrefix(info.op, opLimit):
		hint = "a limit above agentinit's own hard limit needs CAP_SYS_RESOURCE"
		if info.op == opLimit+"nofile" {
			hint += "; none may be above /proc/sys/fs/nr_open" // setrlimit(2)
		}
	}
	return &StartError{Op: info.op, Path: info.path, Err: errno, Hint: hint}
}
