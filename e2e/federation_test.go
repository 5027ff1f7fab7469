package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// meshToken is the token with which boxes register.
const meshToken = "fedcba9876543210fedcba9876543210"

// meshKeys are the secrets of a host and its boxes.
var meshKeys = []string{"MANAGEMENT_API_KEY=" + boxKey, "AGENTBOX_FEDERATION_TOKEN=" + meshToken}

// session is the answer of GET /v1/federation.
type session struct {
	State     string
	SessionID string `json:"session_id"`
	Missed    int
	Evictions int
}

func (b *box) session() session {
	b.t.Helper()
	var s session
	b.mustCall("GET", "/v1/federation", nil, &s, 200)
	return s
}

// inState waits for a state of the session. The box may not yet listen when the wait begins.
func (b *box) inState(want string) session {
	b.t.Helper()
	var s session
	waitFor(b.t, "the session is "+want, func() bool {
		s = session{}
		status, err := b.call("GET", "/v1/federation", nil, &s)
		return err == nil && status == 200 && s.State == want
	})
	return s
}

// missed counts the heartbeats that the box has sent without an answer.
func (b *box) missed() string {
	b.t.Helper()
	_, text, err := getBy(b.client(20*time.Second), b.metrics, "/metrics")
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if count, ok := strings.CutPrefix(line, `agentbox_federation_heartbeats_total{outcome="failed"} `); ok {
			return strings.TrimSpace(count)
		}
	}
	return "0"
}

// meshBox starts a box of examples/mesh in its own network, with the shortest permitted heartbeat.
func meshBox(t testing.TB, n *node) *box {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "examples", "mesh", n.host+".toml"))
	if err != nil {
		t.Fatal(err)
	}
	b := place(t, asPID1, strings.Replace(string(text), `heartbeat = "30s"`, `heartbeat = "5s"`, 1))
	b.node, b.env, b.port, b.metrics = n, append([]string{"MANAGEMENT_API_HOST=0.0.0.0"}, meshKeys...), 9090, 9091
	b.start()
	return b
}

// The host and the two boxes of examples/mesh each have their own cable. Both boxes write all the
// time while cables and host fail. At the end, every acknowledged write is there exactly once.
func TestMesh(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	nodes := []*node{n.node("mesh-host", 1), n.node("box-a", 2), n.node("box-b", 3)}
	n.named(nodes...)
	host, a, b := meshBox(t, nodes[0]), meshBox(t, nodes[1]), meshBox(t, nodes[2])
	first := a.inState("active")
	b.inState("active")
	waitFor(t, "the boxes are ready", func() bool { return a.ready() && b.ready() })
	step := timeline(t)

	ctx, stop := context.WithCancel(t.Context())
	writers := []*writer{startWriter(ctx, "a", a), startWriter(ctx, "b", b)}
	progress(t, writers...)

	// Packets to and from a are dropped.
	a.node.dropFrom()
	a.node.dropTo()
	step("a is cut off")

	// Meanwhile the host evicts b, and b gets a new session.
	old := b.session().SessionID
	evicted := boxOf(host, old)
	if out := host.mustCtl("federation", "status"); !strings.Contains(out, "2 active, 0 silent, 0 evicted") {
		t.Errorf("the host says:\n%s", out)
	}
	host.mustCtl("federation", "evict", evicted, "--reason", "maintenance")
	if e := host.event("FederationBoxEvicted"); e["box"] != evicted || e["reason"] != "maintenance" {
		t.Errorf("%v", e)
	}
	b.event("FederationEvicted")
	waitFor(t, "b has a new session", func() bool {
		s := b.session()
		return s.State == "active" && s.SessionID != old && s.Evictions == 1
	})
	progress(t, writers[1])
	step("b was evicted and is back")

	// The host performs a write of b and is killed before its answer arrives.
	b.node.dropTo()
	written := writers[1].unanswered(host)
	host.kill()
	step("the host was killed with %s unanswered", written)
	b.node.passTo()
	b.inState("suspect")
	kept := b.session().SessionID
	host = host.again()
	if s := b.inState("active"); s.SessionID != kept {
		t.Errorf("b had session %s and has %s after the host's death", kept, s.SessionID)
	}
	progress(t, writers[1])
	step("b goes on with the session it had")

	a.inState("lost")
	a.event("FederationSuspect")
	a.event("FederationLost")
	missed := a.missed()
	step("a is lost after %s heartbeats", missed)
	a.node.passFrom()
	a.node.passTo()
	if s := a.inState("active"); s.SessionID != first.SessionID {
		t.Errorf("a had session %s and has %s", first.SessionID, s.SessionID)
	}
	a.event("FederationRecovered")
	// One heartbeat may have been on its way while the cable came back. No other may be missed.
	if now := a.missed(); now != missed && now != plusOne(missed) {
		t.Errorf("a missed %s heartbeats, then %s: not back with the first that could arrive", missed, now)
	}
	progress(t, writers...)
	step("a is back")

	// The host stops and starts again in an orderly way.
	before := []session{a.session(), b.session()}
	if code := host.stop(); code != 0 {
		t.Errorf("the host ended with %d", code)
	}
	host = host.again()
	waitFor(t, "the host is ready", host.ready)
	for i, one := range []*box{a, b} {
		// A heartbeat that was sent while the host was down may still be missed.
		seen := one.beats()
		waitFor(t, "the new host answers a heartbeat", func() bool { return one.beats() != seen })
		if s := one.inState("active"); s.SessionID != before[i].SessionID {
			t.Errorf("session %s became %s", before[i].SessionID, s.SessionID)
		}
	}
	progress(t, writers...)
	step("the host has restarted")

	stop()
	for _, w := range writers {
		w.done.Wait()
		w.check(host)
	}
	step("all is accounted for")

	for _, one := range []*box{a, b} {
		if code := one.stop(); code != 0 {
			t.Errorf("a box ended with %d", code)
		}
	}
	if left := boxesOf(host); len(left) != 0 {
		t.Errorf("boxes that have taken leave are still registered: %v", left)
	}
}

