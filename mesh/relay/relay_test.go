package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

func newKey(t testing.TB) *identity.Key {
	t.Helper()
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func signed(t testing.TB, k *identity.Key, e nostr.Event) nostr.Event {
	t.Helper()
	if e.CreatedAt == 0 {
		e.CreatedAt = nostr.Now()
	}
	if err := k.Sign(&e); err != nil {
		t.Fatal(err)
	}
	return e
}

// serve starts a relay and returns its URL.
func serve(t testing.TB, change func(*Config, *Policy)) (*Relay, string) {
	t.Helper()
	policy := Policy{Ingress: Open, Kinds: []int{1, 4, 1059, 30078, 27235, 38000, 38100}, MaxEventBytes: 4096}
	cfg := Config{
		Dir: t.TempDir(), MessagesPerSec: 10_000, RetentionDays: 30, MaxBytes: 64 << 20, Kinds: policy.Kinds, Registerer: prometheus.NewRegistry(),
		Info:   Info{Name: "test", Description: "a relay"},
		Report: func(what string, err error) { t.Errorf("%s: %v", what, err) },
	}
	if change != nil {
		change(&cfg, &policy)
	}
	cfg.Policy = func() Policy { return policy }
	r, err := Start(context.Background(), cfg)
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
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r, "ws://" + l.Addr().String()
}

// client is one WebSocket connection to the relay.
type client struct {
	t         testing.TB
	conn      *websocket.Conn
	url       string
	challenge string
}

func dial(t testing.TB, url string) *client {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { conn.CloseNow() })
	c := &client{t: t, conn: conn, url: url}
	m := c.read()
	if m.Verb != nip01.VerbAuth || len(m.Text) != 64 {
		t.Fatalf("the relay says %+v first, not AUTH", m)
	}
	c.challenge = m.Text
	return c
}

func (c *client) send(parts ...any) { c.t.Helper(); c.raw(string(nip01.Message(parts...))) }

func (c *client) raw(text string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) read() nip01.FromRelay {
	c.t.Helper()
	_, raw, err := c.conn.Read(c.t.Context())
	if err != nil {
		c.t.Fatalf("cannot read: %v", err)
	}
	m, err := nip01.ParseFromRelay(raw)
	if err != nil {
		c.t.Fatalf("the relay says %s: %v", raw, err)
	}
	return m
}

// publish sends an event and returns the status and the reason of the OK.
func (c *client) publish(e nostr.Event) (bool, string) {
	c.t.Helper()
	c.send(nip01.VerbEvent, e)
	m := c.read()
	if m.Verb != nip01.VerbOK || m.ID != e.ID {
		c.t.Fatalf("EVENT %s was answered %+v", e.ID, m)
	}
	return m.Accepted, m.Text
}

func (c *client) auth(k *identity.Key, relayURL string) (bool, string) {
	c.t.Helper()
	e := signed(c.t, k, nostr.Event{Kind: nip01.KindAuth, Tags: nostr.Tags{{"relay", relayURL}, {"challenge", c.challenge}}})
	c.send(nip01.VerbAuth, e)
	m := c.read()
	return m.Accepted, m.Text
}

// stored requests events and returns their ids up to EOSE, or the reason of CLOSED.
func (c *client) stored(filter string) (ids []string, closed string) {
	c.t.Helper()
	c.raw(`["REQ","s",` + filter + `]`)
	for {
		switch m := c.read(); m.Verb {
		case nip01.VerbEvent:
			ids = append(ids, m.Event.ID)
		case nip01.VerbEOSE:
			c.raw(`["CLOSE","s"]`)
			return ids, ""
		case nip01.VerbClosed:
			return nil, m.Text
		default:
			c.t.Fatalf("REQ %s was answered %+v", filter, m)
		}
	}
}

