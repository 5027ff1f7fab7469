package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

func TestAgentActions(t *testing.T) {
	b := newBox(t)
	emit := func(body string) answer { return b.do("admin", "POST", "/v1/agent-events/emit", body) }
	emit(`{"source_agent_id":"7","target_node_id":7,"action_type":"create"}`).is(202)
	emit(`{"source_agent_id":8,"action_type":4,"duration_ms":12,"metadata":{"k":1}}`).is(202)
	for _, body := range []string{
		`{"source_agent_id":"a","action_type":"paint"}`, `{"source_agent_id":"a","action_type":6}`, `{"source_agent_id":"a"}`,
		`{"action_type":0}`, `{"source_agent_id":1.5,"action_type":0}`, `{"source_agent_id":"a","action_type":0,"metadata":[]}`,
		`{"source_agent_id":{},"action_type":0}`, `{"source_agent_id":"a","action_type":0,"duration_ms":-1}`,
	} {
		emit(body).is(400).problem(adapters.CodeValidation)
	}
	got := b.do("reader", "GET", "/v1/agent-events", "").is(200).fields()["events"].([]any)
	first, second := got[0].(map[string]any), got[1].(map[string]any)
	if first["source_agent_id"] != "7" || first["target_node_id"] != 7.0 || first["action_type"] != 2.0 || first["action_type_name"] != "create" {
		t.Errorf("%v", first)
	}
	if second["target_node_id"] != nil || second["action_type_name"] != "link" {
		t.Errorf("%v", second)
	}

	// The box stores all actions of a batch or none. An agent may report only its own actions.
	bad := `{"events":[{"source_agent_id":"a","action_type":0},{"source_agent_id":"a","action_type":9}]}`
	if p := b.do("admin", "POST", "/v1/agent-events/batch", bad).is(400).problem(adapters.CodeValidation); p["index"] != 1.0 {
		t.Errorf("%v", p)
	}
	one := `{"source_agent_id":"agent-1","action_type":0}`
	b.do("agent-1", "POST", "/v1/agent-events/batch", `{"events":[`+strings.Repeat(one+",", 499)+one+`]}`).is(202)
	// The length is checked first: the numbers are not decoded, which would take memory for each.
	if p := b.do("agent-1", "POST", "/v1/agent-events/batch", `{"events":[`+strings.Repeat("0,", 500)+`0]}`).is(400).problem(adapters.CodeValidation); p["limit"] != 500.0 {
		t.Errorf("%v", p)
	}
	b.do("agent-2", "POST", "/v1/agent-events/emit", one).is(403)
	b.do("agent-1", "POST", "/v1/agent-events/hook", `{"tool_name":"Edit","tool_input":{"file_path":"/x"}}`).is(202)
	b.do("agent-1", "POST", "/v1/agent-events/hook", `{"tool_name":"Paint"}`).is(400)
	status := b.do("reader", "GET", "/v1/agent-events/status", "").is(200).fields()
	if status["total"] != 503.0 || status["capacity"] != 1000.0 {
		t.Errorf("%v", status)
	}
	last := b.do("reader", "GET", "/v1/agent-events?limit=1", "").is(200).fields()["events"].([]any)[0].(map[string]any)
	if last["action_type_name"] != "update" || last["target_node_id"] != "/x" || last["source_agent_id"] != "agent-1" {
		t.Errorf("%v", last)
	}
	b.do("reader", "GET", "/v1/agent-events?limit=1001", "").is(400)
}