func plusOne(count string) string {
	var n int
	fmt.Sscan(count, &n)
	return fmt.Sprint(n + 1)
}

// timeline logs each step with its time.
func timeline(t testing.TB) func(format string, args ...any) {
	begun := time.Now()
	return func(format string, args ...any) {
		t.Helper()
		t.Logf("%5.1f s: %s", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
}

// beats is the time at which the host last answered a heartbeat of the box.
func (b *box) beats() string {
	b.t.Helper()
	var s struct {
		LastHeartbeat string `json:"last_heartbeat"`
	}
	b.mustCall("GET", "/v1/federation", nil, &s, 200)
	return s.LastHeartbeat
}

func (b *box) kill() {
	b.t.Helper()
	b.signal(syscall.SIGKILL)
	b.ended()
}

// boxesOf returns the registered boxes of a host, by session.
func boxesOf(host *box) map[string]string {
	host.t.Helper()
	var page struct {
		Items []struct {
			Box     string `json:"box_id"`
			Session string `json:"session_id"`
		}
	}
	host.mustCall("GET", "/v1/federation/boxes", nil, &page, 200)
	out := map[string]string{}
	for _, one := range page.Items {
		out[one.Session] = one.Box
	}
	return out
}

func boxOf(host *box, session string) string {
	host.t.Helper()
	box, ok := boxesOf(host)[session]
	if !ok {
		host.t.Fatalf("the host does not know session %s", session)
	}
	return box
}

// writer writes beads, events and memory entries into a box, one at a time. It repeats each with
// the same idempotency key until the box acknowledges it.
type writer struct {
	name string
	b    *box
	done sync.WaitGroup

	mu    sync.Mutex
	acked map[string]bool
	last  string // the bead that is being written
}

// writeEvery limits the rate of a writer.
const writeEvery = 20 * time.Millisecond

func startWriter(ctx context.Context, name string, b *box) *writer {
	w := &writer{name: name, b: b, acked: map[string]bool{}}
	w.done.Go(func() { w.run(ctx) })
	return w
}

func (w *writer) run(ctx context.Context) {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		id := fmt.Sprintf("%s-%d", w.name, n)
		w.mu.Lock()
		w.last = "bead-" + id
		w.mu.Unlock()
		for what, write := range map[string]func(key string) (int, error){
			"bead-" + id: func(key string) (int, error) {
				return w.b.callKeyed(key, "POST", "/v1/beads/epics", map[string]any{"title": key}, nil)
			},
			"event." + id: func(key string) (int, error) {
				return w.b.callKeyed(key, "POST", "/v1/events", map[string]any{"kind": key}, nil)
			},
			"memory-" + id: func(key string) (int, error) {
				return w.b.callKeyed("", "PUT", "/v1/memory/mesh/"+key, map[string]any{"value": key}, nil)
			},
		} {
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if status, err := write(what); err == nil && status/100 == 2 {
					break
				}
			}
			w.mu.Lock()
			w.acked[what] = true
			w.mu.Unlock()
		}
	}
}

