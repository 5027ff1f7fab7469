package rest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

// wantEvents compares the messages of a whole event stream, each as "id event".
func wantEvents(t *testing.T, stream []byte, want ...string) {
	t.Helper()
	var got []string
	for _, e := range parseEvents(t, stream) {
		got = append(got, strings.TrimSpace(e.id+" "+e.event))
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q\n%s", got, want, stream)
	}
}

type sseEvent struct{ id, event, data string }

func parseEvents(t testing.TB, stream []byte) []sseEvent {
	t.Helper()
	var out []sseEvent
	var e sseEvent
	lines := bufio.NewScanner(bytes.NewReader(stream))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.event = value
		case "data":
			if e.data != "" {
				t.Errorf("data of more than one line after %q", e.data)
			}
			e.data = value
		case "":
			if e.data != "" {
				out = append(out, e)
			}
			e = sseEvent{}
		case "retry":
		default:
			t.Errorf("stream line %q", lines.Text())
		}
	}
	return out
}

func TestBeadsWire(t *testing.T) {
	b := newBox(t)
	var epic, child, blocker adapters.Bead
	made := b.do("agent-1", "POST", "/v1/beads/epics", `{"title":"ship it","unknown":1}`).is(201)
	made.into(&epic)
	if epic.CreatedBy != "agent-1" || epic.Actor != "" || made.header.Get("ETag") != `"v1"` || made.header.Get("Location") != "/v1/beads/"+epic.ID {
		t.Errorf("%+v %v", epic, made.header)
	}
	b.do("agent-1", "POST", "/v1/beads/children", fmt.Sprintf(`{"title":"part","parent_id":%q}`, epic.ID)).is(201).into(&child)
	b.do("agent-1", "POST", "/v1/beads/epics", `{"title":"first"}`).is(201).into(&blocker)
	path := "/v1/beads/" + child.ID

	b.do("agent-1", "POST", path+"/claim", `{"actor":"agent-2"}`).is(403).problem(adapters.CodePermissionDenied)
	b.do("agent-1", "POST", path+"/claim", "").is(200)
	held := b.do("admin", "POST", path+"/claim", `{"actor":"other"}`).is(409).problem(adapters.CodeAlreadyClaimed)
	if held["actor"] != "agent-1" || held["id"] != child.ID {
		t.Errorf("%v", held)
	}
	b.do("agent-1", "POST", path+"/claim", `{"lease_s":29}`).is(400).problem(adapters.CodeValidation)
	// A call that an admin forwards for an agent has only the rights of the agent.
	b.do("admin", "POST", path+"/close", `{"outcome":"x"}`, "Agentbox-Actor", "agent-2").is(403)
	b.do("agent-2", "POST", path+"/close", `{}`, "Agentbox-Actor", "agent-1").is(403)
	// What a bead waits for changes without a new version, so a copy of an open bead is never called fresh.
	blocked := func(want string) {
		t.Helper()
		if got := b.do("reader", "GET", "/v1/beads/"+epic.ID, "", "If-None-Match", `"v2"`).is(200).body; !strings.Contains(string(got), want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
	b.do("admin", "POST", "/v1/beads/"+epic.ID+"/deps", fmt.Sprintf(`{"to":%q}`, blocker.ID)).is(201)
	blocked(fmt.Sprintf(`"blocked_by":[%q]`, blocker.ID))
	b.do("admin", "POST", "/v1/beads/"+blocker.ID+"/close", `{}`).is(200)
	blocked(`"blocked_by":[]`)
	b.do("admin", "POST", path+"/close", `{"outcome":"x"}`).is(200)
	b.do("agent-1", "POST", path+"/claim", "").is(409).problem(adapters.CodeNotClaimable)

	b.do("reader", "GET", path, "", "If-None-Match", `W/"v9", "v3"`).is(304)
	b.do("admin", "PATCH", path, `{"title":"new"}`, "If-Match", `"v1"`).is(412).problem(adapters.CodePreconditionFailed)
	// Strong comparison with each tag of the list, in one line or several.
	for _, stale := range []string{`"v1", "v2"`, `W/"v3"`, `"v1,"v3`, `"a,"v3","`, `v3`, `"v3`, `","`, `"v03"`, `"v+3"`} {
		b.do("admin", "PATCH", path, `{"title":"new"}`, "If-Match", stale).is(412).problem(adapters.CodePreconditionFailed)
	}
	b.do("admin", "PATCH", path, `{"title":"new"}`, "If-Match", `"v1", W/"v2" ,"a,b",,"v3"`).is(200)
	two := newRequest(t, b, "PATCH", path, `{"title":"newer"}`, "If-Match", `"v3"`)
	two.Header.Set("Authorization", "Bearer admin")
	two.Header.Add("If-Match", `"v4"`)
	b.send(two).is(200)
	b.do("admin", "PATCH", path, `{"title":"newest"}`, "If-Match", " * ").is(200)
	if m := b.do("admin", "PATCH", path, `{"title":7}`).is(400).problem(adapters.CodeValidation); m["field"] != "title" {
		t.Errorf("a wrong title is reported as %v", m["field"])
	}
	b.do("reader", "PATCH", path, `{"title":"no"}`).is(403)

	b.do("admin", "PATCH", "/v1/beads/"+epic.ID, `{"defer_until":"2999-01-01T00:00:00Z"}`).is(200)
	if n := ready(b); n != 0 {
		t.Errorf("%d ready while deferred", n)
	}
	b.do("admin", "PATCH", "/v1/beads/"+epic.ID, `{"priority":1}`).is(200)
	if n := ready(b); n != 0 {
		t.Error("an absent defer_until ended the deferral")
	}
	b.do("admin", "PATCH", "/v1/beads/"+epic.ID, `{"defer_until":null}`).is(200)
	if n := ready(b); n != 1 {
		t.Errorf("%d ready after the deferral", n)
	}
	b.do("admin", "GET", "/v1/beads/nobody", "").is(404).problem(adapters.CodeNotFound)
}

func ready(b *box) int {
	b.t.Helper()
	var list []adapters.Bead
	b.do("reader", "GET", "/v1/beads/ready", "").is(200).into(&list)
	return len(list)
}

func TestPagesAreLinked(t *testing.T) {
	b := newBox(t)
	for i := range 5 {
		b.do("admin", "POST", "/v1/beads/epics", fmt.Sprintf(`{"title":"t%d"}`, i)).is(201)
	}
	seen := 0
	next := "/v1/beads/ready?limit=2"
	for next != "" {
		a := b.do("reader", "GET", next, "").is(200)
		var list []adapters.Bead
		a.into(&list)
		seen += len(list)
		link := a.header.Get("Link")
		next, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">")
		if link != "" && !strings.HasSuffix(link, `; rel="next"`) {
			t.Errorf("link %q", link)
		}
	}
	if seen != 5 {
		t.Errorf("saw %d of 5", seen)
	}
	page := b.do("reader", "GET", "/v1/beads?limit=5", "").is(200).fields()
	if cursor, ok := page["next_cursor"]; !ok || len(page["items"].([]any)) != 5 || cursor != nil {
		t.Errorf("%v", page)
	}
	for _, q := range []string{"limit=0", "limit=1001", "limit=x", "cursor=zzz", "cursor=" + strings.Repeat("a", 600)} {
		b.do("reader", "GET", "/v1/beads?"+q, "").is(400).problem(adapters.CodeValidation)
	}
}

func TestIdempotencyKeys(t *testing.T) {
	b := newBox(t)
	key := []string{"Idempotency-Key", "k1"}
	first := b.do("admin", "POST", "/v1/beads/epics", `{"title":"a"}`, key...).is(201)
	again := b.do("admin", "POST", "/v1/beads/epics", `{"title":"a"}`, key...).is(201)
	if !bytes.Equal(first.body, again.body) || first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%s\n%s\n%v", first.body, again.body, again.header)
	}
	b.do("admin", "POST", "/v1/beads/epics", `{"title":"b"}`, key...).is(422).problem(adapters.CodeIdempotencyMismatch)
	b.do("agent-1", "POST", "/v1/beads/epics", `{"title":"b"}`, key...).is(201) // the same key of another caller is independent
	b.do("admin", "POST", "/v1/beads/epics", `{"title":"b"}`, "Idempotency-Key", strings.Repeat("x", 256)).is(400)
	b.do("admin", "POST", "/v1/beads/epics", `{"title":"b"}`, "Idempotency-Key", "a b").is(400)
}

