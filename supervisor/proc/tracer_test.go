package proc

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// traced starts a process and a tracer of the same user.
func traced(t *testing.T, o *Owner, how ...string) (victim Process, tracer tester) {
	t.Helper()
	bin := built.Path(t)
	victim = mustStart(t, o, prog(bin, "sleep"))
	tracer = startTester(t, o, prog(bin, append([]string{"trace", strconv.Itoa(victim.PID)}, how...)...))
	if said := tracer.line(t); said != "seized" {
		t.Skipf("tracing is refused here: %s", said)
	}
	return victim, tracer
}

// If a tracer does not wait for its dead tracee, agentinit still gets the end of the process. Any thread
// of a process can be the tracer.
func TestTracerCannotHideAnEnd(t *testing.T) {
	for name, how := range map[string][]string{"any thread": nil, "not the first": {"from-thread"}} {
		t.Run(name, func(t *testing.T) { testTracerCannotHideAnEnd(t, how) })
	}
}

func testTracerCannotHideAnEnd(t *testing.T, how []string) {
	told := make(chan string, 10)
	o := newOwner(t, Options{Report: func(message string) { told <- message }})
	o.tracerPatience = 10 * time.Millisecond
	victim, tracer := traced(t, o, how...)
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ends := map[uint64]Exit{} // the kernel reports the two in any order
	timeout := time.After(patience)
	for len(ends) < 2 {
		select {
		case e := <-o.Exits():
			if e.Kind == Exited {
				ends[e.ID] = e
			}
		case <-timeout:
			t.Fatalf("the ends that were reported: %+v", ends)
		}
	}
	if e := ends[victim.ID]; e.Signal() != syscall.SIGKILL || e.ByUs {
		t.Errorf("got %+v", e)
	}
	if e := ends[tracer.ID]; e.Signal() != syscall.SIGKILL {
		t.Errorf("the tracer: %+v", e)
	}
	for message := range told {
		if strings.Contains(message, "kept its end") && strings.Contains(message, strconv.Itoa(tracer.PID)) {
			break
		}
	}
}

// The negative test: without its epoll descriptor for deaths, agentinit does not see the dead
// process, because the kernel reports it only to the tracer. A KILL of agentinit still frees it.
func TestTracerHidesAnEnd(t *testing.T) {
	o := newOwner(t, Options{})
	o.deaths.ep.close()
	victim, _ := traced(t, o)
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the killed process is dead", func() bool {
		st, err := readStat(victim.PID)
		return err == nil && st.dead()
	})
	o.drain()
	if o.Stats().Exited != 0 {
		t.Fatal("the kernel tells of an end that a tracer has not waited for: is all this needed?")
	}
	if err := o.Kill(victim.ID); err != nil {
		t.Fatal(err)
	}
	next(t, o, victim.ID, Exited)
}

// A tracer that stops its tracee at the exit, before it is dead, cannot hold the process either.
func TestTracerCannotHoldWhatIsKilled(t *testing.T) {
	o := newOwner(t, Options{})
	victim, _ := traced(t, o, "at-exit", "from-thread")
	if err := o.Kill(victim.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, victim.ID, Emptied); e.Leaked != 0 {
		t.Errorf("got %+v", e)
	}
}

// A tracer of another thread than the first cannot hold the process either. In that case the first
// thread is dead, but the kernel does not report the end of the process yet.
func TestTracerOfAThread(t *testing.T) {
	o := newOwner(t, Options{})
	victim, _ := traced(t, o, "thread")
	if err := o.Kill(victim.ID); err != nil {
		t.Fatal(err)
	}
	next(t, o, victim.ID, Exited)
}

// A tracer that waits for its tracee is a debugger. agentinit does not kill it.
func TestTracerThatWaitsLives(t *testing.T) {
	o := newOwner(t, Options{})
	o.tracerPatience = patience // it may be slow
	victim, tracer := traced(t, o, "wait")
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next(t, o, victim.ID, Exited)
	if said := tracer.line(t); said != "waited" {
		t.Errorf("said %q", said)
	}
	if !alivePID(tracer.PID) {
		t.Error("the tracer is dead")
	}
}

// A process makes agentinit its tracer, and wait4(2) reports each stop of a tracee: a stop is no end.
func TestAStopOfATraceeIsNoEnd(t *testing.T) {
	o := newOwner(t, Options{})
	tracee := startTester(t, o, prog(built.Path(t), "traceme"))
	if said := tracee.line(t); said != "traced" {
		t.Skipf("tracing is refused here: %s", said)
	}
	waitUntil(t, "the process has stopped", func() bool { return isStopped(tracee.PID) })
	o.drain()
	if o.Stats().Exited != 0 {
		t.Error("the process was taken for one that has ended")
	}
	if err := o.Kill(tracee.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, tracee.ID, Exited); e.Signal() != syscall.SIGKILL {
		t.Errorf("got %+v", e)
	}
}

// An orphan that makes agentinit its tracer still belongs to its program: a stop that was not reaped yet is
// no end either.
func TestAStoppedTraceeBelongsToItsProgram(t *testing.T) {
	o := newOwner(t, Options{})
	signal.Stop(o.sigchld) // the reaper sleeps
	waits := fmt.Sprintf(`until grep -q "^PPid:[[:space:]]*%d$" /proc/$$/status; do :; done`, os.Getpid())
	p := startTester(t, o, sh(fmt.Sprintf(`(setsid sh -c 'echo $$; %s; exec %s traceme' &); exec sleep 1000`, waits, built.Path(t))))
	orphan := p.number(t)
	if said := p.line(t); said != "traced" {
		t.Skipf("tracing is refused here: %s", said)
	}
	waitUntil(t, "the orphan has stopped", func() bool { return isStopped(orphan) })
	if members := o.members(p.ID); !slices.Contains(members, orphan) {
		t.Errorf("%d is not among the members %v", orphan, members)
	}
	signal.Notify(o.sigchld, syscall.SIGCHLD)
	o.drain()
}
