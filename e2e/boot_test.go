package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const header = `
[supervisor]
listen = "127.0.0.1:PORT"
metrics_listen = "127.0.0.1:METRICS"
`

// onlyWeb is the manifest of a box with one program, which never ends by itself.
const onlyWeb = header + `
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
`

// The normal life of a box, as PID 1 of a namespace and as an unprivileged process.
func TestLifecycle(t *testing.T) {
	for name, mode := range map[string]how{"pid 1": asPID1, "unprivileged": unprivileged} {
		t.Run(name, func(t *testing.T) {
			b := boot(t, mode, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
[programs.migrate]
command = ["TESTPROG", "exit", "0"]
type = "oneshot"
`)
			b.sealed()
			out := b.mustCtl("wait", "--for", "ready")
			t.Log(out)
			if out := b.mustCtl("status"); !strings.Contains(out, "web") || !strings.Contains(out, "RUNNING") {
				t.Errorf("status: %s", out)
			}
			if status, body := b.get("/ready"); status != 200 || !strings.Contains(body, `"ready":true`) {
				t.Errorf("/ready: %d %s", status, body)
			}
			if status, body := b.get("/livez"); status != 200 {
				t.Errorf("/livez: %d %s", status, body)
			}
			if status, body := b.get("/metrics"); status != 200 || !strings.Contains(body, `agentinit_program_up{program="web"} 1`) {
				t.Errorf("/metrics: %d %.400s", status, body)
			}
			if _, body, err := get(b.metrics, "/metrics"); err != nil || !strings.Contains(body, "agentinit_ready 1") {
				t.Errorf("metrics port: %v %.400s", err, body)
			}
			b.stopsWell()
		})
	}
}

// A box whose seal was given up is not ready, even if its programs are ready later. agentctl says what
// to do.
func TestTheSealIsGivenUp(t *testing.T) {
	b := boot(t, asPID1, header+`
[bootstrap]
seal_timeout = "100ms"
[programs.slow]
command = ["TESTPROG", "sleep"]
required = true
`)
	b.event("BootstrapSealTimeout")
	b.mustCtl("wait", "slow", "--for", "running")
	if out, status := b.ctl("ready"); status != 1 || !strings.Contains(out, "1 requirement not met") ||
		!strings.Contains(out, "not sealed within 100ms; waiting for slow STARTING") || !strings.Contains(out, "restart it") {
		t.Errorf("ready: %d %s", status, out)
	}
	b.stopsWell()
}

// While a required program is not yet RUNNING, the box is alive and not ready. The box becomes
// ready when the program is RUNNING, and the complete sentinel appears once.
func TestReadyFollowsTheLastRequiredProgram(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.slow]
command = ["TESTPROG", "sleep"]
required = true
start_seconds = 3
`)
	b.event("BootstrapSealStarted")
	sentinel := b.sentinel()
	if _, err := os.Stat(sentinel); err == nil {
		t.Error("the sentinel is there before the seal")
	}
	// The listener opens while the boot goes on.
	waitFor(t, "/livez answers while booting", func() bool {
		status, _, err := getBy(b.client(20*time.Second), b.port, "/livez")
		return err == nil && status == 200
	})
	if status, body := b.get("/ready"); status != 503 || !strings.Contains(body, "program:slow") {
		t.Errorf("/ready while booting: %d %s", status, body)
	}
	var running time.Time
	for running.IsZero() {
		e := b.event("ProgramStateChanged")
		if change, ok := e["change"].(map[string]any); ok && change["to"] == "RUNNING" {
			running = time.Now()
		}
	}
	for {
		status, _ := b.get("/ready")
		if status == 200 {
			break
		}
		if time.Since(running) > patience {
			t.Fatal("never ready")
		}
	}
	t.Logf("/ready was 200 %v after RUNNING was seen", time.Since(running))
	data, err := os.ReadFile(sentinel)
	if err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := json.Unmarshal(data, &content); err != nil {
		t.Fatalf("the sentinel is not one JSON object: %v: %s", err, data)
	}
	for _, key := range []string{"completed_at", "manifest_checksum", "boot_id", "duration_ms", "programs"} {
		if content[key] == nil {
			t.Errorf("the sentinel lacks %s: %s", key, data)
		}
	}
	b.signal(syscall.SIGTERM)
	b.ended()
	if _, err := os.Stat(sentinel); err == nil {
		t.Error("the sentinel is still there after the stop")
	}
	completed := 0
	for e := range b.events {
		if e["event"] == "BootstrapCompleted" {
			completed++
		}
	}
	if completed != 1 {
		t.Errorf("sealed %d times", completed)
	}
}

func TestStopKillsEverythingUnprivileged(t *testing.T) {
	b := boot(t, unprivileged, header+`
[supervisor.defaults]
stop = ["TERM 1s", "KILL"]
[programs.stubborn]
command = ["TESTPROG", "ignore-term"]
[programs.stopped]
command = ["TESTPROG", "stopped"]
[programs.escaped]
command = ["TESTPROG", "double-fork"]
[programs.scrubbed]
command = ["TESTPROG", "double-fork", "scrub"]
[programs.tree]
command = ["TESTPROG", "fork-tree", "3", "3"]
`)
	b.sealed()
	pid, err := b.initPID()
	if err != nil {
		t.Fatal(err)
	}
	var before []int
	waitFor(t, "the adversaries have multiplied", func() bool {
		before = descendants(pid)
		return len(before) >= 10
	})
	b.stopsWell()
	for _, p := range before {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
		if err == nil && strings.Contains(string(cmdline), "testprog") {
			t.Errorf("process %d outlived the box: %q", p, cmdline)
		}
	}
}

func TestBadManifestStartsNothing(t *testing.T) {
	b := boot(t, unprivileged, header+`
[programs.a]
command = ["TESTPROG", "sleep"]
needs = ["b", "nosuch"]
restrat = "always"
[programs.b]
needs = ["a"]
command = 7
`)
	if code := b.ended(); code != 64 {
		t.Errorf("ended with %d, want 64", code)
	}
	text := b.tail(1 << 20)
	for _, want := range []string{"agentbox.toml:", "restrat", "nosuch", "command"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not name %q", want)
		}
	}
	if strings.Contains(text, `"STARTING"`) {
		t.Error("something was started")
	}
}

func TestMissingArtifactIsNamed(t *testing.T) {
	b := boot(t, unprivileged, header+`
[programs.a]
command = ["TESTPROG", "sleep"]
[[artifacts]]
id = "the-missing-tool"
class = "B"
entry = "/opt/nowhere/tool"
required = true
`)
	if code := b.ended(); code != 66 {
		t.Errorf("ended with %d, want 66", code)
	}
	if !strings.Contains(b.tail(1<<20), "the-missing-tool") {
		t.Error("the artifact is not named")
	}
}

func TestWrongCommandLeavesTheBoxAlive(t *testing.T) {
	b := boot(t, unprivileged, header+`
[supervisor.defaults]
backoff = { initial = "10ms", max = "10ms" }
restart_limit = { count = 2, window = "1m" }
[programs.missing]
command = ["/nonexistent/tool"]
[programs.directory]
command = ["/tmp"]
[programs.plain]
command = ["/etc/passwd"]
[programs.good]
command = ["TESTPROG", "sleep"]
required = true
`)
	b.sealed()
	for _, name := range []string{"missing", "directory", "plain"} {
		waitFor(t, name+" gives up", func() bool { return b.programs()[name].State == "FATAL" })
		if out := b.mustCtl("why", name); len(out) < 20 {
			t.Errorf("why %s: %s", name, out)
		} else {
			t.Log(out)
		}
	}
	b.stopsWell()
}

func TestEssentialProgramEndsTheBoxWithItsStatus(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.side]
command = ["TESTPROG", "sleep"]
instances = 200
[programs.main]
command = ["TESTPROG", "exit", "7"]
essential = true
`)
	if code := b.ended(); code != 7 {
		t.Errorf("ended with %d, want 7", code)
	}
	said := strings.Split(strings.TrimSpace(b.tail(1<<20)), "\n")
	last := said[len(said)-1]
	if len(last) > 4096 || !strings.Contains(last, `"cause":"essential: program main: exited with code 7"`) {
		t.Errorf("the last line has %d bytes: %.300s", len(last), last)
	}
}

func TestRequiredFatalBeforeTheSeal(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.db]
command = ["TESTPROG", "exit", "3"]
required = true
backoff = { initial = "10ms", max = "10ms" }
restart_limit = { count = 2, window = "1m" }
`)
	if code := b.ended(); code != 67 {
		t.Errorf("ended with %d, want 67", code)
	}
}

