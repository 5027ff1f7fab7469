package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

// stored is the newest event of the box.
func (b *box) stored() adapters.Event {
	b.t.Helper()
	var page adapters.Page[adapters.Event]
	b.do("reader", "GET", "/v1/events?limit=1000", "").is(200).into(&page)
	if len(page.Items) == 0 {
		b.t.Fatal("no event is stored")
	}
	return page.Items[len(page.Items)-1]
}

func headers(m map[string]string) (pairs []string) {
	for k, v := range m {
		pairs = append(pairs, k, v)
	}
	return pairs
}

func binary(change map[string]string) map[string]string {
	h := map[string]string{
		"ce-specversion": "1.0", "ce-id": "b-1", "ce-source": "/agents/7", "ce-type": "agentbox.tool.used", "Content-Type": "application/json",
	}
	maps.Copy(h, change)
	maps.DeleteFunc(h, func(_, v string) bool { return v == "-" })
	return h
}

// The three modes carry the same event (CloudEvents HTTP binding, 3.1-3.3).
func TestCloudEventsInEveryMode(t *testing.T) {
	b := newBox(t)
	for mode, send := range map[string]func(id string) answer{
		"binary": func(id string) answer {
			return b.do("host", "POST", "/v1/events", `{"n":1}`, headers(binary(map[string]string{
				"ce-id": id, "ce-subject": "f%C3%A4den", "CE-SessionID": "s-1", "ce-executionid": "x-1", "ce-time": "2026-01-02T03:04:05.6Z",
			}))...)
		},
		"structured": func(id string) answer {
			return b.do("host", "POST", "/v1/events", fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/agents/7","type":"agentbox.tool.used",
				"subject":"fäden","sessionid":"s-1","executionid":"x-1","time":"2026-01-02T03:04:05.6Z","datacontenttype":"application/json","data":{"n":1}}`, id),
				"Content-Type", "application/cloudevents+json; charset=utf-8")
		},
		// If a structured event repeats its attributes in headers, the body takes precedence.
		"structured with headers": func(id string) answer {
			return b.do("host", "POST", "/v1/events", fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/agents/7","type":"agentbox.tool.used",
				"subject":"fäden","sessionid":"s-1","executionid":"x-1","data":{"n":1}}`, id), headers(binary(map[string]string{
				"Content-Type": "application/cloudevents+json", "ce-id": id, "ce-type": "other",
			}))...)
		},
	} {
		var receipt adapters.Receipt
		send(mode[:6] + "-" + fmt.Sprint(len(mode))).is(202).into(&receipt)
		e := b.stored()
		if e.ID != receipt.ID || e.Kind != "tool.used" || e.Source != "/agents/7" || e.Subject != "fäden" || e.SessionID != "s-1" ||
			e.ExecutionID != "x-1" || string(e.Payload) != `{"n":1}` {
			t.Errorf("%s: %+v", mode, e)
		}
		// An event that is sent again with the same id is stored once, in every mode.
		var again adapters.Receipt
		send(receipt.ID).is(202).into(&again)
		if again.Seq != receipt.Seq {
			t.Errorf("%s: taken twice: %d and %d", mode, receipt.Seq, again.Seq)
		}
	}
	empty := b.do("host", "POST", "/v1/events", `[]`, "Content-Type", "application/cloudevents-batch+json").is(202)
	if items := empty.fields()["items"].([]any); len(items) != 0 {
		t.Errorf("%v", items)
	}
}

// The values of attributes in headers are percent-encoded (HTTP binding, 3.1.3.2).
func TestCloudEventHeaderValues(t *testing.T) {
	b := newBox(t)
	for i, c := range []struct{ sent, want string }{
		{"plain", "plain"},
		{"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"}, // the binding's own example
		{"a%2525b", "a%25b"}, // decoded once
		{`"Euro %E2%82%AC"`, "Euro €"},
		{`"a \"b\" \\ c"`, `a "b" \ c`},
		{`a\b`, `a\b`}, // a backslash outside quotes is not an escape
		{`"a"b"c"`, "abc"},
		{"%c3%a9", "é"},
	} {
		b.do("host", "POST", "/v1/events", "", headers(binary(map[string]string{"ce-id": fmt.Sprint("v", i), "ce-subject": c.sent, "Content-Type": "-"}))...).is(202)
		if e := b.stored(); e.Subject != c.want || string(e.Payload) != "{}" {
			t.Errorf("%s: %q %s, want %q", c.sent, e.Subject, e.Payload, c.want)
		}
	}
}

