package proc

import (
	"maps"
	"syscall"
	"time"
)

// parkedExit is an exit met by the reaper before it was known whose it is.
type parkedExit struct {
	status syscall.WaitStatus
	usage  Rusage
	at     time.Time
}

// maxParked bounds what is kept while a fork is in flight. A fork that takes
// longer than so many exits is one that hangs in exec, and then its child is not
// among the dead.
const maxParked = 16384

// reapBatch is how many children are reaped before the mutex is given to others.
const reapBatch = 64

func (o *Owner) reapLoop() {
	defer o.loops.Done()
	for {
		o.drain()
		o.score.active()
		select {
		case <-o.sigchld:
		case <-o.stop:
			return
		}
		o.gather()
	}
}

// After a look at our children, who ends next waits for four times as long as that
// took, at most gatherMost, so that a thousand that end together are not a thousand
// looks at what is left of them. Below gatherLeast it is not worth a timer.
const (
	gatherLeast = 100 * time.Microsecond
	gatherMost  = 2 * time.Millisecond
)

func (o *Owner) gather() {
	o.mu.Lock()
	pause := min(4*o.lookTook, gatherMost) - time.Since(o.lookedAt)
	o.mu.Unlock()
	if pause >= gatherLeast {
		time.Sleep(pause)
	}
}

// drain reaps until nothing is dead. One SIGCHLD may stand for any number of
// exits, and none is sent for a child that died before we became its parent.
func (o *Owner) drain() {
	for more := true; more; {
		o.mu.Lock()
		o.reaping = true
		for range reapBatch {
			if more = o.reapOne(); !more {
				break
			}
		}
		o.reaping = false
		for _, n := range o.reapedNow {
			n.deliver(n.exit)
		}
		o.reapedNow = o.reapedNow[:0]
		o.settle()
		o.mu.Unlock()
	}
}

// notice is one that waits for the end of a batch: a reader that slept would be woken for
// each of many that end together.
type notice struct {
	deliver func(Exit)
	exit    Exit
}

// reapOne frees one pid and, in the same critical section, forgets it. Zero,
// ECHILD and EINTR are three cases: children but none dead, no children at all,
// and nothing learnt.
func (o *Owner) reapOne() bool {
	var status syscall.WaitStatus
	var ru syscall.Rusage
	for {
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &ru)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.ECHILD:
			o.noChildren()
			return false
		case err != nil || pid <= 0:
			return false
		}
		o.reaped(pid, status, &ru)
		return true
	}
}

func (o *Owner) noChildren() {
	for _, c := range o.childers {
		close(c)
	}
	o.childers = nil
}

func (o *Owner) reaped(pid int, status syscall.WaitStatus, ru *syscall.Rusage) {
	if p := o.byPID[pid]; p != nil {
		o.departed.add(pid, p.id)
		o.leaderEnded(p, parkedExit{status, rusage(ru), time.Now()})
		return
	}
	if o.forks > 0 {
		o.park(pid, parkedExit{status, rusage(ru), time.Now()})
	}
	o.stats.Orphans++
	a := o.adopted[pid]
	if a == nil {
		o.departed.add(pid, 0)
		return
	}
	if p := a.owner; p == nil {
		o.departed.add(pid, 0)
	} else {
		o.departed.add(pid, p.id)
		p.spent.add(rusage(ru))
	}
	o.dropAdoptee(pid, a)
}

func (o *Owner) park(pid int, e parkedExit) {
	if len(o.parkedAt) >= maxParked {
		delete(o.parked, o.parkedAt[0])
		o.parkedAt = o.parkedAt[1:]
	}
	o.parked[pid] = e
	o.parkedAt = append(o.parkedAt, pid)
}

func (o *Owner) forgetParked() {
	if len(o.parkedAt) > 0 {
		clear(o.parked)
		o.parkedAt = nil
	}
}

