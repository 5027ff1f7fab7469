package proc

import (
	"errors"
	"math"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Most programs keep all their processes in one group, and one system call signals a group. To
// search for members of other groups takes longer than the rest of a stop. So SignalSoon does not
// search first: these members get the signal when they are found, which is soon after the leader has
// ended or, if it goes on, after othersPatience.

// othersPatience is how long a signalled leader has to end before the members of other groups are
// searched for. Most programs end sooner and leave no one behind.
const othersPatience = 50 * time.Millisecond

// owed is a signal that the members of other groups have not got yet.
type owed struct {
	sig     syscall.Signal
	due     time.Time
	started uint64 // members that started later get no signal; in clock ticks since the boot of the machine
	look    bool   // the sweeper has to search now; guarded by Owner.mu

	told map[int]uint64 // when those that have got it started, by pid; only the sweeper uses it
}

// SignalSoon signals the process groups of those requests that need no search, and tells for each
// request whether it did. It does not do it for a scope other than ScopeTree, for KILL, and if the
// leader has ended or another process is followed in its place; then SignalAsked is needed. Members
// of other groups get the signal later, as told above; those that start after the call need not get
// it. One lock serves all requests, so that the reaping of programs that end at once does not delay
// the signals of the others. It does not block.
func (o *Owner) SignalSoon(requests []SignalRequest) (sent []bool) {
	sent = make([]bool, len(requests))
	started := uptimeTicks()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, r := range requests {
		p, err := o.lookupLocked(r.ID)
		if err != nil || r.Scope != ScopeTree || r.Signal == syscall.SIGKILL || p.reaped || p.main != nil {
			continue
		}
		// ESRCH: the leader is in another group. SignalAsked reports other errors.
		if unix.Kill(-p.pid, r.Signal) != nil {
			continue
		}
		sent[i] = true
		p.owed = &owed{sig: r.Signal, due: time.Now().Add(othersPatience), started: started}
		o.owing = append(o.owing, p)
		if len(o.owing) == 1 {
			time.AfterFunc(othersPatience, o.othersDue)
		}
	}
	return sent
}

// othersDue has the sweeper search for the members of programs that did not end in time.
func (o *Owner) othersDue() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for len(o.owing) > 0 {
		p := o.owing[0]
		if w := p.owed; w != nil && !p.reaped {
			if wait := w.due.Sub(now); wait > 0 {
				time.AfterFunc(wait, o.othersDue)
				return
			}
			if !isDead(p.pid) { // the reaper is about to take it otherwise
				o.lookForOthers(p)
			}
		}
		o.owing[0] = nil
		o.owing = o.owing[1:]
	}
	o.owing = nil
}

// lookForOthers has the sweeper search for members of p that have not got the signal yet. The caller
// holds the mutex.
func (o *Owner) lookForOthers(p *process) {
	if p.owed == nil || p.owed.look {
		return
	}
	p.owed.look = true
	o.toSignal = append(o.toSignal, p)
	o.kickSweep()
}

// signalOthers gives the members of other groups the signal that they are owed. Only the sweeper
// calls it.
func (o *Owner) signalOthers() {
	o.mu.Lock()
	ps := o.toSignal
	o.toSignal = nil
	o.mu.Unlock()
	for _, p := range ps {
		o.mu.Lock()
		w := p.owed
		if w == nil || !w.look || p.gone || p.killing {
			o.mu.Unlock()
			continue
		}
		w.look = false
		o.mu.Unlock()
		for _, t := range o.tree(p) {
			if start, told := w.told[t.pid]; t.pgrp == p.pid || t.start > w.started || told && start == t.start {
				continue
			}
			if w.told == nil {
				w.told = map[int]uint64{}
			}
			w.told[t.pid] = t.start
			// ErrNoProcess: it has just ended.
			if err := o.signalTask(&t, w.sig); err != nil && !errors.Is(err, ErrNoProcess) {
				o.report(err.Error())
			}
		}
	}
}

// uptimeTicks is the present time as /proc tells when a process started (proc_pid_stat(5)).
func uptimeTicks() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return math.MaxUint64 // every kernel that agentinit runs on has this clock
	}
	return uint64(time.Duration(now.Nano()) / ticks(1))
}

// isDead tells whether a child has ended and was not reaped yet. If a process has made agentinit its tracer,
// the kernel also tells of its stops, though no one asks for them (wait_task_stopped in kernel/exit.c).
func isDead(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0 && info.Code <= childDumped
}

// childDumped is CLD_DUMPED (sigaction(2)): an end, as are the two lower codes of SIGCHLD.
const childDumped = 3
