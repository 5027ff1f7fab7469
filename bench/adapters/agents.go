package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// emitMode is the argument that makes this program the agent whose events are measured. That agent
// prints the time fifty times a second until it is killed.
const (
	emitMode  = "print-the-time"
	emitEvery = 20 * time.Millisecond
)

func emit(out io.Writer) {
	tick := time.NewTicker(emitEvery)
	defer tick.Stop()
	for {
		if _, err := fmt.Fprintln(out, time.Now().UnixNano()); err != nil {
			return // the reader has closed the pipe
		}
		<-tick.C
	}
}

const (
	spawnLevel, spawnShare   = 2 * time.Second, 0.02
	streamLevel, streamShare = 20 * time.Millisecond, 0.005
)

var spawned = adapters.AgentSpec{Command: "/bin/true"}

func (l *lab) agentsLocal() target {
	var b *box
	return target{
		slot: "orchestrator", class: "local-process-manager, over HTTP",
		open: func(ctx context.Context) (err error) {
			b, err = l.box(ctx, "/ready", "[adapters]\norchestrator = \"local-process-manager\"\n")
			return err
		},
		rows: []row{
			{"spawn", spawnLevel, 2, spawnShare, at(func(ctx context.Context, _ int) error {
				_, err := b.spawn(ctx, spawned)
				return err
			})},
			{"stream, per event", streamLevel, 0, streamShare, func(ctx context.Context, _, seconds int) (sample, error) {
				return b.stream(ctx, seconds)
			}},
		},
	}
}

func (b *box) spawn(ctx context.Context, spec adapters.AgentSpec) (a adapters.Agent, err error) {
	resp, err := b.request(ctx, "POST", "/v1/agents", spec)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	return a, json.NewDecoder(resp.Body).Decode(&a)
}

// emitter is the spec of the agent that prints the time.
func emitter() (adapters.AgentSpec, error) {
	self, err := os.Executable()
	return adapters.AgentSpec{Command: self, Args: []string{emitMode}}, err
}

// stream measures the time from the printing of an event to its reading, for one agent.
func (b *box) stream(ctx context.Context, seconds int) (s sample, err error) {
	spec, err := emitter()
	if err != nil {
		return s, err
	}
	a, err := b.spawn(ctx, spec)
	if err != nil {
		return s, err
	}
	resp, err := b.request(ctx, "GET", "/v1/agents/"+a.AgentID+"/events", nil)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end) && lines.Scan(); {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			if err := s.hear(data); err != nil {
				return s, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return s, err
	}
	ended, err := b.request(ctx, "DELETE", "/v1/agents/"+a.AgentID, nil)
	if err != nil {
		return s, err
	}
	return s, ended.Body.Close()
}

// hear measures one event of the emitter.
func (s *sample) hear(data []byte) error {
	now := time.Now().UnixNano()
	var e adapters.AgentEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	if e.Kind != adapters.AgentEventStdout {
		return nil
	}
	var out struct{ Data string }
	if err := json.Unmarshal(e.Payload, &out); err != nil {
		return err
	}
	for line := range strings.FieldsSeq(out.Data) {
		printed, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return err
		}
		s.took = append(s.took, time.Duration(now-printed))
	}
	return nil
}

func (l *lab) agentsBridge() target {
	var b *box
	var h *host
	return target{
		slot: "orchestrator", class: "stdio-bridge, by agentctl bridge",
		close: func() {
			if h != nil {
				h.leave()
			}
		},
		open: func(ctx context.Context) (err error) {
			b, err = l.box(ctx, "/livez", "[adapters]\norchestrator = \"stdio-bridge\"\n[integrations.external_orchestrator]\nenabled = true\nprotocol = \"stdio\"\n")
			if err == nil {
				h, err = l.attach(ctx, b)
			}
			return err
		},
		rows: []row{
			{"spawn, the host in the box", spawnLevel, 2, spawnShare, at(func(ctx context.Context, _ int) error {
				_, err := h.spawn(ctx, spawned)
				return err
			})},
			{"spawn, the box at a host that answers at once", spawnLevel, 2, spawnShare, at(func(ctx context.Context, _ int) error {
				_, err := b.spawn(ctx, spawned)
				return err
			})},
			{"stream, per event", streamLevel, 0, streamShare, func(ctx context.Context, _, seconds int) (sample, error) {
				return h.stream(ctx, seconds)
			}},
		},
	}
}

