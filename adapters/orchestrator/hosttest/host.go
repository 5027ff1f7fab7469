// Package hosttest owns the host's end of a stdio bridge, written from the
// specification alone: it shares no code with the box's end and must never
// import it, nor be part of a binary.
package hosttest

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Host is the other end of a bridge, attached to a box. Its agents run on an
// orchestrator of its own.
type Host struct {
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

// Join attaches a host to the box at the other end of conn and returns when the
// box has answered. What the box asks for runs on local. It owns conn.
func Join(t testing.TB, conn io.ReadWriteCloser, local adapters.Orchestrator) *Host {
	h := &Host{t: t, conn: conn, local: local, greeted: make(chan struct{})}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.works.Go(h.read)
	h.say(rpc{ID: json.RawMessage(`0`), Method: "initialize",
		Params: json.RawMessage(`{"protocol":"agentbox.orchestrator","version":"1.1","capabilities":[]}`)})
	<-h.greeted
	return h
}

// Leave closes the channel and returns when all work has ended; agents keep
// running.
func (h *Host) Leave() {
	h.stop()
	h.conn.Close()
	h.works.Wait()
}

func (h *Host) say(m rpc) {
	m.JSONRPC = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		h.t.Error(err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// The box may have gone meanwhile: then the message is lost.
	_, _ = h.conn.Write(append(line, '\n'))
}

func (h *Host) read() {
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

func (h *Host) serve(m rpc) {
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

func (h *Host) do(m rpc) (result any, after func(), err error) {
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

func (h *Host) forward(s adapters.AgentStream, agentID, subscription string) {
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
