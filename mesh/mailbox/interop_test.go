package mailbox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
	"github.com/dreamlab-ai/agentinit/mesh/relay"
	"github.com/dreamlab-ai/agentinit/mesh/relay/relaytest"
)

// served starts a relay that requires a login, and a pool that is connected to it with the key own.
func served(t *testing.T, own *identity.Key) (string, *pool.Pool) {
	t.Helper()
	url := relaytest.Serve(t, own, relay.SignedOnly, 1, 1059, 38000)
	p, err := pool.Start(pool.Config{URLs: []string{url}, Signer: own, Document: pool.FetchDocument})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return url, p
}

// live opens a mailbox with a real pool. Its notices arrive on the channel.
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

// send sends a message and waits until a relay has it.
func send(t *testing.T, m *Mailbox, o Outgoing) Entry {
	t.Helper()
	e, err := m.Send(o, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if e, _, err = m.Wait(t.Context(), e.PendingID); err != nil || e.Status != Published {
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
	_, _, m, err := parseRecord(raw)
	if err != nil {
		t.Fatal(err)
	}
	return m.Content, n
}

// Two boxes with one relay write to each other, publicly and privately.
func TestTwoBoxes(t *testing.T) {
	a, b := relaytest.NewKey(t), relaytest.NewKey(t)
	url, pa := served(t, a)
	pb, err := pool.Start(pool.Config{URLs: []string{url}, Signer: b})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pb.Close)
	boxA, diskA, toldA := live(t, a, b.Public(), pa)
	boxB, diskB, toldB := live(t, b, a.Public(), pb)
	send(t, boxA, Outgoing{Kind: nip01.KindIntent, Content: `{"do":1}`, Tags: nostr.Tags{{"p", string(b.Public())}}})
	if got, n := received(t, diskB, toldB); got != `{"do":1}` || n.Private || n.Sender != string(a.Public()) {
		t.Errorf("b has read %q, %+v", got, n)
	}
	for t.Context().Err() == nil && boxB.Counts().Untold > 0 { // the notice comes before the marker
		runtime.Gosched()
	}
	if queued := diskB.in(queueDir); len(queued) != 1 {
		t.Errorf("the queue of b holds %v", queued)
	}
	send(t, boxB, Outgoing{Kind: KindChat, Content: "done", To: a.Public()})
	if got, n := received(t, diskA, toldA); got != "done" || !n.Private || n.Sender != string(b.Public()) {
		t.Errorf("a has read %q, %+v", got, n)
	}
}

// While a box is away, strangers write more gift wraps to it than the relay gives at once, all of them newer
// than the one of a friend.
func TestGiftWrapBehindThoseOfStrangers(t *testing.T) {
	host, own, friend := relaytest.NewKey(t), relaytest.NewKey(t), relaytest.NewKey(t)
	url, p := served(t, host)
	publish := func(e *nostr.Event) {
		results, err := p.Publish(t.Context(), e)
		for errors.Is(err, pool.ErrNoRelay) && t.Context().Err() == nil { // the pool has not connected yet
			runtime.Gosched()
			results, err = p.Publish(t.Context(), e)
		}
		if err != nil || !results[0].Accepted {
			t.Error(results, err)
		}
	}
	wrap := gift(t, friend, rumor(friend, KindChat, "at last", own), own)
	publish(wrap)
	var strangers sync.WaitGroup
	for i := range 16 {
		strangers.Go(func() {
			for n := range 32 { // 512 in all, and the relay gives 500
				publish(signed(t, host, nostr.Event{
					Kind: nip01.KindGiftWrap, CreatedAt: wrap.CreatedAt + 1 + nostr.Timestamp(32*i+n), Tags: nostr.Tags{{"p", string(own.Public())}}, Content: "x",
				}))
			}
		})
	}
	strangers.Wait()
	mine, err := pool.Start(pool.Config{URLs: []string{url}, Signer: own})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mine.Close)
	d, told := newDisk(), make(chan Notice, 1)
	m, err := Open(Config{
		Dir: "/pod/events", Files: d, Relays: mine, Receive: true, Key: func() *identity.Key { return own },
		Policy: func() Policy {
			p := allows(own, friend)
			p.Retention = 0 // now is long ago
			return p
		},
		Tell: func(_ context.Context, n Notice) error { told <- n; return nil }, // the wraps of strangers are reported
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if got, _ := received(t, d, told); got != "at last" {
		t.Errorf("the box has read %q", got)
	}
}

// If a message cannot be written to disk, the mailbox asks the relay for it again.
func TestFailedWriteIsMadeUpFor(t *testing.T) {
	own, friend := relaytest.NewKey(t), relaytest.NewKey(t)
	synctest.Test(t, func(t *testing.T) {
		conn := &script{lines: make(chan []byte, 16), asked: make(chan string, 16)}
		p, err := pool.Start(pool.Config{URLs: []string{"ws://a"}, Dial: func(context.Context, string) (pool.Conn, error) { return conn, nil }})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // a subscription made during the dial may be sent twice, which is harmless
		w := newWorld(t)
		w.own, w.key, w.friend, w.disk.broken = own, own, friend, errors.New("no space left on device")
		m := w.open(t)
		m.cfg.Relays, m.cfg.Receive = p, true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		e := signed(t, friend, nostr.Event{Kind: 1, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"p", string(own.Public())}}})
		began := time.Now()
		conn.lines <- nip01.Message(nip01.VerbEvent, <-conn.asked, e)
		synctest.Wait()
		w.disk.mu.Lock()
		w.disk.broken = nil
		w.disk.mu.Unlock()
		conn.lines <- nip01.Message(nip01.VerbEvent, <-conn.asked, e)
		synctest.Wait()
		if took := time.Since(began); took != sweepSoon || len(w.told) != 1 {
			t.Errorf("after %s it was told %d times", took, len(w.told))
		}
		cancel()
		<-done
		p.Close()
	})
}

// script is a connection to a relay that the test plays.
type script struct {
	lines chan []byte
	asked chan string // the subscriptions of REQ
}

func (s *script) Read(ctx context.Context) ([]byte, error) {
	select {
	case raw := <-s.lines:
		return raw, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *script) Write(_ context.Context, raw []byte) error {
	var parts []json.RawMessage
	var verb, id string
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	if err := errors.Join(json.Unmarshal(parts[0], &verb), json.Unmarshal(parts[1], &id)); err == nil && verb == nip01.VerbReq {
		s.asked <- id
	}
	return nil
}

func (*script) Ping(context.Context) error { return nil }
func (*script) Close() error               { return nil }

// nostr-tools can read a private message (NIP-17) of the box, and the box one of nostr-tools.
func TestWithNostrTools(t *testing.T) {
	secret := []byte("a secret of 32 bytes for a test!")
	peer, err := identity.KeyFromBytes(secret)
	if err != nil {
		t.Fatal(err)
	}
	own := relaytest.NewKey(t)
	url, p := served(t, own)
	m, d, told := live(t, own, peer.Public(), p)
	const text = "hello peer \u20ac \U0001f600 \u2028 \"q\" \\ \n"
	send(t, m, Outgoing{Kind: KindChat, Content: text, To: peer.Public()})
	out, err := foreign.NostrTools(t.Context(), nil, filepath.Join("testdata", "peer.cjs"), url, hex.EncodeToString(secret), string(own.Public()))
	foreign.SkipOrFail(t, err)
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
