package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// agentsFake starts no process. A test makes its agents write and exit with say and exit.
type agentsFake struct {
	slot
	mu     sync.Mutex
	agents map[string]*agentFake
	order  []string
	input  []byte
	fail   error // of a spawn
}

type agentFake struct {
	adapters.Agent
	spec   adapters.AgentSpec
	events []adapters.AgentEvent
	news   chan struct{}
}

func newAgentsFake() *agentsFake {
	return &agentsFake{slot: slot{adapters.SlotOrchestrator, "local-process-manager"}, agents: map[string]*agentFake{}}
}

func (f *agentsFake) SpawnAgent(_ context.Context, spec adapters.AgentSpec) (adapters.Agent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return adapters.Agent{}, f.fail
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	id := fmt.Sprintf("agent-%d", len(f.order)+1)
	a := &agentFake{spec: spec, news: make(chan struct{}), Agent: adapters.Agent{
		AgentID: id, Name: spec.Name, Status: adapters.AgentRunning, PID: 100 + len(f.order), Command: append([]string{spec.Command}, spec.Args...), Labels: spec.Labels,
	}}
	f.agents[id] = a
	f.order = append(f.order, id)
	f.add(a, adapters.AgentEventStarted, `{}`)
	return a.Agent, nil
}

func (f *agentsFake) add(a *agentFake, kind, payload string) {
	a.events = append(a.events, adapters.AgentEvent{
		Seq: uint64(len(a.events) + 1), TS: adapters.At(time.Unix(1700000000, 0)), AgentID: a.AgentID, Kind: kind, Payload: json.RawMessage(payload),
	})
	close(a.news)
	a.news = make(chan struct{})
}

func (f *agentsFake) say(id, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	payload, _ := json.Marshal(map[string]string{"data": text})
	f.add(f.agents[id], adapters.AgentEventStdout, string(payload))
}

func (f *agentsFake) exit(id string, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.agents[id]
	a.Status, a.ExitCode = adapters.AgentExited, &code
	f.add(a, adapters.AgentEventExit, fmt.Sprintf(`{"code":%d,"signal":null}`, code))
}

func (f *agentsFake) get(id string) (*agentFake, error) {
	if a, ok := f.agents[id]; ok {
		return a, nil
	}
	return nil, adapters.NotFound("agent", id)
}

func (f *agentsFake) ListAgents(_ context.Context, filter adapters.AgentFilter) ([]adapters.Agent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []adapters.Agent
	for _, id := range f.order {
		a := f.agents[id]
		ok := filter.Status == "" || a.Status == filter.Status
		for k, v := range filter.Labels {
			ok = ok && a.Labels[k] == v
		}
		if ok {
			out = append(out, a.Agent)
		}
	}
	return out, nil
}

func (f *agentsFake) GetAgent(_ context.Context, id string) (adapters.Agent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, err := f.get(id)
	if err != nil {
		return adapters.Agent{}, err
	}
	return a.Agent, nil
}

func (f *agentsFake) TerminateAgent(_ context.Context, id string, _ time.Duration) (adapters.Agent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, err := f.get(id)
	if err != nil {
		return adapters.Agent{}, err
	}
	if a.Status == adapters.AgentRunning {
		a.Status, a.Signal = adapters.AgentTerminated, "SIGTERM"
		f.add(a, adapters.AgentEventExit, `{"code":null,"signal":"SIGTERM"}`)
	}
	return a.Agent, nil
}

func (f *agentsFake) SendInput(_ context.Context, id string, data []byte, _ bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.get(id); err != nil {
		return err
	}
	f.input = append(f.input, data...)
	return nil
}

func (f *agentsFake) StreamEvents(_ context.Context, id string, from uint64) (adapters.AgentStream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, err := f.get(id)
	if err != nil {
		return nil, err
	}
	return &agentStreamFake{f: f, a: a, next: max(1, from)}, nil
}

type agentStreamFake struct {
	f    *agentsFake
	a    *agentFake
	next uint64
}

func (s *agentStreamFake) Next(ctx context.Context) (adapters.AgentEvent, error) {
	for {
		s.f.mu.Lock()
		news, n := s.a.news, uint64(len(s.a.events))
		if s.next <= n {
			e := s.a.events[s.next-1]
			s.next++
			s.f.mu.Unlock()
			return e, nil
		}
		ended := n > 0 && s.a.events[n-1].Kind == adapters.AgentEventExit
		s.f.mu.Unlock()
		if ended {
			return adapters.AgentEvent{}, io.EOF
		}
		select {
		case <-news:
		case <-ctx.Done():
			return adapters.AgentEvent{}, ctx.Err()
		}
	}
}