// If an event ends the box before the seal, the exit status is that of the event, not that of the
// interrupted boot.
func TestEndBeforeTheSeal(t *testing.T) {
	const starting = `
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
ready = { file = "/nowhere" }
`
	for _, c := range []struct {
		name, programs, cause string
		code                  int
	}{
		{"all exited", `
on_all_exited = "exit"
[programs.job]
command = ["TESTPROG", "exit", "3"]
type = "oneshot"
restart = "never"
required = true
`, "all-exited: program job", 3},
		{"on_fatal", starting + `
[programs.side]
command = ["TESTPROG", "exit", "3"]
on_fatal = "shutdown"
restart_limit = { count = 1, window = "1m" }
backoff = { initial = "10ms", max = "10ms" }
`, "fatal: program side", 3},
		{"on_fatal of a required one", starting + `
[programs.side]
command = ["TESTPROG", "exit", "3"]
on_fatal = "shutdown"
required = true
restart_limit = { count = 1, window = "1m" }
backoff = { initial = "10ms", max = "10ms" }
`, "side is FATAL", 67},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := boot(t, asPID1, header+c.programs)
			said := b.event("Terminated")["message"].(string)
			if code := b.ended(); code != c.code || !strings.Contains(said, c.cause) {
				t.Errorf("ended with %d, want %d: %s", code, c.code, said)
			}
		})
	}
}

