package e2e

import (
	"fmt"
	"io"
	"os/exec"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator/hosttest"
	"github.com/dreamlab-ai/agentinit/adapters/rest/resttest"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// The suites of the slots, run by what reaches a second, real agentinit: each
// case boots a box of its own and is its client.

// serving boots a box with these slots and returns when it is ready.
func serving(t testing.TB, slots string) *box {
	t.Helper()
	b := boot(t, unprivileged, header+"[api]\nrate_limit = 0\n"+slots)
	waitFor(t, "the box is ready", b.ready)
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

func TestContractBeads(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	contract.Beads(t, func(t testing.TB) adapters.Beads {
		return made[*beads.External](t)(beads.NewExternal(beads.ExternalConfig{URL: serving(t, withBeads).url(), Auth: admin()}))
	})
}

func TestContractEvents(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	contract.Events(t, func(t testing.TB) adapters.Events {
		return made[*events.External](t)(events.NewExternal(events.ExternalConfig{
			URL: serving(t, withEvents).url(), Dir: t.TempDir(), Source: "urn:agentbox:client", Auth: admin(),
		}))
	})
}

func memoryOf(t *testing.T, slots string) adapters.Memory {
	return made[*resttest.Memory](t)(resttest.NewMemory(serving(t, slots).url(), admin()))
}

func TestContractMemory(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	contract.Memory(t, contract.MemoryClass{
		New: func(t *testing.T) adapters.Memory { return memoryOf(t, withMemory) },
		Deaf: func(t *testing.T) adapters.Memory {
			return memoryOf(t, withMemory+fmt.Sprintf("[slots.memory]\nembedder = { kind = \"http\", url = \"http://127.0.0.1:%d\", model = \"m\" }\n", freePort(t)))
		},
	})
}

func agentsOf(t testing.TB, b *box) *resttest.Agents {
	return made[*resttest.Agents](t)(resttest.NewAgents(b.url(), admin()))
}

func TestContractAgents(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	contract.Orchestrator(t, binary(t, "testprog"), func(t testing.TB) adapters.Orchestrator {
		return agentsOf(t, serving(t, withAgents))
	})
}

// The calls of a box with a stdio bridge go through agentctl, a process of its
// own, to a host, whose agents here are those of another box.
func TestContractBridge(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	contract.Orchestrator(t, binary(t, "testprog"), func(t testing.TB) adapters.Orchestrator {
		far := agentsOf(t, serving(t, withAgents))
		if err := far.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := boot(t, unprivileged, header+withBridge)
		b.sealed()
		attach(t, b, adapters.WrapOrchestrator(far, nil))
		waitFor(t, "the box is ready with its host", b.ready)
		return agentsOf(t, b)
	})
}

// attach joins a host to b's bridge through `agentctl bridge`, for the test.
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
