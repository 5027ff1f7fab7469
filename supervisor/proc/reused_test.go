package proc

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lastPID holds the pid that the kernel has given out last in the pid namespace (pid_namespaces(7)).
const lastPID = "/proc/sys/kernel/ns_last_pid"

// giveOutNext has the kernel give out a free pid next.
func giveOutNext(t *testing.T, pid int) {
	t.Helper()
	if err := os.WriteFile(lastPID, []byte(strconv.Itoa(pid-1)), 0); err != nil {
		t.Skipf("needs CONFIG_CHECKPOINT_RESTORE: %v", err)
	}
}

// startForker starts a program that starts a process each time it reads a line, and tells its pid.
func startForker(t *testing.T, o *Owner) tester {
	t.Helper()
	c := sh("while read x; do sleep 1000 & echo $!; done")
	c.StdinPipe = true
	f := startTester(t, o, c)
	t.Cleanup(func() { f.Stdin.Close() })
	return f
}

// takes has the program start a process with a free pid. It returns false if a new thread of the test has
// taken the pid before.
func (p tester) takes(t *testing.T, pid int) bool {
	t.Helper()
	giveOutNext(t, pid)
	if _, err := p.Stdin.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	return p.number(t) == pid
}

// startFamily starts a program with a child and a grandchild.
func startFamily(t *testing.T, o *Owner) (p tester, child, grandchild int) {
	t.Helper()
	p = startTester(t, o, sh(`sh -c 'echo $$; sleep 1000 & echo $!; wait' & wait; echo reaped; exec sleep 1000`))
	return p, p.number(t), p.number(t)
}

// ends kills the child of a family; its pid is free afterwards.
func (p tester) ends(t *testing.T, child int) {
	t.Helper()
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if said := p.line(t); said != "reaped" {
		t.Fatalf("said %q", said)
	}
}

// An ancestor ends while agentinit looks for the program of a process, and a process of another program
// gets its pid.
func TestWhoseIsNotMisledByAReusedPID(t *testing.T) {
	if !insidePID1(t) {
		return
	}
	o := newOwner(t, Options{})
	other := startForker(t, o)
	for reused := false; !reused; {
		family, child, grandchild := startFamily(t, o)
		o.mu.Lock()
		whose := make(chan uint64)
		go func() {
			id, _, _ := o.Whose(grandchild)
			whose <- id
		}()
		waitUntil(t, "agentinit has read who the parent is", waitsInClimb)
		family.ends(t, child)
		reused = other.takes(t, child)
		o.mu.Unlock()
		if id := <-whose; id != family.ID {
			t.Errorf("the grandchild of %d belongs to %d; the other program is %d", family.ID, id, other.ID)
		}
	}
}

// waitsInClimb tells whether a goroutine waits for the mutex in climb.
func waitsInClimb() bool {
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, ").climb(") && strings.Contains(stack, "sync.(*Mutex).Lock(") {
			return true
		}
	}
	return false
}

// A process that was listed as one of a program ends before agentinit reads about it, and a process of
// another program gets its pid. It must not get the signals meant for the first.
func TestATreeHasNoReusedPID(t *testing.T) {
	if !insidePID1(t) {
		return
	}
	o := newOwner(t, Options{})
	other := startForker(t, o)
	t.Run("child", func(t *testing.T) {
		for reused := false; !reused; {
			family, child, _ := startFamily(t, o)
			parent, listed := mustStat(t, family.PID), uptimeTicks()
			kids, _ := childrenOf(&parent)
			if got := stillListed(&parent, kids, listed); len(got) != 1 || got[0].pid != child {
				t.Fatalf("the twin: %+v", got)
			}
			family.ends(t, child)
			reused = other.takes(t, child)
			if got := stillListed(&parent, kids, listed); reused && len(got) != 0 {
				t.Errorf("got %+v", got)
			}
		}
	})
	t.Run("parent", func(t *testing.T) {
		for reused := false; !reused; {
			family, child, grandchild := startFamily(t, o)
			parent := mustStat(t, child)
			waitUntil(t, "the clock of starts has moved", func() bool { return uptimeTicks() > parent.start })
			family.ends(t, child)
			reused = other.takes(t, child)
			if got := stillListed(&parent, []int{grandchild}, uptimeTicks()+1); reused && len(got) != 0 {
				t.Errorf("got %+v", got)
			}
		}
	})
	t.Run("slowly", func(t *testing.T) { // on a kernel without lists of children
		for reused := false; !reused; {
			family, child, grandchild := startFamily(t, o)
			young := mustStat(t, grandchild)
			waitUntil(t, "the clock of starts has moved", func() bool { return uptimeTicks() > young.start })
			listed := uptimeTicks()
			list := func() map[int][]int {
				byParent, err := allProcesses()
				if err != nil {
					t.Fatal(err)
				}
				return byParent
			}
			stale := list()
			if got := below([]task{{mustStat(t, family.PID), true}}, list(), listed); len(got) != 3 || got[2].pid != grandchild {
				t.Fatalf("the twin: %+v", got)
			}
			family.ends(t, child)
			if reused = other.takes(t, child); !reused {
				continue
			}
			if got := below([]task{{mustStat(t, child), false}}, stale, listed); len(got) != 1 {
				t.Errorf("got %+v", got)
			}
		}
	})
	t.Run("orphan", func(t *testing.T) {
		for reused := false; !reused; {
			family := startTester(t, o, sh(`(setsid sleep 1000 & echo $!); exec sleep 1000`))
			pid := family.number(t)
			p, err := o.lookup(family.ID)
			if err != nil {
				t.Fatal(err)
			}
			orphan := func() *adoptee {
				o.mu.Lock()
				defer o.mu.Unlock()
				return o.adopted[pid]
			}
			waitUntil(t, "the orphan is found", func() bool { return len(o.rootsSince(p, time.Now())) == 2 })
			orphans := map[int]*adoptee{pid: orphan()}
			if got := o.rootsAmong(p, tasksOf([]int{pid}), orphans); len(got) != 1 {
				t.Fatalf("the twin: %+v", got)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "it is reaped", func() bool { return orphan() == nil })
			giveOutNext(t, pid)
			reused = mustStart(t, o, sh("sleep 1000")).PID == pid
			if got := o.rootsAmong(p, tasksOf([]int{pid}), orphans); reused && len(got) != 0 {
				t.Errorf("got %+v", got)
			}
		}
	})
}

func mustStat(t *testing.T, pid int) statInfo {
	t.Helper()
	st, err := readStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// An ancestor ends while agentinit asks whether a process descends from it, and another process gets its
// pid.
func TestDescendsIsNotMisledByAReusedPID(t *testing.T) {
	if !insidePID1(t) {
		return
	}
	o := newOwner(t, Options{})
	other := startForker(t, o)
	for reused := false; !reused; {
		family, child, grandchild := startFamily(t, o)
		passed, complete := ancestry(grandchild, family.PID)
		if !complete || len(passed) != 2 || !haveSameParents(passed) || !o.descends(grandchild) {
			t.Fatalf("the twin: %+v, %t", passed, complete)
		}
		family.ends(t, child)
		if reused = other.takes(t, child); reused && haveSameParents(passed) {
			t.Errorf("%d still counts as a descendant of %d", grandchild, family.PID)
		}
	}
}

func TestDescendsOfAnOutsider(t *testing.T) {
	o := newOwner(t, Options{})
	if o.descends(os.Getppid()) {
		t.Error("the parent of agentinit counts as a descendant of it")
	}
}
