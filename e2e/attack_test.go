package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// identities are those in which programs attack: how the box runs, and what its
// manifest says of the program's user.
var identities = map[string]struct {
	how  how
	user string
}{
	"same uid":                  {sameUser, ""},
	"another uid under root":    {asPID1, "user = \"65534\"\ngroup = \"65534\"\n"},
	"root":                      {asPID1, ""},
	"root without capabilities": {rootBare, ""},
}

// attacked boots a box in which the program "attacker" runs the command beside
// one that is required, in each identity.
func attacked(t *testing.T, command, more string, check func(t *testing.T, b *box)) {
	for name, id := range identities {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := boot(t, id.how, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
`+id.user+`
[programs.attacker]
command = ["TESTPROG", `+command+`]
autostart = false
restart = "never"
`+id.user+more)
			b.sealed()
			b.mustCtl("start", "attacker")
			check(t, b)
		})
	}
}

// said waits until a program has printed a line that begins with the word.
func (b *box) said(program, word string) string {
	b.t.Helper()
	var line string
	waitFor(b.t, program+" says "+word, func() bool {
		out, _ := b.ctl("logs", program)
		for l := range strings.Lines(out) {
			if strings.HasPrefix(l, word) {
				line = strings.TrimSpace(l)
			}
		}
		return line != ""
	})
	return line
}

// unhurt checks that the box answers and supervises, and that nobody asked it to
// do anything.
func (b *box) unhurt(t *testing.T) {
	t.Helper()
	if p := b.programs()["web"]; p.State != "RUNNING" || p.Restarts != 0 {
		t.Errorf("web is %+v", p)
	}
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez: %d %s", status, body)
	}
	b.mustCtl("restart", "web")
	out, _ := b.ctl("events", "--json")
	for _, name := range []string{"ShutdownStarted", "LogsReopened", `"Applied"`} {
		if strings.Contains(out, name) {
			t.Errorf("the box was made to do something: %s", name)
		}
	}
	b.stopsWell()
}

// Attacks 3 and 5: signals of a program that may not send any, forged senders and
// forged faults among them.
func TestAttackBySignals(t *testing.T) {
	attacked(t, `"attack-signals", "1"`, "", func(t *testing.T, b *box) {
		taken := b.said("attacker", "taken")
		if taken != "taken 0" {
			b.event("SignalRefused")
		}
		b.unhurt(t)
	})
}

func TestAttackByShortLivedSenders(t *testing.T) {
	attacked(t, `"attack-short"`, "", func(t *testing.T, b *box) {
		b.said("attacker", "sent")
		b.unhurt(t)
	})
}

// The twin: a program that may control the box ends it by TERM.
func TestAProgramWithControlSignals(t *testing.T) {
	for _, how := range []how{sameUser, asPID1, unprivileged} {
		b := boot(t, how, header+`
[programs.operator]
command = ["sh", "-c", "sleep 0.5; kill -TERM $PPID; exec sleep 60"]
control = true
`)
		b.sealed()
		if code := b.ended(); code != 0 {
			t.Errorf("%v: ended with %d", how, code)
		}
	}
}

// fewPidsMax is room for agentinit's own threads and some tens of processes.
const fewPidsMax = 150

// littleMemory is room for agentinit and small programs.
const littleMemoryMax = 256 << 20

// cgroup makes a cgroup for one box, of version 1 or 2, in which a file of the
// controller's has the value.
func cgroup(t testing.TB, controller string, limits map[string]int) string {
	t.Helper()
	for _, base := range []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup"} {
		dir, err := newCgroup(t, base)
		if err != nil {
			continue
		}
		limited := false
		for file, value := range limits {
			limited = limited || os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, value), 0) == nil
		}
		if limited {
			return dir
		}
	}
	t.Skipf("needs root and a %s cgroup", controller)
	return ""
}

// newCgroup makes a cgroup that is removed at the end of the test.
func newCgroup(t testing.TB, base string) (dir string, err error) {
	dir = filepath.Join(base, fmt.Sprintf("agentinit-e2e-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err = os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		waitFor(t, "the cgroup is empty", func() bool {
			_ = os.Remove(filepath.Join(dir, "agentinit.self")) // agentinit leaves it behind
			return os.Remove(dir) == nil
		})
	})
	return dir, nil
}

// cgroup2 makes a cgroup v2 with the limits, which can give their controllers to its own cgroups.
func cgroup2(t testing.TB, limits map[string]int) string {
	t.Helper()
	for _, base := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if given(base, slices.Sorted(maps.Keys(limits))) != nil {
			continue
		}
		dir, err := newCgroup(t, base)
		if err != nil {
			t.Fatal(err)
		}
		for controller, limit := range limits {
			if err := os.WriteFile(filepath.Join(dir, controller+".max"), fmt.Append(nil, limit), 0); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	t.Skip("no cgroup v2 with the controllers pids and memory here")
	return ""
}

// given has a cgroup give the controllers to the cgroups below.
func given(dir string, controllers []string) error {
	there, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range controllers {
		if err == nil && !slices.Contains(strings.Fields(string(there)), c) {
			err = errors.New("it has no controller " + c)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
	}
	return err
}

// Of 400 processes and threads, all programs together may have 300, and one program 225. Of
// 256 MiB, all programs together may have 224 (docs/howto/users.md).
var ownCgroupLimits = map[string]int{"pids": 400, "memory": 256 << 20}

// A program takes its share of the box's processes and no more: others start, and agentinit has
// the threads it needs.
func TestShareOfProcesses(t *testing.T) {
	b := boot(t, ownCgroup, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
[programs.late]
command = ["TESTPROG", "sleep"]
autostart = false
[programs.bounded]
command = ["TESTPROG", "attack-pids"]
autostart = false
restart = "never"
limits = { pids = 20 }
[programs.attacker]
command = ["TESTPROG", "attack-pids"]
autostart = false
restart = "never"
`)
	b.sealed()
	for _, c := range []struct {
		program     string
		least, most int
	}{{"bounded", 5, 20}, {"attacker", 200, 225}} {
		b.mustCtl("start", c.program)
		var took int
		if _, err := fmt.Sscanf(b.said(c.program, "full"), "full %d", &took); err != nil || took < c.least || took > c.most {
			t.Errorf("%s took %d processes, not %d to %d; %v", c.program, took, c.least, c.most, err)
		}
	}
	for program, want := range map[string]string{
		"bounded": "pids=20 (manifest), memory=224M (default, all programs together)",
		"web":     "pids=225 (default), memory=224M (default, all programs together)",
	} {
		if page := b.mustCtl("status", program); !strings.Contains(page, want) {
			t.Errorf("the page of %s does not say %q:\n%s", program, want, page)
		}
	}
	b.mustCtl("start", "late")
	for _, name := range []string{"web", "late"} {
		if p := b.programs()[name]; p.State != "RUNNING" {
			t.Errorf("%s is %+v", name, p)
		}
	}
	b.mustCtl("stop", "attacker", "bounded")
	b.unhurt(t)
}

// The kernel kills a program that takes more memory than it may have, or than all programs may
// have together, and never agentinit.
func TestShareOfMemory(t *testing.T) {
	b := boot(t, ownCgroup, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
[programs.bounded]
command = ["TESTPROG", "memory", "100"]
autostart = false
restart = "never"
limits = { memory = "64MiB" }
[programs.attacker]
command = ["TESTPROG", "memory", "400"]
autostart = false
restart = "never"
`)
	b.sealed()
	for program, want := range map[string]string{
		"bounded":  "killed by the kernel: out of memory (limit 64 MiB)",
		"attacker": "killed by the kernel: out of memory (limit 256 MiB)",
	} {
		b.ctl("start", program)
		waitFor(t, program+" is killed", func() bool { return strings.Contains(b.mustCtl("crash", program), want) })
	}
	if p := b.programs()["web"]; p.State != "RUNNING" {
		t.Errorf("web is %+v", p)
	}
	b.unhurt(t)
}

// Where agentinit can write no cgroup, the page of a program claims no default limit.
func TestNoShareWithoutCgroup(t *testing.T) {
	b := boot(t, unprivileged, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
[programs.bounded]
command = ["TESTPROG", "sleep"]
required = true
limits = { memory = "1GiB", pids = 2000 }
`)
	b.sealed()
	for program, want := range map[string]string{
		"bounded": "pids=2000 (manifest, all processes of its user, unless that is root), memory=1.0G (manifest, data of each process)",
		"web":     "",
	} {
		page := b.mustCtl("status", program)
		if strings.Contains(page, "default") || !strings.Contains(page, want) || strings.Contains(page, "limits:") != (want != "") {
			t.Errorf("the page of %s does not have the limits %q:\n%s", program, want, page)
		}
	}
	b.unhurt(t)
}

// Attack 1: no pid is left while requests come on many connections at once. The Go
// runtime ends a process that cannot have a thread it needs.
func TestAttackByTakingEveryPid(t *testing.T) {
	b := boot(t, fewPids, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
[programs.attacker]
command = ["TESTPROG", "attack-pids"]
autostart = false
restart = "never"
`)
	b.sealed()
	b.mustCtl("start", "attacker")
	b.said("attacker", "full")
	out, err := exec.Command(binary(t, "testprog"), "pester", "200", "5",
		fmt.Sprintf("127.0.0.1:%d", b.port), fmt.Sprintf("127.0.0.1:%d", b.metrics)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez: %d %s", status, body)
	}
	if p := b.programs()["web"]; p.State != "RUNNING" {
		t.Errorf("web is %+v", p)
	}
	b.mustCtl("stop", "attacker")
	b.unhurt(t)
}
