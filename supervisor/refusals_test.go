package supervisor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Each kind of refusal is reported at its first occurrence and then once a minute. The number of
// kinds is limited.
func TestTallies(t *testing.T) {
	all, now := tallies{}, time.Unix(1000, 0)
	kill := proc.Refusal{By: proc.RefusedByGuard, Call: "kill"}
	mount := proc.Refusal{By: proc.RefusedBySeccomp, Call: "mount"}
	for i, tc := range []struct {
		after time.Duration
		what  proc.Refusal
		told  uint64 // 0: not reported
	}{
		{0, kill, 1}, {time.Second, kill, 0}, {0, mount, 1}, {time.Second, kill, 0}, {time.Minute, kill, 4}, {time.Second, mount, 2}, {0, mount, 0},
	} {
		now = now.Add(tc.after)
		var got uint64
		if r := all.add("web", tc.what, now); r != nil {
			got = r.Count
		}
		if got != tc.told {
			t.Errorf("%d: told %d, want %d", i, got, tc.told)
		}
	}
	for i := range 100 {
		all.add("web", proc.Refusal{By: proc.RefusedBySeccomp, Call: fmt.Sprint("system call ", i)}, now)
	}
	all.rename("web", "web:0")
	var sum uint64
	for _, r := range all["web:0"] {
		sum += r.Count
	}
	if n := len(all["web:0"]); n != maxRefused+1 || sum != 107 || all["web"] != nil {
		t.Errorf("%d kinds of %d calls, %v", n, sum, all["web"])
	}
}

// A trial runs in the sandbox of the program and reports the refusals.
func TestTrial(t *testing.T) {
	needsListeners(t)
	b := newRealBox(t, Config{})
	run := spec("web", shell("true"), func(s *program.Spec) {
		s.Env = append(s.Env, "GREETING=hello")
		s.Sandbox = &program.Sandbox{NoNewPrivileges: true, Seccomp: "default"}
	})
	got, err := b.sys.Try(t.Context(), &run, []string{"/bin/sh", "-c", "echo $GREETING; unshare -U true"})
	if err != nil || got.Status == 0 || !strings.HasPrefix(string(got.Output), "hello\n") || got.Skipped != "" {
		t.Errorf("%+v, %v", got, err)
	}
	if len(got.Refused) != 1 || got.Refused[0].Call != "unshare" {
		t.Errorf("refused %+v", got.Refused)
	}
	run.Sandbox.Mode = "audit"
	got, err = b.sys.Try(t.Context(), &run, []string{"/bin/sh", "-c", "swapoff /none"})
	if err != nil || got.Skipped == "" || len(got.Refused) == 0 || !got.Refused[0].Allowed {
		t.Errorf("audit: %+v, %v", got, err)
	}
}

// needsListeners skips the test if the kernel lacks the seccomp listeners that this package uses
// (Linux 5.19).
func needsListeners(t *testing.T) {
	t.Helper()
	var name unix.Utsname
	var major, minor int
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major < 5 || major == 5 && minor < 19 {
		t.Skip("needs Linux 5.19")
	}
}
