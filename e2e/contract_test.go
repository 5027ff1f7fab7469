package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/dreamlab-ai/agentinit/adapters/memory"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator/hosttest"
	"github.com/dreamlab-ai/agentinit/adapters/rest/resttest"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// The contract suites of the slots, run against a second, real agentinit. Each case boots its own
// box and is its client.

// serving boots a box with these slots and returns when the box is ready.
func serving(t testing.TB, slots string) *box {
	t.Helper()
	b := started(t, slots)
	waitFor(t, "the box is ready", b.ready)
	return b
}

// started boots a box and stops it at the end of the test. It does not kill the box: outside a PID
// namespace, a killed box leaves its agents behind.
func started(t testing.TB, slots string) *box {
	t.Helper()
	b := boot(t, unprivileged, header+"[api]\nrate_limit = 0\n"+slots)
	t.Cleanup(func() {
		b.stopsWell()
	})
	return b
}

func (b *box) url() string { return fmt.Sprintf("http://127.0.0.1:%d", b.port) }

// admin is the credential of the box's owner.
func admin() wire.Authorizer { return wire.Bearer(func() string { return boxKey }) }

func made[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

const (
	withBeads  = "[adapters]\nbeads = \"local-sqlite\"\n"
	withEvents = "[adapters]\nevents = \"local-jsonl\"\n"
	withMemory = "[adapters]\nmemory = \"embedded-ruvector\"\n"
	withAgents = "[adapters]\norchestrator = \"local-process-manager\"\n"
	withBridge = "[adapters]\norchestrator = \"stdio-bridge\"\n"
)

// sideBySide runs suites that mostly wait, each with boxes of its own.
func sideBySide(t *testing.T, suites map[string]func(t *testing.T)) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	for name, suite := range suites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite(t)
		})
	}
}

func TestContract(t *testing.T) {
	sideBySide(t, map[string]func(t *testing.T){
		"beads":  func(t *testing.T) { contract.Beads(t, externalBeads) },
		"events": func(t *testing.T) { contract.Events(t, externalEvents) },
		"memory": func(t *testing.T) {
			contract.Memory(t, contract.MemoryClass{
				New: func(t *testing.T) adapters.Memory { return memoryOf(t, withMemory) },
				Deaf: func(t *testing.T) adapters.Memory {
					return memoryOf(t, withMemory+fmt.Sprintf("[slots.memory]\nembedder = { kind = \"http\", url = \"http://127.0.0.1:%d\", model = \"m\" }\n", freePort(t)))
				},
			})
		},
		"agents": func(t *testing.T) { contract.Orchestrator(t, binary(t, "testprog"), localAgents) },
		"bridge": func(t *testing.T) { contract.Orchestrator(t, binary(t, "testprog"), bridgedAgents) },
	})
}

// For the same random script, the local adapters and the adapters that use a real box give the same
// answers.
func TestSameAnswers(t *testing.T) {
	sideBySide(t, map[string]func(t *testing.T){
		"beads": func(t *testing.T) {
			contract.SameBeads(t, func(t testing.TB) adapters.Beads {
				return made[*beads.Local](t)(beads.NewLocal(beads.LocalConfig{Path: filepath.Join(t.TempDir(), "beads.db")}))
			}, externalBeads)
		},
		"events": func(t *testing.T) {
			contract.SameEvents(t, func(t testing.TB) adapters.Events {
				return made[*events.Local](t)(events.NewLocal(events.LocalConfig{Dir: t.TempDir()}))
			}, externalEvents)
		},
		"memory": func(t *testing.T) {
			words := made[memory.Embedder](t)(memory.NewEmbedder(memory.EmbedderConfig{}))
			contract.SameMemory(t, contract.MemoryClass{New: func(t *testing.T) adapters.Memory {
				return made[*memory.Memory](t)(memory.NewEmbedded(memory.EmbeddedConfig{Dir: t.TempDir(), Embedder: words}))
			}}, contract.MemoryClass{New: func(t *testing.T) adapters.Memory { return memoryOf(t, withMemory) }})
		},
		// One box runs its agents itself. The other box uses the agents of its host.
		"agents": func(t *testing.T) {
			contract.SameOrchestrator(t, binary(t, "testprog"), localAgents, bridgedAgents)
		},
	})
}

