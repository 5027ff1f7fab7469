package orchestrator

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// The methods of the channel.
const (
	rpcSpawn       = "agent.spawn"
	rpcTerminate   = "agent.terminate"
	rpcList        = "agent.list"
	rpcGet         = "agent.get"
	rpcInput       = "agent.input"
	rpcSubscribe   = "agent.subscribe"
	rpcUnsubscribe = "agent.unsubscribe" // a notification
	rpcEvent       = "agent.event"       // a notification
	rpcEnd         = "agent.end"         // a notification: no event follows after the exit event
)

// maxSubscriptions of one peer.
const maxSubscriptions = 256

// listBytes is how much of a list goes into one answer.
const listBytes = maxLine / 2

// meta is the call metadata as it travels in "_meta".
type meta struct {
	SessionID      string `json:"session_id,omitempty"`
	ExecutionID    string `json:"execution_id,omitempty"`
	Actor          string `json:"actor,omitempty"`
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	TraceParent    string `json:"traceparent,omitempty"`
}

func metaOf(ctx context.Context) meta {
	m := adapters.MetaFrom(ctx)
	return meta{m.SessionID, m.ExecutionID, m.Actor, m.IdempotencyKey, m.TraceParent}
}

// actorHost is the actor of a host's call that names none.
const actorHost = "host"

// context carries the metadata of a peer's call. Only peers with all rights can attach through the
// control socket, so the peer may name the actor.
func (m meta) context(ctx context.Context) context.Context {
	return adapters.WithMeta(ctx, adapters.Meta{
		SessionID: m.SessionID, ExecutionID: m.ExecutionID, Actor: cmp.Or(m.Actor, actorHost), Admin: true,
		IdempotencyKey: m.IdempotencyKey, TraceParent: m.TraceParent,
	})
}

// The parameters and results of the methods.
type (
	spawnParams struct {
		adapters.AgentSpec
		Meta meta `json:"_meta,omitzero"`
	}
	agentParams struct {
		AgentID string `json:"agentId"`
		Meta    meta   `json:"_meta,omitzero"`
	}
	terminateParams struct {
		AgentID string `json:"agentId"`
		GraceMS *int64 `json:"grace_ms,omitempty"` // absent: DefaultGrace
		Meta    meta   `json:"_meta,omitzero"`
	}
	listParams struct {
		Status string            `json:"status,omitempty"`
		Labels map[string]string `json:"labels,omitempty"`
		Cursor string            `json:"cursor,omitempty"` // id of the last agent seen
		Meta   meta              `json:"_meta,omitzero"`
	}
	listResult struct {
		Agents     []adapters.Agent    `json:"agents"`
		NextCursor adapters.NullString `json:"next_cursor"`
	}
	inputParams struct {
		AgentID  string `json:"agentId"`
		Data     string `json:"data"`
		Encoding string `json:"encoding,omitempty"` // "base64" or none
		EOF      bool   `json:"eof,omitempty"`
		Meta     meta   `json:"_meta,omitzero"`
	}
	subscribeParams struct {
		AgentID string `json:"agentId"`
		From    uint64 `json:"from"`
		// Subscription is the caller's own name for the subscription, and comes back in every
		// event. If it is absent, the agent's id is used.
		Subscription string `json:"subscription,omitempty"`
		Meta         meta   `json:"_meta,omitzero"`
	}
	subscription struct {
		AgentID      string `json:"agentId"`
		Subscription string `json:"subscription,omitempty"`
	}
	eventParams struct {
		adapters.AgentEvent
		Subscription string `json:"subscription,omitempty"`
	}
	done struct{}
)

// server lets a peer use an orchestrator over one session.
type server struct {
	local adapters.Orchestrator

	mu   sync.Mutex
	subs map[string]context.CancelFunc
}

func newServer(local adapters.Orchestrator) *server {
	return &server{local: local, subs: make(map[string]context.CancelFunc)}
}

func params[T any](raw json.RawMessage) (T, error) {
	var p T
	if len(raw) == 0 || raw[0] != '{' {
		return p, adapters.Invalid("params", "must be an object")
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, adapters.Undecodable("params", err)
	}
	return p, nil
}

// serve serves a call of the host. If err is nil, result is the answer. after, if it is not nil, runs
// in a goroutine when the answer has been queued.
func (v *server) serve(ctx context.Context, s *session, method string, raw json.RawMessage) (result any, after func(), err error) {
	switch method {
	case rpcSpawn:
		p, err := params[spawnParams](raw)
		if err != nil {
			return nil, nil, err
		}
		result, err = v.local.SpawnAgent(p.Meta.context(ctx), p.AgentSpec)
		return result, nil, err
	case rpcTerminate:
		result, err = v.terminate(ctx, raw)
	case rpcList:
		result, err = v.list(ctx, raw)
	case rpcGet:
		p, err := params[agentParams](raw)
		if err != nil {
			return nil, nil, err
		}
		result, err = v.local.GetAgent(p.Meta.context(ctx), p.AgentID)
		return result, nil, err
	case rpcInput:
		result, err = v.input(ctx, raw)
	case rpcSubscribe:
		return v.subscribe(ctx, s, raw)
	default:
		err = &rpcError{Code: rpcNoMethod, Message: "there is no such method"}
	}
	return result, nil, err
}