func TestBadCloudEvents(t *testing.T) {
	b := newBox(t)
	for name, c := range map[string]struct {
		header map[string]string
		body   string
		status int
		code   adapters.Code
		field  string
	}{
		"no id":             {binary(map[string]string{"ce-id": "-"}), `{}`, 400, adapters.CodeValidation, "id"},
		"empty id":          {binary(map[string]string{"ce-id": ""}), `{}`, 400, adapters.CodeValidation, "id"},
		"no source":         {binary(map[string]string{"ce-source": "-"}), `{}`, 400, adapters.CodeValidation, "source"},
		"no type":           {binary(map[string]string{"ce-type": "-"}), `{}`, 400, adapters.CodeValidation, "type"},
		"no version":        {binary(map[string]string{"ce-specversion": "-"}), `{}`, 400, adapters.CodeValidation, "specversion"},
		"version of old":    {binary(map[string]string{"ce-specversion": "0.3"}), `{}`, 400, adapters.CodeValidation, "specversion"},
		"bad time":          {binary(map[string]string{"ce-time": "yesterday"}), `{}`, 400, adapters.CodeValidation, "time"},
		"broken escape":     {binary(map[string]string{"ce-subject": "100%"}), `{}`, 400, adapters.CodeValidation, "Ce-Subject"},
		"escaped rubbish":   {binary(map[string]string{"ce-subject": "%ff"}), `{}`, 400, adapters.CodeValidation, "Ce-Subject"},
		"raw rubbish":       {binary(map[string]string{"ce-subject": "\xff"}), `{}`, 400, adapters.CodeValidation, "Ce-Subject"},
		"open quotes":       {binary(map[string]string{"ce-subject": `"a`}), `{}`, 400, adapters.CodeValidation, "Ce-Subject"},
		"a session no id":   {binary(map[string]string{"ce-sessionid": "a%20b"}), `{}`, 400, adapters.CodeValidation, "session_id"},
		"a kind no kind":    {binary(map[string]string{"ce-type": "Tool%20Used"}), `{}`, 400, adapters.CodeValidation, "kind"},
		"data not JSON":     {binary(nil), `{`, 400, adapters.CodeValidation, "body"},
		"data no object":    {binary(nil), `[1]`, 400, adapters.CodeValidation, "payload"},
		"data of text":      {binary(map[string]string{"Content-Type": "text/plain"}), `hello`, 415, adapters.CodeUnsupported, ""},
		"data of XML":       {binary(map[string]string{"Content-Type": "application/xml"}), `<a/>`, 415, adapters.CodeUnsupported, ""},
		"no media type":     {binary(map[string]string{"Content-Type": "json; ="}), `{}`, 400, adapters.CodeValidation, "Content-Type"},
		"another format":    {binary(map[string]string{"Content-Type": "application/cloudevents+avro"}), `{}`, 415, adapters.CodeUnsupported, ""},
		"another batch":     {map[string]string{"Content-Type": "application/cloudevents-batch+avro"}, `[]`, 415, adapters.CodeUnsupported, ""},
		"structured, bare":  {map[string]string{"Content-Type": "application/cloudevents"}, `{}`, 415, adapters.CodeUnsupported, ""},
		"structured, array": {map[string]string{"Content-Type": "application/cloudevents+json"}, `[]`, 400, adapters.CodeValidation, "body"},
		"structured, data": {map[string]string{"Content-Type": "application/cloudevents+json"},
			`{"specversion":"1.0","id":"1","source":"x","type":"y","data_base64":"AA=="}`, 415, adapters.CodeUnsupported, ""},
		"structured, time": {map[string]string{"Content-Type": "application/cloudevents+json"},
			`{"specversion":"1.0","id":"1","source":"x","type":"y","time":"noon"}`, 400, adapters.CodeValidation, "time"},
	} {
		t.Run(name, func(t *testing.T) {
			a := b.do("host", "POST", "/v1/events", c.body, headers(c.header)...)
			if doc := a.is(c.status).problem(c.code); c.field != "" && doc["field"] != c.field {
				t.Errorf("%v", doc)
			}
		})
	}
	twice := newRequest(t, b, "POST", "/v1/events", `{}`, headers(binary(nil))...)
	twice.Header.Add("ce-id", "b-2")
	b.send(twice).is(400).problem(adapters.CodeValidation)
	var page adapters.Page[json.RawMessage]
	b.do("reader", "GET", "/v1/events", "").is(200).into(&page)
	if len(page.Items) != 0 {
		t.Errorf("stored all the same: %s", page.Items)
	}
	// Without a required attribute in the headers, the body is an event in agentinit's own form.
	b.do("host", "POST", "/v1/events", `{"kind":"x"}`, "ce-subject", "s").is(202)
}