func TestAgentActionsAsEventStream(t *testing.T) {
	b := newBox(t)
	emit := func(n int) {
		b.do("admin", "POST", "/v1/agent-events/emit", fmt.Sprintf(`{"source_agent_id":%d,"action_type":0}`, n)).is(202)
	}
	emit(1)
	emit(2)
	s := b.open("reader", "/v1/agent-events/stream", "Last-Event-ID", "1")
	s.want("2", "agent_action")
	emit(3)
	s.want("3", "agent_action")
	// A reader that has followed an earlier agentinit gets all that this one has.
	b.open("reader", "/v1/agent-events/stream", "Last-Event-ID", "5000").want("1", "agent_action")
	// A new follower gets the latest actions first, as over a WebSocket.
	b.open("reader", "/v1/agent-events/stream").want("1", "agent_action")
	for range 4 {
		one := `{"source_agent_id":9,"action_type":0}`
		b.do("admin", "POST", "/v1/agent-events/batch", `{"events":[`+strings.Repeat(one+",", 499)+one+`]}`).is(202)
	}
	// A reader that comes back too late gets a notice of the lost actions.
	late := b.open("reader", "/v1/agent-events/stream?after=1")
	if e := late.want("", "lagged"); e.data != `{"dropped":1002,"resume_from":1004}` {
		t.Errorf("%s", e.data)
	}
	late.want("1004", "agent_action")
	b.open("reader", "/v1/agent-events/stream").want("1954", "agent_action")
}

// dial opens a WebSocket with a ticket, as a browser does.
func (b *box) dial(path, ticket string, header http.Header) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	b.t.Cleanup(cancel)
	return websocket.Dial(ctx, strings.Replace(b.url, "http", "ws", 1)+path+"?ticket="+ticket, &websocket.DialOptions{HTTPHeader: header})
}

func (b *box) ticket() string {
	b.t.Helper()
	var ticket rest.Ticket
	b.do("reader", "POST", "/v1/tickets", "").is(201).into(&ticket)
	return ticket.Ticket
}

