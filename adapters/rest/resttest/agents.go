package resttest

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// Agents speaks the agent routes of the box at a base URL. It is safe for
// concurrent use.
type Agents struct{ remote }

var _ adapters.Orchestrator = (*Agents)(nil)

// NewAgents makes the client without any I/O.
func NewAgents(base string, auth wire.Authorizer) (*Agents, error) {
	a := new(Agents)
	return a, a.open(adapters.SlotOrchestrator, "local-process-manager", base, auth)
}

const agentsPath = "/v1/agents"

func agentPath(id string) string { return agentsPath + "/" + url.PathEscape(id) }

// SpawnAgent implements adapters.Orchestrator.
func (a *Agents) SpawnAgent(ctx context.Context, spec adapters.AgentSpec) (out adapters.Agent, err error) {
	err = a.json(ctx, wire.Request{Method: http.MethodPost, Path: agentsPath, Keyed: true}, spec, &out)
	return out, err
}

// ListAgents implements adapters.Orchestrator.
func (a *Agents) ListAgents(ctx context.Context, f adapters.AgentFilter) ([]adapters.Agent, error) {
	q := url.Values{}
	if f.Status != "" {
		q.Set("status", f.Status)
	}
	for name, value := range f.Labels {
		q.Add("label", name+"="+value)
	}
	var out adapters.Page[adapters.Agent]
	err := a.json(ctx, wire.Request{Method: http.MethodGet, Path: agentsPath, Query: q}, nil, &out)
	return out.Items, err
}

// TerminateAgent implements adapters.Orchestrator. The routes count the grace
// in whole seconds; it is rounded up.
func (a *Agents) TerminateAgent(ctx context.Context, id string, grace time.Duration) (out adapters.Agent, err error) {
	q := url.Values{}
	if grace >= 0 {
		q.Set("grace_s", strconv.Itoa(int((grace+time.Second-1)/time.Second)))
	}
	err = a.json(ctx, wire.Request{Method: http.MethodDelete, Path: agentPath(id), Query: q}, nil, &out)
	return out, err
}

// GetAgent implements adapters.Orchestrator.
func (a *Agents) GetAgent(ctx context.Context, id string) (out adapters.Agent, err error) {
	err = a.json(ctx, wire.Request{Method: http.MethodGet, Path: agentPath(id)}, nil, &out)
	return out, err
}

// SendInput implements adapters.Orchestrator.
func (a *Agents) SendInput(ctx context.Context, id string, data []byte, eof bool) error {
	body := rest.InputBody{Data: string(data), EOF: eof}
	if !utf8.Valid(data) {
		body.Data, body.Encoding = base64.StdEncoding.EncodeToString(data), "base64"
	}
	return a.json(ctx, wire.Request{Method: http.MethodPost, Path: agentPath(id) + "/input"}, body, nil)
}