func TestPublishAndRead(t *testing.T) {
	_, url := serve(t, nil)
	k := newKey(t)
	c := dial(t, url)
	a := signed(t, k, nostr.Event{Kind: 1, Content: "one <&> \u2028", CreatedAt: 100})
	b := signed(t, k, nostr.Event{Kind: 1, Content: "two", CreatedAt: 200, Tags: nostr.Tags{{"t", "x"}}})
	for _, e := range []nostr.Event{a, b} {
		if ok, why := c.publish(e); !ok || why != "" {
			t.Fatalf("OK %t %q", ok, why)
		}
	}
	if ok, why := c.publish(a); !ok || !strings.HasPrefix(why, "duplicate:") {
		t.Errorf("the same event again: OK %t %q", ok, why)
	}
	for filter, want := range map[string][]string{
		`{}`:                          {b.ID, a.ID}, // newest first
		`{"limit":1}`:                 {b.ID},
		`{"limit":0}`:                 nil,
		`{"#t":["x"]}`:                {b.ID},
		`{"#t":["y"]}`:                nil,
		`{"ids":[]}`:                  nil,
		`{"until":100}`:               {a.ID},
		`{"since":101,"kinds":[1]}`:   {b.ID},
		`{"ids":["` + a.ID + `"]},{}`: {a.ID, b.ID},
	} {
		if got, closed := c.stored(filter); fmt.Sprint(got) != fmt.Sprint(want) || closed != "" {
			t.Errorf("REQ %s: %v %q, want %v", filter, got, closed, want)
		}
	}
}

func TestLiveEventsAfterEOSE(t *testing.T) {
	_, url := serve(t, nil)
	k := newKey(t)
	reader, writer := dial(t, url), dial(t, url)
	reader.raw(`["REQ","live",{"kinds":[1]},{"kinds":[1]}]`)
	if m := reader.read(); m.Verb != nip01.VerbEOSE {
		t.Fatalf("%+v", m)
	}
	other := signed(t, k, nostr.Event{Kind: 27235, Content: "ephemeral"})
	e := signed(t, k, nostr.Event{Kind: 1, Content: "now"})
	for _, e := range []nostr.Event{other, e} {
		if ok, why := writer.publish(e); !ok {
			t.Fatal(why)
		}
	}
	if m := reader.read(); m.Verb != nip01.VerbEvent || m.Event.ID != e.ID {
		t.Fatalf("%+v", m)
	}
	if got, _ := writer.stored(`{"kinds":[27235]}`); got != nil {
		t.Error("an ephemeral event was kept")
	}
}

// The relay broadcasts an event before it answers the sender: a request for stored events after the
// answer does not get the event a second time, as a live one.
func TestLiveEventsComeBeforeTheAnswer(t *testing.T) {
	_, url := serve(t, nil)
	c := dial(t, url)
	c.raw(`["REQ","live",{"kinds":[1]}]`)
	c.read() // EOSE
	c.send(nip01.VerbEvent, signed(t, newKey(t), nostr.Event{Kind: 1, Content: "x"}))
	if first, second := c.read(), c.read(); first.Verb != nip01.VerbEvent || second.Verb != nip01.VerbOK {
		t.Errorf("%s, then %s", first.Verb, second.Verb)
	}
}

func TestRefusedEvents(t *testing.T) {
	_, url := serve(t, nil)
	k := newKey(t)
	c := dial(t, url)
	good := signed(t, k, nostr.Event{Kind: 1, Content: "x"})
	forged, changed := good, good
	forged.Sig = strings.Repeat("0", 128)
	changed.Content = "y"
	for name, test := range map[string]struct {
		event nostr.Event
		why   string
	}{
		"signature":  {forged, "invalid: the signature"},
		"content":    {changed, "invalid: the id"},
		"kind":       {signed(t, k, nostr.Event{Kind: 7}), "blocked: kind-not-allowed"},
		"auth":       {signed(t, k, nostr.Event{Kind: nip01.KindAuth}), "invalid: kind 22242"},
		"expired":    {signed(t, k, nostr.Event{Kind: 1, Tags: nostr.Tags{{"expiration", "1000"}}}), "invalid: the event has expired"},
		"future":     {signed(t, k, nostr.Event{Kind: 1, CreatedAt: nostr.Now() + 3600}), "invalid: created_at"},
		"too large":  {signed(t, k, nostr.Event{Kind: 1, Content: strings.Repeat("x", 4096)}), "invalid: payload-too-large"},
		"protected":  {signed(t, k, nostr.Event{Kind: 1, Tags: nostr.Tags{{"-"}}}), "auth-required:"},
		"beyond 99":  {signed(t, k, nostr.Event{Kind: 38200}), "blocked:"},
		"legacy ok?": {signed(t, k, nostr.Event{Kind: 3}), "blocked:"},
	} {
		if ok, why := c.publish(test.event); ok || !strings.HasPrefix(why, test.why) {
			t.Errorf("%s: OK %t %q, want %q", name, ok, why, test.why)
		}
	}
	for _, kind := range []int{38000, 38099, 38100, 38199} {
		if ok, why := c.publish(signed(t, k, nostr.Event{Kind: kind, Tags: nostr.Tags{{"d", "1"}}})); !ok {
			t.Errorf("kind %d: %s", kind, why)
		}
	}
	if got, _ := c.stored(`{"kinds":[1]}`); got != nil {
		t.Errorf("a refused event was stored: %v", got)
	}
}

