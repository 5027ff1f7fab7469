package mailbox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
	"github.com/dreamlab-ai/agentinit/mesh/relay"
)

// served is the box's relay for those who log in, and a pool of own at it.
func served(t *testing.T, own *identity.Key) (string, *pool.Pool) {
	t.Helper()
	policy := relay.Policy{Ingress: relay.SignedOnly, Own: []string{string(own.Public())}, Kinds: []int{1, 1059, 38000}, MaxEventBytes: 1 << 16}
	r, err := relay.Start(t.Context(), relay.Config{Dir: t.TempDir(), MessagesPerSec: 100, Policy: func() relay.Policy { return policy }, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
	url := "ws://" + l.Addr().String()
	p, err := pool.Start(pool.Config{URLs: []string{url}, Signer: own, Document: pool.FetchDocument})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return url, p
}

// live is a mailbox at real relays; what it is told of comes from the channel.
func live(t *testing.T, own *identity.Key, friend identity.PublicKey, p *pool.Pool) (*Mailbox, *disk, <-chan Notice) {
	t.Helper()
	d, told := newDisk(), make(chan Notice, 16)
	m, err := Open(Config{
		Dir: "/pod/events", Files: d, Relays: p, Receive: true, Key: func() *identity.Key { return own },
		Policy: func() Policy {
			return Policy{Own: string(own.Public()), Trusted: []string{string(friend)}, Kinds: []int{1, 1059, 38000}, MaxEventBytes: 1 << 16, Retention: 30 * 24 * time.Hour}
		},
		Tell:   func(_ context.Context, n Notice) error { told <- n; return nil },
		Report: func(what string, fields map[string]any) { t.Errorf("%s: %v", what, fields) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return m, d, told
}

// send sends and waits until a relay has it.
func send(t *testing.T, m *Mailbox, o Outgoing) Entry {
	t.Helper()
	e, err := m.Send(o, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if e, _, err = m.Wait(ctx, e.PendingID); err != nil || e.Status != Published {
		t.Fatalf("%+v, %v", e, err)
	}
	return e
}

func received(t *testing.T, d *disk, told <-chan Notice) (message string, n Notice) {
	t.Helper()
	select {
	case n = <-told:
	case <-time.After(60 * time.Second):
		t.Fatal("no message came in")
	}
	raw, _, err := d.ReadFile("/pod/events/inbox/"+n.File, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _, m, err := ParseRecord(raw)
	if err != nil {
		t.Fatal(err)
	}
	return m.Content, n
}

// Two boxes at one relay write to each other, in the clear and privately.
func TestTwoBoxes(t *testing.T) {
	a, b := newKey(t), newKey(t)
	url, pa := served(t, a)
	pb, err := pool.Start(pool.Config{URLs: []string{url}, Signer: b})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pb.Close)
	boxA, diskA, toldA := live(t, a, b.Public(), pa)
	boxB, diskB, toldB := live(t, b, a.Public(), pb)
	send(t, boxA, Outgoing{Kind: nip01.KindIntent, Content: `{"do":1}`, Tags: nostr.Tags{{"p", string(b.Public())}}})
	if got, n := received(t, diskB, toldB); got != `{"do":1}` || n.Private || n.Sender != string(a.Public()) || len(diskB.in(queueDir)) != 1 {
		t.Errorf("b has read %q, %+v", got, n)
	}
	send(t, boxB, Outgoing{Kind: KindChat, Content: "done", To: a.Public()})
	if got, n := received(t, diskA, toldA); got != "done" || !n.Private || n.Sender != string(b.Public()) {
		t.Errorf("a has read %q, %+v", got, n)
	}
}

// nostr-tools reads what the box sends privately (NIP-17), and the box what
// nostr-tools sends.
func TestWithNostrTools(t *testing.T) {
	secret := []byte("a secret of 32 bytes for a test!")
	peer, err := identity.KeyFromBytes(secret)
	if err != nil {
		t.Fatal(err)
	}
	own := newKey(t)
	url, p := served(t, own)
	m, d, told := live(t, own, peer.Public(), p)
	const text = "hello peer \u20ac \U0001f600 \u2028 \"q\" \\ \n"
	send(t, m, Outgoing{Kind: KindChat, Content: text, To: peer.Public()})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	out, err := foreign.NostrTools(ctx, nil, filepath.Join("testdata", "peer.cjs"), url, hex.EncodeToString(secret), string(own.Public()))
	if missing := (*foreign.MissingError)(nil); errors.As(err, &missing) {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	type message struct {
		Kind            int
		Pubkey, Content string
	}
	var read []message
	if err := json.Unmarshal(out, &read); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(read) != 1 || read[0] != (message{KindChat, string(own.Public()), text}) {
		t.Errorf("nostr-tools has read %+v", read)
	}
	content, n := received(t, d, told)
	if content != "hello box \u20ac \U0001f600 \u2028 \"q\" \\ \n" || n.Sender != string(peer.Public()) || !n.Private || n.Kind != KindChat {
		t.Errorf("the box has read %q, %+v", content, n)
	}
}
