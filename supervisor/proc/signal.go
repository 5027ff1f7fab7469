package proc

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/signame"
)

// Signal sends sig to a started process, its group or its whole tree. It signals the group with one
// call, and members of other groups one by one. ErrNoProcess means that no process is left in that
// scope. To empty a scope, use Kill.
func (o *Owner) Signal(id uint64, sig syscall.Signal, scope Scope) error {
	return o.SignalAsked(SignalRequest{ID: id, Signal: sig, Scope: scope, Asked: time.Now()})
}

// SignalRequest asks for a signal to a started process. ID is that of its Process.
type SignalRequest struct {
	ID     uint64
	Signal syscall.Signal
	Scope  Scope
	Asked  time.Time
}

// SignalAsked is Signal for a request made at the time Asked: members that are newer need not get
// the signal. Requests made together share one listing of agentinit's children.
func (o *Owner) SignalAsked(r SignalRequest) error {
	p, err := o.lookup(r.ID)
	if err != nil {
		return err
	}
	return o.signal(p, r.Signal, r.Scope, r.Asked)
}

func (o *Owner) signal(p *process, sig syscall.Signal, scope Scope, asked time.Time) error {
	if scope == ScopeProcess {
		if done, err := o.signalMain(p, sig); done {
			return err
		}
		return o.signalLeader(p, sig, false)
	}
	var tasks []task
	if scope == ScopeTree || !o.leads(p) {
		// List the members before the group is signalled. If the signal ends the leader, its
		// children can no longer be found through it.
		tasks = p.inScope(descend(o.rootsSince(p, asked)), scope)
	}
	if t, ok := o.mainTask(p); ok && !slices.ContainsFunc(tasks, func(u task) bool { return u.pid == t.pid }) {
		tasks = append(tasks, t) // its parent may have ended under the look
	}
	groupErr := o.signalLeader(p, sig, true)
	reached := groupErr == nil
	errs := []error{}
	if groupErr != nil && !errors.Is(groupErr, ErrNoProcess) {
		errs = append(errs, groupErr)
	}
	for _, t := range tasks {
		if groupErr == nil && t.pgrp == p.pid {
			continue
		}
		switch err := o.signalTask(&t, sig); {
		case err == nil:
			reached = true
		case !errors.Is(err, ErrNoProcess):
			errs = append(errs, err)
		}
	}
	if reached || len(errs) > 0 {
		return errors.Join(errs...)
	}
	return ErrNoProcess
}

func (o *Owner) lookup(id uint64) (*process, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lookupLocked(id)
}

// lookupLocked is lookup for a caller that holds the mutex.
func (o *Owner) lookupLocked(id uint64) (*process, error) {
	if o.closed {
		return nil, ErrClosed
	}
	p := o.byID[id]
	if p == nil || p.pid == 0 { // 0: it is being started, and kill(2) would signal agentinit's own group
		return nil, ErrNoProcess
	}
	return p, nil
}

func (o *Owner) leads(p *process) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !p.reaped
}

// signalLeader signals the started process or the group it leads. Both numbers belong to the
// process only until it is reaped.
func (o *Owner) signalLeader(p *process, sig syscall.Signal, group bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.reaped {
		return ErrNoProcess
	}
	target := p.pid
	if group {
		target = -p.pid
	}
	if sig == syscall.SIGKILL {
		p.sentKill = true
	}
	return sent(p.pid, sig, unix.Kill(target, sig))
}

func sent(pid int, sig syscall.Signal, err error) error {
	switch err {
	case nil:
		return nil
	case unix.ESRCH:
		return ErrNoProcess
	}
	return fmt.Errorf("cannot send %s to pid %d: %w", signame.Of(sig), pid, err)
}

// signalTask signals a member that was found in the tree, but not a later process with the same
// pid.
func (o *Owner) signalTask(t *task, sig syscall.Signal) error {
	if t.child {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.byPID[t.pid] == nil && o.adopted[t.pid] == nil {
			return ErrNoProcess
		}
		// The process may have been reaped since it was listed, and another child may have its pid.
		// Under the mutex that can no longer happen.
		if st, err := readStat(t.pid); err != nil || st.start != t.start {
			return ErrNoProcess
		}
		return sent(t.pid, sig, unix.Kill(t.pid, sig))
	}
	fd, err := unix.PidfdOpen(t.pid, 0)
	if err == unix.ESRCH {
		return ErrNoProcess
	}
	if err == nil {
		defer unix.Close(fd)
	}
	// A pidfd keeps naming the process that was just checked. Without pidfds (an old kernel, a
	// sandbox), the pid could be reused within some microseconds.
	st, statErr := readStat(t.pid)
	if statErr != nil || st.start != t.start {
		return ErrNoProcess
	}
	if err != nil {
		return sent(t.pid, sig, unix.Kill(t.pid, sig))
	}
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if err == unix.ENOSYS || err == unix.EPERM {
		err = unix.Kill(t.pid, sig)
	}
	return sent(t.pid, sig, err)
}