func TestBadMessagesAreAnswered(t *testing.T) {
	_, url := serve(t, nil)
	c := dial(t, url)
	for raw, verb := range map[string]string{
		`{}`: nip01.VerbNotice, `[]`: nip01.VerbNotice, `["X"]`: nip01.VerbNotice, `["EVENT"]`: nip01.VerbNotice, `["EVENT",{}]`: nip01.VerbNotice,
		`nonsense`: nip01.VerbNotice, `["REQ","s"]`: nip01.VerbClosed, `["REQ","s",{"kinds":["1"]}]`: nip01.VerbClosed,
		`["REQ","s",{"search":"x"}]`: nip01.VerbClosed, `["REQ","",{}]`: nip01.VerbNotice,
		`["EVENT",{"id":"` + strings.Repeat("a", 64) + `","id":"b"}]`: nip01.VerbNotice,
		`["EVENT",{"id":"` + strings.Repeat("a", 64) + `"}]`:          nip01.VerbOK,
	} {
		c.raw(raw)
		if m := c.read(); m.Verb != verb || m.Accepted {
			t.Errorf("%s was answered %+v, want %s", raw, m, verb)
		}
	}
}

func TestReplaceableEvents(t *testing.T) {
	_, url := serve(t, nil)
	k := newKey(t)
	c := dial(t, url)
	at := func(created int64, d, content string) nostr.Event {
		return signed(t, k, nostr.Event{Kind: 30078, CreatedAt: nostr.Timestamp(created), Content: content, Tags: nostr.Tags{{"d", d}}})
	}
	newest, older, other := at(200, "a", "new"), at(100, "a", "old"), at(50, "b", "")
	for _, e := range []nostr.Event{newest, older, other} {
		if ok, why := c.publish(e); !ok {
			t.Fatal(why)
		}
	}
	if got, _ := c.stored(`{"kinds":[30078]}`); fmt.Sprint(got) != fmt.Sprint([]string{newest.ID, other.ID}) {
		t.Errorf("stored %v", got)
	}
}