func (v *server) terminate(ctx context.Context, raw json.RawMessage) (any, error) {
	p, err := params[terminateParams](raw)
	if err != nil {
		return nil, err
	}
	grace := time.Duration(-1)
	if p.GraceMS != nil {
		if *p.GraceMS < 0 || *p.GraceMS > adapters.MaxGrace.Milliseconds() {
			return nil, adapters.Invalid("grace_ms", "must be 0-%d", adapters.MaxGrace.Milliseconds())
		}
		grace = time.Duration(*p.GraceMS) * time.Millisecond
	}
	return v.local.TerminateAgent(p.Meta.context(ctx), p.AgentID, grace)
}

// list answers as many agents as fit a line; the cursor leads to the rest.
func (v *server) list(ctx context.Context, raw json.RawMessage) (any, error) {
	p, err := params[listParams](raw)
	if err != nil {
		return nil, err
	}
	all, err := v.local.ListAgents(p.Meta.context(ctx), adapters.AgentFilter{Status: p.Status, Labels: p.Labels})
	if err != nil {
		return nil, err
	}
	if p.Cursor != "" {
		i := slices.IndexFunc(all, func(a adapters.Agent) bool { return a.AgentID == p.Cursor })
		if i < 0 {
			return nil, adapters.Invalid("cursor", "is not one of ours, or its agent is forgotten")
		}
		all = all[i+1:]
	}
	r := listResult{Agents: []adapters.Agent{}}
	size := 0
	for _, a := range all {
		if size += len(mustJSON(a)); size > listBytes && len(r.Agents) > 0 {
			r.NextCursor = adapters.NullString(r.Agents[len(r.Agents)-1].AgentID)
			break
		}
		r.Agents = append(r.Agents, a)
	}
	return r, nil
}

func (v *server) input(ctx context.Context, raw json.RawMessage) (any, error) {
	p, err := params[inputParams](raw)
	if err != nil {
		return nil, err
	}
	data := []byte(p.Data)
	switch p.Encoding {
	case "":
	case "base64":
		if data, err = base64.StdEncoding.DecodeString(p.Data); err != nil {
			return nil, adapters.Invalid("data", "is not base64")
		}
	default:
		return nil, adapters.Invalid("encoding", "must be base64 or absent")
	}
	// One deaf agent must not hold up the input of all others for long.
	ctx, cancel := context.WithTimeout(p.Meta.context(ctx), callLimit)
	defer cancel()
	return done{}, v.local.SendInput(ctx, p.AgentID, data, p.EOF)
}

func (v *server) subscribe(ctx context.Context, s *session, raw json.RawMessage) (any, func(), error) {
	p, err := params[subscribeParams](raw)
	if err != nil {
		return nil, nil, err
	}
	name := cmp.Or(p.Subscription, p.AgentID)
	if err := adapters.CheckName("subscription", name, 128); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(p.Meta.context(ctx))
	if err := v.enter(name, cancel); err != nil {
		cancel()
		return nil, nil, err
	}
	stream, err := v.local.StreamEvents(ctx, p.AgentID, p.From)
	if err != nil {
		v.leave(name)
		return nil, nil, err
	}
	pump := func() {
		defer v.leave(name)
		defer stream.Close()
		v.pump(ctx, s, stream, subscription{p.AgentID, p.Subscription})
	}
	return done{}, pump, nil
}

func (v *server) enter(name string, cancel context.CancelFunc) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.subs[name] != nil:
		return adapters.Errorf(adapters.CodeConflict, "there is a subscription %q already", name).Final()
	case len(v.subs) >= maxSubscriptions:
		return adapters.Errorf(adapters.CodeRateLimited, "more than %d subscriptions", maxSubscriptions)
	}
	v.subs[name] = cancel
	return nil
}

func (v *server) leave(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if cancel := v.subs[name]; cancel != nil {
		cancel()
		delete(v.subs, name)
	}
}

// pump sends events until the exit, or until the caller unsubscribes. With a slow peer it waits,
// and the agent's ring reports what was lost.
func (v *server) pump(ctx context.Context, s *session, stream adapters.AgentStream, sub subscription) {
	for {
		e, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) {
			// An error means that the session has ended, and this pump with it.
			_ = s.notify(ctx, rpcEnd, sub)
			return
		}
		if err != nil {
			return
		}
		if s.notify(ctx, rpcEvent, eventParams{e, sub.Subscription}) != nil {
			return
		}
	}
}

// unsubscribe ends a subscription, if there is one of the name.
func (v *server) unsubscribe(raw json.RawMessage) {
	p, err := params[subscription](raw)
	if err != nil {
		return // a notification has no answer
	}
	name := cmp.Or(p.Subscription, p.AgentID)
	v.mu.Lock()
	cancel := v.subs[name]
	v.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
