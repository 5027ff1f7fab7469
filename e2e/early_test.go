package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// From the instant at which agentinit catches TERM, a TERM is a clean stop. The Go runtime installs
// all signal handlers before other code runs. Until the program asks for TERM, the runtime's
// handler ends the process.
func TestTermAtTheFirstInstruction(t *testing.T) {
	for _, mode := range []struct {
		name string
		how  how
	}{{"pid 1", asPID1}, {"unprivileged", unprivileged}} {
		t.Run(mode.name, func(t *testing.T) {
			for range 20 {
				b := boot(t, mode.how, onlyWeb)
				pid := b.catching(syscall.SIGTERM)
				if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if code := b.ended(); code != 0 {
					t.Fatalf("ended with %d", code)
				}
			}
		})
	}
}

// catching waits until agentinit itself, not a tool that starts it, catches the signal. It returns
// the pid of agentinit.
func (b *box) catching(s syscall.Signal) int {
	b.t.Helper()
	end := time.Now().Add(patience)
	for {
		if pid, err := b.initPID(); err == nil {
			if command, caught := signalState(pid); command == "agentinit" && caught&(1<<(s-1)) != 0 {
				return pid
			}
		}
		select {
		case <-b.exited:
			b.t.Fatal("the box ended")
		default:
		}
		if time.Now().After(end) {
			b.t.Fatalf("agentinit does not catch %v", s)
		}
	}
}

// signalState reads the name and the mask of caught signals of a process. Both are empty if the
// process is gone.
func signalState(pid int) (command string, caught uint64) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", 0
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "Name":
			command = value
		case "SigCgt":
			caught, _ = strconv.ParseUint(value, 16, 64) // the kernel writes a valid number
		}
	}
	return command, caught
}

// A stop right after the first line of the log does not wait for a timeout.
func TestStopAfterTheFirstLine(t *testing.T) {
	for range 5 {
		b := boot(t, asPID1, header+`
[programs.web]
command = ["TESTPROG", "ignore-term"]
required = true
stop = ["TERM 100ms", "KILL"]
`)
		if _, ok := <-b.events; !ok {
			t.Fatal("the box said nothing")
		}
		if code := b.stop(); code != 0 {
			t.Fatalf("ended with %d", code)
		}
	}
}

// Init mode forwards a TERM however early it arrives, and ends with the exit status of the command.
// The kernel drops a TERM for an init process that does not yet catch it, so the test sends TERM
// until the process ends.
func TestTermInTheFirstMillisecondsOfInitMode(t *testing.T) {
	needsRoot(t)
	for i := range 100 {
		cmd := exec.Command(binary(t, "agentinit"), "--", "sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		again := time.NewTicker(time.Duration(i+1) * 50 * time.Microsecond)
		for waiting := true; waiting; {
			select {
			case <-ended:
				waiting = false
			case <-again.C:
				_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended meanwhile
			}
		}
		again.Stop()
		if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
			t.Fatalf("TERM every %v: ended with %d", time.Duration(i+1)*50*time.Microsecond, code)
		}
	}
}
