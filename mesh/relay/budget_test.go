package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// large is the content of an event that is not small, and that JSON for HTML would make larger.
var large = strings.Repeat("<", 100<<10)

// serveLarge starts a relay that takes large events.
func serveLarge(t *testing.T, change func(*Config, *Policy)) (*Relay, string) {
	return serve(t, func(c *Config, p *Policy) {
		p.MaxEventBytes = 128 << 10
		if change != nil {
			change(c, p)
		}
	})
}

// useUp takes all that is left of a budget. The returned function gives it back.
func useUp(t *testing.T, b *budget) (giveBack func()) {
	t.Helper()
	b.mu.Lock()
	n := b.most - b.used
	b.used = b.most
	b.mu.Unlock()
	return func() { b.put(n) }
}

// unused waits until all sessions have ended, and compares the budgets with 0.
func unused(t *testing.T, r *Relay) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for name, b := range map[string]*budget{"inbound": r.inbound, "outbound": r.outbound, "filters": r.filters} {
		if b.used != 0 {
			t.Errorf("%d bytes of %s are in use without a session", b.used, name)
		}
	}
}

// closedWith reads until the relay closes the connection.
func (c *client) closedWith() websocket.StatusCode {
	c.t.Helper()
	for {
		if _, _, err := c.conn.Read(c.t.Context()); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

func TestBudgetAwaitsMemory(t *testing.T) {
	b := newBudget(10, 1)
	if !b.take(10) || b.take(1) {
		t.Fatal("a budget of 10 does not give exactly 10")
	}
	got := make(chan error, 1)
	go func() { got <- b.await(t.Context(), 4) }()
	b.put(3)
	b.put(3)
	if err := <-got; err != nil || b.used != 8 {
		t.Errorf("%v, %d in use", err, b.used)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.await(ctx, 3); err == nil {
		t.Error("memory that is not there was given")
	}
	if newBudget(10, 100).most < 100 {
		t.Error("the largest message does not fit")
	}
}

// A large message is refused if strangers use all memory for messages; small messages and those of
// the box are not.
func TestInboundMemoryIsShared(t *testing.T) {
	own, k := newKey(t), newKey(t)
	r, url := serveLarge(t, func(_ *Config, p *Policy) { p.Own = []string{string(own.Public())} })
	box, stranger := dial(t, url), dial(t, url)
	if ok, why := box.auth(own, url); !ok {
		t.Fatal(why)
	}
	giveBack := useUp(t, r.inbound)
	if ok, why := box.publish(signed(t, own, nostr.Event{Kind: 1, Content: large})); !ok {
		t.Errorf("the box's large event: %s", why)
	}
	if ok, why := stranger.publish(signed(t, k, nostr.Event{Kind: 1, Content: "small"})); !ok {
		t.Errorf("a stranger's small event: %s", why)
	}
	stranger.send(nip01.VerbEvent, signed(t, k, nostr.Event{Kind: 1, Content: large}))
	if status := stranger.closedWith(); status != websocket.StatusTryAgainLater {
		t.Errorf("a stranger's large event: the connection is closed with %d", status)
	}
	giveBack()
	if ok, why := dial(t, url).publish(signed(t, k, nostr.Event{Kind: 1, Content: large})); !ok {
		t.Errorf("a stranger's large event, when there is memory: %s", why)
	}
	unused(t, r)
}

// Stored events are sent when there is memory for them, whatever they need together.
func TestStoredEventsWaitForMemory(t *testing.T) {
	k := newKey(t)
	r, url := serveLarge(t, nil)
	c := dial(t, url)
	want := map[string]bool{}
	for i := range 5 {
		e := signed(t, k, nostr.Event{Kind: 1, Content: large, Tags: nostr.Tags{{"n", fmt.Sprint(i)}}})
		if ok, why := c.publish(e); !ok {
			t.Fatal(why)
		}
		want[e.ID] = true
	}
	giveBack := useUp(t, r.outbound)
	c.conn.SetReadLimit(1 << 20)
	c.raw(`["REQ","all",{},{}]`)
	giveBack()
	for {
		m := c.read()
		if m.Verb == nip01.VerbEOSE {
			break
		}
		if m.Verb != nip01.VerbEvent || !want[m.Event.ID] || m.Event.Content != large {
			t.Fatalf("not a stored event, or one twice: %s", m.Verb)
		}
		delete(want, m.Event.ID)
	}
	if len(want) > 0 {
		t.Errorf("%d events did not come", len(want))
	}
	unused(t, r)
}

// A live event that is large closes the connection of a stranger if there is no memory for it. Small
// ones are delivered in any case.
func TestLiveEventsAndMemory(t *testing.T) {
	k := newKey(t)
	r, url := serveLarge(t, nil)
	writer, reader := dial(t, url), dial(t, url)
	reader.raw(`["REQ","live",{"limit":0}]`)
	if m := reader.read(); m.Verb != nip01.VerbEOSE {
		t.Fatalf("%+v", m)
	}
	giveBack := useUp(t, r.outbound)
	if ok, why := writer.publish(signed(t, k, nostr.Event{Kind: 1, Content: "small"})); !ok {
		t.Fatal(why)
	}
	if m := reader.read(); m.Verb != nip01.VerbEvent || m.Event.Content != "small" {
		t.Errorf("%+v", m)
	}
	if ok, why := writer.publish(signed(t, k, nostr.Event{Kind: 1, Content: large})); !ok {
		t.Fatal(why)
	}
	if status := reader.closedWith(); status != websocket.StatusPolicyViolation {
		t.Errorf("the connection is closed with %d", status)
	}
	giveBack()
	unused(t, r)
}

// Live events are held for a client whose stored events wait for memory, and come after them. Small
// ones need no memory of the budget, and the memory of large ones stays theirs until they are sent.
func TestHeldEventsAndMemory(t *testing.T) {
	k := newKey(t)
	r, url := serveLarge(t, nil)
	writer, reader := dial(t, url), dial(t, url)
	publish := func(content string) {
		t.Helper()
		if ok, why := writer.publish(signed(t, k, nostr.Event{Kind: 1, Content: content})); !ok {
			t.Fatal(why)
		}
	}
	publish("stored")
	leave(r.outbound, 0)
	reader.raw(`["REQ","all",{}]`)
	waitStarved(r.outbound) // then the stored events are chosen, without those below
	publish("small")
	leave(r.outbound, 2*len(large)+4096) // enough for a held event, too little for stored ones
	publish(large)
	leave(r.outbound, 512<<10)
	for _, want := range []string{"stored", "EOSE", "small", large} {
		m := reader.read()
		got := m.Verb
		if m.Verb == nip01.VerbEvent {
			got = m.Event.Content
		}
		if got != want {
			t.Fatalf("%.10q came, want %.10q", got, want)
		}
	}
	unused(t, r)
}

// leave changes the size of a budget so that n bytes are left.
func leave(b *budget, n int) {
	b.mu.Lock()
	b.most = b.used + n
	b.used++
	b.mu.Unlock()
	b.put(1) // wakes the sessions that wait
}

// waitStarved waits until a session waits for memory of the budget.
func waitStarved(b *budget) {
	for starved := false; !starved; runtime.Gosched() {
		b.mu.Lock()
		starved = b.freed != nil
		b.mu.Unlock()
	}
}

// waitHolding waits until a session holds live events, and returns the session.
func waitHolding(t *testing.T, r *Relay) *session {
	t.Helper()
	for {
		r.mu.Lock()
		for s := range r.sessions {
			s.mu.Lock()
			for _, sub := range s.subs {
				if sub.holding {
					s.mu.Unlock()
					r.mu.Unlock()
					return s
				}
			}
			s.mu.Unlock()
		}
		r.mu.Unlock()
		runtime.Gosched()
	}
}

// A REQ that waits for memory or for a reader of the database keeps no memory of its message.
func TestWaitingRequestFreesItsMessage(t *testing.T) {
	own := newKey(t)
	r, url := serveLarge(t, func(_ *Config, p *Policy) { p.Own = []string{string(own.Public())} })
	for range maxReading {
		r.reading <- struct{}{}
	}
	c := dial(t, url)
	c.raw(`["REQ","all",{}` + strings.Repeat(" ", 2*smallMessage) + `]`)
	waitHolding(t, r)
	for {
		r.inbound.mu.Lock()
		used := r.inbound.used
		r.inbound.mu.Unlock()
		if used == 0 {
			break
		}
		runtime.Gosched()
	}
	// The last reader is for the box.
	box := dial(t, url)
	if ok, why := box.auth(own, url); !ok {
		t.Fatal(why)
	}
	box.raw(`["REQ","all",{}]`)
	if m := box.read(); m.Verb != nip01.VerbEOSE {
		t.Errorf("the box: %+v", m)
	}
	for range maxReading {
		<-r.reading
	}
	if m := c.read(); m.Verb != nip01.VerbEOSE {
		t.Errorf("the stranger: %+v", m)
	}
	unused(t, r)
}

// The close of a connection waits seconds for the client. Another session whose event the client is
// to get does not wait for that.
func TestRefusedMessageHoldsUpNoOther(t *testing.T) {
	r, url := serveLarge(t, nil)
	giveBack := useUp(t, r.inbound)
	defer giveBack()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "ws://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	// A text message of 8 KiB, in one frame with a mask of 0 (RFC 6455, 5.2).
	if _, err := c.Write(append([]byte{0x81, 0x80 | 126, 0x20, 0, 0, 0, 0, 0}, make([]byte, 0x2000)...)); err != nil {
		t.Fatal(err)
	}
	var said []byte
	for !strings.Contains(string(said), errBusy.Error()) {
		more := make([]byte, 1024)
		n, err := c.Read(more)
		if err != nil {
			t.Fatalf("%v after %q", err, said)
		}
		said = append(said, more[:n]...)
	}
	r.mu.Lock()
	for s := range r.sessions {
		s.end(errSlow) // as live does
	}
	r.mu.Unlock()
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("end has waited until the connection was closed: %v", err)
	}
}

// The filters of strangers are limited for each session and for all sessions together.
func TestFilterMemory(t *testing.T) {
	own := newKey(t)
	r, url := serveLarge(t, func(_ *Config, p *Policy) { p.Own = []string{string(own.Public())} })
	filters := strings.TrimSuffix(strings.Repeat(`{"limit":0,"#p":[`+strings.TrimSuffix(strings.Repeat(`"",`, 2000), ",")+"]},", 5), ",")
	c := dial(t, url)
	subscribe := func(c *client, id, filters string) nip01.FromRelay {
		t.Helper()
		c.raw(fmt.Sprintf(`["REQ",%q,%s]`, id, filters))
		return c.read()
	}
	if m := subscribe(c, "1", filters); m.Verb != nip01.VerbEOSE {
		t.Fatalf("the first: %+v", m)
	}
	if m := subscribe(c, "2", filters); m.Verb != nip01.VerbClosed || !strings.Contains(m.Text, "at most 262144 bytes") {
		t.Errorf("too much for a session: %+v", m)
	}
	if m := subscribe(c, "1", filters); m.Verb != nip01.VerbEOSE {
		t.Errorf("in place of the first: %+v", m)
	}
	c.send(nip01.VerbClose, "1")
	if m := subscribe(c, "2", filters); m.Verb != nip01.VerbEOSE {
		t.Errorf("after the first was closed: %+v", m)
	}
	giveBack := useUp(t, r.filters)
	if m := subscribe(dial(t, url), "1", `{"limit":0}`); m.Verb != nip01.VerbClosed || !strings.Contains(m.Text, "no memory left") {
		t.Errorf("too much for the relay: %+v", m)
	}
	box := dial(t, url)
	if ok, why := box.auth(own, url); !ok {
		t.Fatal(why)
	}
	for _, id := range []string{"1", "2", "3"} {
		if m := subscribe(box, id, filters); m.Verb != nip01.VerbEOSE {
			t.Errorf("the box's: %+v", m)
		}
	}
	giveBack()
	unused(t, r)
}

// A session that makes room for another one leaves, also while it waits for memory.
func TestWaitingSessionMakesRoom(t *testing.T) {
	r, url := serveLarge(t, nil)
	k := newKey(t)
	waiting := dial(t, url)
	if ok, why := waiting.publish(signed(t, k, nostr.Event{Kind: 1, Content: large})); !ok {
		t.Fatal(why)
	}
	giveBack := useUp(t, r.outbound)
	waiting.raw(`["REQ","all",{}]`)
	for range maxUnauthenticated {
		dial(t, url)
	}
	waiting.closedWith()
	// The session leaves only if it no longer waits for memory.
	for {
		status, err := r.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if status.Connections == maxUnauthenticated {
			break
		}
	}
	giveBack()
	unused(t, r)
}

// A REQ of a stranger gets maxStored events for all its filters together; one of the box gets all.
func TestStoredEventsOfOneRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("long: signs and stores tens of thousands of events")
	}
	own, k := newKey(t), newKey(t)
	r, url := serve(t, func(_ *Config, p *Policy) { p.Own = []string{string(own.Public())} })
	const each, groups = maxLimit, maxStored/maxLimit + 1
	var filters []string
	for g := range groups {
		filters = append(filters, fmt.Sprintf(`{"#t":["%d"]}`, g))
		adding, group := make(chan error), fmt.Sprint(g)
		for i := range each {
			e := signed(t, k, nostr.Event{Kind: 1, Content: fmt.Sprint(i), Tags: nostr.Tags{{"t", group}}})
			go func() {
				_, _, err := r.store.add(context.Background(), &e, stranger, time.Now())
				adding <- err
			}()
		}
		for range each {
			if err := <-adding; err != nil {
				t.Fatal(err)
			}
		}
	}
	box, other := dial(t, url), dial(t, url)
	if ok, why := box.auth(own, url); !ok {
		t.Fatal(why)
	}
	for c, want := range map[*client]int{box: each * groups, other: maxStored} {
		c.raw(`["REQ","all",` + strings.Join(filters, ",") + `]`)
		got := 0
		for c.read().Verb == nip01.VerbEvent {
			got++
		}
		if got != want {
			t.Errorf("%d events came, want %d", got, want)
		}
	}
}
