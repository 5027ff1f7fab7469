package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// host is the other end of a bridge, written from the specification alone: it
// shares no code with the box's end. Its agents run on a manager of its own.
type host struct {
	t     testing.TB
	conn  io.ReadWriteCloser
	local adapters.Orchestrator
	ctx   context.Context
	stop  context.CancelFunc
	works sync.WaitGroup

	mu      sync.Mutex // of writing
	greeted chan struct{}
}

type rpc struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

// join attaches a host to the box at the other end of conn.
func join(t testing.TB, conn io.ReadWriteCloser, local adapters.Orchestrator) *host {
	h := &host{t: t, conn: conn, local: local, greeted: make(chan struct{})}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.works.Go(h.read)
	h.say(rpc{ID: json.RawMessage(`0`), Method: "initialize",
		Params: json.RawMessage(`{"protocol":"agentbox.orchestrator","version":"1.1","capabilities":[]}`)})
	<-h.greeted
	return h
}

func (h *host) leave() {
	h.stop()
	h.conn.Close()
	h.works.Wait()
}

func (h *host) say(m rpc) {
	m.JSONRPC = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		h.t.Error(err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// The box may have gone meanwhile; then nobody hears it.
	_, _ = h.conn.Write(append(line, '\n'))
}

func (h *host) read() {
	var once sync.Once
	greeted := func() { once.Do(func() { close(h.greeted) }) }
	defer greeted()
	in := bufio.NewReader(h.conn)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m rpc
		if err := json.Unmarshal(line, &m); err != nil {
			h.t.Errorf("the box says %.200q", line)
			return
		}
		switch m.Method {
		case "":
			greeted()
			if m.Error != nil {
				h.t.Logf("refused: %s", line)
			}
		case "agent.input": // in the order it comes
			h.serve(m)
		default:
			h.works.Go(func() { h.serve(m) })
		}
	}
}

func (h *host) serve(m rpc) {
	if m.ID == nil {
		return
	}
	result, after, err := h.do(m)
	if err != nil {
		e := adapters.AsError(err)
		_, data := adapters.Problem(e)
		h.say(rpc{ID: m.ID, Error: map[string]any{"code": -32000, "message": e.Message, "data": json.RawMessage(data)}})
		return
	}
	if result == nil {
		result = struct{}{}
	}
	h.say(rpc{ID: m.ID, Result: result})
	if after != nil {
		after()
	}
}

func (h *host) do(m rpc) (result any, after func(), err error) {
	var p struct {
		adapters.AgentSpec
		AgentID      string `json:"agentId"`
		GraceMS      *int64 `json:"grace_ms"`
		Status       string
		From         uint64
		Subscription string
		Data         string
		Encoding     string
		EOF          bool
	}
	if m.Params != nil {
		if err := json.Unmarshal(m.Params, &p); err != nil {
			return nil, nil, err
		}
	}
	switch m.Method {
	case "agent.spawn":
		result, err = h.local.SpawnAgent(h.ctx, p.AgentSpec)
	case "agent.get":
		result, err = h.local.GetAgent(h.ctx, p.AgentID)
	case "agent.terminate":
		result, err = h.local.TerminateAgent(h.ctx, p.AgentID, time.Duration(*p.GraceMS)*time.Millisecond)
	case "agent.list":
		var list []adapters.Agent
		list, err = h.local.ListAgents(h.ctx, adapters.AgentFilter{Status: p.Status, Labels: p.Labels})
		result = map[string]any{"agents": list}
	case "agent.input":
		data := []byte(p.Data)
		if p.Encoding == "base64" {
			if data, err = base64.StdEncoding.DecodeString(p.Data); err != nil {
				return nil, nil, err
			}
		}
		err = h.local.SendInput(h.ctx, p.AgentID, data, p.EOF)
	case "agent.subscribe":
		var s adapters.AgentStream
		if s, err = h.local.StreamEvents(h.ctx, p.AgentID, p.From); err == nil {
			after = func() { h.forward(s, p.AgentID, p.Subscription) }
		}
	case "ping":
	default:
		h.t.Errorf("the box asks for %q", m.Method)
	}
	return result, after, err
}

func (h *host) forward(s adapters.AgentStream, agentID, subscription string) {
	defer s.Close()
	for {
		e, err := s.Next(h.ctx)
		var params any = struct {
			adapters.AgentEvent
			Subscription string `json:"subscription"`
		}{e, subscription}
		method := "agent.event"
		if errors.Is(err, io.EOF) {
			method, params = "agent.end", map[string]string{"agentId": agentID, "subscription": subscription}
		} else if err != nil {
			return
		}
		raw, merr := json.Marshal(params)
		if merr != nil {
			h.t.Error(merr)
			return
		}
		h.say(rpc{Method: method, Params: raw})
		if err != nil {
			return
		}
	}
}

// bridged is a bridge that a host joins when it is connected.
type bridged struct {
	*orchestrator.Bridge
	t     testing.TB
	local *orchestrator.Local // the host's

	mu   sync.Mutex
	host *host
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
	b.host = join(b.t, far, adapters.WrapOrchestrator(b.local, nil))
	return nil
}

func (b *bridged) Disconnect(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.Bridge.Disconnect(ctx)
	if b.host != nil {
		b.host.leave()
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
	prog := testprog(t)
	spawner := nursery(t, nil)
	ignore := goleak.IgnoreCurrent()
	contract.Orchestrator(t, prog, func(t testing.TB) adapters.Orchestrator {
		return &bridged{Bridge: newBridge(t, spawner), t: t, local: manager(t, orchestrator.LocalConfig{Spawner: spawner})}
	})
	goleak.VerifyNone(t, ignore)
}

// TestBridgeThroughAgentctl joins a host to the box as docker exec does: by
// agentctl bridge, a process of its own, over the control socket.
func TestBridgeThroughAgentctl(t *testing.T) {
	prog := testprog(t)
	dir, err := os.MkdirTemp("", "br")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	agentctl := filepath.Join(dir, "agentctl")
	if out, err := exec.Command("go", "build", "-o", agentctl, "../agentctl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	spawner := nursery(t, nil)
	b := newBridge(t, spawner)
	o := connectedBridge(t, b)
	cfg := controltest.New().Config(os.Geteuid(), os.Getegid())
	cfg.Bridge = b
	socket := controltest.Serve(t, cfg, filepath.Join(dir, "s"))

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
				_, _ = w.Write(data) // until the host has gone
			}
		},
		Ended: func(e orchestrator.Ending) { w.Close(); exits <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	far := manager(t, orchestrator.LocalConfig{Spawner: spawner})
	h := join(t, struct {
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
	h.leave()
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
