package proc

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// childOf waits until a shell has one child and returns its pid.
func childOf(t testing.TB, o *Owner, p Process) int {
	t.Helper()
	var pids []int
	waitUntil(t, "the shell has a child", func() bool {
		pids = o.members(p.ID)
		return len(pids) == 2
	})
	return pids[1]
}

// A followed process has its own notice of its end and gets the signals for the main process. The
// Owner can go back to the process that was started.
func TestFollow(t *testing.T) {
	o := newOwner(t, Options{})
	p := mustStart(t, o, sh("sleep 1000 & wait; exec sleep 1000"))
	pid := childOf(t, o, p)
	if err := o.Follow(p.ID, pid); err != nil {
		t.Fatal(err)
	}
	if err := o.Follow(p.ID, p.PID); err != nil {
		t.Fatal(err)
	}
	if err := o.Follow(p.ID, pid); err != nil {
		t.Fatal(err)
	}
	if err := o.Signal(p.ID, syscall.SIGKILL, ScopeProcess); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Exited); e.PID != pid {
		t.Errorf("%+v", e)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Exited); e.PID != p.PID || e.Signal() != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
	next(t, o, p.ID, Emptied)
}

// Follow refuses a process that is outside the tree or gone.
func TestFollowOnlyItsOwn(t *testing.T) {
	o := newOwner(t, Options{})
	a, b := mustStart(t, o, sh("exec sleep 1000")), mustStart(t, o, sh("exec sleep 1000"))
	group := sh("sleep 1000 & wait; exec sleep 1000")
	group.Scope = ScopeGroup
	c := mustStart(t, o, group)
	for name, pid := range map[string]int{"another's": b.PID, "agentinit": os.Getpid(), "our parent": os.Getppid()} {
		if err := o.Follow(a.ID, pid); !errors.Is(err, errOutside) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := o.Follow(a.ID, 1<<22); err == nil { // greater than any pid_max
		t.Error("a process that is not there is followed")
	}
	if err := o.Follow(c.ID, childOf(t, o, c)); err == nil {
		t.Error("a group is followed")
	}
}
