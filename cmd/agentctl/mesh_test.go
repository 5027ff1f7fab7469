package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

// fakeMesh is a mesh whose answers the test sets.
type fakeMesh struct {
	status  rest.MeshStatus
	receipt rest.MeshReceipt
	err     error

	got    rest.MeshMessage
	key    string
	wait   time.Duration
	filter rest.MeshFilter
	events []rest.MeshEvent
}

func (m *fakeMesh) Status() (rest.MeshStatus, error) { return m.status, m.err }

func (m *fakeMesh) Publish(ctx context.Context, in rest.MeshMessage, wait time.Duration) (rest.MeshReceipt, error) {
	m.got, m.wait, m.key = in, wait, adapters.MetaFrom(ctx).IdempotencyKey
	return m.receipt, m.err
}

func (m *fakeMesh) Receipt(string) (rest.MeshReceipt, error) { return m.receipt, m.err }

func (m *fakeMesh) Subscribe(_ context.Context, f rest.MeshFilter) (rest.MeshStream, error) {
	m.filter = f
	return &fakeStream{m.events}, m.err
}

type fakeStream struct{ events []rest.MeshEvent }

func (s *fakeStream) Next(ctx context.Context) (rest.MeshEvent, error) {
	if len(s.events) == 0 {
		<-ctx.Done()
		return rest.MeshEvent{}, ctx.Err()
	}
	e := s.events[0]
	s.events = s.events[1:]
	return e, nil
}

func (*fakeStream) Close() {}

func TestMeshStatus(t *testing.T) {
	b := newSlotsBox(t)
	b.mesh.err = adapters.Unsupported("mesh", "this box has no relays")
	if _, stderr := b.run(1, "", "mesh", "status"); !strings.Contains(stderr, "no relays") {
		t.Errorf("without relays: %s", stderr)
	}
	b.mesh.err = nil
	b.mesh.status = rest.MeshStatus{Npub: "npub1x", Relays: []rest.MeshRelay{
		{URL: "ws://127.0.0.1:7777", Own: true, State: "connected", LoggedIn: true, Publishes: true, Subscribes: true, LatencyMS: 1.25, LastEvent: time.Unix(1_700_000_000, 0), Events: 3, Published: 2, Name: "agentbox"},
		{URL: "wss://relay.example.org", State: "waiting", Publishes: true, Error: "refused\x1b[2J"},
	}}
	out, _ := b.run(0, "", "mesh", "status")
	for _, want := range []string{"connected  both     1.2ms    2023-11-14T22:13:20Z  3         2          yes    (own) agentbox", "waiting    publish  -        -", `refused\x1b[2J`, "mailbox  not open"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	b.mesh.status.EventsWait = &rest.MeshWait{Event: "e-7", Since: time.Unix(1_700_000_000, 0), Tries: 3, Reason: "ws://a: rate-limited: \x1b[2J"}
	if out, _ = b.run(0, "", "mesh", "status"); !strings.Contains(out, "\nevents   wait for e-7 since 2023-11-14T22:13:20Z (3 attempts): ws://a: rate-limited: "+`\x1b[2J`+"\n") {
		t.Error(out)
	}
	b.mesh.status.Mailbox = &rest.MeshMailbox{Inbox: 5, Untold: 1, Pending: 2, Published: 3, Failed: 4}
	if out, _ = b.run(0, "", "mesh", "status"); !strings.Contains(out, "5 messages, 1 not yet in the events slot; receiving is off") || !strings.Contains(out, "2 pending, 3 published, 4 failed") {
		t.Error(out)
	}
	out, _ = b.run(0, "", "mesh", "status", "--json")
	var back rest.MeshStatus
	if err := json.Unmarshal([]byte(out), &back); err != nil || *back.Mailbox != *b.mesh.status.Mailbox || len(back.Relays) != 2 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestMeshPublish(t *testing.T) {
	b := newSlotsBox(t)
	b.mesh.receipt = rest.MeshReceipt{PendingID: "p-1", Status: "published", EventID: "e1"}
	out, stderr := b.run(0, "", "mesh", "publish", "hello", "--tag", "t=a=b", "--key", "k", "--wait", "3s")
	if out != "e1\n" || stderr != "" || b.mesh.got.Kind != 1 || b.mesh.got.Content != "hello" || b.mesh.key != "k" || b.mesh.wait != 3*time.Second || b.mesh.got.Tags[0][1] != "a=b" {
		t.Errorf("%s%s%+v", out, stderr, b.mesh)
	}
	b.run(0, "from stdin", "mesh", "publish", "--to", "npub1x", "-")
	if b.mesh.got.Kind != 14 || b.mesh.got.To != "npub1x" || b.mesh.got.Content != "from stdin" {
		t.Errorf("%+v", b.mesh.got)
	}
	b.mesh.receipt = rest.MeshReceipt{PendingID: "p-1", Status: "pending", Reason: "ws://a: refused"}
	if out, stderr = b.run(0, "", "mesh", "publish", "x"); out != "p-1\n" || !strings.HasSuffix(stderr, "waits in the outbox (agentctl mesh status): ws://a: refused\n") {
		t.Errorf("%s%s", out, stderr)
	}
	b.mesh.receipt = rest.MeshReceipt{PendingID: "p-1", Status: "failed", EventID: "e1", Reason: "ws://a: blocked: no"}
	if _, stderr = b.run(1, "", "mesh", "publish", "x"); !strings.Contains(stderr, "blocked: no") {
		t.Error(stderr)
	}
	b.mesh.err = adapters.Invalid("kind", "is wrong")
	if _, stderr = b.run(1, "", "mesh", "publish", "x"); !strings.Contains(stderr, "is wrong") {
		t.Error(stderr)
	}
	for _, args := range [][]string{{"x", "--tag", "novalue"}, {"x", "--wait", "2m"}, {}} {
		b.run(2, "", append([]string{"mesh", "publish"}, args...)...)
	}
}

func TestMeshSubscribe(t *testing.T) {
	b := newSlotsBox(t)
	raw := `{"id":"e1","pubkey":"0123456789","kind":1,"created_at":1700000000,"tags":[],"content":"a\u001b[2Jb","sig":"s"}`
	b.mesh.events = []rest.MeshEvent{{Relay: "ws://a", Event: json.RawMessage(raw)}, {Relay: "ws://a", Event: json.RawMessage(raw)}}
	out, _ := b.run(0, "", "mesh", "subscribe", "--kind", "1", "--kind", "30078", "--author", "npub1x", "--to", "npub1y", "--limit", "-1", "--count", "2")
	if want := "2023-11-14T22:13:20Z      1  01234567  a\\x1b[2Jb\n"; out != want+want {
		t.Errorf("%q", out)
	}
	if f := b.mesh.filter; len(f.Kinds) != 2 || f.Kinds[1] != 30078 || f.Authors[0] != "npub1x" || f.To[0] != "npub1y" || f.Limit != -1 {
		t.Errorf("%+v", f)
	}
	out, _ = b.run(0, "", "mesh", "subscribe", "--count", "1", "--json")
	var e rest.MeshEvent
	if err := json.Unmarshal([]byte(out), &e); err != nil || e.Relay != "ws://a" || b.mesh.filter.Limit != 100 {
		t.Errorf("%v: %s", err, out)
	}
	b.run(1, "", "mesh", "subscribe", "--kind", "-1", "--count", "1")
}