func TestMixedMode(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.side]
command = ["TESTPROG", "sleep"]
`, "--", binary(t, "testprog"), "exit", "5")
	if code := b.ended(); code != 5 {
		t.Errorf("ended with %d, want 5", code)
	}
}

// A box that ends as PID 1 ends agentctl too, if agentctl runs in it. That is the end agentctl waits for.
func TestShutdownWaitsInsideTheBox(t *testing.T) {
	b := boot(t, asPID1, onlyWeb)
	b.sealed()
	pid, err := b.initPID()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "-t", strconv.Itoa(pid), "-p", "-m", binary(t, "agentctl"), "--socket", b.socket(), "shutdown", "--wait")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if code := b.ended(); code != 0 {
		t.Errorf("the box ended with %d", code)
	}
}

// A process that came from outside, as with podman exec, is no child of agentinit. It still gets time to end
// by itself when the box ends, but a shell that ignores TERM does not hold up the box.
func TestGuestsEndByThemselves(t *testing.T) {
	for script, want := range map[string]string{
		"trap 'sleep 0.1; exit 7' TERM; echo here; while :; do sleep 1000; done": "exit status 7",
		"trap '' TERM; echo here; while :; do sleep 1000; done":                  "signal: killed",
	} {
		b := boot(t, asPID1, onlyWeb)
		b.sealed()
		pid, err := b.initPID()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("nsenter", "-t", strconv.Itoa(pid), "-p", "-m", "/bin/sh", "-c", script)
		said, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(said).ReadString('\n'); line != "here\n" {
			t.Errorf("the guest said %q: %v", line, err)
		}
		b.signal(syscall.SIGTERM)
		if code := b.ended(); code != 0 {
			t.Errorf("the box ended with %d", code)
		}
		if err := cmd.Wait(); err == nil || err.Error() != want {
			t.Errorf("%s: the guest ended with %v, not %q", script, err, want)
		}
	}
}