// progress waits until each writer has more acknowledged writes.
func progress(t testing.TB, writers ...*writer) {
	t.Helper()
	for _, w := range writers {
		before := w.count("")
		waitFor(t, w.name+" writes", func() bool { return w.count("") >= before+9 })
	}
}

func (w *writer) count(prefix string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for what := range w.acked {
		if strings.HasPrefix(what, prefix) {
			n++
		}
	}
	return n
}

// unanswered waits for a bead that the host has and whose acknowledgement the writer has not
// received.
func (w *writer) unanswered(host *box) string {
	w.b.t.Helper()
	var found string
	waitFor(w.b.t, "the host has a bead whose answer does not arrive", func() bool {
		w.mu.Lock()
		last, known := w.last, w.acked[w.last]
		w.mu.Unlock()
		if known {
			return false
		}
		for title := range titles(host) {
			if title == last {
				found = last
			}
		}
		return found != ""
	})
	return found
}

// titles counts the beads of a host by title.
func titles(host *box) map[string]int {
	host.t.Helper()
	out := map[string]int{}
	everyItem(host, "/v1/beads", func(one item) { out[one.Title]++ })
	return out
}

// item holds the fields that the test needs from the lists of the slots.
type item struct{ Title, Kind, Key string }

// everyItem goes through all pages of a list.
func everyItem(b *box, path string, each func(item)) {
	b.t.Helper()
	for cursor := ""; ; {
		var page struct {
			Items      []item
			NextCursor string `json:"next_cursor"`
		}
		b.mustCall("GET", path+"?limit=1000"+cursor, nil, &page, http.StatusOK)
		for _, one := range page.Items {
			each(one)
		}
		if page.NextCursor == "" {
			return
		}
		cursor = "&cursor=" + page.NextCursor
	}
}

// check verifies all writes: an acknowledged write is there exactly once, any other write at most
// once.
func (w *writer) check(host *box) {
	t := w.b.t
	t.Helper()
	waitFor(t, "the host has the events of "+w.name, func() bool {
		n := 0
		for kind := range kinds(host) {
			if strings.HasPrefix(kind, "event."+w.name+"-") && w.acked[kind] {
				n++
			}
		}
		return n == w.count("event.")
	})
	found := titles(host)
	maps.Copy(found, kinds(host))
	everyItem(w.b, "/v1/memory/mesh", func(one item) { found[one.Key]++ })
	for what := range w.acked {
		if found[what] == 0 {
			t.Errorf("%s was acknowledged and is lost", what)
		}
	}
	for what, times := range found {
		if times > 1 {
			t.Errorf("%s is there %d times", what, times)
		}
	}
	t.Logf("%s: %d beads, %d events and %d memory entries acknowledged", w.name, w.count("bead-"), w.count("event."), w.count("memory-"))
}

// kinds counts the events of a host by kind.
func kinds(host *box) map[string]int {
	host.t.Helper()
	out := map[string]int{}
	everyItem(host, "/v1/events", func(one item) { out[one.Kind]++ })
	return out
}

