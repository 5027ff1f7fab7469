package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// useUp sets a limit of agentinit to what it has mapped already: the kernel answers ENOMEM whenever
// it maps more, as it does when vm.overcommit_memory is 2 and the programs have taken all memory.
func (b *box) useUp(resource int, mapped string) {
	b.t.Helper()
	pid, kib := b.memory(mapped)
	limit := unix.Rlimit{Cur: kib << 10, Max: kib << 10}
	if err := unix.Prlimit(pid, resource, &limit, nil); err != nil {
		b.t.Fatal(err)
	}
}

// boundAddresses gives what the test starts a limit of addresses that nothing reaches. agentinit
// reserves addresses only if there is such a limit.
func boundAddresses(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: min(was.Cur, 1<<46), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_AS, &was); err != nil {
			t.Error(err)
		}
	})
}

// The kernel gives agentinit no more memory, and a client that may use the whole API sends large
// requests on every connection that it gets. The client is no program of the box, because a program
// would inherit the limit. The test of package reserve has the negative twin.
func TestKernelGivesNoMoreMemory(t *testing.T) {
	for _, c := range []struct {
		mapped   string
		resource int
	}{{"VmSize", unix.RLIMIT_AS}, {"VmData", unix.RLIMIT_DATA}} {
		t.Run(c.mapped, func(t *testing.T) {
			t.Setenv("MANAGEMENT_API_KEY", boxKey)
			if c.resource == unix.RLIMIT_AS {
				boundAddresses(t)
			}
			b := boot(t, asPID1, header+largeRequests)
			b.sealed()
			// Until the memory of the boot is collected, the collector lets the heap grow further.
			waitFor(t, "the memory of the boot is collected", func() bool {
				_, metrics, err := get(b.metrics, "/metrics")
				return err == nil && strings.Contains(metrics, "\ngo_gc_gogc_percent 100\n")
			})
			b.useUp(c.resource, c.mapped)
			was := b.programs()["web"]
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			gorge := exec.CommandContext(ctx, binary(t, "testprog"), "gorge", "100", "5",
				fmt.Sprintf("127.0.0.1:%d", b.port), fmt.Sprintf("127.0.0.1:%d", b.metrics), b.socket())
			gorge.Env = append(os.Environ(), "GORGE_AUTHORIZATION=Bearer "+boxKey)
			if out, err := gorge.CombinedOutput(); err != nil {
				t.Errorf("gorge: %v: %s", err, out)
			} else {
				t.Logf("%s", out)
			}
			if status, _, err := get(b.port, "/livez"); err != nil || status != 200 {
				t.Errorf("/livez answered %d %v", status, err)
			}
			if now := b.programs()["web"]; now != was {
				t.Errorf("web was %+v, is %+v", was, now)
			}
			b.mustCtl("restart", "web")
			if now := b.programs()["web"]; now.State != "RUNNING" || now.PID == was.PID {
				t.Errorf("after the restart, web is %+v, was %+v", now, was)
			}
			b.stopsWell()
		})
	}
}