func TestBadRequests(t *testing.T) {
	b := newBox(t)
	for name, c := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		code               adapters.Code
	}{
		"no such path":     {"GET", "/v1/nothing", "", nil, 404, adapters.CodeNotFound},
		"not JSON":         {"POST", "/v1/beads/epics", "{", nil, 400, adapters.CodeValidation},
		"not UTF-8":        {"POST", "/v1/beads/epics", "{\"title\":\"\xff\"}", nil, 400, adapters.CodeValidation},
		"wrong type":       {"POST", "/v1/beads/epics", `{"title":1}`, nil, 400, adapters.CodeValidation},
		"array":            {"POST", "/v1/beads/epics", `[]`, nil, 400, adapters.CodeValidation},
		"wrong media type": {"POST", "/v1/beads/epics", `title=x`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, adapters.CodeUnsupported},
		"too large":        {"POST", "/v1/beads/epics", `{"title":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 413, adapters.CodePayloadTooLarge},
		"another MAJOR":    {"POST", "/v1/beads/epics", `{"title":"x"}`, []string{"Agentbox-Contract", "beads/2"}, 409, adapters.CodeContractMismatch},
		"another slot":     {"POST", "/v1/beads/epics", `{"title":"x"}`, []string{"Agentbox-Contract", "memory/1"}, 400, adapters.CodeValidation},
		"bad session":      {"GET", "/v1/beads", "", []string{"Agentbox-Session", "a b"}, 400, adapters.CodeValidation},
		"escaped escape":   {"GET", "/v1/memory/a/%25zz", "", nil, 404, adapters.CodeNotFound}, // decoded once

		"slot that is off":    {"GET", "/v1/pods", "", nil, 501, adapters.CodeDisabled},
		"tasks without any":   {"GET", "/v1/tasks", "", nil, 501, adapters.CodeDisabled},
		"backup without any":  {"GET", "/v1/backup", "", nil, 501, adapters.CodeUnsupported},
		"name without place":  {"GET", "/v1/uri/urn:agentbox:thing:1", "", nil, 404, adapters.CodeNotFound},
		"no event type asked": {"GET", "/v1/agent-events/stream", "", nil, 415, adapters.CodeUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			b.do("admin", c.method, c.path, c.body, c.header...).is(c.status).problem(c.code)
		})
	}
	refused := b.do("admin", "PUT", "/v1/agents", "")
	refused.is(405).problem(adapters.CodeUnsupported)
	if allow := refused.header.Get("Allow"); allow != "GET, HEAD, POST" {
		t.Errorf("allow %q", allow)
	}
	b.do("", "GET", "/v1/beads", "").is(401).problem(adapters.CodeUnauthenticated)
	b.do("admin", "HEAD", "/v1/beads", "").is(200)
}

func TestMemoryWire(t *testing.T) {
	b := newBox(t)
	const path = "/v1/memory/team:a%2Fb/a%20key%2Fwith%25"
	b.do("agent-1", "PUT", path, `{"value":"hello world","metadata":{"k":1},"ttl_s":60}`).is(201)
	b.do("agent-1", "PUT", path, `{"value":""}`).is(200)
	b.do("agent-1", "PUT", path, `{"value":"hello world"}`).is(200)
	got := b.do("reader", "GET", path, "").is(200).fields()
	if got["key"] != "a key/with%" || got["namespace"] != "team:a/b" {
		t.Errorf("%v", got)
	}
	for _, body := range []string{`{}`, `{"value":null}`, `{"value":"x","ttl_s":0}`, `{"value":"x","ttl_s":999999999999}`, `{"value":"x","metadata":[]}`, `{"value":"x","embedding":["a"]}`} {
		b.do("agent-1", "PUT", path, body).is(400).problem(adapters.CodeValidation)
	}
	big, _ := json.Marshal(map[string]string{"value": strings.Repeat("\x01", 1<<20)})
	b.do("agent-1", "PUT", path, string(big)).is(200)
	over, _ := json.Marshal(map[string]string{"value": strings.Repeat("x", 1<<20+1)})
	b.do("agent-1", "PUT", path, string(over)).is(413).problem(adapters.CodePayloadTooLarge)
	b.do("reader", "PUT", path, `{"value":"x"}`).is(403)

	b.do("agent-1", "PUT", "/v1/memory/ns/search", `{"value":"hello"}`).is(201) // "search" is a normal key
	b.do("agent-1", "GET", "/v1/memory/ns/search", "").is(200)
	hits := b.do("reader", "POST", "/v1/memory/ns/search", `{"query":"hell"}`).is(200).fields()["items"].([]any)
	if len(hits) != 1 {
		t.Errorf("hits %v", hits)
	}
	for _, body := range []string{`{}`, `{"query":"x","limit":0}`, `{"query":"x","limit":101}`, `{"query":"x","mode":"odd"}`, `{"query":"x","min_score":2}`} {
		b.do("reader", "POST", "/v1/memory/ns/search", body).is(400).problem(adapters.CodeValidation)
	}
	keys := b.do("reader", "GET", "/v1/memory/ns", "").is(200).fields()["items"].([]any)
	if len(keys) != 1 {
		t.Errorf("keys %v", keys)
	}
	for _, want := range []bool{true, false} {
		if got := b.do("agent-1", "DELETE", path, "").is(200).fields()["deleted"]; got != want {
			t.Errorf("deleted %v, want %v", got, want)
		}
	}
	b.do("reader", "GET", path, "").is(404).problem(adapters.CodeNotFound)
	if string(b.do("reader", "GET", "/v1/memory", "").is(200).body) != `{"items":[],"next_cursor":null}`+"\n" {
		t.Error("namespaces")
	}
}

func TestEventsWire(t *testing.T) {
	b := newBox(t)
	r := b.do("agent-1", "POST", "/v1/events", `{"kind":"agent.started","payload":{"n":1}}`, "Agentbox-Session", "s1").is(202).fields()
	if r["seq"] != 1.0 || r["kind"] != "agent.started" {
		t.Errorf("%v", r)
	}
	b.do("agent-1", "POST", "/v1/events", `{"payload":{}}`).is(400).problem(adapters.CodeValidation)
	b.do("reader", "POST", "/v1/events", `{"kind":"x"}`).is(403)
	cloud := `{"specversion":"1.0","id":"%s","source":"urn:x","type":"agentbox.tool.used","subject":"a","sessionid":"s2","data":{"n":2}}`
	one := b.do("host", "POST", "/v1/events", fmt.Sprintf(cloud, "c1"), "Content-Type", "application/cloudevents+json").is(202).fields()
	if one["id"] != "c1" || one["kind"] != "tool.used" {
		t.Errorf("%v", one)
	}
	batch := "[" + fmt.Sprintf(cloud, "c1") + "," + fmt.Sprintf(cloud, "c2") + "]"
	got := b.do("host", "POST", "/v1/events", batch, "Content-Type", "application/cloudevents-batch+json").is(202).fields()["items"].([]any)
	if len(got) != 2 || got[0].(map[string]any)["seq"] != 2.0 || got[1].(map[string]any)["seq"] != 3.0 {
		t.Errorf("%v", got)
	}
	bad := "[" + fmt.Sprintf(cloud, "c3") + `,{"specversion":"1.0","id":"c4","source":"x"}]`
	if p := b.do("host", "POST", "/v1/events", bad, "Content-Type", "application/cloudevents-batch+json").is(400).problem(adapters.CodeValidation); p["index"] != 1.0 {
		t.Errorf("%v", p)
	}
	// The length is checked first: the numbers are not decoded, which would take memory for each.
	long := "[" + strings.Repeat(`0,`, 500) + `0]`
	if p := b.do("host", "POST", "/v1/events", long, "Content-Type", "application/cloudevents-batch+json").is(400).problem(adapters.CodeValidation); p["limit"] != 500.0 {
		t.Errorf("%v", p)
	}
	b.do("host", "POST", "/v1/events", `x`, "Content-Type", "text/plain").is(415)

	page := b.do("reader", "GET", "/v1/events?kind=tool.&limit=1", "").is(200).fields()
	if items := page["items"].([]any); len(items) != 1 || items[0].(map[string]any)["seq"] != 2.0 || page["next_cursor"] == nil {
		t.Errorf("%v", page)
	}
	s := b.open("reader", "/v1/events/stream?after=1&kind=tool.used")
	s.want("2", "tool.used")
	s.want("3", "tool.used")
	b.do("agent-1", "POST", "/v1/events", `{"kind":"other"}`).is(202)
	b.do("agent-1", "POST", "/v1/events", `{"kind":"tool.used"}`).is(202)
	s.want("5", "tool.used")
	id := s.res.Header.Get("Agentbox-Subscription")
	b.do("admin", "DELETE", "/v1/events/stream/"+id, "").is(204)
	b.do("admin", "DELETE", "/v1/events/stream/"+id, "").is(404).problem(adapters.CodeNotFound)
	s.ended()
}

// sse is an open stream.
type sse struct {
	t   testing.TB
	res *http.Response
	in  *bufio.Scanner
}

func (b *box) open(who, path string, pairs ...string) *sse {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+who)
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i+1 < len(pairs); i += 2 {
		req.Header.Set(pairs[i], pairs[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		b.t.Fatalf("%s %v", res.Status, res.Header)
	}
	return &sse{b.t, res, bufio.NewScanner(res.Body)}
}

// next returns the next event. It skips comments and retry.
func (s *sse) next() (e sseEvent, ok bool) {
	s.t.Helper()
	for s.in.Scan() {
		name, value, _ := strings.Cut(s.in.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.event = value
		case "data":
			e.data = value
		case "":
			if e.data != "" {
				return e, true
			}
		}
	}
	return e, false
}

func (s *sse) want(id, event string) sseEvent {
	s.t.Helper()
	e, ok := s.next()
	if !ok || e.id != id || e.event != event {
		s.t.Fatalf("%+v, want %s %s", e, id, event)
	}
	return e
}

// ended fails the test unless the stream ends, with or without an error event.
func (s *sse) ended() {
	s.t.Helper()
	for {
		e, ok := s.next()
		if !ok {
			return
		}
		if e.event != "error" {
			s.t.Fatalf("%+v after the end", e)
		}
	}
}

// Half a surrogate pair would be stored, or signed, as U+FFFD. Every body that is JSON is refused with it.
func TestHalfASurrogatePairIsRefused(t *testing.T) {
	b := newBox(t, func(c *rest.Config) { c.Mesh = &lastMessage{} })
	cloud := []string{"Content-Type", "application/json", "ce-specversion", "1.0", "ce-type", "x", "ce-id", "1", "ce-source", "urn:x"}
	for _, c := range []struct {
		path, body string
		header     []string
	}{
		{"/v1/beads/epics", `{"title":"%s"}`, nil},
		{"/v1/beads/import", `{"id":"a","title":"%s"}`, nil},
		{"/v1/events", `{"kind":"x","payload":{"a":["%s"]}}`, nil},
		{"/v1/events", `{"a":"%s"}`, cloud},
		{"/v1/mesh/publish", `{"content":"%s"}`, nil},
	} {
		a := b.do("admin", "POST", c.path, fmt.Sprintf(c.body, `\ud83dx`), c.header...)
		if m := a.is(400).problem(adapters.CodeValidation); !strings.Contains(fmt.Sprint(m["detail"]), "surrogate pair") {
			t.Errorf("%s: %v", c.path, m)
		}
		if c.path != "/v1/beads/import" {
			if a := b.do("admin", "POST", c.path, fmt.Sprintf(c.body, `\ud83d\ude00`), c.header...); a.status >= 300 {
				t.Errorf("%s refuses a whole pair: %d %s", c.path, a.status, a.body)
			}
		}
	}
}
