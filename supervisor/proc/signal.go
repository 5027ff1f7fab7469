package proc

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Signal sends sig to a started process, its group or its whole tree. It reaches
// the group at once, members elsewhere one by one. ErrNoProcess means that nothing
// of it is left in that scope. Kill is the one to use for making it empty.
func (o *Owner) Signal(id uint64, sig syscall.Signal, scope Scope) error {
	return o.SignalAsked(id, sig, scope, time.Now())
}

// SignalAsked is Signal for what was asked for at that time and is carried out
// only now: it reaches whoever was there then. Many that were asked for together
// share what has to be read for them.
func (o *Owner) SignalAsked(id uint64, sig syscall.Signal, scope Scope, asked time.Time) error {
	p, err := o.lookup(id)
	if err != nil {
		return err
	}
	if scope == ScopeProcess {
		return o.signalLeader(p, sig, false)
	}
	var tasks []task
	alone := false // its group is all there is of it
	if scope == ScopeTree || !o.leads(p) {
		// Looked up before the group is signalled: a leader that dies of it
		// takes the path to its children along.
		roots := o.rootsSince(p, asked)
		if alone = len(roots) == 1 && roots[0] == p.pid && childless(p.pid); !alone {
			tasks = p.inScope(descend(roots), scope)
		}
	}
	groupErr := o.signalLeader(p, sig, true)
	if alone && groupErr != nil { // it has moved to another group
		tasks = p.inScope(descend([]int{p.pid}), scope)
	}
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
	if o.closed {
		return nil, ErrClosed
	}
	p := o.byID[id]
	if p == nil || p.pid == 0 { // 0: being started, and kill(2) takes it for ourselves
		return nil, ErrNoProcess
	}
	return p, nil
}

func (o *Owner) leads(p *process) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !p.reaped
}

// signalLeader signals the started process or the group it leads. Both numbers
// are ours only until it is reaped.
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
	return fmt.Errorf("cannot send %s to pid %d: %w", SignalName(sig), pid, err)
}

// signalTask signals a member found by a look at the tree, and nobody who may
// have got its pid since.
func (o *Owner) signalTask(t *task, sig syscall.Signal) error {
	if t.child {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.byPID[t.pid] == nil && o.adopted[t.pid] == nil {
			return ErrNoProcess
		}
		// It may have been reaped since the look, and its pid be another child's;
		// but not from here on.
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
	// With a pidfd, a process that is the right one now stays the right one.
	// Without (an old kernel, a sandbox) a gap of microseconds remains.
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

// Kill begins to kill everything in the process's scope and goes on until
// nothing is left or KillTimeout has passed; then Emptied says how many are.
// It returns after the first round. Further calls change nothing.
func (o *Owner) Kill(id uint64) error {
	p, err := o.lookup(id)
	if err != nil {
		return err
	}
	o.mu.Lock()
	again := p.killing
	p.killing = true
	o.mu.Unlock()
	if again {
		return nil
	}
	o.killRound(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !p.gone && !o.closed {
		o.loops.Go(func() { o.killUntilEmpty(p) })
	}
	return nil
}

// longestPause is that between two looks at what was killed.
const longestPause = 320 * time.Millisecond

// killUntilEmpty waits for the end of what was killed and kills what turned up
// since. The reaper and the sweeper rouse it; the ticks, which grow, are for
// members that are nobody's children of ours and die unseen.
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
		o.killRound(p)
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

// killRound kills what is in scope now. As long as all of that is the group, one
// system call gets it without a gap: the kernel holds the list of processes, and
// a fork under way is repeated after the signal. Members elsewhere could fork
// while we list them, so they are stopped first, until a look finds no new one.
func (o *Owner) killRound(p *process) {
	p.cgroup.kill()
	if p.scope != ScopeTree {
		if err := o.Signal(p.id, syscall.SIGKILL, p.scope); err != nil {
			return // the next round, or giveUp, tells
		}
		return
	}
	tasks := o.tree(p)
	if o.leads(p) && len(tasks) == len(p.inScope(tasks, ScopeGroup)) {
		if o.signalLeader(p, syscall.SIGKILL, true) == nil {
			return
		}
	}
	for _, t := range o.freeze(p, tasks) {
		// What cannot be killed is found by the next look, and in the end
		// counted as leaked: the error says nothing more.
		_ = o.signalTask(&t, syscall.SIGKILL)
	}
	_ = o.signalLeader(p, syscall.SIGKILL, true)
}

// maxFreezes bounds the looks for one round; a fork bomb needs several.
const maxFreezes = 32

// freeze stops every member that it can find and returns them. They are also
// remembered, so that those whose parents die first are still known to be p's.
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
