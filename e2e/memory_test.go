package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// mostMemory is the highest permitted peak memory of agentinit in MiB; docs/security.md states it.
// Without the limit on all request bodies together (maxHeld in adapters/rest), this attack makes
// agentinit use more than 1,500 MiB.
const mostMemory = 512

// peak is the peak resident memory of agentinit, in MiB.
func (b *box) peak() int {
	b.t.Helper()
	pid, err := b.initPID()
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.t.Fatal(err)
	}
	return kib >> 10
}

// A program that may use the whole API sends large requests on every connection that it gets, and
// does not read the answers.
func TestMemoryUnderLargeRequests(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	b := boot(t, asPID1, header+`
[adapters]
events = "local-jsonl"
[supervisor.defaults]
restart = "always"
backoff = { initial = "0s" }
start_seconds = 0
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
[programs.gorge]
command = ["TESTPROG", "gorge", "500", "10", "127.0.0.1:PORT", "127.0.0.1:METRICS", "CONTROL"]
environment = { GORGE_AUTHORIZATION = "Bearer `+boxKey+`" }
control = true
autostart = false
restart = "never"
`)
	b.sealed()
	before := b.peak()
	was := b.programs()["web"]
	b.mustCtl("start", "gorge")
	asked := 0
	waitFor(t, "the program has gorged", func() bool {
		if status, _, err := get(b.port, "/livez"); err == nil && status == 200 {
			asked++
		}
		return b.programs()["gorge"].State != "RUNNING" && b.programs()["gorge"].State != "STARTING"
	})
	t.Logf("%s agentinit had %d MiB at most, before that %d; /livez answered %d times", b.mustCtl("logs", "gorge"), b.peak(), before, asked)
	if asked == 0 {
		t.Error("/livez did not answer")
	}
	if most := b.peak(); most > mostMemory {
		t.Errorf("agentinit had %d MiB, at most %d are stated", most, mostMemory)
	}
	if now := b.programs()["web"]; now != was {
		t.Errorf("web was %+v, is %+v", was, now)
	}
	if code := b.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}
