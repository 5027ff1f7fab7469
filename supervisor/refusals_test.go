package supervisor

import (
	"fmt"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// Each kind is told at its first refusal and then once a minute; the kinds are bounded.
func TestTallies(t *testing.T) {
	all, now := tallies{}, time.Unix(1000, 0)
	kill := proc.Refusal{By: proc.RefusedByGuard, Call: "kill"}
	mount := proc.Refusal{By: proc.RefusedBySeccomp, Call: "mount"}
	for i, tc := range []struct {
		after time.Duration
		what  proc.Refusal
		told  uint64 // 0: nothing
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
