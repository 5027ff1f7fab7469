package proc

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestChildSignal looks at what the kernel says, because the absence of a signal cannot be awaited.
func TestChildSignal(t *testing.T) {
	o := newOwner(t, Options{})
	step := func(what string, do func(), want bool) {
		do()
		if got := catches(t, unix.SIGCHLD); got != want {
			t.Errorf("%s: SIGCHLD is caught: %t", what, got)
		}
	}
	step("with an Owner", func() {}, true)
	step("muted", childSignal.mute, false)
	step("muted twice", childSignal.mute, false)
	step("one is left", childSignal.unmute, false)
	step("none is left", childSignal.unmute, true)

	// An ended child keeps its status meanwhile. SIGCHLD is muted while the child runs and ends.
	childSignal.mute()
	p := startTester(t, o, sh("exit 3"))
	waitUntil(t, "it has ended", func() bool { _, err := readStat(p.PID); return err != nil || isDead(p.PID) })
	childSignal.unmute()
	if err := unix.Kill(os.Getpid(), unix.SIGCHLD); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Exited); e.Code() != 3 {
		t.Errorf("%+v", e)
	}
}

// catches tells whether this process has a handler for the signal (SigCgt, proc_pid_status(5)).
func catches(t *testing.T, sig unix.Signal) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(status), "SigCgt:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(mask, 16, 64)
	if !found || err != nil {
		t.Fatalf("SigCgt: %q, %v", mask, err)
	}
	return set&(1<<(sig-1)) != 0
}
