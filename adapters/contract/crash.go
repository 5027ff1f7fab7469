package contract

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// CrashRounds is how often a test kills a process that writes.
var CrashRounds = flag.Int("crash.rounds", 25, "how often a writing process is killed")

// crashPlace is the variable that names what the killed process writes to.
const crashPlace = "AGENTINIT_CRASH_PLACE"

// CrashChild is for TestMain. In a process that Killed has started, it runs write, which never returns but
// for an error: it writes to a file or directory, and prints a line for each write that has succeeded.
func CrashChild(write func(place string) error) {
	if place := os.Getenv(crashPlace); place != "" {
		fmt.Fprintln(os.Stderr, write(place))
		os.Exit(1)
	}
}

// Killed starts a process that writes to place, and kills it at a random moment, again and again. It calls
// acked with each line that the process has printed, and after each kill it calls check.
func Killed(t *testing.T, place string, acked func(line string), check func()) {
	rounds := *CrashRounds
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		killOnce(t, place, acked)
		check()
	}
}

func killOnce(t *testing.T, place string, acked func(line string)) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), crashPlace+"="+place)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	last, lines := rand.IntN(60), bufio.NewScanner(out)
	for i := 0; lines.Scan(); i++ {
		acked(lines.Text())
		if i == last {
			if err := child.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	err = child.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v", err)
	}
}
