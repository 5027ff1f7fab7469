package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// The processes of an imaginary box.
const (
	trustedPID  = 10 // of a program with control = true
	programPID  = 11 // of a program without control
	escapeePID  = 12 // of an unknown program
	operatorPID = 13 // alive, of no program
	endedPID    = 14
)

func gate(init bool, uid uint32, full bool) *signalGate {
	g := newSignalGate(init, func(pid int) (string, bool, bool) {
		switch pid {
		case trustedPID:
			return "trusted", true, false
		case programPID:
			return "web", true, false
		case escapeePID:
			return "", true, false
		case endedPID:
			return "", false, true
		}
		return "", false, false
	}, func(program string) bool { return program == "trusted" })
	g.uid, g.lostInfo = uid, func() bool { return full }
	return g
}

func TestWhoseSignalsAreObeyed(t *testing.T) {
	from := func(pid int, uid uint32) early.Sent {
		return early.Sent{Signal: syscall.SIGTERM, PID: pid, UID: uid}
	}
	outside := early.Sent{Signal: syscall.SIGTERM, Outside: true}
	forged := early.Sent{Signal: syscall.SIGTERM, Forgeable: true}
	fault := early.Sent{Signal: syscall.SIGSEGV, Outside: true, Fault: true}
	for _, c := range []struct {
		name      string
		sent      early.Sent
		asInit    bool // obeyed by PID 1 of uid 1000
		elsewhere bool // obeyed by an agentinit of uid 1000 that is not PID 1
	}{
		{"from outside the namespace", outside, true, true},
		{"sigqueue", forged, false, false},
		{"a fault", fault, false, false},
		{"a program with control", from(trustedPID, 1000), true, true},
		{"a program without", from(programPID, 1000), false, false},
		{"a program of root without", from(programPID, 0), false, false},
		{"a descendant of no program", from(escapeePID, 0), false, false},
		{"root", from(operatorPID, 0), true, true},
		{"our own user", from(operatorPID, 1000), false, true},
		{"another user", from(operatorPID, 1001), false, false},
		{"one that has ended", from(endedPID, 0), false, true},
		{"one of our user that has ended", from(endedPID, 1000), false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := gate(true, 1000, false).refuse(c.sent); (got == nil) != c.asInit {
				t.Errorf("as PID 1: %+v", got)
			}
			if got := gate(false, 1000, false).refuse(c.sent); (got == nil) != c.elsewhere {
				t.Errorf("not as PID 1: %+v", got)
			}
		})
	}
	if gate(true, 1000, true).refuse(outside) == nil {
		t.Error("obeyed while the kernel may have lost the sender")
	}
}

func TestRefusalsAreToldOnceAndCounted(t *testing.T) {
	g := gate(true, 1000, false)
	now := time.Unix(1e9, 0)
	why := g.refuse(early.Sent{Signal: syscall.SIGTERM, PID: programPID, UID: 1000})
	first := g.note(why, now)
	if first["signal"] != "TERM" || first["pid"] != programPID || first["uid"] != uint32(1000) || first["count"] != uint64(1) {
		t.Errorf("first: %v", first)
	}
	for range 1000 {
		if fields := g.note(why, now.Add(time.Second)); fields != nil {
			t.Fatalf("told again: %v", fields)
		}
	}
	if again := g.note(why, now.Add(tellAgain)); again["count"] != uint64(1002) {
		t.Errorf("after a while: %v", again)
	}
	// The name and not the command line, for which the process can make a reader wait (proc.Name).
	why.sent.PID, why.reason = os.Getpid(), "another"
	if shown := g.note(why, now); shown["command"] != proc.Name(os.Getpid()) || proc.Name(os.Getpid()) == "" {
		t.Errorf("command: %v", shown)
	}
	for i := range 10 * maxRefused {
		other := *why
		other.reason = fmt.Sprint(i)
		g.note(&other, now)
	}
	if len(g.told) > maxRefused+1 {
		t.Errorf("%d rows", len(g.told))
	}
}

func TestTheQueueOfSignalsIsNotFull(t *testing.T) {
	if signalQueueOf("/proc/self/status")() {
		t.Error("full, by /proc/self/status")
	}
}

// Programs can take every open file of the machine, and one with CAP_SYS_ADMIN can hide /proc.
func TestTheQueueOfSignalsIsReadWhereNoFileCanBeOpened(t *testing.T) {
	status := filepath.Join(t.TempDir(), "status")
	write := func(queued string) {
		t.Helper()
		if err := os.WriteFile(status, []byte("Name:\tx\nSigQ:\t"+queued+"\nSigPnd:\t0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("3/4096")
	full := signalQueueOf(status)
	if full() {
		t.Error("full with 3 of 4096")
	}
	write("4090/4096")
	if !full() {
		t.Error("not read again: 4090 of 4096 is not full")
	}
	for queued, want := range map[string]bool{"0/64": false, "31/64": false, "32/64": true, "0/2": false, "1/2": true, "0/0": true} {
		write(queued)
		if got := full(); got != want {
			t.Errorf("full with %s is %t, want %t", queued, got, want)
		}
	}
	write("3/4096")
	if err := os.Remove(status); err != nil {
		t.Fatal(err)
	}
	if full() {
		t.Error("full as soon as the file cannot be opened any more")
	}
	if !signalQueueOf(status)() {
		t.Error("not full without a file: the sender of a signal cannot be believed then")
	}
}