func externalBeads(t testing.TB) adapters.Beads {
	return made[*beads.External](t)(beads.NewExternal(beads.ExternalConfig{URL: serving(t, withBeads).url(), Auth: admin()}))
}

func externalEvents(t testing.TB) adapters.Events {
	return made[*events.External](t)(events.NewExternal(events.ExternalConfig{
		URL: serving(t, withEvents).url(), Dir: t.TempDir(), Source: func() string { return "urn:agentbox:client" }, Auth: admin(),
	}))
}

func memoryOf(t *testing.T, slots string) adapters.Memory {
	return made[*resttest.Memory](t)(resttest.NewMemory(serving(t, slots).url(), admin()))
}

func agentsOf(t testing.TB, b *box) *resttest.Agents {
	return made[*resttest.Agents](t)(resttest.NewAgents(b.url(), admin()))
}

// localAgents are those that a box runs itself.
func localAgents(t testing.TB) adapters.Orchestrator { return agentsOf(t, serving(t, withAgents)) }

// bridgedAgents are the agents of a box with a stdio bridge. The calls go through a process of
// agentctl to a host. Here, the agents of that host are those of another box.
func bridgedAgents(t testing.TB) adapters.Orchestrator {
	t.Helper()
	far := agentsOf(t, serving(t, withAgents))
	if err := far.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := started(t, withBridge)
	b.event("AdapterConnected") // no host may attach earlier; the seal does not wait for this
	attach(t, b, adapters.WrapOrchestrator(far, nil))
	waitFor(t, "the box is ready with its host", b.ready)
	return agentsOf(t, b)
}

// If the orchestrator of a box is its host, the box is ready only while a host is connected.
func TestReadyWhileTheHostIsThere(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	far := agentsOf(t, serving(t, withAgents))
	if err := far.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := started(t, withBridge+"[programs.side]\ncommand = [\"TESTPROG\", \"sleep\"]\nrequired = true\n")
	if e := b.event("AdapterConnected"); e["state"] != "degraded" {
		t.Errorf("connected, without a host: %v", e)
	}
	waitFor(t, "only the host is missing", func() bool {
		status, body := b.get("/ready")
		var r struct{ Missing []struct{ ID, Reason string } }
		if err := json.Unmarshal([]byte(body), &r); err != nil || status != 503 {
			t.Fatalf("/ready without a host: %d %s", status, body)
		}
		return len(r.Missing) == 1 && r.Missing[0].ID == "adapter:orchestrator" && r.Missing[0].Reason == "degraded: no host is attached"
	})
	gauge := func(value string) {
		t.Helper()
		if _, body := b.get("/metrics"); !strings.Contains(body, `agentbox_adapter_health{impl="stdio-bridge",slot="orchestrator"} `+value+"\n") {
			t.Errorf("the gauge is not %s", value)
		}
	}
	gauge("2")
	if _, body := b.get("/health"); !strings.Contains(body, `"status":"degraded"`) || !strings.Contains(body, "no host is attached") {
		t.Errorf("/health without a host: %s", body)
	}
	for range 2 {
		h := attach(t, b, adapters.WrapOrchestrator(far, nil))
		b.event("ReadinessReached")
		if !b.ready() {
			t.Error("not ready with a host")
		}
		gauge("1")
		h.Leave()
		if e := b.event("ReadinessLost"); e["requirement"] != "adapter:orchestrator" {
			t.Errorf("lost: %v", e)
		}
		if b.ready() {
			t.Error("ready without its host")
		}
		gauge("2")
	}
	if n := strings.Count(b.tail(1<<20), `"event":"ReadinessReached"`); n != 2 {
		t.Errorf("ready %d times for 2 visits of a host", n)
	}
}

// attach connects a host to b's bridge through `agentctl bridge` until the end of the test.
func attach(t testing.TB, b *box, local adapters.Orchestrator) *hosttest.Host {
	t.Helper()
	cmd := exec.Command(binary(t, "agentctl"), "--socket", b.socket(), "bridge")
	in := made[io.WriteCloser](t)(cmd.StdinPipe())
	out := made[io.ReadCloser](t)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := hosttest.Join(t, struct {
		io.Reader
		io.WriteCloser
	}{out, in}, local)
	t.Cleanup(func() {
		h.Leave()
		if err := cmd.Wait(); err != nil {
			t.Errorf("agentctl bridge: %v", err)
		}
	})
	return h
}
