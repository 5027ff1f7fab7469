package proc

import (
	"maps"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// parkedExit is an exit that was reaped before its process was known.
type parkedExit struct {
	status syscall.WaitStatus
	usage  Rusage
	at     time.Time
}

// maxParked bounds how many exits are kept while a fork is under way. If more processes than this
// end during one fork, that fork hangs in its exec, and so its process is not among the ended ones.
const maxParked = 16384

// reapBatch is how many children are reaped before other goroutines can take the mutex.
const reapBatch = 64

func (o *Owner) reapLoop() {
	for {
		storm := o.drain()
		o.score.active()
		if !storm {
			select {
			case <-o.sigchld:
			case <-o.stop:
				return
			}
		}
		if !o.gather(storm) {
			return
		}
	}
}

// Before it reaps again, the reaper waits until eight times the duration of the latest listing of
// children has passed since it, at most gatherMost. So a thousand processes that end together do
// not cause a thousand listings. A pause below gatherLeast is not worth a timer.
//
// While orphans end more often than fewOrphans allows, the reaper looks for them every stormPause,
// and SIGCHLD does not wake it: that would cost more processor time than all else it does for them.
const (
	gatherLeast = 100 * time.Microsecond
	gatherMost  = 5 * time.Millisecond
	stormPause  = 500 * time.Microsecond
)

var fewOrphans = rate.Limit{PerSecond: 2000, Burst: 32}

// gather waits before the next round of reaping, and returns false if the Owner closes.
func (o *Owner) gather(storm bool) bool {
	o.mu.Lock()
	pause := o.lookPause()
	o.mu.Unlock()
	if storm {
		pause = max(pause, stormPause)
	}
	if pause < gatherLeast {
		return true
	}
	childSignal.mute()
	defer childSignal.unmute()
	select {
	case <-time.After(pause):
		return true
	case <-o.stop:
		return false
	}
}

// lookPause is how long the next listing of children should wait. The caller holds the mutex.
func (o *Owner) lookPause() time.Duration {
	return min(8*o.lookTook, gatherMost) - time.Since(o.lookedAt)
}

// drain reaps until no ended child is left. One SIGCHLD may stand for any number of exits. For a
// child that died before agentinit became its parent, there is no SIGCHLD. storm says that more
// orphans have ended than fewOrphans allows.
func (o *Owner) drain() (storm bool) {
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
		if !more || o.lookPause() <= 0 {
			o.settle()
		}
		storm, o.storm = storm || o.storm, false
		o.mu.Unlock()
	}
	return storm
}

// notice is delivered at the end of a batch. Otherwise a sleeping reader would be woken for each of
// many processes that end together.
type notice struct {
	deliver func(Exit)
	exit    Exit
}

// reapOne frees one pid and, in the same critical section, forgets it. 0 means that no child has
// ended, ECHILD that there are no children. After EINTR, and after a stop, it asks again.
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
		case status.Stopped():
			continue // of a process that has made agentinit its tracer (ptrace(2), PTRACE_TRACEME)
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
	if p := o.mains[pid]; p != nil {
		o.mainEnded(p, Exit{Time: time.Now(), Status: status, Rusage: rusage(ru)})
	}
	if p := o.byPID[pid]; p != nil {
		o.departed.add(pid, p.id)
		o.leaderEnded(p, parkedExit{status, rusage(ru), time.Now()})
		return
	}
	if o.forks > 0 {
		o.park(pid, parkedExit{status, rusage(ru), time.Now()})
	}
	o.stats.Orphans++
	if _, few := o.calm.Take(time.Now()); !few {
		o.storm = true
	}
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

