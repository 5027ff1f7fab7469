package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The audit record names who made each request. `audit --verify` detects a changed record.
func TestAudit(t *testing.T) {
	b := boot(t, asPID1, onlyWeb)
	b.sealed()
	b.mustCtl("restart", "web")
	b.signal(syscall.SIGUSR2)
	waitFor(t, "the signal is on record", func() bool { return strings.Contains(b.mustCtl("audit"), "signal USR2") })
	if out := b.mustCtl("audit"); !strings.Contains(out, "socket restart uid=0") {
		t.Errorf("got %s", out)
	}
	b.mustCtl("audit", "--verify")
	file := filepath.Join(b.dir, "run/agentbox/audit.jsonl")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), `"restart"`, `"status"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := b.ctl("audit", "--verify"); code != 1 || !strings.Contains(out, "was changed") {
		t.Errorf("altered: %d %s", code, out)
	}
	b.stopsWell()
}