// A caller that accepts CloudEvents gets the history as CloudEvents, in pages.
func TestHistoryAsCloudEvents(t *testing.T) {
	b := newBox(t)
	for i := range 3 {
		b.do("host", "POST", "/v1/events", fmt.Sprintf(`{"kind":"tool.used","id":"e-%d","session_id":"s-1","payload":{"n":%d}}`, i, i)).is(202)
	}
	for _, accept := range []string{adapters.CloudEventType, adapters.CloudBatchType, "application/json;q=0.5, " + adapters.CloudEventType} {
		var got []adapters.CloudEvent
		a := b.do("reader", "GET", "/v1/events?limit=2", "", "Accept", accept).is(200)
		if err := json.Unmarshal(a.body, &got); err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 || got[0].SpecVersion != "1.0" || got[0].ID != "e-0" || got[0].Type != "agentbox.tool.used" || got[0].SessionID != "s-1" ||
			string(got[0].Data) != `{"n":0}` || got[0].Time == "" {
			t.Errorf("%s: %+v", accept, got)
		}
		if ct := a.header.Get("Content-Type"); ct != adapters.CloudBatchType {
			t.Errorf("%s is answered with %s", accept, ct)
		}
		if a.header.Get("Link") == "" {
			t.Errorf("%s: no link to the next page", accept)
		}
	}
	var page adapters.Page[adapters.Event]
	b.do("reader", "GET", "/v1/events?limit=2", "", "Accept", "*/*").is(200).into(&page)
	if len(page.Items) != 2 || page.Items[1].ID != "e-1" {
		t.Errorf("%+v", page)
	}
}

// registry is a host that knows some boxes.
type registry struct {
	rest.Host
	boxes []string
	err   error
}

func (r registry) Known(_ context.Context, box string) (bool, error) {
	return slices.Contains(r.boxes, box), r.err
}

// A box without a session gets 503 with Retry-After, not 403: its events wait in its spool until it
// has registered. A request that no box may make gets 403.
func TestBoxWithoutSessionIsToldToComeBack(t *testing.T) {
	b := newBox(t)
	for _, c := range []struct {
		who, method, path string
		status            int
	}{
		{"ended:box-1", "POST", "/v1/events", 503},
		{"member:token", "POST", "/v1/events", 503},
		{"member:token", "POST", "/v1/beads/epics", 503},
		{"reader", "POST", "/v1/events", 403},
		{"ended:box-1", "POST", "/v1/tasks", 403},
		{"member:token", "POST", "/v1/tasks", 403},
	} {
		a := b.do(c.who, c.method, c.path, `{"kind":"x.y"}`).is(c.status)
		if got := a.header.Get("Retry-After"); (got != "") != (c.status == 503) {
			t.Errorf("%s %s as %s: %d with Retry-After %q", c.method, c.path, c.who, c.status, got)
		}
	}
}

// A box may emit events as itself, but not as another registered box, in every form of an event.
func TestBoxesEmitAsThemselves(t *testing.T) {
	key := strings.Repeat("ab", 32)
	b := newBox(t, func(c *rest.Config) { c.Host = registry{boxes: []string{"test", "box-1", "box-2", key}} })
	away := newBox(t, func(c *rest.Config) {
		c.Host = registry{err: adapters.Errorf(adapters.CodeUnavailable, "the registry cannot be used")}
	})
	for i, c := range []struct {
		who, source string
		status      int
		stored      string
		away        int // the status while the registry fails
	}{
		{"box:box-1", "", 202, "urn:agentbox:box-1", 202},
		{"box:box-1", "urn:agentbox:box-1", 202, "urn:agentbox:box-1", 202},
		{"box:box-1", "urn:agentbox:box-1:agent-7", 202, "urn:agentbox:box-1:agent-7", 202},
		{"box:box-1", "/agents/7", 202, "/agents/7", 202},
		{"box:box-1", "urn:agentbox:a-key-it-had-before", 202, "urn:agentbox:a-key-it-had-before", 503},
		{"box:box-1", "urn:agentbox:box-2", 403, "", 503},
		{"box:box-1", "URN:AgentBox:box-2", 403, "", 503},
		{"box:box-1", "urn:agentbox:box-2:agent-7", 403, "", 503},
		{"box:box-1", "did:nostr:" + key, 403, "", 503},
		{"box:box-1", "did:nostr:" + strings.ToUpper(key), 403, "", 503},
		{"box:box-1", "urn:agentbox:test", 403, "", 503},
		{"box:" + key, "did:nostr:" + key, 202, "did:nostr:" + key, 202},
		{"host", "urn:agentbox:box-2", 202, "urn:agentbox:box-2", 202},
	} {
		body := fmt.Sprintf(`{"kind":"x","source":%q}`, c.source)
		b.do(c.who, "POST", "/v1/events", body).is(c.status)
		if c.status == 202 {
			if got := b.stored().Source; got != c.stored {
				t.Errorf("%s as %q: stored as of %q", c.who, c.source, got)
			}
		}
		away.do(c.who, "POST", "/v1/events", body).is(c.away)
		if c.source == "" {
			continue // a CloudEvent must have a source
		}
		cloud := fmt.Sprintf(`{"specversion":"1.0","id":"c-%d","source":%q,"type":"x"}`, i, c.source)
		b.do(c.who, "POST", "/v1/events", "["+cloud+"]", "Content-Type", "application/cloudevents-batch+json").is(c.status)
		b.do(c.who, "POST", "/v1/events", cloud, "Content-Type", "application/cloudevents+json").is(c.status)
	}
}