func (s *agentStreamFake) Close() error { return nil }

func TestAgentsOverTheWire(t *testing.T) {
	b := newBox(t)
	var a adapters.Agent
	created := b.do("admin", "POST", "/v1/agents", `{"command":"/bin/work","args":["x"],"labels":{"team":"red"}}`).is(201)
	created.into(&a)
	if created.header.Get("Location") != "/v1/agents/"+a.AgentID {
		t.Errorf("location %q", created.header.Get("Location"))
	}
	b.do("admin", "POST", "/v1/agents", `{}`).is(422).problem(adapters.CodeSpawn)
	b.do("agent-1", "POST", "/v1/agents", `{"command":"x"}`).is(403).problem(adapters.CodePermissionDenied)
	b.do("host", "POST", "/v1/agents", `{"command":"x"}`).is(201)
	if got := b.do("reader", "GET", "/v1/agents?label=team%3Dred", "").is(200).fields()["items"].([]any); len(got) != 1 {
		t.Errorf("with label: %v", got)
	}
	b.do("reader", "GET", "/v1/agents?status=odd", "").is(400).problem(adapters.CodeValidation)
	b.do("reader", "GET", "/v1/agents?limit=0", "").is(400).problem(adapters.CodeValidation)
	b.do("reader", "GET", "/v1/agents?cursor=agent-9", "").is(400).problem(adapters.CodeValidation)
	var page adapters.Page[adapters.Agent]
	first := b.do("reader", "GET", "/v1/agents?limit=1", "").is(200)
	first.into(&page)
	if len(page.Items) != 1 || page.NextCursor != "agent-1" || first.header.Get("Link") != `</v1/agents?cursor=agent-1&limit=1>; rel="next"` {
		t.Errorf("the first page is %+v, Link %q", page, first.header.Get("Link"))
	}
	page = adapters.Page[adapters.Agent]{}
	b.do("reader", "GET", "/v1/agents?cursor=agent-1&limit=1", "").is(200).into(&page)
	if len(page.Items) != 1 || page.Items[0].AgentID != "agent-2" || page.NextCursor != "" {
		t.Errorf("the second page is %+v", page)
	}

	// An agent may reach only itself.
	b.do("agent-1", "GET", "/v1/agents/agent-1", "").is(200)
	b.do("agent-1", "GET", "/v1/agents/agent-2", "").is(403)
	b.do("agent-1", "GET", "/v1/agents/agent-2/events", "").is(403)
	b.do("agent-1", "POST", "/v1/agents/agent-2/input", `{"data":"x"}`).is(403)
	b.do("agent-1", "POST", "/v1/agents/agent-1/input", `{"data":"aGk=","encoding":"base64"}`).is(204)
	b.do("agent-1", "POST", "/v1/agents/agent-1/input", `{"data":"!","encoding":"base64"}`).is(400)
	if string(b.agents.input) != "hi" {
		t.Errorf("input %q", b.agents.input)
	}
	b.do("agent-1", "DELETE", "/v1/agents/agent-1", "").is(403)

	b.agents.say("agent-1", "one\n")
	b.agents.exit("agent-1", 3)
	all := b.do("admin", "GET", "/v1/agents/agent-1/events", "").is(200)
	wantEvents(t, all.body, "1 started", "2 stdout", "3 exit")
	wantEvents(t, b.do("admin", "GET", "/v1/agents/agent-1/events", "", "Last-Event-ID", "2").is(200).body, "3 exit")
	wantEvents(t, b.do("admin", "GET", "/v1/agents/agent-1/events?after=1", "").is(200).body, "2 stdout", "3 exit")
	b.do("admin", "GET", "/v1/agents/agent-1/events?after=x", "").is(400).problem(adapters.CodeValidation)

	b.do("host", "DELETE", "/v1/agents/agent-2?grace_s=1", "").is(200)
	b.do("host", "DELETE", "/v1/agents/agent-2?grace_s=601", "").is(400)
	b.do("host", "DELETE", "/v1/agents/nobody", "").is(404).problem(adapters.CodeNotFound)
}
