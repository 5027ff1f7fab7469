package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// The tests in this file run partly as real PID 1 of a new PID namespace: the test binary starts
// itself again for one test.

const inNamespace = "AGENTINIT_TEST_PID1"

// asPID1 returns true in the process that is PID 1. In the first process, it starts that process,
// waits for it, and returns false with the output and whether it failed.
func asPID1(t *testing.T, extraEnv ...string) (inside bool, output string, failed bool) {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		if os.Getpid() != 1 {
			t.Fatalf("pid %d", os.Getpid())
		}
		return true, "", false
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a pid namespace")
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("needs root and unshare(1)")
	}
	c := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=120s", "-test.short="+strconv.FormatBool(testing.Short()))
	c.Env = append(append(os.Environ(), inNamespace+"=1"), extraEnv...)
	out, err := c.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return false, string(out), err != nil
}

// insidePID1 returns true in the process that is PID 1. In the first process, it reports the failure
// of that process.
func insidePID1(t *testing.T) bool {
	t.Helper()
	inside, out, failed := asPID1(t)
	if failed {
		t.Errorf("as PID 1:\n%s", out)
	}
	return inside
}

// zombies counts the processes of the namespace in state Z.
func zombies(t *testing.T) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range stats {
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil && st.dead() {
			n++
		}
	}
	return n
}

const reapingOff = "AGENTINIT_TEST_NO_REAPING"

// There are 5,000 orphans, and 50 programs run repeatedly with different exit statuses. No status
// is lost and no zombie stays. Without reaping, the same test must fail.
func TestPID1ReapsOrphans(t *testing.T) {
	bin := built.Path(t)
	if !insidePID1(t) {
		_, out, failed := asPID1(t, reapingOff+"=1")
		if !failed || !strings.Contains(out, "zombies") {
			t.Errorf("with reaping off the test is not red:\n%s", out)
		}
		return
	}
	o := newOwner(t, Options{KillTimeout: time.Second})
	if os.Getenv(reapingOff) != "" {
		stormWithoutReaping(t, o, bin)
		return
	}
	const makers, programs, rounds = 10, 50, 8
	each := 500
	if testing.Short() {
		each = 100
	}
	var wg sync.WaitGroup
	for i := range makers {
		wg.Go(func() {
			c := prog(bin, "fork-orphans", strconv.Itoa(each))
			if r, err := o.Run(t.Context(), c, 0); err != nil || r.Exit.Code() != 0 {
				t.Errorf("maker %d: %+v, %v", i, r, err)
			}
		})
	}
	for i := range programs {
		wg.Go(func() {
			for round := range rounds {
				code := (i*rounds + round) % 256
				r, err := o.Run(t.Context(), sh("exit "+strconv.Itoa(code)), 0)
				if err != nil || r.Exit.Code() != code {
					t.Errorf("program %d: wanted %d, got %+v, %v", i, code, r.Exit, err)
				}
			}
		})
	}
	wg.Wait()
	if left := o.KillAll(patience); left != 0 {
		t.Errorf("%d left", left)
	}
	if n := zombies(t); n != 0 {
		t.Errorf("%d zombies", n)
	}
	waitUntil(t, "SIGCHLD wakes the reaper again", func() bool { return catches(t, syscall.SIGCHLD) })
	if s := o.Stats(); s.Exited != makers+programs*rounds || s.Live != 0 {
		t.Errorf("stats %+v", s)
	}
}

// stormWithoutReaping is the same with an Owner that gets no SIGCHLD: the orphans stay zombies.
func stormWithoutReaping(t *testing.T, o *Owner, bin string) {
	signal.Stop(o.sigchld)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := prog(bin, "fork-orphans", "200")
	c.Files = []*os.File{nil, w}
	mustStart(t, o, c)
	w.Close()
	// End of file: the program is dead, and so are the orphans, which held the pipe too.
	for buf := make([]byte, 64); ; {
		if _, err := r.Read(buf); err != nil {
			break
		}
	}
	if n := zombies(t); n != 0 {
		t.Errorf("%d zombies", n)
	}
}

// Trivial programs get 2,000 kill -9 from outside the Owner. Each kill is noticed with the right
// signal, and not as a kill of the Owner.
func TestPID1KillNine(t *testing.T) {
	if !insidePID1(t) {
		return
	}
	o := newOwner(t, Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				p, err := o.Start(Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}})
				if err != nil {
					t.Error(err)
					return
				}
				if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	exited, emptied := map[uint64]int{}, map[uint64]int{}
	timeout := time.After(patience)
	for len(emptied) < 2000 {
		select {
		case e := <-o.Exits():
			if e.Kind == Emptied {
				emptied[e.ID]++
				continue
			}
			exited[e.ID]++
			if e.Signal() != syscall.SIGKILL || e.ByUs {
				t.Errorf("got %+v", e)
			}
		case <-timeout:
			t.Fatalf("%d ended, %d emptied; %+v", len(exited), len(emptied), o.Stats())
		}
	}
	for id, n := range exited {
		if n != 1 || emptied[id] != 1 {
			t.Errorf("process %d: %d exits, %d emptied", id, n, emptied[id])
		}
	}
}

// TestPID1KillAll ends programs of many kinds.
func TestPID1KillAll(t *testing.T) {
	bin := built.Path(t)
	if !insidePID1(t) {
		return
	}
	o := newOwner(t, Options{})
	for _, args := range [][]string{
		{"ignore-term"}, {"stopped"}, {"setsid-escape", "scrub"}, {"double-fork"}, {"fork-tree", "3", "2"}, {"fork-orphans", "20", "stay"},
	} {
		startTester(t, o, prog(bin, args...)).line(t)
	}
	if left := o.KillAll(10 * time.Millisecond); left != 0 {
		t.Errorf("%d left", left)
	}
	others, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(others) != 1 {
		t.Error(fmt.Sprint(others), err)
	}
}
