package rest_test

import (
	"context"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

// lastMessage is a Mesh that keeps the message it was given.
type lastMessage struct {
	rest.Mesh
	got rest.MeshMessage
}

func (l *lastMessage) Publish(ctx context.Context, m rest.MeshMessage, _ time.Duration) (rest.MeshReceipt, error) {
	adapters.ReportFrom(ctx).Replayed = m.Content == l.got.Content
	l.got = m
	return rest.MeshReceipt{Status: "pending"}, nil
}

// A message that the mailbox already had is marked, like every other replay.
func TestPublishTellsReplays(t *testing.T) {
	b := newBox(t, func(c *rest.Config) { c.Mesh = &lastMessage{} })
	for _, want := range []string{"", "true"} {
		a := b.do("admin", "POST", "/v1/mesh/publish", `{"content":"x"}`, "Idempotency-Key", "k").is(202)
		if got := a.header.Get("Idempotent-Replayed"); got != want {
			t.Errorf("Idempotent-Replayed is %q, want %q", got, want)
		}
	}
}

// TestPublishWithoutKind: kind 0 replaces the box's profile on all relays, so it is no default.
func TestPublishWithoutKind(t *testing.T) {
	mesh := &lastMessage{}
	b := newBox(t, func(c *rest.Config) { c.Mesh = mesh })
	for body, want := range map[string]rest.MeshMessage{
		`{"content":"x"}`:            {Kind: 1, Content: "x"},
		`{"content":"x","to":"k"}`:   {Kind: 14, Content: "x", To: "k"},
		`{"content":"x","kind":0}`:   {Kind: 0, Content: "x"},
		`{"content":"","kind":3800}`: {Kind: 3800},
	} {
		b.do("admin", "POST", "/v1/mesh/publish", body).is(202)
		if mesh.got.Kind != want.Kind || mesh.got.Content != want.Content || mesh.got.To != want.To {
			t.Errorf("%s publishes %+v", body, mesh.got)
		}
	}
	for _, body := range []string{``, `null`, `{}`, `{"kind":1}`} {
		if m := b.do("admin", "POST", "/v1/mesh/publish", body).is(400).problem(adapters.CodeValidation); m["field"] != "content" {
			t.Errorf("%s: %v", body, m)
		}
	}
}
