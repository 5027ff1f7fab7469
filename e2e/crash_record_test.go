package e2e

import (
	"strings"
	"testing"
)

// The box distinguishes a program that the kernel's OOM killer ended from a program that another
// process killed.
func TestTheKernelsKillIsNamed(t *testing.T) {
	b := boot(t, littleMemory, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
[programs.fat]
command = ["TESTPROG", "memory", "400"]
autostart = false
restart = "never"
[programs.killed]
command = ["sh", "-c", "echo last words >&2; kill -KILL $$"]
autostart = false
restart = "never"
`)
	b.sealed()
	b.ctl("start", "killed")
	waitFor(t, "the record has its last words", func() bool { return strings.Contains(b.mustCtl("crash", "killed"), "last words") })
	if out := b.mustCtl("crash", "killed"); strings.Contains(out, "out of memory") {
		t.Errorf("killed: %s", out)
	}
	b.ctl("start", "fat")
	const want = "killed by the kernel: out of memory (limit 256 MiB)"
	waitFor(t, "fat is killed", func() bool { return strings.Contains(b.mustCtl("crash"), want) })
	for _, args := range [][]string{{"why", "fat"}, {"status"}} {
		if out, _ := b.ctl(args...); !strings.Contains(out, want) {
			t.Errorf("%s: %s", args, out)
		}
	}
	if p := b.programs()["web"]; p.State != "RUNNING" {
		t.Errorf("web is %+v", p)
	}
	b.stopsWell()
}
