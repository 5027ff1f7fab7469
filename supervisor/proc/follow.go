package proc

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/highfd"
)

// followed is a process that a program has named as its main one.
type followed struct {
	pid   int
	start uint64
	pidfd int
}

// errOutside says that a program has named a process that is not its own.
var errOutside = errors.New("it is not a process of the program")

// Follow makes a living process of the tree of id its main process, in place of the
// one that was started or followed before. The end of the main process is told as a
// second Exited, with its PID, and a signal with ScopeProcess goes to it. Naming the
// process that was started ends that. Only a tree can be followed: in another scope the
// end of the started process may already be the end of all.
func (o *Owner) Follow(id uint64, pid int) error {
	// From here on the pidfd, and not the number, names the process.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("cannot watch process %d: %w", pid, err)
	}
	fd = highfd.Raise(fd)
	keep := false
	defer func() {
		if !keep {
			unix.Close(fd)
		}
	}()
	st, err := readStat(pid)
	if err != nil || st.dead() {
		return ErrNoProcess
	}
	if owner, _ := o.Owns(pid); owner != id {
		return errOutside
	}
	if ended(fd) {
		return ErrNoProcess // its number may have been another's since
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.byID[id]
	switch {
	case p == nil:
		return ErrNoProcess
	case p.scope != ScopeTree:
		return errors.New("another main process needs kill = \"tree\"")
	case pid == p.pid:
		o.unfollow(p)
		return nil
	}
	ev := deathEvent(p.id | ofMain)
	if err := o.deaths.ep.control(unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("cannot watch process %d: %w", pid, err)
	}
	keep = true
	o.unfollow(p)
	p.main = &followed{pid, st.start, fd}
	o.mains[pid] = p
	return nil
}

// ended tells whether the process of a pidfd has ended, all of its threads included.
func ended(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// unfollow is called with the mutex held.
func (o *Owner) unfollow(p *process) {
	if p.main == nil {
		return
	}
	delete(o.mains, p.main.pid)
	_ = o.deaths.ep.control(unix.EPOLL_CTL_DEL, p.main.pidfd, nil) // as forgetDeath
	unix.Close(p.main.pidfd)
	p.main = nil
}

// When the parent of a process ends, the kernel makes agentinit the parent. handOver is how long
// agentinit waits for that after a main process has ended; handOverLook is the time between two
// checks.
const (
	handOver     = 500 * time.Millisecond
	handOverLook = 10 * time.Millisecond
)

// mainDied handles an event of the pidfd of a main process. If the main process has ended and
// agentinit is its parent, or becomes it within patience, the reaper gets the exit status. Otherwise
// its parent takes the exit status, and agentinit reports the end as Untold. The mutex is held.
func (o *Owner) mainDied(p *process, patience time.Duration) {
	f := p.main
	if f == nil || !ended(f.pidfd) { // the event is of a process that was followed before
		return
	}
	st, err := readStat(f.pid)
	unreaped := err == nil && st.start == f.start
	switch {
	case unreaped && st.ppid == o.selfPID:
	case unreaped && patience > 0:
		time.AfterFunc(handOverLook, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			if p.main == f {
				o.mainDied(p, patience-handOverLook)
			}
		})
	default:
		o.mainEnded(p, Exit{Time: time.Now(), Untold: true})
	}
}

// mainEnded tells of the end of a main process, once. The mutex is held.
func (o *Owner) mainEnded(p *process, e Exit) {
	e.Kind, e.ID, e.PID = Exited, p.id, p.main.pid
	e.ByUs = (p.sentKill || p.killing) && e.Signal() == unix.SIGKILL
	o.unfollow(p)
	o.announce(p, e)
}

// signalMain signals the process that is followed; done is false if none is.
func (o *Owner) signalMain(p *process, sig syscall.Signal) (done bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.main == nil {
		return false, nil
	}
	if sig == syscall.SIGKILL {
		p.sentKill = true
	}
	return true, sent(p.main.pid, sig, unix.PidfdSendSignal(p.main.pidfd, sig, nil, 0))
}

// mainTask is the process that is followed, as a member of the tree.
func (o *Owner) mainTask(p *process) (t task, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.main == nil {
		return task{}, false
	}
	st, err := readStat(p.main.pid)
	return task{st, o.adopted[p.main.pid] != nil}, err == nil && st.start == p.main.start && !st.dead()
}
