package adapters

import (
	"context"
	"maps"
	"slices"
	"time"
)

// WrapOrchestrator wraps one implementation in mw (nil = guard and limits); see WrapBeads.
func WrapOrchestrator(a Orchestrator, mw Middleware) Orchestrator {
	return orchestratorPort{wrapped(SlotOrchestrator, a, mw)}
}

type orchestratorPort struct{ *port }

var _ Orchestrator = orchestratorPort{}

func (p orchestratorPort) SpawnAgent(ctx context.Context, spec AgentSpec) (Agent, error) {
	args := spec
	spec.Args = slices.Clone(spec.Args)
	spec.Env = maps.Clone(spec.Env)
	spec.Labels = maps.Clone(spec.Labels)
	text := []Text{{String: &spec.Stdin}}
	for i := range spec.Args {
		text = append(text, Text{String: &spec.Args[i]})
	}
	c := Call{
		Method: "spawnAgent", Write: true, Creates: true, Args: args, Text: text,
		Check: func() error { return spec.check() },
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Orchestrator) (Agent, error) { return a.SpawnAgent(ctx, spec) })
}

func (p orchestratorPort) StreamEvents(ctx context.Context, agentID string, from uint64) (AgentStream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := Call{Method: "streamEvents", Cancel: cancel, Check: func() error { return CheckID("agentId", agentID) }}
	s, err := via(ctx, p.port, c, func(ctx context.Context, a Orchestrator) (AgentStream, error) {
		return a.StreamEvents(ctx, agentID, from)
	})
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &agentStream{AgentStream: s, once: onceCancel(cancel, s.Close)}, nil
}

type agentStream struct {
	AgentStream
	once func() error
}

func (s *agentStream) Close() error { return s.once() }

func (p orchestratorPort) ListAgents(ctx context.Context, filter AgentFilter) ([]Agent, error) {
	list, err := via(ctx, p.port, Call{Method: "listAgents", Check: func() error { return checkLabels(filter.Labels) }},
		func(ctx context.Context, a Orchestrator) ([]Agent, error) { return a.ListAgents(ctx, filter) })
	if list == nil && err == nil {
		list = []Agent{}
	}
	return list, err
}

func (p orchestratorPort) TerminateAgent(ctx context.Context, agentID string, grace time.Duration) (Agent, error) {
	if grace < 0 {
		grace = DefaultGrace
	}
	c := Call{Method: "terminateAgent", Write: true, Limit: grace + terminateSlack, Check: func() error {
		if grace > MaxGrace {
			return Invalid("grace", "must not exceed %v", MaxGrace)
		}
		return CheckID("agentId", agentID)
	}}
	return via(ctx, p.port, c, func(ctx context.Context, a Orchestrator) (Agent, error) {
		return a.TerminateAgent(ctx, agentID, grace)
	})
}

// terminateSlack is the time for SIGKILL and reaping after the grace period.
const terminateSlack = 20 * time.Second

func (p orchestratorPort) GetAgent(ctx context.Context, agentID string) (Agent, error) {
	return via(ctx, p.port, Call{Method: "getAgent", Check: func() error { return CheckID("agentId", agentID) }},
		func(ctx context.Context, a Orchestrator) (Agent, error) { return a.GetAgent(ctx, agentID) })
}

func (p orchestratorPort) SendInput(ctx context.Context, agentID string, data []byte, eof bool) error {
	text := string(data)
	c := Call{
		Method: "sendInput", Write: true, Text: []Text{{String: &text}},
		Check: func() error {
			if len(data) > MaxAgentInput {
				return TooLarge("input", MaxAgentInput, int64(len(data)))
			}
			return CheckID("agentId", agentID)
		},
	}
	return exec(ctx, p.port, c, func(ctx context.Context, a Orchestrator) error {
		return a.SendInput(ctx, agentID, []byte(text), eof)
	})
}
