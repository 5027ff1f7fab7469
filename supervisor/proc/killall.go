package proc

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KillAll ends everything: TERM to all, up to wait for them to go, KILL to what
// is left, and reaping until we have no child any more. As PID 1 that is every
// process of the namespace, otherwise everything that descends from us. It
// returns how many could not be ended within KillTimeout after the KILL; 0 means
// that the kernel knows no child of ours. Starts must have stopped before.
func (o *Owner) KillAll(wait time.Duration) (left int) {
	o.signalAll(syscall.SIGTERM)
	if o.awaitNoChildren(wait) {
		return 0
	}
	deadline := time.Now().Add(o.killTimeout)
	// What is forked between the look and the signal is met by the next round;
	// kill(-1) misses nobody, so PID 1 needs one only.
	for pause := 10 * time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, time.Second) {
		o.signalAll(syscall.SIGKILL)
		if o.awaitNoChildren(min(pause, time.Until(deadline))) {
			return 0
		}
	}
	// The kernel still knows a child, be it one that we do not see.
	return max(1, len(o.everything()))
}

// signalAll never uses kill(-1) unless we are PID 1: elsewhere that is everybody
// else's processes.
func (o *Owner) signalAll(sig syscall.Signal) {
	if sig == syscall.SIGKILL {
		o.mu.Lock()
		for _, p := range o.byPID {
			p.sentKill = true
		}
		o.mu.Unlock()
	}
	if o.isInit {
		// ESRCH: nobody is there. EPERM: nobody whom we may signal.
		_ = unix.Kill(-1, sig)
		return
	}
	tasks := o.everything()
	if sig == syscall.SIGKILL {
		for _, t := range tasks {
			_ = o.signalTask(&t, syscall.SIGSTOP)
		}
	}
	for _, t := range tasks {
		// Who cannot be signalled is counted by the caller in the end.
		_ = o.signalTask(&t, sig)
	}
}

// everything lists all living descendants.
func (o *Owner) everything() []task {
	o.mu.Lock()
	o.lookForAdoptees()
	o.kickSweep() // whose they are matters to somebody else, perhaps
	roots := make([]int, 0, len(o.byPID)+len(o.adopted))
	for pid := range o.byPID {
		roots = append(roots, pid)
	}
	for pid := range o.adopted {
		roots = append(roots, pid)
	}
	o.mu.Unlock()
	return descend(roots)
}

// awaitNoChildren waits until wait4(2) says ECHILD.
func (o *Owner) awaitNoChildren(wait time.Duration) bool {
	none := make(chan struct{})
	o.mu.Lock()
	o.childers = append(o.childers, none)
	// The reaper asks the kernel at the next exit; there may be none to come.
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); errors.Is(err, unix.ECHILD) {
		o.noChildren()
	}
	o.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-none:
		return true
	case <-timer.C:
		return false
	case <-o.stop:
		return false
	}
}
