package proc

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Starts leave some descriptors free for agentinit: with as many programs as the limit allows,
// agentinit can open files, run commands and stop programs. Without the reserve it cannot.
func TestStartsLeaveDescriptors(t *testing.T) {
	if !insidePID1(t) { // the limit applies to the whole process
		return
	}
	o := newOwner(t, Options{})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: 1000}); err != nil {
		t.Fatal(err)
	}
	// One number right below the reserve is taken, and there is room elsewhere.
	taken, err := unix.FcntlInt(os.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 74)
	if err != nil || taken != 74 || freeBelow(75) || !freeBelow(74) {
		t.Fatalf("descriptor %d, %v, below it free: %t", taken, err, freeBelow(74))
	}
	var running []Process
	if p, err := o.Start(Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, StdinPipe: true}); err != nil {
		t.Fatal(err)
	} else {
		running = append(running, p)
	}
	unix.Close(taken)
	fill := func() error {
		for {
			c := Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, StdinPipe: true}
			p, err := o.Start(c)
			if err != nil {
				return err
			}
			running = append(running, p)
		}
	}
	spare := func() (n int) {
		var files []*os.File
		for {
			f, err := os.Open("/dev/null")
			if err != nil {
				break
			}
			files = append(files, f)
		}
		for _, f := range files {
			f.Close()
		}
		return len(files)
	}
	err = fill()
	if refused, ok := errors.AsType[*StartError](err); !ok || !errors.Is(err, unix.EMFILE) || refused.Hint == "" {
		t.Fatalf("refused with %v", err)
	}
	if n := spare(); n < 20 || len(running) < 10 {
		t.Errorf("%d descriptors are left beside %d programs", n, len(running))
	}
	if r, err := o.Run(t.Context(), sh("echo hello"), 100); err != nil || string(r.Output) != "hello\n" {
		t.Errorf("a command beside the programs: %q, %v", r.Output, err)
	}
	o.descriptors = 0
	if err := fill(); !errors.Is(err, unix.EMFILE) {
		t.Errorf("refused with %v", err)
	}
	if n := spare(); n >= 20 {
		t.Errorf("without a reserve %d descriptors are left: the test shows nothing", n)
	}
	for _, p := range running {
		if err := o.Kill(p.ID); err != nil {
			t.Errorf("cannot stop a program: %v", err)
		}
		p.Stdin.Close()
	}
}
