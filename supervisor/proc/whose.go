package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// maxAncestors bounds the walk of Owns. A longer chain counts as owned.
const maxAncestors = 4096

// Owns tells to which started process a living process belongs, escapees
// included. ok is also true, with id 0, for a descendant of ours of which
// nobody can say whose it is: whoever grants rights by this answer must not
// take an escapee for an outsider. Only what does not descend from us is not ok.
// The caller makes sure that pid still is who he means, for instance by holding
// its connection or a pidfd.
func (o *Owner) Owns(pid int) (id uint64, ok bool) {
	id, ok, _ = o.Whose(pid)
	return id, ok
}

// ancestorTries is how often the walk of Whose begins anew when an ancestor ended
// under it.
const ancestorTries = 16

// Whose is Owns that tells a process that is gone (ErrNoProcess) from an outsider.
// A process of which the kernel tells nothing for any other reason (EMFILE, EACCES)
// counts as a descendant of nobody knows whom: ok, with id 0.
func (o *Owner) Whose(pid int) (id uint64, ok bool, err error) {
	for range ancestorTries {
		id, ok, again := o.walkUp(pid)
		if !again {
			return id, ok, nil
		}
		if _, err := readStat(pid); isGone(err) {
			o.mu.Lock()
			id, ok := o.departed.of(pid)
			o.mu.Unlock()
			if ok {
				return id, true, nil
			}
			return 0, false, ErrNoProcess
		}
	}
	return 0, true, nil
}

func isGone(err error) bool { return err == unix.ENOENT || err == unix.ESRCH }

// walkUp looks for the first ancestor that is known; again says that one of them
// ended meanwhile, so that its children have another parent now.
func (o *Owner) walkUp(pid int) (id uint64, ok, again bool) {
	for range maxAncestors {
		if pid == o.selfPID || pid <= 0 {
			return 0, false, false
		}
		st, err := readStat(pid)
		if err != nil {
			return 0, !isGone(err), isGone(err)
		}
		o.mu.Lock()
		p := o.byPID[pid]
		o.mu.Unlock()
		if p != nil {
			return p.id, true, false
		}
		if st.ppid == o.selfPID {
			return o.adopteeOwner(pid), true, false
		}
		pid = st.ppid
	}
	return 0, true, false
}

// departedKept is how many reaped processes are remembered: those that sent a signal
// and ended before it was looked at.
const departedKept = 256

// departures remembers whose the latest reaped processes were. Owner.mu guards it.
type departures struct {
	slots [departedKept]struct {
		pid int
		id  uint64
	}
	next int
}

func (d *departures) add(pid int, id uint64) {
	d.slots[d.next%departedKept].pid, d.slots[d.next%departedKept].id = pid, id
	d.next++
}

func (d *departures) of(pid int) (id uint64, ok bool) {
	for i := range departedKept {
		if s := d.slots[(d.next+departedKept-1-i)%departedKept]; s.pid == pid {
			return s.id, true
		}
	}
	return 0, false
}

// forkPatience is how long a child of ours that seems to be nobody's may turn out to
// be a start that is just being registered.
const forkPatience = time.Second

// adopteeOwner tells whose a child of ours is, 0 for nobody's. A program may be
// asked about before its start is registered: it runs from its exec on.
func (o *Owner) adopteeOwner(pid int) uint64 {
	timer := time.NewTimer(forkPatience)
	defer timer.Stop()
	for {
		o.mu.Lock()
		o.lookForAdoptees()
		o.mu.Unlock()
		o.attributeFresh()
		o.mu.Lock()
		p, forking := o.byPID[pid], o.forking
		if a := o.adopted[pid]; p == nil && a != nil {
			p = a.owner
		}
		o.mu.Unlock()
		if p != nil {
			return p.id
		}
		if forking == nil {
			return 0
		}
		select {
		case <-forking:
		case <-timer.C:
			return 0
		}
	}
}