func TestAllowlistJudgesTheSession(t *testing.T) {
	owner, friend, stranger, throwaway := newKey(t), newKey(t), newKey(t), newKey(t)
	_, url := serve(t, func(_ *Config, p *Policy) {
		p.Ingress, p.Own, p.Allowed = Allowlist, []string{string(owner.Public())}, []string{string(friend.Public())}
	})
	wrap := func(content string) nostr.Event {
		return signed(t, throwaway, nostr.Event{Kind: nip01.KindGiftWrap, Content: content, Tags: nostr.Tags{{"p", string(owner.Public())}}})
	}
	c := dial(t, url)
	if ok, why := c.publish(wrap("unauthenticated")); ok || !strings.HasPrefix(why, "auth-required:") {
		t.Errorf("OK %t %q", ok, why)
	}
	if ok, why := c.auth(stranger, url); !ok {
		t.Fatal(why)
	}
	if ok, why := c.publish(wrap("by a stranger")); ok || !strings.HasPrefix(why, "restricted:") {
		t.Errorf("OK %t %q", ok, why)
	}
	if _, why := c.stored(`{"kinds":[1059]}`); why != "" {
		t.Errorf("a session with a key may ask: %s", why)
	}
	f := dial(t, url)
	if ok, why := f.auth(friend, url); !ok {
		t.Fatal(why)
	}
	e := wrap("by a friend")
	if ok, why := f.publish(e); !ok {
		t.Errorf("a gift wrap by a friend: %s", why)
	}
	if got, _ := f.stored(`{}`); got != nil {
		t.Error("the friend reads a message that is for the owner")
	}
	o := dial(t, url)
	if _, why := o.stored(`{"kinds":[1059]}`); !strings.HasPrefix(why, "auth-required:") {
		t.Errorf("CLOSED %q", why)
	}
	if ok, why := o.auth(owner, url); !ok {
		t.Fatal(why)
	}
	if got, _ := o.stored(`{"kinds":[1059]}`); fmt.Sprint(got) != fmt.Sprint([]string{e.ID}) {
		t.Errorf("the owner reads %v", got)
	}
	if ok, why := o.publish(signed(t, owner, nostr.Event{Kind: 10050})); !ok {
		t.Errorf("the box's own relay list: %s", why)
	}
	if ok, _ := f.publish(signed(t, friend, nostr.Event{Kind: 10050})); ok {
		t.Error("a friend's relay list was taken")
	}
}

func TestRefusedAuth(t *testing.T) {
	_, url := serve(t, func(_ *Config, p *Policy) { p.Ingress, p.Hosts = SignedOnly, []string{"relay.example"} })
	k := newKey(t)
	for name, relayURL := range map[string]string{
		"elsewhere": "wss://evil.example", "port": "ws://127.0.0.1:1", "path": url + "/x", "http": strings.Replace(url, "ws:", "http:", 1), "none": "",
	} {
		if ok, why := dial(t, url).auth(k, relayURL); ok || !strings.HasPrefix(why, "invalid:") {
			t.Errorf("%s: OK %t %q", name, ok, why)
		}
	}
	for _, relayURL := range []string{url, url + "/", strings.Replace(url, "127.0.0.1", "localhost", 1), "wss://Relay.Example"} {
		c := dial(t, url)
		if ok, why := c.auth(k, relayURL); !ok {
			t.Errorf("%s: %s", relayURL, why)
		}
		if ok, _ := c.auth(k, relayURL); ok {
			t.Error("a challenge was good twice")
		}
	}
}

func TestFloodIsEnded(t *testing.T) {
	_, url := serve(t, func(c *Config, _ *Policy) { c.MessagesPerSec = 1 })
	c := dial(t, url)
	ctx := t.Context()
	limited := false
	for {
		if err := c.conn.Write(ctx, websocket.MessageText, []byte(`["CLOSE","x"]`)); err != nil {
			break
		}
		if err := c.conn.Write(ctx, websocket.MessageText, []byte(`["REQ","x",{}]`)); err != nil {
			break
		}
		_, raw, err := c.conn.Read(ctx)
		if err != nil {
			break
		}
		limited = limited || strings.Contains(string(raw), "rate-limited")
	}
	if ctx.Err() != nil || !limited {
		t.Errorf("the flood was not ended (limited: %t)", limited)
	}
}

