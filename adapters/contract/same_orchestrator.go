package contract

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// SameOrchestrator runs the same random scripts with two classes. It compares every answer, and the
// output and events of the agents. prog is the path of the test program.
func SameOrchestrator(t *testing.T, prog string, one, other func(testing.TB) adapters.Orchestrator) {
	s := &agentsScript{twins: newTwins(t, adapters.WrapOrchestrator, one, other), prog: prog}
	rapid.Check(t, func(r *rapid.T) {
		s.round++
		s.ids = nil
		s.spawn(r)
		for range rapid.IntRange(0, 4).Draw(r, "steps") {
			s.step(r)
		}
		for _, id := range s.ids {
			s.end(r, id)
		}
	})
}

type agentsScript struct {
	*twins[adapters.Orchestrator]
	prog  string
	round int
	ids   [][2]string
}

func (s *agentsScript) labels() map[string]string {
	return map[string]string{"round": fmt.Sprint(s.round)}
}

func (s *agentsScript) spawn(r *rapid.T) {
	spec := rapid.SampledFrom([]adapters.AgentSpec{
		{Args: []string{"exit", "0"}}, {Args: []string{"exit", "3"}}, {Args: []string{"die", "9"}}, {Args: []string{"both"}},
		{Args: []string{"print-lines", "3", "line"}}, {Args: []string{"cat"}, Stdin: "first\n"}, {Args: []string{"cat"}, StdinOpen: true},
		{Command: "no-such-command-anywhere"}, {Args: []string{"exit"}, Cwd: "/etc"}, {Args: []string{"exit"}, TimeoutS: -1}, {Args: []string{"a\x00b"}},
	}).Draw(r, "agent")
	spec.Command = cmp.Or(spec.Command, s.prog)
	spec.Labels = s.labels()
	made, ok := compare(r, s.twins, "spawnAgent", func(i int, o adapters.Orchestrator) (adapters.Agent, error) {
		a, err := o.SpawnAgent(s.ctx, spec)
		if err == nil {
			s.names[i][a.AgentID] = fmt.Sprintf("agent-%d-%d", s.round, len(s.ids))
		}
		// On one side, the agent may already have ended.
		a.Status, a.PID, a.ExitCode, a.Signal, a.EndedAt = "", 0, nil, "", adapters.Time{}
		return a, err
	})
	if ok {
		s.ids = append(s.ids, [2]string{made[0].AgentID, made[1].AgentID})
	}
}

func (s *agentsScript) step(r *rapid.T) {
	id := rapid.SampledFrom(append(slices.Clone(s.ids), [2]string{"nobody", "nobody"}, [2]string{"no/body", "no/body"})).Draw(r, "id")
	switch rapid.IntRange(0, 3).Draw(r, "what") {
	case 0, 1:
		s.spawn(r)
	case 2:
		s.end(r, id)
	case 3: // all agents of this round, running or not
		compare(r, s.twins, "listAgents", func(_ int, o adapters.Orchestrator) (ids []string, err error) {
			list, err := o.ListAgents(s.ctx, adapters.AgentFilter{Labels: s.labels()})
			for _, a := range list {
				ids = append(ids, a.AgentID)
			}
			return ids, err
		})
	}
}

// end closes an agent's input, reads its events to the end and compares its final state.
func (s *agentsScript) end(r *rapid.T, id [2]string) {
	for i, o := range s.sides {
		// An agent without an open input refuses this. The refusals are compared below.
		_ = o.SendInput(s.ctx, id[i], []byte("last\n"), true)
	}
	compare(r, s.twins, "streamEvents", func(i int, o adapters.Orchestrator) (map[string]string, error) {
		return s.hear(o, id[i])
	})
	compare(r, s.twins, "sendInput after the end", func(i int, o adapters.Orchestrator) (bool, error) {
		return true, o.SendInput(s.ctx, id[i], []byte("x"), false)
	})
	agent := func(a adapters.Agent, err error) (adapters.Agent, error) {
		a.PID = 0
		return a, err
	}
	compare(r, s.twins, "getAgent", func(i int, o adapters.Orchestrator) (adapters.Agent, error) {
		return agent(o.GetAgent(s.ctx, id[i]))
	})
	compare(r, s.twins, "terminateAgent", func(i int, o adapters.Orchestrator) (adapters.Agent, error) {
		return agent(o.TerminateAgent(s.ctx, id[i], 0))
	})
}

// hear returns the whole output of an agent for each kind of event, regardless of the pieces, and the
// order of the other events.
func (s *agentsScript) hear(o adapters.Orchestrator, id string) (map[string]string, error) {
	said := map[string]string{}
	stream, err := o.StreamEvents(s.ctx, id, 0)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for {
		e, err := stream.Next(s.ctx)
		if errors.Is(err, io.EOF) {
			return said, nil
		}
		if err != nil {
			return nil, err
		}
		if e.Kind != adapters.AgentEventStdout && e.Kind != adapters.AgentEventStderr {
			said["events"] += e.Kind + " "
		}
		var p struct{ Data string }
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			return nil, err
		}
		said[e.Kind] += p.Data
		if e.Kind == adapters.AgentEventExit {
			said["end"] = string(e.Payload)
		}
	}
}