// host is the other end of a bridge. It speaks JSON-RPC 2.0, one object a line.
type host struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	last    int
	waiting map[int]chan message
	ended   error // why the connection ended
	events  chan json.RawMessage
}

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// attach starts a host for a box in the same way as docker exec would.
func (l *lab) attach(ctx context.Context, b *box) (*host, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "agentctl"), "--socket", b.socket(), "bridge")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	h := &host{cmd: cmd, in: in, waiting: map[int]chan message{}, events: make(chan json.RawMessage, 4096)}
	go h.read(out)
	_, err = h.call(ctx, "initialize", map[string]any{"protocol": "agentbox.orchestrator", "version": "1.1", "capabilities": []string{}})
	return h, err
}

func (h *host) leave() {
	h.in.Close()
	// The exit status of the command does not matter any more.
	_ = h.cmd.Wait()
}

func (h *host) read(out io.Reader) {
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if err == nil {
			err = json.Unmarshal(line, &m)
		}
		if err == nil {
			err = h.take(m.message, m.Params)
		}
		if err != nil {
			h.end(err)
			return
		}
	}
}

func (h *host) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = err
	for id, answer := range h.waiting {
		close(answer)
		delete(h.waiting, id)
	}
	close(h.events)
}

func (h *host) take(m message, params json.RawMessage) error {
	switch {
	case m.Method == "":
		id, err := strconv.Atoi(string(m.ID))
		if err != nil {
			return err
		}
		h.mu.Lock()
		answer := h.waiting[id]
		delete(h.waiting, id)
		h.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	case m.Method == "agent.event":
		select {
		case h.events <- params:
		default: // no call reads the events
		}
	case m.Method == "agent.spawn":
		a := adapters.Agent{AgentID: "far", Status: adapters.AgentRunning, StartedAt: adapters.At(time.Now()), Command: []string{spawned.Command}, Labels: map[string]string{}}
		raw, err := json.Marshal(a)
		if err != nil {
			return err
		}
		return h.say(message{ID: m.ID, Result: raw})
	case m.ID != nil: // ping
		return h.say(message{ID: m.ID, Result: json.RawMessage("{}")})
	}
	return nil
}

func (h *host) say(m message) error {
	m.JSONRPC = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err = h.in.Write(append(line, '\n'))
	return err
}

func (h *host) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	answer := make(chan message, 1)
	h.mu.Lock()
	if h.ended != nil {
		h.mu.Unlock()
		return nil, h.ended
	}
	h.last++
	id := h.last
	h.waiting[id] = answer
	h.mu.Unlock()
	if err := h.say(message{ID: json.RawMessage(strconv.Itoa(id)), Method: method, Params: params}); err != nil {
		return nil, err
	}
	select {
	case m, ok := <-answer:
		if !ok {
			return nil, errors.New("the box has hung up")
		}
		if m.Error != nil {
			return nil, fmt.Errorf("%s: %.200s", method, m.Error)
		}
		return m.Result, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *host) spawn(ctx context.Context, spec adapters.AgentSpec) (a adapters.Agent, err error) {
	raw, err := h.call(ctx, "agent.spawn", spec)
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(raw, &a)
}

func (h *host) stream(ctx context.Context, seconds int) (s sample, err error) {
	spec, err := emitter()
	if err != nil {
		return s, err
	}
	a, err := h.spawn(ctx, spec)
	if err != nil {
		return s, err
	}
	if _, err := h.call(ctx, "agent.subscribe", map[string]any{"agentId": a.AgentID, "from": 0, "subscription": "s"}); err != nil {
		return s, err
	}
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		select {
		case e, ok := <-h.events:
			if !ok {
				return s, errors.New("the box has hung up")
			}
			if err := s.hear(e); err != nil {
				return s, err
			}
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
	_, err = h.call(ctx, "agent.terminate", map[string]any{"agentId": a.AgentID, "grace_ms": 1000})
	return s, err
}
