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