// Kill begins to kill all processes in the scope. It continues until none is left or KillTimeout
// has passed; Emptied then says how many are left. It returns after the first round. Further calls
// have no effect.
func (o *Owner) Kill(id uint64) error {
	p, err := o.lookup(id)
	if err != nil {
		return err
	}
	o.mu.Lock()
	again := p.killing
	if !again {
		p.killing, p.emptied, p.wake = true, make(chan struct{}), make(chan struct{}, 1)
	}
	o.mu.Unlock()
	if again {
		return nil
	}
	o.killRound(p, time.Time{})
	o.mu.Lock()
	defer o.mu.Unlock()
	if !p.gone && !o.closed {
		o.loops.Go(func() { o.killUntilEmpty(p) })
	}
	return nil
}

// longestPause is the longest time between two checks of what is left.
const longestPause = 320 * time.Millisecond

// killUntilEmpty waits for the end of the killed processes and kills new ones. The reaper and the
// sweeper wake it. It also checks at growing intervals, because it hears of no exit of members that
// are not agentinit's children.
func (o *Owner) killUntilEmpty(p *process) {
	deadline := time.NewTimer(o.killTimeout)
	defer deadline.Stop()
	pause := 10 * time.Millisecond
	tick := time.NewTimer(pause)
	defer tick.Stop()
	for {
		select {
		case <-p.emptied:
			return
		case <-o.stop:
			return
		case <-deadline.C:
			o.giveUp(p)
			return
		case <-p.wake:
		case <-tick.C:
			if pause == longestPause {
				o.freeKilled(p)
			}
			pause = min(2*pause, longestPause)
			tick.Reset(pause)
		}
		o.killRound(p, time.Now())
	}
}

func (o *Owner) giveUp(p *process) {
	var left []int
	for _, t := range p.inScope(o.tree(p), p.scope) {
		left = append(left, t.pid)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finish(p, left...)
}

// killRound kills the processes that are in scope now. If all of them are in the group, one system
// call reaches them all: the kernel holds the list of processes, and a fork under way is repeated
// after the signal. Members elsewhere could fork while they are listed. So they are stopped first,
// until a listing finds no new one.
//
// The first round takes the orphans that are known: to list agentinit's children anew for each of a
// thousand programs would take longer than to kill them. An orphan that is not known yet is found
// when the leader is reaped, and killed in the next round.
func (o *Owner) killRound(p *process, orphansSince time.Time) {
	p.cgroup.kill()
	if p.scope != ScopeTree {
		if err := o.Signal(p.id, syscall.SIGKILL, p.scope); err != nil {
			return // the next round, or giveUp, reports it
		}
		return
	}
	tasks := descend(o.rootsSince(p, orphansSince))
	if o.leads(p) && len(tasks) == len(p.inScope(tasks, ScopeGroup)) {
		if o.signalLeader(p, syscall.SIGKILL, true) == nil {
			return
		}
	}
	for _, t := range o.freeze(p, tasks) {
		// A process that cannot be killed is found again by the next listing and finally counted as
		// leaked.
		_ = o.signalTask(&t, syscall.SIGKILL)
	}
	_ = o.signalLeader(p, syscall.SIGKILL, true)
}

// maxFreezes bounds the listings in one round; a fork bomb needs several.
const maxFreezes = 32

// freeze stops every member that it can find and returns them. They are also remembered: if the
// parent of one dies first, that process is still known to belong to p.
func (o *Owner) freeze(p *process, tasks []task) []task {
	stopped := map[int]uint64{}
	for range maxFreezes {
		_ = o.signalLeader(p, syscall.SIGSTOP, true)
		news := 0
		for i := range tasks {
			t := &tasks[i]
			if start, ok := stopped[t.pid]; ok && start == t.start {
				continue
			}
			news++
			stopped[t.pid] = t.start
			_ = o.signalTask(t, syscall.SIGSTOP) // as above
		}
		o.remember(p, tasks)
		if news == 0 {
			break
		}
		tasks = o.tree(p)
	}
	return tasks
}

func (o *Owner) remember(p *process, tasks []task) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.gone {
		return
	}
	for _, t := range tasks {
		if !t.child {
			o.seen[t.pid] = seenTask{t.start, p}
		}
	}
}
