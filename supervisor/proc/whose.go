package proc

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// maxAncestors bounds the walk of Owns. A longer chain counts as owned.
//
// A program can make a chain of thousands of processes and let the last one ask again and again,
// while other programs wait for an answer. So the steps beyond freeAncestors take from a rate that all
// of them share. If it is used up, such a process counts as one whose program is unknown. A real
// program does not need so many ancestors.
const (
	maxAncestors  = 4096
	freeAncestors = 32
)

func farAncestors(now time.Time) rate.Bucket {
	return rate.Full(rate.Limit{PerSecond: 2000, Burst: maxAncestors}, now)
}

// Owns tells to which started process a living process belongs, even after an escape. ok is also
// true, with id 0, for a descendant of agentinit whose program is unknown. A caller that grants
// rights must not treat such a process as an outsider. ok is false only for a process that does not
// descend from agentinit. The caller must make sure that pid still is the process it means, for
// example by holding its connection or a pidfd.
func (o *Owner) Owns(pid int) (id uint64, ok bool) {
	id, ok, _ = o.Whose(pid)
	return id, ok
}

// Sender is like Owns, for the process that had the pid at the time sent, when it sent a message.
// That process may have ended since, and another one may have its pid. The zero time is not known,
// and neither is a time that is more than senderWaits away: the clock was set meanwhile.
func (o *Owner) Sender(pid int, sent time.Time) (id uint64, ok bool) {
	if time.Since(sent).Abs() > senderWaits {
		sent = time.Time{}
	}
	id, ok, _ = o.whose(pid, sent)
	return id, ok
}

// senderWaits is longer than any message waits to be handled.
const senderWaits = 10 * time.Second

// ancestorTries is how often the walk of Whose begins again because an ancestor ended meanwhile.
const ancestorTries = 16

// Whose is like Owns, but tells an ended process (ErrNoProcess) from an outsider. If the kernel
// does not answer for another reason (EMFILE, EACCES), the process counts as a descendant whose
// program is unknown: ok, with id 0.
func (o *Owner) Whose(pid int) (id uint64, ok bool, err error) { return o.whose(pid, time.Time{}) }

func (o *Owner) whose(pid int, sent time.Time) (id uint64, ok bool, err error) {
	for range ancestorTries {
		id, ok, again := o.walkUp(pid, sent)
		if !again {
			return id, ok, nil
		}
		st, err := readStat(pid)
		later := err == nil && st.startedAfter(sent)
		if !later && !isGone(err) {
			continue
		}
		o.mu.Lock()
		id, ok = o.departed.of(pid, sent)
		o.mu.Unlock()
		switch {
		case !ok || id == 0 && later: // what has the pid now may be of any program
			return 0, false, ErrNoProcess
		case id == 0: // unless its start is just being registered
			id = o.adopteeOwner(pid, sent)
		}
		return id, true, nil
	}
	return 0, true, nil
}

func isGone(err error) bool { return err == unix.ENOENT || err == unix.ESRCH }

// startedAfter tells whether the process is a later one than the one that had its pid at the time
// t. The clock of starts is coarse, so a process that started at about that time is no later one.
func (s *statInfo) startedAfter(t time.Time) bool {
	if t.IsZero() {
		return false
	}
	age := max(0, time.Since(t))
	return s.start+uint64(age/ticks(1)) > uptimeTicks()
}

// walkUp looks for the first ancestor that is known. again says that an ancestor ended meanwhile,
// so that its children have another parent now, or that the process is later than sent.
func (o *Owner) walkUp(pid int, sent time.Time) (id uint64, ok, again bool) {
	var passed []statInfo
	id, ok, again = o.climb(pid, sent, &passed)
	return id, ok, again || !haveSameParents(passed)
}

// haveSameParents tells whether each process still has the parent that it had. Otherwise the parent has
// ended, and what was found under its pid may be about another process. The pid of a parent is free
// only after its children have another one.
func haveSameParents(passed []statInfo) bool {
	return !slices.ContainsFunc(passed, func(was statInfo) bool {
		st, err := readStat(was.pid)
		return err != nil || st.start != was.start || st.ppid != was.ppid
	})
}

// climb is walkUp for ancestors that do not end meanwhile. It adds the processes below the one that is
// known to passed.
func (o *Owner) climb(pid int, sent time.Time, passed *[]statInfo) (id uint64, ok, again bool) {
	for step := range maxAncestors {
		if pid == o.selfPID || pid <= 0 {
			return 0, false, false
		}
		st, err := readStat(pid)
		if err != nil {
			return 0, !isGone(err), isGone(err)
		}
		if step == 0 && st.startedAfter(sent) {
			return 0, false, true
		}
		o.mu.Lock()
		p, further := o.byPID[pid], true
		if step >= freeAncestors {
			_, further = o.far.Take(time.Now())
		}
		o.mu.Unlock()
		switch {
		case p != nil:
			return p.id, true, false
		case st.released():
			return 0, false, true
		case st.ppid == o.selfPID:
			return o.adopteeOwner(pid, sent), true, false
		case !further:
			return 0, true, false
		}
		*passed = append(*passed, st)
		pid = st.ppid
	}
	return 0, true, false
}

// departedKept is how many reaped processes are remembered. A process may send a signal and end
// before agentinit checks who sent it.
const departedKept = 256

// departures remembers to which programs the latest reaped processes belonged. Owner.mu guards it.
type departures struct {
	slots [departedKept]departure
	next  int
}

type departure struct {
	pid int
	id  uint64
	at  time.Time
}

func (d *departures) add(pid int, id uint64) {
	d.slots[d.next%departedKept] = departure{pid, id, time.Now()}
	d.next++
}

// correct gives the latest process with the pid its program, if it had none: it was reaped before its
// start was registered. A second entry would not do, because of returns the first.
func (d *departures) correct(pid int, id uint64) {
	for i := range departedKept {
		s := &d.slots[(d.next+departedKept-1-i)%departedKept]
		if s.pid != pid {
			continue
		}
		if s.id == 0 {
			s.id = id
			return
		}
		break
	}
	d.add(pid, id)
}

// of tells about the first process with the pid that was reaped after the time sent, or about the
// latest one if that time is not known.
func (d *departures) of(pid int, sent time.Time) (id uint64, ok bool) {
	for i := range departedKept {
		s := &d.slots[(d.next+departedKept-1-i)%departedKept]
		if s.pid != pid {
			continue
		}
		if s.at.Before(sent) {
			break
		}
		if id, ok = s.id, true; sent.IsZero() {
			break
		}
	}
	return id, ok
}

// forkPatience is how long agentinit waits for the registration of a child that seems to belong to
// no program: the child may be a start that is just being registered.
const forkPatience = time.Second

// adopteeOwner returns the id of the program to which a child of agentinit belongs, or 0. A program
// can be asked about before its start is registered, because it runs from its exec on.
func (o *Owner) adopteeOwner(pid int, sent time.Time) uint64 {
	timer := time.NewTimer(forkPatience)
	defer timer.Stop()
	for {
		o.mu.Lock()
		o.lookForAdoptees()
		o.mu.Unlock()
		o.attributeFresh()
		o.mu.Lock()
		p, forking := o.byPID[pid], o.forking
		a := o.adopted[pid]
		if p == nil && a != nil {
			p = a.owner
		}
		var departed uint64
		if p == nil && a == nil && forking == nil { // no child of ours any more
			departed, _ = o.departed.of(pid, sent)
		}
		o.mu.Unlock()
		if p != nil {
			return p.id
		}
		if forking == nil {
			return departed
		}
		select {
		case <-forking:
		case <-timer.C:
			return 0
		}
	}
}
