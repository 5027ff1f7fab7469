package proc

import (
	"errors"
	"maps"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KillAll ends all processes: it sends TERM to all, waits up to wait for their end, sends KILL to
// the rest, and reaps until agentinit has no child left. As PID 1 it ends all processes of the
// namespace, otherwise all descendants of agentinit. It returns how many did not end within
// KillTimeout after the KILL; 0 means that the kernel knows no child of agentinit. Starts must have
// stopped before.
func (o *Owner) KillAll(wait time.Duration) (left int) {
	o.signalAll(syscall.SIGTERM)
	if o.awaitNoChildren(wait) {
		o.awaitGuests(min(wait, guestWait))
		return 0
	}
	deadline := time.Now().Add(o.killTimeout)
	// A process that is forked between the listing and the signal is killed in the next round.
	// kill(-1) misses no process, so PID 1 needs only one round.
	for pause := 10 * time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, time.Second) {
		o.signalAll(syscall.SIGKILL)
		if o.awaitNoChildren(min(pause, time.Until(deadline))) {
			return 0
		}
	}
	// The kernel still knows a child, even if /proc does not show it.
	return max(1, len(o.everything()))
}

// signalAll uses kill(-1) only as PID 1. Otherwise kill(-1) would also reach the processes of
// others.
func (o *Owner) signalAll(sig syscall.Signal) {
	if sig == syscall.SIGKILL {
		o.mu.Lock()
		for _, p := range o.byPID {
			p.sentKill = true
		}
		o.mu.Unlock()
	}
	if o.isInit {
		// ESRCH: there is no process. EPERM: agentinit may signal none of them.
		_ = unix.Kill(-1, sig)
		return
	}
	type name struct {
		pid   int
		start uint64
	}
	asked := map[name]bool{}
	for range allLooks {
		tasks := slices.DeleteFunc(o.everything(), func(t task) bool { return asked[name{t.pid, t.start}] })
		if len(tasks) == 0 {
			return
		}
		if sig == syscall.SIGKILL {
			for _, t := range tasks {
				_ = o.signalTask(&t, syscall.SIGSTOP)
			}
		}
		for _, t := range tasks {
			asked[name{t.pid, t.start}] = true
			// KillAll counts the processes that cannot be signalled.
			_ = o.signalTask(&t, sig)
		}
	}
}

// allLooks is how often signalAll lists the processes. A listing misses a process whose parent ends
// meanwhile, and the next one has it. A program that forks without end must not hold up the rest.
const allLooks = 3

// everything lists all living descendants of agentinit.
func (o *Owner) everything() []task {
	o.mu.Lock()
	o.lookForAdoptees()
	o.kickSweep() // the Owner still has to find the programs of new adoptees
	roots := slices.AppendSeq(slices.Collect(maps.Keys(o.byPID)), maps.Keys(o.adopted))
	o.mu.Unlock()
	return descend(tasksOf(roots))
}

// guestWait is how long guests may take to end after TERM. A guest is a process that entered the pid
// namespace from outside (setns(2)), as with podman exec: its parent is outside, so PID 1 is not
// told of its end. The kernel kills guests when PID 1 ends, for example an agentctl that is about to say that
// the box ends. The time is short because an interactive shell ignores TERM.
const guestWait = 250 * time.Millisecond

// awaitGuests waits until PID 1 is alone in its namespace, at most for wait.
func (o *Owner) awaitGuests(wait time.Duration) {
	if !o.isInit {
		return
	}
	for end := time.Now().Add(wait); unix.Kill(-1, 0) != unix.ESRCH && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// awaitNoChildren waits until wait4(2) reports ECHILD, at most for wait.
func (o *Owner) awaitNoChildren(wait time.Duration) bool {
	none := make(chan struct{})
	o.mu.Lock()
	o.childers = append(o.childers, none)
	// The reaper asks the kernel only at the next exit. If there is no child, no exit will come.
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); errors.Is(err, unix.ECHILD) {
		o.noChildren()
	}
	o.mu.Unlock()
	select {
	case <-none:
		return true
	case <-time.After(wait):
		return false
	case <-o.stop:
		return false
	}
}
