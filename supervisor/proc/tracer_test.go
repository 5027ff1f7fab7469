package proc

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// traced starts a process and another one of its user that traces it.
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

// A tracer that does not wait for the end of its process does not keep it from us.
func TestTracerCannotHideAnEnd(t *testing.T) {
	told := make(chan string, 10)
	o := newOwner(t, Options{Report: func(message string) { told <- message }})
	o.tracerPatience = 10 * time.Millisecond
	victim, tracer := traced(t, o)
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, victim.ID, Exited); e.Signal() != syscall.SIGKILL || e.ByUs {
		t.Errorf("got %+v", e)
	}
	if e := next(t, o, tracer.ID, Exited); e.Signal() != syscall.SIGKILL {
		t.Errorf("the tracer: %+v", e)
	}
	for message := range told {
		if strings.Contains(message, "kept its end") && strings.Contains(message, strconv.Itoa(tracer.PID)) {
			break
		}
	}
}

// The twin: without the descriptors the kernel shows the dead process to nobody but its
// tracer. A KILL of ours frees it all the same.
func TestTracerHidesAnEnd(t *testing.T) {
	o := newOwner(t, Options{})
	o.deaths.ep.close()
	victim, _ := traced(t, o)
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		if st, err := readStat(victim.PID); err == nil && st.dead() {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not die")
		}
	}
	o.drain()
	if o.Stats().Exited != 0 {
		t.Fatal("the kernel tells of an end that a tracer has not waited for: is all this needed?")
	}
	if err := o.Kill(victim.ID); err != nil {
		t.Fatal(err)
	}
	next(t, o, victim.ID, Exited)
}

// Nor does one that stops its process at its exit, where it is not dead yet.
func TestTracerCannotHoldWhatIsKilled(t *testing.T) {
	o := newOwner(t, Options{})
	victim, _ := traced(t, o, "at-exit")
	if err := o.Kill(victim.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, victim.ID, Emptied); e.Leaked != 0 {
		t.Errorf("got %+v", e)
	}
}

// Nor does one that traces another thread than the first: the process is dead, and yet not
// over for anybody.
func TestTracerOfAThread(t *testing.T) {
	o := newOwner(t, Options{})
	victim, _ := traced(t, o, "thread")
	if err := o.Kill(victim.ID); err != nil {
		t.Fatal(err)
	}
	next(t, o, victim.ID, Exited)
}

// A tracer that waits is a debugger, and is left alone.
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