// leaderEnded is the one place where the end of a started process is noticed.
func (o *Owner) leaderEnded(p *process, e parkedExit) {
	delete(o.byPID, p.pid)
	p.reaped = true
	o.forgetDeath(p)
	if e.usage.MaxRSS <= sharedRSS() {
		e.usage.MaxRSS = 0
	}
	p.spent.add(e.usage)
	o.stats.Exited++
	if !p.silent {
		exit := Exit{
			Kind: Exited, ID: p.id, PID: p.pid, Time: e.at, Status: e.status, Rusage: e.usage,
			ByUs: p.sentKill && e.status.Signaled() && e.status.Signal() == syscall.SIGKILL,
		}
		if o.reaping {
			o.reapedNow = append(o.reapedNow, notice{p.tell, exit})
		} else {
			p.tell(exit)
		}
	}
	o.dirty = append(o.dirty, p)
}

// settle decides, for every process whose leader or last known member has just
// ended, whether it is empty. Our children that we did not start tell: whatever
// is left of a tree whose leader is gone hangs below one of them, because
// children of the dead come to us before the dead can be reaped.
func (o *Owner) settle() {
	if len(o.dirty) == 0 {
		return
	}
	dirty := o.dirty
	o.dirty = nil
	looked := false
	for _, p := range dirty {
		if p.gone || !p.reaped {
			continue
		}
		if p.scope == ScopeProcess {
			o.finish(p)
			continue
		}
		o.lingering[p] = true
		if !looked {
			looked = true
			o.lookForAdoptees()
		}
		switch {
		case p.adopted > 0 && p.scope == ScopeGroup, o.pending > 0:
			o.kickSweep() // what must be read for that may be slow: not here
		case p.adopted > 0:
			p.rouse()
		default:
			o.finish(p)
		}
	}
}

// finish reports a process as empty, but for the members that are left, and forgets it.
func (o *Owner) finish(p *process, left ...int) {
	if p.gone {
		return
	}
	p.gone = true
	delete(o.byID, p.id)
	leaked := len(left)
	if leaked == 0 {
		o.marks.release(p)
	}
	if o.byPID[p.pid] == p {
		p.silent = true // cannot be killed; its end will find nobody
	}
	if o.bySID[p.pid] == p {
		delete(o.bySID, p.pid)
	}
	for _, inode := range p.pipes {
		if o.byPipe[inode] == p {
			delete(o.byPipe, inode)
		}
	}
	delete(o.lingering, p)
	maps.DeleteFunc(o.seen, func(_ int, s seenTask) bool { return s.owner == p })
	o.disown(p)
	if p.cgroup != nil {
		// Removing one takes a lock that all cgroups of the machine share.
		o.emptyCgroups = append(o.emptyCgroups, p.cgroup)
		o.kickSweep()
	}
	o.stats.Leaked += uint64(leaked)
	close(p.emptied)
	if !p.silent || leaked > 0 {
		// What was seen of members that nobody could wait for counts, too.
		cpu := max(p.peakCPU, p.spent.User+p.spent.System)
		p.tell(Exit{Kind: Emptied, ID: p.id, PID: p.pid, Time: time.Now(), CPU: cpu, Leaked: leaked, Left: left})
	}
}

// rouse tells the killer, if there is one, that members were found.
func (p *process) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func rusage(ru *syscall.Rusage) Rusage {
	return Rusage{
		User: time.Duration(ru.Utime.Nano()), System: time.Duration(ru.Stime.Nano()),
		MaxRSS: ru.Maxrss << 10, // the kernel counts KiB
	}
}

// sharedRSS is what the maximum of a process of ours may be of our own memory, which it shared
// until its exec. An eighth more: the kernel counts resident pages roughly (percpu_counter in
// mm/memory.c).
func sharedRSS() int64 {
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0 // it never fails for ourselves
	}
	peak := rusage(&own).MaxRSS
	return peak + peak/8
}

func (r *Rusage) add(x Rusage) {
	r.User += x.User
	r.System += x.System
	r.MaxRSS = max(r.MaxRSS, x.MaxRSS)
}