// A box whose token the host does not accept is not ready and says why; it is ready as soon as
// the host accepts the token.
func TestARefusedBoxIsNotReady(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	t.Setenv("AGENTBOX_FEDERATION_TOKEN", meshToken)
	host := boot(t, unprivileged, header+`
[federation]
mode = "host"
[adapters]
beads = "local-sqlite"
`)
	waitFor(t, "the host is ready", host.ready)
	t.Setenv("AGENTBOX_FEDERATION_TOKEN", "not-"+meshToken)
	b := boot(t, unprivileged, header+fmt.Sprintf(`
[federation]
mode = "client"
external_url = "http://127.0.0.1:%d"
[adapters]
beads = "external"
`, host.port))
	b.inState("refused")
	b.event("AdapterConnected") // the slot looks healthy: its server answers
	const row = "[-]federation:session failed: refused: the host answered 401 Unauthorized"
	waitFor(t, "/ready says that the box is refused", func() bool {
		status, text, err := getBy(b.client(20*time.Second), b.port, "/ready?verbose")
		return err == nil && status == 503 && strings.Contains(text, row) && strings.Contains(text, "[+]adapter:beads ok")
	})
	if out, code := b.ctl("ready"); code != 1 || !strings.Contains(out, "federation:session: refused: the host answered 401") {
		t.Errorf("agentctl ready: %d\n%s", code, out)
	}
	if out := b.mustCtl("federation", "status"); !strings.Contains(out, "refused since") || !strings.Contains(out, "401 Unauthorized") || !strings.Contains(out, "again ") {
		t.Errorf("agentctl federation status:\n%s", out)
	}
	if status, err := b.call("GET", "/v1/beads", nil, nil); err != nil || status != 401 {
		t.Errorf("the slot of a refused box answers %d %v", status, err)
	}

	host.kill()
	host = host.again() // with the token of the box
	waitFor(t, "the host is ready", host.ready)
	b.mustCtl("apply")
	waitFor(t, "the box is ready", b.ready)
	b.mustCall("GET", "/v1/beads", nil, nil, 200)
}

// If the manifest of a box permits outside relays, the box uses the relays that its host names
// while its session lasts. Another box does not use them.
func TestRelaysOfTheHost(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	t.Setenv("AGENTBOX_FEDERATION_TOKEN", meshToken)
	relay := fmt.Sprintf("ws://127.0.0.1:%d", freePort(t))
	host := boot(t, unprivileged, header+fmt.Sprintf(`
[federation]
mode = "host"
heartbeat = "5s"
relay_urls = [%q]
[adapters]
[sovereign_mesh]
enabled = true
[sovereign_mesh.relay]
enabled = true
implementation = "embedded"
port = %s
ingress_policy = "signed-only"
[security.exceptions.nostr-relay]
reason = "the relay keeps its events on a volume"
`, relay, relay[strings.LastIndex(relay, ":")+1:]))
	waitFor(t, "the host is ready", host.ready)
	member := func(keys string) *box {
		return boot(t, unprivileged, header+fmt.Sprintf(`
[federation]
mode = "client"
external_url = "http://127.0.0.1:%d"
[adapters]
[sovereign_mesh]
enabled = true
`, host.port)+keys)
	}
	open, closed := member("nostr_bridge = true\n"), member("")
	session := open.inState("active").SessionID
	closed.inState("active")
	relays := func(b *box) string {
		var status struct {
			Relays []struct {
				URL, State string
				Guest      bool
			}
		}
		if code, err := b.call("GET", "/v1/mesh", nil, &status); err != nil || code != 200 && code != 501 {
			return fmt.Sprint(code, err)
		}
		return fmt.Sprint(status.Relays)
	}
	waitFor(t, "the box is connected to the relay of its host", func() bool { return relays(open) == "[{"+relay+" connected true}]" })
	if out := open.mustCtl("mesh", "status"); !strings.Contains(out, "(guest) agentbox") {
		t.Errorf("agentctl mesh status:\n%s", out)
	}
	open.mustCtl("mesh", "publish", "--wait", "20s", "through the relay of the host")
	if got := relays(closed); got != "[]" {
		t.Errorf("a box that uses no outside relays: %s", got)
	}
	host.mustCtl("federation", "evict", boxOf(host, session), "--retry-after", "30")
	open.inState("evicted")
	waitFor(t, "the relay went with the session", func() bool { return relays(open) == "[]" })
}
