package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const boxKey = "0123456789abcdef0123456789abcdef"

// call sends a request to the management API as admin and decodes the answer into out.
func (b *box) call(method, path string, in, out any) (int, error) {
	b.t.Helper()
	return b.callKeyed("", method, path, in, out)
}

// callKeyed is call with an idempotency key. If the key is empty, no key is sent.
func (b *box) callKeyed(key, method, path string, in, out any) (int, error) {
	b.t.Helper()
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			b.t.Fatal(err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d%s", b.port, path), body)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+boxKey)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := b.client(30 * time.Second).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || out == nil || len(raw) == 0 {
		return resp.StatusCode, err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return resp.StatusCode, fmt.Errorf("%w: %.200s", err, raw)
	}
	return resp.StatusCode, nil
}

func (b *box) mustCall(method, path string, in, out any, want int) {
	b.t.Helper()
	status, err := b.call(method, path, in, out)
	if err != nil || status != want {
		b.t.Fatalf("%s %s: %d, %v; want %d", method, path, status, err, want)
	}
}

func (b *box) ready() bool {
	status, _, err := getBy(b.client(20*time.Second), b.port, "/ready")
	return err == nil && status == 200
}

// Box B uses box A as its external slots. What B writes is in A. When A is gone, B reports errors
// and is not ready.
func TestABoxServesABox(t *testing.T) {
	t.Parallel()
	keys := []string{"MANAGEMENT_API_KEY=" + boxKey, "AGENTBOX_FEDERATION_TOKEN=" + boxKey}
	a := bootWith(t, unprivileged, keys, header+`
[adapters]
beads = "local-sqlite"
events = "local-jsonl"
`)
	waitFor(t, "A is ready", a.ready)
	b := bootWith(t, unprivileged, keys, header+fmt.Sprintf(`
[federation]
mode = "client"
external_url = "http://127.0.0.1:%d"
[integrations.external_events]
url = "http://127.0.0.1:%d"
[adapters]
beads = "external"
events = "external"
`, a.port, a.port))
	waitFor(t, "B is ready", b.ready)

	var epic struct{ ID, Title string }
	b.mustCall("POST", "/v1/beads/epics", map[string]any{"title": "made in B"}, &epic, 201)
	var same struct{ ID, Title string }
	a.mustCall("GET", "/v1/beads/"+epic.ID, nil, &same, 200)
	if same.Title != "made in B" {
		t.Errorf("A has %+v", same)
	}
	b.mustCall("POST", "/v1/events", map[string]any{"kind": "test.crossed"}, nil, 202)
	waitFor(t, "B's event has reached A", func() bool {
		var page struct{ Items []struct{ Kind string } }
		a.mustCall("GET", "/v1/events", nil, &page, 200)
		return strings.Contains(fmt.Sprint(page), "test.crossed")
	})

	pid, err := a.initPID()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.ended()
	if status, err := b.call("GET", "/v1/beads/"+epic.ID, nil, nil); err != nil || status/100 != 5 {
		t.Errorf("with A gone: %d %v", status, err)
	}
	waitFor(t, "B is not ready without A", func() bool { return !b.ready() })
	if code := b.stop(); code != 0 {
		t.Errorf("B ended with %d", code)
	}
}

// /health/pods shows the slot of a box that has one, also while its server cannot be reached.
func TestHealthOfThePods(t *testing.T) {
	t.Parallel()
	b := bootWith(t, unprivileged, []string{"MANAGEMENT_API_KEY=" + boxKey}, header+`
[adapters]
pods = "local-solid-rs"
[integrations.solid_pod_rs]
base_url = "http://127.0.0.1:1"
[security.exceptions.solid-pod-rs]
`)
	waitFor(t, "the slot is degraded", func() bool {
		var pods struct{ Status, Wanted, State string }
		status, _ := b.call("GET", "/health/pods", nil, &pods) // 0 until the listener is open
		if status != 0 && status != 200 {
			t.Fatalf("/health/pods: %d", status)
		}
		return pods.Status == "degraded" && pods.Wanted == "local-solid-rs" && pods.State == "degraded"
	})
	if code := b.stop(); code != 0 {
		t.Errorf("the box ended with %d", code)
	}
}

