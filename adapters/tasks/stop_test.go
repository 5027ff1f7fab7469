package tasks

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// goneAgent has already ended when it is terminated.
type goneAgent struct{ oneAgent }

func (goneAgent) TerminateAgent(context.Context, string, time.Duration) (adapters.Agent, error) {
	return adapters.Agent{}, adapters.NotFound("agent", "agent")
}

// A task may end by itself while a request stops it; only the race detector sees a fault here.
func TestStopOfATaskThatEnds(t *testing.T) {
	agent := goneAgent{oneAgent{change: func(string) error { return nil }}}
	m, err := New(Config{Dir: t.TempDir(), Templates: agent, Orchestrator: agent})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for range 50 {
		started, err := m.Start(t.Context(), Request{Agent: "a", Task: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Stop(t.Context(), started.ID); err != nil && !errors.Is(err, adapters.ErrConflict) {
			t.Error(err)
		}
	}
}

// deafAgent runs until the test ends it. A request to terminate it fails with fails.
type deafAgent struct {
	oneAgent
	fails error
	end   chan struct{}
}

func (d deafAgent) TerminateAgent(context.Context, string, time.Duration) (adapters.Agent, error) {
	return adapters.Agent{}, d.fails
}

func (d deafAgent) StreamEvents(ctx context.Context, id string, from uint64) (adapters.AgentStream, error) {
	<-d.end
	return d.oneAgent.StreamEvents(ctx, id, from)
}

// A request to stop a task did not reach the agent, because the host of the orchestrator was away. The task
// goes on, and completes by itself. If the request took too long, it has stopped the task.
func TestStopThatFails(t *testing.T) {
	for _, c := range []struct {
		fails error
		want  string
	}{
		{adapters.Unavailable(nil, "no host is attached"), Completed},
		{adapters.AsError(context.Canceled), Stopped},
	} {
		agent := deafAgent{oneAgent{change: func(string) error { return nil }}, c.fails, make(chan struct{})}
		m, err := New(Config{Dir: t.TempDir(), Templates: agent, Orchestrator: agent})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		started, err := m.Start(t.Context(), Request{Agent: "a", Task: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Stop(t.Context(), started.ID); !errors.Is(err, c.fails) {
			t.Errorf("stop: %v, want %v", err, c.fails)
		}
		m.mu.Lock()
		ended := m.tasks[started.ID].ended
		m.mu.Unlock()
		close(agent.end)
		inTime(t, "the task ends", func() { <-ended })
		if r, err := m.Get(started.ID); err != nil || r.Status != c.want {
			t.Errorf("after %v: %+v %v, want %s", c.fails, r, err, c.want)
		}
	}
}
