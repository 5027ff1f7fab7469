package proc

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/highfd"
)

// childIO holds both sides of the descriptors that a process gets.
type childIO struct {
	fds   []uintptr  // the descriptors of the new process, in order
	child []*os.File // agentinit closes these after the fork
	stdin *os.File   // the end that the caller gets
	tty   *os.File   // the end that the caller gets
	slave *os.File   // of tty
	ctty  int        // if there is a tty: which of the new process's descriptors is the terminal
}

// descriptorReserve is how many descriptors a start leaves free for agentinit: this many, or a
// quarter of the limit if that is less. Connections, probes, hooks and stops need descriptors. A
// command that Run runs may use half of the reserve.
const descriptorReserve = 64

// descriptorsOfStart is more than a start takes at once: pipes, a terminal, a ruleset.
const descriptorsOfStart = 8

// checkDescriptors refuses a start that would take the last descriptors.
func (o *Owner) checkDescriptors(beside bool) error {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return nil // getrlimit never fails for the calling process itself
	}
	reserve := min(o.descriptors, limit.Cur/4)
	if beside {
		reserve /= 2
	}
	// The kernel always gives the lowest free numbers. So a start does not use the reserve as long
	// as enough free numbers lie below it. The ones right below it are taken last: if they are free,
	// one system call has answered.
	if freeBelow(limit.Cur - reserve) {
		return nil
	}
	var free [descriptorsOfStart]int
	var err error
	last, taken := 0, 0
	for ; taken < len(free) && err == nil; taken++ {
		if last, err = unix.FcntlInt(o.null.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			break
		}
		free[taken] = last
	}
	for _, fd := range free[:taken] {
		unix.Close(fd)
	}
	if err == nil && uint64(last) < limit.Cur-reserve {
		return nil
	}
	return &StartError{Op: opDescriptors, Err: unix.EMFILE,
		Hint: fmt.Sprintf("agentinit keeps the last %d of its %d for itself; raise the limit of open files of the container", reserve, limit.Cur)}
}

// freeBelow tells whether the numbers right below top are free, as many as a start takes. If the
// kernel does not say, the answer is false.
func freeBelow(top uint64) bool {
	if top < descriptorsOfStart || top > math.MaxInt32 {
		return false
	}
	var fds [descriptorsOfStart]unix.PollFd
	for i := range fds {
		fds[i].Fd = int32(top) - int32(i) - 1
	}
	if _, err := unix.Poll(fds[:], 0); err != nil {
		return false
	}
	for _, fd := range fds {
		if fd.Revents != unix.POLLNVAL { // poll(2): the number is not an open descriptor
			return false
		}
	}
	return true
}

func (o *Owner) openIO(c *Command) (*childIO, error) {
	if c.TTY && (c.Foreground || c.SameSession) {
		return nil, &StartError{Op: opTerminal, Err: errors.New("a new terminal needs a session of its own")}
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
		// A process that starts meanwhile must have no copy of our end: a program may hold up its close.
		files[0], io.stdin, io.child = r, highfd.File(w), append(io.child, r)
	}
	if c.TTY {
		if err := io.openTerminal(c, files); err != nil {
			io.closeOurSide()
			io.closeChildSide()
			return nil, &StartError{Op: opTerminal, Err: err}
		}
	}
	io.fds = make([]uintptr, n)
	for i, f := range files {
		if f == nil {
			f = o.null
		}
		// Fd also makes the open file description blocking, as programs expect of their standard
		// streams.
		io.fds[i] = f.Fd()
	}
	return io, nil
}

// openTerminal makes a terminal and puts it in place of the standard streams that have no file.
func (io *childIO) openTerminal(c *Command, files []*os.File) error {
	master, slave, err := openPTY()
	if err != nil {
		return err
	}
	io.tty, io.slave = master, slave
	if c.Credential != nil {
		// As grantpt(3) does: without this, another user cannot open /dev/stdout or the terminal
		// again. If the kernel refuses it, the program still has its descriptors.
		_ = slave.Chown(int(c.Credential.UID), -1)
	}
	io.ctty = -1
	for i := range 3 {
		if files[i] == nil {
			files[i] = slave
			io.ctty = max(io.ctty, i)
		}
	}
	if io.ctty < 0 {
		return errors.New("descriptors 0, 1 and 2 are all taken by files")
	}
	return nil
}

func (io *childIO) closeChildSide() {
	for _, f := range io.child {
		f.Close()
	}
}

func (io *childIO) closeOurSide() {
	for _, f := range []*os.File{io.stdin, io.tty, io.slave} {
		if f != nil {
			f.Close()
		}
	}
}

// privatePipes returns the inodes of those pipes and sockets among the first three descriptors that
// are not agentinit's own standard streams, and 0 for the others. A process that holds one of them
// probably belongs to the program that it was made for.
func (o *Owner) privatePipes(fds []uintptr) (inodes [3]uint64) {
	for i, fd := range fds[:3] {
		if ino, ok := pipeInode(int(fd)); ok && !slices.Contains(o.ownPipes, ino) {
			inodes[i] = ino
		}
	}
	return inodes
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