// bootWithPods boots a box whose own pod server is to listen on a port of 127.0.0.1.
func bootWithPods(t *testing.T, port int) *box {
	t.Helper()
	env := []string{"MANAGEMENT_API_KEY=" + boxKey, "PATH=" + filepath.Dir(binary(t, "agentctl")) + ":" + os.Getenv("PATH")}
	return bootWith(t, asPID1, env, header+fmt.Sprintf(`
[adapters]
pods = "local-solid-rs"
[integrations.solid_pod_rs]
port = %d
[sovereign_mesh]
enabled = true
[security.exceptions.solid-pod-rs]
`, port))
}

// A box whose image has no solid-pod-rs-server serves its pods itself. agentinit writes and reads there with the box's key, also
// a body that it signs only at its end, and after the key is replaced. Nobody else gets in.
func TestThePodServerOfTheBox(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	port := freePort(t)
	b := bootWithPods(t, port)
	waitFor(t, "the box is ready", b.ready)
	file := filepath.Join(t.TempDir(), "doc")
	big := strings.Repeat("0123456789", 100_000)
	for path, body := range map[string]string{"/notes/small": "hello", "/notes/big": big} {
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := b.ctl("pod", "put", path, file, "--type", "text/plain"); code != 0 {
			t.Fatalf("put %s: %d %s", path, code, out)
		}
		if out, code := b.ctl("pod", "get", path); code != 0 || out != body {
			t.Errorf("get %s: %d, %d bytes", path, code, len(out))
		}
	}
	did := regexp.MustCompile(`did:nostr:[0-9a-f]{64}`).FindString(b.mustCtl("identity", "show"))
	own := "<#box> a <http://www.w3.org/ns/auth/acl#Authorization>;\n<http://www.w3.org/ns/auth/acl#agent> <" + did +
		">;\n<http://www.w3.org/ns/auth/acl#accessTo> <./>;\n<http://www.w3.org/ns/auth/acl#mode> <http://www.w3.org/ns/auth/acl#Control>.\n"
	if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := b.ctl("pod", "put", "/lists/.acl", file, "--type", "text/turtle"); code != 0 {
		t.Fatalf("put an access list: %d %s", code, out)
	}
	if out, code := b.ctl("identity", "rotate"); code != 0 || !strings.HasSuffix(out, "still name the former key; replace it by the new one:\n  lists/.acl\n") {
		t.Fatalf("rotate: %d %s", code, out)
	}
	if out, code := b.ctl("pod", "ls", "/notes/"); code != 0 || !strings.Contains(out, "/notes/small") {
		t.Errorf("with the new key: %d %s", code, out)
	}
	if status, _, err := getBy(b.client(20*time.Second), port, "/notes/small"); err != nil || status != 401 {
		t.Errorf("nobody: %d %v", status, err)
	}
	if code := b.stop(); code != 0 {
		t.Errorf("the box ended with %d", code)
	}
}