func TestInformationDocument(t *testing.T) {
	_, url := serve(t, nil)
	req, _ := http.NewRequest(http.MethodGet, strings.Replace(url, "ws:", "http:", 1), nil)
	req.Header.Set("Accept", "application/nostr+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Description string
		NIPs        []int `json:"supported_nips"`
		Limitation  map[string]any
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || doc.Description != "a relay" || len(doc.NIPs) == 0 {
		t.Errorf("%+v, %v", doc, err)
	}
	for name, want := range map[string]float64{
		"max_message_length": 4096 + messageOverhead, "max_subscriptions": maxSubscriptions, "max_filters": nip01.MaxFilters,
		"max_limit": maxLimit, "default_limit": maxLimit, "max_subid_length": nip01.MaxSubscriptionID, "max_event_tags": nip01.MaxTags,
		"created_at_upper_limit": 900,
	} {
		if doc.Limitation[name] != want {
			t.Errorf("%s is %v, want %g", name, doc.Limitation[name], want)
		}
	}
	if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "*" {
		t.Errorf("Access-Control-Allow-Origin %q", got)
	}
}

func TestEventsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	k := newKey(t)
	e := signed(t, k, nostr.Event{Kind: 1, Content: "kept"})
	s, err := openStore(context.Background(), filepath.Join(dir, "relay.db"), 64<<20, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _, err := s.add(context.Background(), &e, stranger, time.Now()); outcome != Stored || err != nil {
		t.Fatal(outcome, err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	_, url := serve(t, func(c *Config, _ *Policy) { c.Dir = dir })
	if got, _ := dial(t, url).stored(`{}`); len(got) != 1 || got[0] != e.ID {
		t.Errorf("stored %v", got)
	}
}

// A stranger who floods the relay cannot evict the box's events. The relay refuses his events when
// there is no room, and reports that once.
func TestAFullRelayReportsOnce(t *testing.T) {
	own, peer := newKey(t), newKey(t)
	var mu sync.Mutex
	var reports []string
	r, url := serve(t, func(c *Config, p *Policy) {
		c.MaxBytes, p.MaxEventBytes = 1<<20, 128<<10
		p.Ingress, p.Own = SignedOnly, []string{string(own.Public())}
		c.Report = func(what string, err error) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, what+": "+err.Error())
		}
	})
	evicted := func() float64 { return testutil.ToFloat64(r.metrics.evicted) }
	login := func(k *identity.Key) *client {
		c := dial(t, url)
		if ok, why := c.auth(k, url); !ok {
			t.Fatal(why)
		}
		return c
	}
	box, other := login(own), login(peer)
	event := func(k *identity.Key, i int) nostr.Event {
		return signed(t, k, nostr.Event{Kind: 1, Content: fmt.Sprint(i, strings.Repeat("x", 100<<10))})
	}
	mine := event(own, 0)
	if ok, why := box.publish(mine); !ok || evicted() != 0 || len(reports) != 0 {
		t.Fatalf("OK %t %q, %v dropped, reports %q", ok, why, evicted(), reports)
	}
	for i := range 20 {
		if ok, why := other.publish(event(peer, i)); !ok {
			t.Fatalf("event %d of the stranger: %q", i, why)
		}
	}
	if got, _ := box.stored(`{"ids":["` + mine.ID + `"]}`); len(got) != 1 || evicted() == 0 {
		t.Errorf("the box's event is stored %d times, %v events were dropped", len(got), evicted())
	}
	for i := range 20 {
		if ok, why := box.publish(event(own, i+1)); !ok {
			t.Fatalf("event %d of the box: %q", i, why)
		}
	}
	refused := false
	for i := range 20 {
		ok, why := other.publish(event(peer, i+20))
		if !ok && why != "error: the relay is full" {
			t.Fatalf("refused with %q", why)
		}
		refused = refused || !ok
	}
	if !refused {
		t.Error("a relay full of the box's events takes a stranger's")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(reports) != 1 || !strings.HasPrefix(reports[0], "StoreFull: ") {
		t.Errorf("reports %q, want one", reports)
	}
}

// If the relay was not full for an hour, it reports the next time that it is full.
func TestFullIsReportedAgainAfterAnHourWithout(t *testing.T) {
	reports := 0
	m, err := newMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{cfg: Config{Report: func(string, error) { reports++ }}, metrics: m}
	for i, step := range []struct {
		do   func()
		want int
	}{
		{func() { r.full(1) }, 1}, {func() { r.full(0) }, 1}, {r.notFull, 1}, {func() { r.full(1) }, 1},
		{r.notFull, 1}, {r.notFull, 1}, {func() { r.full(1) }, 2},
	} {
		if step.do(); reports != step.want {
			t.Errorf("step %d: %d reports, want %d", i, reports, step.want)
		}
	}
}

func TestStartWantsALimitOfSize(t *testing.T) {
	if r, err := Start(context.Background(), Config{Dir: t.TempDir(), Registerer: prometheus.NewRegistry()}); err == nil {
		t.Error("a relay without a limit starts", r.Close())
	}
}
