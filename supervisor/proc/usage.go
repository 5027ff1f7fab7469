package proc

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what the living members of a started process use now, and the CPU time that all its
// members, dead ones included, have used since its start.
type Usage struct {
	// CPU never falls. It includes members whose parent inside the tree waited for them. It does
	// not include ended members that no process waited for (SIGCHLD ignored).
	CPU     time.Duration
	RSS     int64 // bytes; a page that several members share counts for each
	FDs     int   // open descriptors of the members whose descriptors can be counted
	Members int
	Threads int
	Zombies int // processes that have ended and that their parent has not waited for; they count toward limits of processes
	Blind   int // members whose descriptors cannot be counted
}

// Usage reads /proc at each call, which takes some microseconds for each member. It also needs a
// listing of agentinit's children, which takes longer the more programs there are. A listing that
// began after since is used again, so a caller that reads many programs passes the same since for
// all of them.
func (o *Owner) Usage(id uint64, since time.Time) (Usage, error) {
	p, err := o.lookup(id)
	if err != nil {
		return Usage{}, err
	}
	var u Usage
	var cpu time.Duration
	page := int64(os.Getpagesize())
	for _, t := range withZombies(o.rootsSince(p, since)) {
		if t.dead() {
			u.Zombies++
			continue
		}
		u.Members++
		u.Threads += t.threads
		u.RSS += t.rssPages * page
		cpu += ticks(t.utime + t.stime + t.cutime + t.cstime)
		if n, ok := countFDs(t.pid); ok {
			u.FDs += n
		} else {
			u.Blind++
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	cpu += p.spent.User + p.spent.System
	// A member that died between the two readings is in neither, and ticks are coarser than rusage.
	// So the highest value seen counts.
	p.peakCPU = max(p.peakCPU, cpu)
	u.CPU = p.peakCPU
	return u, nil
}

// Runnable is how long the threads of the living members have run or waited for a processor. Unlike
// the CPU time, it grows as fast as the clock for a thread that spins on a loaded machine or under
// a CPU quota (Documentation/scheduler/sched-stats.rst). It is 0 if the kernel does not report it,
// and falls when a member ends. For since see Usage.
func (o *Owner) Runnable(id uint64, since time.Time) time.Duration {
	p, err := o.lookup(id)
	if err != nil {
		return 0 // no member is left
	}
	var sum time.Duration
	for _, t := range o.treeSince(p, since) {
		dir := "/proc/" + strconv.Itoa(t.pid) + "/task"
		threads, err := os.ReadDir(dir)
		if err != nil {
			continue // the thread has ended meanwhile
		}
		for _, thread := range threads {
			text, err := os.ReadFile(dir + "/" + thread.Name() + "/schedstat")
			fields := strings.Fields(string(text))
			if err != nil || len(fields) < 2 {
				continue
			}
			for _, f := range fields[:2] { // nanoseconds on a processor, and nanoseconds waiting for one
				if ns, err := strconv.ParseInt(f, 10, 64); err == nil {
					sum += time.Duration(ns)
				}
			}
		}
	}
	return sum
}

func ticks(n uint64) time.Duration {
	return time.Duration(n) * (time.Second / ticksPerSecond)
}
