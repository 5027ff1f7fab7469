package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// maxAncestors bounds the walk of Owns. A longer chain counts as owned.
const maxAncestors = 4096

// Owns tells to which started process a living process belongs, even after an escape. ok is also
// true, with id 0, for a descendant of agentinit whose program is unknown. A caller that grants
// rights must not treat such a process as an outsider. ok is false only for a process that does not
// descend from agentinit. The caller must make sure that pid still is the process it means, for
// example by holding its connection or a pidfd.
func (o *Owner) Owns(pid int) (id uint64, ok bool) {
	id, ok, _ = o.Whose(pid)
	return id, ok
}

// ancestorTries is how often the walk of Whose begins again because an ancestor ended meanwhile.
const ancestorTries = 16

// Whose is like Owns, but tells an ended process (ErrNoProcess) from an outsider. If the kernel
// does not answer for another reason (EMFILE, EACCES), the process counts as a descendant whose
// program is unknown: ok, with id 0.
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
			switch {
			case !ok:
				return 0, false, ErrNoProcess
			case id == 0: // unless its start is just being registered
				id = o.adopteeOwner(pid)
			}
			return id, true, nil
		}
	}
	return 0, true, nil
}

func isGone(err error) bool { return err == unix.ENOENT || err == unix.ESRCH }

// walkUp looks for the first ancestor that is known. again says that an ancestor ended meanwhile,
// so that its children have another parent now.
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
		switch {
		case p != nil:
			return p.id, true, false
		case st.state == 'X': // it is being reaped, and the kernel no longer tells its parent
			return 0, false, true
		case st.ppid == o.selfPID:
			return o.adopteeOwner(pid), true, false
		}
		pid = st.ppid
	}
	return 0, true, false
}

// departedKept is how many reaped processes are remembered. A process may send a signal and end
// before agentinit checks who sent it.
const departedKept = 256

// departures remembers to which programs the latest reaped processes belonged. Owner.mu guards it.
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

// forkPatience is how long agentinit waits for the registration of a child that seems to belong to
// no program: the child may be a start that is just being registered.
const forkPatience = time.Second

// adopteeOwner returns the id of the program to which a child of agentinit belongs, or 0. A program
// can be asked about before its start is registered, because it runs from its exec on.
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
		a := o.adopted[pid]
		if p == nil && a != nil {
			p = a.owner
		}
		var departed uint64
		if p == nil && a == nil && forking == nil { // no child of ours any more
			departed, _ = o.departed.of(pid)
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