func TestAgentActionsOverWebSocket(t *testing.T) {
	b := newBox(t)
	emit := func(source string, kind int) {
		b.do("admin", "POST", "/v1/agent-events/emit", fmt.Sprintf(`{"source_agent_id":%q,"action_type":%d}`, source, kind)).is(202)
	}
	emit("a", 0)
	ticket := b.ticket()
	c, _, err := b.dial("/v1/agent-events/stream", ticket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	next := func() map[string]any {
		t.Helper()
		_, data, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	say := func(text string) {
		t.Helper()
		if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if m := next(); m["type"] != "connected" {
		t.Fatalf("%v", m)
	}
	if m := next(); m["type"] != "history" || len(m["events"].([]any)) != 1 {
		t.Fatalf("%v", m)
	}
	say(`{"type":"ping"}`)
	if m := next(); m["type"] != "pong" {
		t.Fatalf("%v", m)
	}
	say(`{"type":"configure","filters":{"source_agent_ids":["b"],"action_types":["query",1]}}`)
	if m := next(); m["type"] != "configured" {
		t.Fatalf("%v", m)
	}
	emit("a", 0)
	emit("b", 2)
	emit("b", 1)
	m := next()
	params, _ := m["params"].(map[string]any)
	if m["jsonrpc"] != "2.0" || m["method"] != "notifications/agent_action" || params["source_agent_id"] != "b" || params["action_type"] != 1.0 {
		t.Fatalf("the filter does not hold: %v", m)
	}
	for _, text := range []string{`{"type":"configure","filters":{"action_types":["paint"]}}`,
		`{"type":"configure","filters":{"action_types":["` + strings.Repeat("0", 1000) + `"]}}`, `{"type":"odd"}`, `{`} {
		say(text)
		if m := next(); m["type"] != "error" || m["code"] != string(adapters.CodeValidation) {
			t.Errorf("%s: %v", text, m)
		}
	}
	if err := c.Write(t.Context(), websocket.MessageBinary, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("after a binary frame: %v", err)
	}

	// A ticket is valid for one use.
	if c, res, err := b.dial("/v1/agent-events/stream", ticket, nil); err == nil || res.StatusCode != 401 {
		t.Errorf("the ticket was taken again: %v %v", c, res)
	}
	// A ticket is valid only for a WebSocket.
	b.do("", "GET", "/v1/beads?ticket="+b.ticket(), "").is(401)
}

// A page may open a WebSocket only if its origin is the box itself or is in Config.Origins.
func TestWebSocketsOfPages(t *testing.T) {
	b := newBox(t, func(c *rest.Config) { c.Origins = []string{"https://app.example", "http://[2001:db8::1]:8080"} })
	for _, path := range []string{"/v1/agent-events/stream", "/v1/events/stream"} {
		for origin, want := range map[string]int{
			"https://app.example": 101, "http://[2001:db8::1]:8080": 101, b.url: 101,
			"https://evil.example": 403, "http://app.example": 403, "https://app.example:444": 403, "https://app.example.evil.example": 403, "null": 403,
		} {
			c, res, err := b.dial(path, b.ticket(), http.Header{"Origin": {origin}})
			if err == nil {
				c.CloseNow()
			}
			if res == nil || res.StatusCode != want {
				t.Errorf("%s from %s: %v %v", path, origin, res, err)
			}
		}
		if _, res, err := b.dial(path, b.ticket(), http.Header{"Origin": {b.url, "https://app.example"}}); err == nil || res.StatusCode != 403 {
			t.Errorf("two origins: %v %v", res, err)
		}
	}
	b.do("reader", "GET", "/v1/events/stream", "", "Upgrade", "websocket", "Origin", "https://evil.example").is(403).problem(adapters.CodePermissionDenied)
}

func TestEventsOverWebSocketEndWithTheServer(t *testing.T) {
	b := newBox(t)
	c, _, err := b.dial("/v1/events/stream", b.ticket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	b.do("admin", "POST", "/v1/events", `{"kind":"x"}`).is(202)
	_, data, err := c.Read(t.Context())
	if err != nil || !strings.Contains(string(data), `"kind":"x"`) {
		t.Fatalf("%v %s", err, data)
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.Read(t.Context())
		ended <- err
	}()
	b.server.Close()
	if err := <-ended; websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("%v", err)
	}
	b.do("admin", "GET", "/v1/beads", "").is(503).problem(adapters.CodeUnavailable)
}

func TestRateLimitIsPerPrincipal(t *testing.T) {
	b := newBox(t, func(c *rest.Config) { c.RateLimit = 1 })
	limited := answer{}
	for range 10 {
		if limited = b.do("reader", "GET", "/v1/beads", ""); limited.status != 200 {
			break
		}
	}
	limited.is(429).problem(adapters.CodeRateLimited)
	if limited.header.Get("Retry-After") != "1" {
		t.Errorf("retry after %q", limited.header.Get("Retry-After"))
	}
	b.do("agent-1", "GET", "/v1/beads", "").is(200)
}

// full is a busy host: it refuses each registration with a Retry-After.
type full struct{ rest.Host }

func (full) Register(context.Context, string, federation.Registration) (federation.Grant, error) {
	return federation.Grant{}, adapters.Errorf(adapters.CodeUnavailable, "too many boxes register at once").WithRetryAfter(17 * time.Second)
}

// No rate limit applies to boxes that register with one shared token: only the host refuses them.
// The rate limit does apply to callers that may not register, and to all other requests of a box.
func TestHerdIsNotRateLimited(t *testing.T) {
	b := newBox(t, func(c *rest.Config) { c.RateLimit, c.Host = 1, full{} })
	for range 20 {
		if a := b.do("member:shared", "POST", "/v1/register", `{"box_id":"b"}`).is(503); a.header.Get("Retry-After") != "17" {
			t.Errorf("the pause of the host is not told: %v", a.header)
		}
	}
	b.do("member:shared", "POST", "/v1/register", `{"box_id":"`+strings.Repeat("x", 64<<10)+`"}`).is(413)
	for _, c := range []struct{ who, method, path string }{
		{"reader", "POST", "/v1/register"}, {"box:b", "POST", "/v1/register"}, {"member:shared", "GET", "/v1/beads"}, {"box:b", "POST", "/v1/heartbeat"},
	} {
		codes := map[int]bool{}
		for range 5 {
			codes[b.do(c.who, c.method, c.path, "{").status] = true
		}
		if !codes[429] {
			t.Errorf("%+v is not bounded: %v", c, codes)
		}
	}
}

// A box that signs its registration proves one key. It may not register as another key, nor name the DID of
// another.
func TestSignedRegistrationNamesItsOwnKey(t *testing.T) {
	b := newBox(t, func(c *rest.Config) { c.RateLimit, c.Host = 0, full{} })
	own, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for _, c := range []struct {
		who, body string
		status    int
	}{
		{own, `{"box_id":"` + own + `"}`, 503}, // from the host: it was asked
		{own, `{"box_id":"` + own + `","did":"did:nostr:` + own + `"}`, 503},
		{own, `{"box_id":"` + own + `","did":"did:nostr:` + other + `"}`, 403},
		{own, `{"box_id":"` + other + `"}`, 403},
		{"shared", `{"box_id":"b","did":"did:nostr:` + other + `"}`, 503}, // by the shared token, which proves no key
	} {
		b.do("member:"+c.who, "POST", "/v1/register", c.body).is(c.status)
	}
}

// Only the heartbeat path has Told. If a host loses its registry, each box gets 401 at its next
// heartbeat, even if many boxes share an address.
func TestHeartbeatsHearThatTheirTokenIsWrong(t *testing.T) {
	for _, m := range rest.Mounts() {
		if m.Told != (m.Pattern == "/v1/heartbeat") {
			t.Errorf("%+v", m)
		}
	}
}

func TestFederationIsHonest(t *testing.T) {
	alone := newBox(t).do("reader", "GET", "/v1/federation", "").is(200).fields()
	want := map[string]any{"mode": "standalone", "state": "idle", "host": nil, "session_id": nil, "since": nil, "next_try": nil, "last_heartbeat": nil,
		"heartbeats": 0.0, "missed": 0.0, "evictions": 0.0}
	if !reflect.DeepEqual(alone, want) {
		t.Errorf("%v", alone)
	}
	beat := adapters.At(time.Unix(1700000000, 0))
	member := newBox(t, func(c *rest.Config) {
		c.Federation = func() rest.FederationStatus {
			return rest.FederationStatus{Mode: "client", State: "active", Host: "https://host", SessionID: "s1", LastHeartbeat: beat, Evictions: 2}
		}
	})
	got := member.do("agent-1", "GET", "/v1/federation", "").is(200).fields()
	if got["state"] != "active" || got["host"] != "https://host" || got["last_heartbeat"] != beat.String() || got["evictions"] != 2.0 {
		t.Errorf("%v", got)
	}
	status := member.do("reader", "GET", "/v1/status", "").is(200).fields()["federation"].(map[string]any)
	if status["mode"] != "client" || status["state"] != "active" {
		t.Errorf("%v", status)
	}
	member.do("", "GET", "/v1/federation", "").is(401).problem(adapters.CodeUnauthenticated)
}

func TestNamesLeadToTheirPlace(t *testing.T) {
	b := newBox(t)
	hex := strings.Repeat("ab", 32)
	for name, want := range map[string]string{
		"urn:agentbox:bead:ab-1": "/v1/beads/ab-1", "urn:agentbox:agent:x": "/v1/agents/x", "urn:agentbox:memory:ns%23a%20b": "/v1/memory/ns/a%20b",
		"did:nostr:" + hex: "/v1/did/did:nostr:" + hex, "urn:agentbox:pod:%2Fa%2Fb": "/pods/a/b",
	} {
		if got := b.do("reader", "GET", "/v1/uri/"+name, "").is(307).header.Get("Location"); got != want {
			t.Errorf("%s leads to %q", name, got)
		}
	}
	for _, name := range []string{"did:nostr:xyz", "urn:other:bead:1", "urn:agentbox:bead:..%2F..", "urn:agentbox:pod:%2F..%2Fx", "https:%2F%2Fevil.example"} {
		b.do("reader", "GET", "/v1/uri/"+name, "").is(404)
	}
}
