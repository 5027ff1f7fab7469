package rest

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// InputBody is what is written to an agent's standard input.
type InputBody struct {
	Data     string `json:"data"`
	Encoding string `json:"encoding,omitempty"` // "base64", "" = text
	EOF      bool   `json:"eof,omitempty"`      // close standard input after Data
}

// agentID returns the agent's id from the path. An agent may name only itself.
func (q *request) agentID() (string, error) {
	id := q.param("id")
	if q.who.Role == RoleAgent && q.who.ID != id {
		return "", adapters.Errorf(adapters.CodePermissionDenied, "an agent may reach itself alone")
	}
	return id, nil
}

func spawnAgent(q *request, in adapters.AgentSpec) error {
	a, err := q.s.cfg.Slots.Orchestrator().SpawnAgent(q.Context(), in)
	if err != nil {
		return err
	}
	q.w.Header().Set("Location", "/v1/agents/"+a.AgentID)
	return q.reply(http.StatusCreated, a)
}

func listAgents(q *request) error {
	v := q.URL.Query()
	f := adapters.AgentFilter{Status: v.Get("status")}
	switch f.Status {
	case "", adapters.AgentRunning, adapters.AgentExited, adapters.AgentFailed, adapters.AgentTerminated:
	default:
		return adapters.Invalid("status", "must be running, exited, failed or terminated")
	}
	for _, l := range v["label"] {
		name, value, ok := strings.Cut(l, "=")
		if !ok {
			return adapters.Invalid("label", "must be name=value")
		}
		if f.Labels == nil {
			f.Labels = make(map[string]string)
		}
		f.Labels[name] = value
	}
	out, err := q.s.cfg.Slots.Orchestrator().ListAgents(q.Context(), f)
	if err != nil {
		return err
	}
	return part(q, out, func(a adapters.Agent) string { return a.AgentID })
}

func getAgent(q *request) error {
	id, err := q.agentID()
	if err != nil {
		return err
	}
	a, err := q.s.cfg.Slots.Orchestrator().GetAgent(q.Context(), id)
	return q.result(http.StatusOK, a, err)
}

func terminateAgent(q *request) error {
	id, err := q.agentID()
	if err != nil {
		return err
	}
	grace := time.Duration(-1)
	if v := q.URL.Query(); v.Has("grace_s") {
		n, err := intParam(v, "grace_s")
		if err != nil || n < 0 || n > int(adapters.MaxGrace/time.Second) {
			return adapters.Invalid("grace_s", "must be 0-%d", adapters.MaxGrace/time.Second)
		}
		grace = time.Duration(n) * time.Second
	}
	// The answer comes when the process tree is gone. That may take longer than the deadlines of
	// the listener.
	q.readDeadline(0)
	q.writeDeadline(0)
	a, err := q.s.cfg.Slots.Orchestrator().TerminateAgent(q.Context(), id, grace)
	return q.result(http.StatusOK, a, err)
}

func streamAgent(q *request) error {
	id, err := q.agentID()
	if err != nil {
		return err
	}
	from, given, err := q.position()
	if err != nil {
		return err
	}
	if given {
		from++ // the slot begins at from, the caller names the last event it has; 0 is the oldest kept
	}
	return q.follow(func(ctx context.Context) (feed, error) {
		st, err := q.s.cfg.Slots.Orchestrator().StreamEvents(ctx, id, from)
		if err != nil {
			return feed{}, err
		}
		return feed{close: st.Close, next: func(ctx context.Context) (message, error) {
			e, err := st.Next(ctx)
			if err != nil {
				return message{}, err
			}
			return seqMessage(e.Seq, e.Kind, e)
		}}, nil
	})
}

func sendInput(q *request) error {
	id, err := q.agentID()
	if err != nil {
		return err
	}
	var in InputBody
	if err := q.json(&in); err != nil {
		return err
	}
	data := []byte(in.Data)
	switch in.Encoding {
	case "":
	case "base64":
		if data, err = base64.StdEncoding.DecodeString(in.Data); err != nil {
			return adapters.Invalid("data", "is not base64")
		}
	default:
		return adapters.Invalid("encoding", "must be base64, or absent for text")
	}
	return q.done(q.s.cfg.Slots.Orchestrator().SendInput(q.Context(), id, data, in.EOF))
}