// leaderEnded handles the end of every started process.
func (o *Owner) leaderEnded(p *process, e parkedExit) {
	delete(o.byPID, p.pid)
	p.reaped = true
	o.forgetDeath(p)
	if o.mayBeOurs(e.usage.MaxRSS) {
		e.usage.MaxRSS = 0
	}
	p.spent.add(e.usage)
	o.stats.Exited++
	if !p.silent {
		o.announce(p, Exit{
			Kind: Exited, ID: p.id, PID: p.pid, Time: e.at, Status: e.status, Rusage: e.usage,
			// A round of Kill reaches the leader also as one of the tree, or through its cgroup.
			ByUs: (p.sentKill || p.killing) && e.status.Signaled() && e.status.Signal() == syscall.SIGKILL,
		})
	}
	o.dirty = append(o.dirty, p)
}

// announce tells of an end: at once, or with the others of the batch.
func (o *Owner) announce(p *process, e Exit) {
	if e.Signal() == syscall.SIGKILL && !e.ByUs {
		e.MemoryLimit = p.cgroup.exhausted() // now, because the sweeper removes the cgroup
	}
	if o.reaping {
		o.reapedNow = append(o.reapedNow, notice{p.tell, e})
		return
	}
	p.tell(e)
}

// settle decides, for each process whose leader or last known member has just ended, whether its
// tree is empty. After the end of the leader, everything that is left of a tree hangs below an
// adoptee, because a dead process's children become children of agentinit before that process can
// be reaped.
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
			o.lookForOthers(p)
			o.kickSweep() // the sweeper reads what is needed: reading can take long, and the reaper must not wait
		case p.adopted > 0:
			o.lookForOthers(p)
			p.rouse()
		default:
			o.finish(p)
		}
	}
}

// finish reports a process as empty, except for the members in left, and forgets it.
func (o *Owner) finish(p *process, left ...int) {
	if p.gone {
		return
	}
	if p.main != nil {
		o.mainEnded(p, Exit{Time: time.Now(), Untold: true})
	}
	p.gone = true
	o.forget(p)
	leaked := len(left)
	if leaked == 0 {
		o.releaseMark(p)
	}
	if o.byPID[p.pid] == p {
		p.silent = true // cannot be killed; its end will not be reported
	}
	if o.bySID[p.pid] == p {
		delete(o.bySID, p.pid)
	}
	delete(o.lingering, p)
	maps.DeleteFunc(o.seen, func(_ int, s seenTask) bool { return s.owner == p })
	if p.cgroup != nil {
		// The sweeper removes it, because that takes a lock which all cgroups of the machine share.
		o.emptyCgroups = append(o.emptyCgroups, p.cgroup)
		o.kickSweep()
	}
	o.stats.Leaked += uint64(leaked)
	if p.killing {
		close(p.emptied)
	}
	if !p.silent || leaked > 0 {
		// CPU time seen in members that no process waited for counts too.
		cpu := max(p.peakCPU, p.spent.User+p.spent.System)
		p.tell(Exit{Kind: Emptied, ID: p.id, PID: p.pid, Time: time.Now(), CPU: cpu, Leaked: leaked, Left: left})
	}
}

// rouse tells the killer, if there is one, that new members were found. The caller holds the mutex.
func (p *process) rouse() {
	select { // without a killer, wake is nil and never ready
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

// mayBeOurs tells whether a process's maximum may come from agentinit's memory, which it shared
// until its exec. An eighth more than agentinit's own maximum may, because the kernel counts resident
// pages only roughly (percpu_counter in mm/memory.c). The maximum can only grow: what an older one
// explains needs no new one. The caller holds the mutex.
func (o *Owner) mayBeOurs(maxRSS int64) bool {
	if maxRSS > o.ownPeak+o.ownPeak/8 {
		o.ownPeak = ownPeak()
	}
	return maxRSS <= o.ownPeak+o.ownPeak/8
}

// ownPeak is the most memory that agentinit has had, in bytes.
func ownPeak() int64 {
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0 // getrusage never fails for the calling process itself
	}
	return rusage(&own).MaxRSS
}

func (r *Rusage) add(x Rusage) {
	r.User += x.User
	r.System += x.System
	r.MaxRSS = max(r.MaxRSS, x.MaxRSS)
}
