package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unguarded are the attacks that succeed without a guard if the kernel sees the attacker and
// agentinit as the same user: signals, limits and priorities of PID 1.
var unguarded = []string{
	"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal", "pidfd_send_signal-of-proc",
	"prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr",
	"setpriority", "setpriority-user", "ioprio_set", "ioprio_set-user",
}

// almighty are the attacks that also succeed for a root that has capabilities.
var almighty = []string{
	"credentials", "ptrace-attach", "ptrace-seize", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd",
	"setns", "setns-pidfd", "kcmp", "get_robust_list", "move_pages", "perf_event_open",
	"io_uring-openat", "read-mem", "read-environ", "read-maps", "follow-cwd", "follow-root", "follow-exe", "list-fd",
	"write-mem", "write-oom_score_adj",
}

// assailants are the identities from which testprog (its command assault) tries every known attack
// on agentinit.
var assailants = []struct {
	name string
	how  how
	// keys are the manifest keys of the attacking program, or of agents.
	keys  string
	agent bool
	// works are the attacks that the guard cannot refuse; docs/security.md describes them.
	works []string
	// twin are the keys with the guard off. twinWorks are the attacks that succeed then.
	twin      string
	twinWorks []string
}{
	{"same uid", sameUser, "", false, nil, "guard = false", unguarded},
	{"another uid under root", asPID1, "user = \"65534\"\ngroup = \"65534\"", false, nil, "guard = false", slices.Concat(unguarded, almighty)},
	{
		"root without capabilities", rootBare, "", false,
		[]string{"list-fd", "read-patch_state", "write-autogroup", "write-clear_refs", "write-coredump_filter", "write-sched", "write-oom_adj", "write-oom_score_adj"},
		"guard = false", unguarded,
	},
	{"agent", asPID1, "", true, nil, "user = \"root\"\nguard = false", slices.Concat(unguarded, almighty)},
	{"agent of the same uid", sameUser, "", true, nil, "guard = false", unguarded},
}

// TestAssault: agentinit survives all attacks, and its guard refuses those that it covers.
func TestAssault(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	for _, a := range assailants {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			b := bootAssailed(t, a.how, a.keys)
			b.assault(a.agent, "attacker").repelled(t, a.works)
			b.assault(a.agent, "last")
			b.unhurt(t)

			b = bootAssailed(t, a.how, a.twin)
			b.assault(a.agent, "attacker").succeeds(t, a.twinWorks)
		})
	}
}

// The kernel can send a fault signal on behalf of a descriptor (fcntl(2), F_SETSIG). agentinit
// takes that signal for a real fault, so without the guard PID 1 ends. This test shows that the
// attacks which report no result do work.
func TestAssaultEndsAnUnguardedBox(t *testing.T) {
	b := bootAssailed(t, sameUser, "guard = false")
	b.ctl("start", "--no-wait", "last")
	if code := b.ended(); code == 0 {
		t.Error("the box has ended in order")
	}
}

// In the hardened container, agentinit and its programs have the same user and no capabilities.
func TestAssaultInAContainer(t *testing.T) {
	needsPodman(t)
	loadTestImage(t)
	for _, guard := range []string{"true", "false"} {
		t.Run("guard = "+guard, func(t *testing.T) {
			manifest := filepath.Join(t.TempDir(), "agentbox.toml")
			text := strings.ReplaceAll(assailed("guard = "+guard), "TESTPROG", "/bin/testprog")
			if err := os.WriteFile(manifest, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			c := runContainer(t, slices.Concat(hardened, []string{"-v", manifest + ":/etc/agentbox.toml:ro"}))
			try := func(program string) assaultReport {
				c.inside("/bin/agentctl", "start", program)
				return tried(t, program, func() string { return c.inside("/bin/agentctl", "logs", program) })
			}
			if guard == "false" {
				try("attacker").succeeds(t, unguarded)
				return
			}
			try("attacker").repelled(t, nil)
			try("last")
			if out := c.inside("/bin/agentctl", "status", "web", "--json"); !strings.Contains(out, `"RUNNING"`) || !strings.Contains(out, `"restarts": 0`) {
				t.Errorf("status: %s", out)
			}
			c.inside("/bin/testprog", "get", "http://127.0.0.1:9090/livez")
			mustPodman(t, "stop", "-t", "30", c.id)
			if code := mustPodman(t, "inspect", "--format", "{{.State.ExitCode}}", c.id); code != "0" {
				t.Errorf("ended with %s", code)
			}
		})
	}
}

// assailed returns a manifest with a required program and the two attackers, which get the keys.
func assailed(keys string) string {
	program := func(name, args string) string {
		return "[programs." + name + "]\ncommand = ['TESTPROG', 'assault', '1'" + args + "]\nautostart = false\nrestart = 'never'\n" + keys + "\n"
	}
	return "[programs.web]\ncommand = ['TESTPROG', 'sleep']\nrequired = true\n" + program("attacker", "") + program("last", ", 'last'")
}

func bootAssailed(t *testing.T, how how, keys string) *box {
	t.Helper()
	b := boot(t, how, header+`
[adapters]
orchestrator = "local-process-manager"
[supervisor.agents]
`+keys+"\n"+assailed(keys))
	return b.sealed()
}

// assaultReport holds the answer of each attack, by name.
type assaultReport map[string]string

// tried waits until the attacker has tried all attacks.
func tried(t testing.TB, name string, text func() string) assaultReport {
	t.Helper()
	report := assaultReport{}
	waitFor(t, name+" has tried everything", func() bool {
		for line := range strings.Lines(text()) {
			way, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
			report[way] = answer
		}
		_, done := report["done"]
		return done
	})
	delete(report, "once") // tells how the helper processes ended
	delete(report, "in-userns")
	return report
}

func (r assaultReport) repelled(t *testing.T, but []string) {
	t.Helper()
	for way, answer := range r {
		if answer == "ok" && !slices.Contains(but, way) {
			t.Errorf("%s works", way)
		}
	}
	if len(r) < len(unguarded)+len(almighty) {
		t.Errorf("only %d ways were tried: %v", len(r), r)
	}
}

func (r assaultReport) succeeds(t *testing.T, ways []string) {
	t.Helper()
	for _, way := range ways {
		if r[way] != "ok" {
			t.Errorf("%s does not work without the defence: %s", way, r[way])
		}
	}
}

// assault lets a program, or an agent, try all its attacks.
func (b *box) assault(agent bool, program string) assaultReport {
	b.t.Helper()
	text := func() string { out, _ := b.ctl("logs", program); return out }
	if agent {
		file := filepath.Join(b.dir, program+".log")
		command := `exec "$0" assault 1 `
		if program == "last" {
			command += program
		}
		status, err := b.call("POST", "/v1/agents", map[string]any{
			"command": "sh", "args": []string{"-c", command + ` >"$1" 2>&1`, binary(b.t, "testprog"), file},
		}, nil)
		if err != nil || status != 201 {
			b.t.Fatalf("spawn: %d %v", status, err)
		}
		text = func() string {
			data, err := os.ReadFile(file)
			if err != nil && !os.IsNotExist(err) {
				b.t.Fatal(err)
			}
			return string(data)
		}
	} else {
		b.mustCtl("start", program)
	}
	return tried(b.t, program, func() string {
		select {
		case <-b.exited:
			b.t.Fatalf("the box ended with %d", b.exitCode)
		default:
		}
		return text()
	})
}
