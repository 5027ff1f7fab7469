package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator/hosttest"
	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// bridged is a bridge that gets a host when it is connected.
type bridged struct {
	*orchestrator.Bridge
	t     testing.TB
	local *orchestrator.Local // the host's local orchestrator

	mu   sync.Mutex
	host *hosttest.Host
	done chan error
}

func (b *bridged) Connect(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.local.Connect(ctx), b.Bridge.Connect(ctx)); err != nil || b.host != nil {
		return err
	}
	box, far := net.Pipe()
	b.done = make(chan error, 1)
	go func() { b.done <- b.Attach(context.Background(), box) }()
	b.host = hosttest.Join(b.t, far, adapters.WrapOrchestrator(b.local, nil))
	return nil
}

func (b *bridged) Disconnect(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.Bridge.Disconnect(ctx)
	if b.host != nil {
		b.host.Leave()
		b.host = nil
		err = errors.Join(err, <-b.done)
	}
	return errors.Join(err, b.local.Disconnect(ctx))
}

func newBridge(t testing.TB, spawner orchestrator.Spawner) *orchestrator.Bridge {
	t.Helper()
	own := manager(t, orchestrator.LocalConfig{Spawner: spawner})
	b, err := orchestrator.NewBridge(orchestrator.BridgeConfig{Local: adapters.WrapOrchestrator(own, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBridgeContract(t *testing.T) {
	prog := built.Path(t)
	spawner := nursery(t, nil)
	check := unleaked(t)
	contract.Orchestrator(t, prog, func(t testing.TB) adapters.Orchestrator {
		return &bridged{Bridge: newBridge(t, spawner), t: t, local: manager(t, orchestrator.LocalConfig{Spawner: spawner})}
	})
	check()
}

// An agent behaves the same whether the box or its host runs it.
func TestSameAgents(t *testing.T) {
	prog := built.Path(t)
	spawner := nursery(t, nil)
	contract.SameOrchestrator(t, prog, func(t testing.TB) adapters.Orchestrator {
		return manager(t, orchestrator.LocalConfig{Spawner: spawner})
	}, func(t testing.TB) adapters.Orchestrator {
		return &bridged{Bridge: newBridge(t, spawner), t: t, local: manager(t, orchestrator.LocalConfig{Spawner: spawner})}
	})
}

// TestBridgeThroughAgentctl connects a host to the box as docker exec does: through agentctl bridge
// in its own process, over the control socket.
func TestBridgeThroughAgentctl(t *testing.T) {
	prog := built.Path(t)
	agentctl := filepath.Join(t.TempDir(), "agentctl")
	if out, err := exec.Command("go", "build", "-o", agentctl, "../agentctl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	spawner := nursery(t, nil)
	b := newBridge(t, spawner)
	o := connectedBridge(t, b)
	cfg := controltest.New().Own()
	cfg.Bridge = b
	socket := controltest.Serve(t, cfg)

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	exits := make(chan orchestrator.Ending, 1)
	p, err := spawner.Spawn(t.Context(), orchestrator.Command{
		Path: agentctl, Args: []string{agentctl, "--socket", socket, "bridge"}, StdinPipe: true,
		Output: func(s orchestrator.Stream, data []byte) {
			if s == orchestrator.Stdout {
				_, _ = w.Write(data) // until the host is gone
			}
		},
		Ended: func(e orchestrator.Ending) { w.Close(); exits <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	far := manager(t, orchestrator.LocalConfig{Spawner: spawner})
	h := hosttest.Join(t, struct {
		io.Reader
		io.WriteCloser
	}{r, p.Stdin()}, connected(t, far))

	a, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: []string{"both"}})
	if err != nil {
		t.Fatal(err)
	}
	if text := printed(t, o, a.AgentID); len(text) == 0 {
		t.Error("nothing was heard of the host's agent")
	}
	if _, err := far.GetAgent(t.Context(), a.AgentID); err != nil {
		t.Errorf("the agent is not the host's: %v", err)
	}
	h.Leave()
	if e := <-exits; e.Code != 0 || e.Signal != 0 {
		t.Errorf("agentctl ended with %+v", e)
	}
}

func connectedBridge(t *testing.T, b *orchestrator.Bridge) adapters.Orchestrator {
	t.Helper()
	if err := b.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.Disconnect(ctx); err != nil {
			t.Error(err)
		}
	})
	return adapters.WrapOrchestrator(b, nil)
}