// /health/relay shows a relay that is a program of the box.
func TestHealthOfTheRelayProgram(t *testing.T) {
	t.Parallel()
	bin, err := os.MkdirTemp("", "relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(bin) })
	if err := errors.Join(os.Chmod(bin, 0o755), os.WriteFile(filepath.Join(bin, "nostr-rs-relay"), []byte("#!/bin/sh\n[ \"$1\" != --config ] || exec sleep 1000\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	b := bootWith(t, unprivileged, []string{"MANAGEMENT_API_KEY=" + boxKey, "PATH=" + bin + ":" + os.Getenv("PATH")}, header+`
[sovereign_mesh]
enabled = true
[sovereign_mesh.relay]
enabled = true
data_dir = "/workspace"
[security.exceptions.nostr-relay]
`)
	waitFor(t, "the relay has started and does not listen", func() bool {
		var relay struct {
			Status  string
			Program struct{ Name, State string }
		}
		status, _ := b.call("GET", "/health/relay", nil, &relay) // 0 until the listener is open
		if status != 0 && status != 200 {
			t.Fatalf("/health/relay: %d", status)
		}
		return relay.Status == "degraded" && relay.Program.Name == "nostr-relay" && relay.Program.State == "STARTING"
	})
	if code := b.stop(); code != 0 {
		t.Errorf("the box ended with %d", code)
	}
}

// During a storm of API requests, programs restart without delay, and one client only wins the
// claim of a bead. The storm goes on until the last restart is seen, so that every restart happens
// during it.
func TestAPIStormLeavesSupervisionAlone(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	b := boot(t, asPID1, header+`
[api]
rate_limit = 0
[adapters]
beads = "local-sqlite"
[programs.victim]
command = ["TESTPROG", "sleep"]
restart = "always"
start_seconds = 0
backoff = { initial = "0s" }
restart_limit = { count = 0, window = "1m" }
`)
	waitFor(t, "ready", b.ready)
	var epic struct{ ID string }
	b.mustCall("POST", "/v1/beads/epics", map[string]any{"title": "one"}, &epic, 201)
	var wg sync.WaitGroup
	var winners, answered, limited atomic.Int64
	calm := make(chan struct{})
	storm := func(ask func(n int) (int, error)) {
		for n := 0; ; n++ {
			select {
			case <-calm:
				return
			default:
			}
			switch status, err := ask(n); {
			case err != nil: // the listener may refuse connections when it is full
			case status == http.StatusTooManyRequests:
				limited.Add(1)
			default:
				answered.Add(1)
			}
		}
	}
	for i := range 40 {
		wg.Go(func() {
			storm(func(n int) (int, error) {
				actor := fmt.Sprintf("actor-%d-%d", i, n)
				status, err := b.call("POST", "/v1/beads/"+epic.ID+"/claim", map[string]any{"actor": actor}, nil)
				if err == nil && status == 200 {
					winners.Add(1)
				}
				return status, err
			})
		})
		wg.Go(func() {
			storm(func(int) (int, error) {
				status, _, err := get(b.port, []string{"/v1/beads", "/nothing", "/metrics", "/health"}[i%4])
				return status, err
			})
		})
	}
	const kills = 20
	begun := answered.Load()
	for n := range kills {
		before := b.programs()["victim"]
		host := b.hostPIDs()
		if err := syscall.Kill(host[before.PID], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitFor(t, fmt.Sprintf("restart %d", n), func() bool {
			now := b.programs()["victim"]
			return now.State == "RUNNING" && now.PID != before.PID && now.PID != 0
		})
	}
	served := answered.Load() - begun
	close(calm)
	wg.Wait()
	if got := b.programs()["victim"].Restarts; got != kills {
		t.Errorf("%d restarts of %d kills", got, kills)
	}
	if served < kills || limited.Load() == 0 {
		t.Errorf("no storm: %d requests answered between the kills, %d limited", served, limited.Load())
	}
	if n := winners.Load(); n != 1 {
		t.Errorf("%d winners of one bead", n)
	}
	t.Logf("%d requests answered while %d restarts happened, %d limited", served, kills, limited.Load())
}

// agentinit reaps the agents that the API spawned and all processes that they leave behind.
func TestAgentsAreReaped(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	b := boot(t, asPID1, header+`
[adapters]
orchestrator = "local-process-manager"
`)
	waitFor(t, "ready", b.ready)
	const agents = 500
	var wg sync.WaitGroup
	var limited atomic.Int64
	// The listener accepts at most 512 connections.
	slots := make(chan struct{}, 200)
	for range agents {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for end := time.Now().Add(patience); time.Now().Before(end); {
				status, err := b.call("POST", "/v1/agents", map[string]any{
					"command": binary(t, "testprog"), "args": []string{"setsid-escape"},
				}, nil)
				switch {
				case err == nil && status == 201:
					return
				case err == nil && status == 429:
					limited.Add(1)
				default:
					t.Errorf("spawn: %d %v", status, err)
					return
				}
			}
			t.Error("never spawned")
		})
	}
	wg.Wait()
	t.Logf("%d times told that 64 agents are running", limited.Load())
	init, err := b.initPID()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range descendants(init) {
			cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Logf("left: %d %q %v", pid, cmdline, err)
		}
	})
	waitFor(t, "nothing is left of 500 agents", func() bool { return len(descendants(init)) == 0 })
	b.stopsWell()
}
