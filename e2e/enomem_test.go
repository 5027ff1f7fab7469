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
			b := boot(t, asPID1, header+largeRequests)
			b.sealed()
			// The reserve can be used after the collection that follows the seal.
			waitFor(t, "the memory of the boot is collected", func() bool {
				_, metrics, err := get(b.metrics, "/metrics")
				_, rest, _ := strings.Cut(metrics, "\ngo_memstats_heap_released_bytes ")
				var released float64
				if _, scanErr := fmt.Sscan(rest, &released); err != nil || scanErr != nil {
					return false
				}
				return released > 64<<20
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
			if code := b.stop(); code != 0 {
				t.Errorf("ended with %d", code)
			}
		})
	}
}
