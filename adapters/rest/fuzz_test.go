package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
)

// podsFake has an empty document at every path.
type podsFake struct{ slot }

func (podsFake) Write(_ context.Context, path string, body adapters.Body, _ adapters.Cond) (adapters.Written, error) {
	_, err := io.Copy(io.Discard, body.Reader)
	return adapters.Written{Created: true, ETag: `"1"`, Location: path}, err
}

func (podsFake) Read(_ context.Context, path string, _ adapters.ReadOpt) (adapters.Resource, error) {
	return adapters.Resource{Path: path, ContentType: "text/turtle", ETag: `"1"`, Body: http.NoBody}, nil
}

func (p podsFake) Head(ctx context.Context, path string, opt adapters.ReadOpt) (adapters.Resource, error) {
	return p.Read(ctx, path, opt)
}

func (podsFake) Patch(_ context.Context, path string, _ adapters.PodPatch, _ adapters.Cond) (adapters.Written, error) {
	return adapters.Written{Location: path}, nil
}

func (podsFake) Del(context.Context, string, adapters.Cond) (bool, error) { return true, nil }

func (podsFake) List(_ context.Context, container string, _ adapters.PageOpt) (adapters.Page[adapters.PodEntry], error) {
	return adapters.Page[adapters.PodEntry]{Items: []adapters.PodEntry{{Path: container + "x"}}}, nil
}

func (podsFake) CreateContainer(_ context.Context, path string) (adapters.Written, error) {
	return adapters.Written{Created: true, Location: path}, nil
}

func (podsFake) Subscribe(context.Context, string) (adapters.PodSubscription, error) {
	return nil, adapters.Unsupported("notifications", "there are none")
}

// firstPiece is a caller that disconnects after the first message of a stream.
type firstPiece struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (w firstPiece) Flush() { w.leave() }

// target is the box that the fuzz tests call.
type target struct {
	*box
	paths    []string // "METHOD /path" of every route
	reported error    // the last error of Config.Report
}

func newTarget(f *testing.F) *target {
	f.Helper()
	t := &target{}
	t.box = newBoxWith(f, map[adapters.Slot]adapters.Adapter{
		adapters.SlotPods: podsFake{slot{adapters.SlotPods, "local-solid-rs"}},
	}, func(c *rest.Config) {
		c.RateLimit = -1
		c.Report = func(_ string, err error) { t.reported = err }
	})
	var doc struct {
		Paths map[string]map[string]any
	}
	t.do("", "GET", "/openapi.json", "").is(200).into(&doc)
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if path != "/openapi.json" && object(op)["security"] != nil {
				continue // another package serves this route
			}
			t.paths = append(t.paths, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(t.paths)
	// Requests need something to find: route uses "x1" for the parameters of a path.
	t.do("admin", "POST", "/v1/agents", `{"command":"x"}`).is(201)
	t.do("admin", "PUT", "/v1/memory/x1/x1", `{"value":"x"}`).is(201)
	t.do("admin", "POST", "/v1/events", `{"kind":"x"}`).is(202)
	t.do("admin", "POST", "/v1/beads/epics", `{"title":"x"}`).is(201)
	return t
}

// route returns route n of the given methods (none = any), with its parameters filled in.
func (t *target) route(n uint8, methods ...string) (method, path string) {
	var of []string
	for _, p := range t.paths {
		if m, _, _ := strings.Cut(p, " "); len(methods) == 0 || slices.Contains(methods, m) {
			of = append(of, p)
		}
	}
	method, path, _ = strings.Cut(of[int(n)%len(of)], " ")
	if strings.HasPrefix(path, "/v1/agents/{id}") {
		return method, strings.Replace(path, "{id}", "agent-1", 1)
	}
	for _, name := range []string{"{id}", "{ns}", "{key}", "{path}", "{urn}"} {
		path = strings.Replace(path, name, "x1", 1)
	}
	return method, path
}

// ask sends a request to the handler as an admin. It fails unless the answer is a success or an
// error of the table of codes.
func (t *target) ask(f *testing.T, req *http.Request) *httptest.ResponseRecorder {
	f.Helper()
	ctx, leave := context.WithCancel(f.Context())
	defer leave()
	ctx = context.WithValue(ctx, principalKey{}, rest.Principal{Role: rest.RoleAdmin, ID: "management-key"})
	w := firstPiece{httptest.NewRecorder(), leave}
	t.server.Handler().ServeHTTP(w, req.WithContext(ctx))
	for name, values := range w.Header() {
		if strings.ContainsAny(strings.Join(values, ""), "\r\n\x00") {
			f.Errorf("%s %q carries a line break", name, values)
		}
	}
	if w.Code < 400 {
		return w.ResponseRecorder
	}
	var doc struct {
		Code   adapters.Code
		Status int
		Detail string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil && req.Method != http.MethodHead {
		f.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	if w.Header().Get("Content-Type") != adapters.ProblemType || !doc.Code.Known() || doc.Status != w.Code || doc.Detail == "" {
		f.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	// 501 means that the box does not have the part. No other 5xx is expected: all slots work.
	if w.Code >= 500 && !(w.Code == 501 && (doc.Code == adapters.CodeDisabled || doc.Code == adapters.CodeUnsupported)) {
		f.Fatalf("%s %s: %d %s: %v", req.Method, req.URL, w.Code, w.Body, t.reported)
	}
	return w.ResponseRecorder
}

// fuzzRequest makes a request with a request target. It returns false if net/http would refuse the
// target.
func fuzzRequest(method, target string, body []byte) (*http.Request, bool) {
	u, err := url.ParseRequestURI(target)
	if err != nil || !strings.HasPrefix(u.Path, "/") {
		return nil, false
	}
	req := httptest.NewRequest(method, "/", bytes.NewReader(body))
	req.URL, req.RequestURI = u, target
	req.Header.Set("Content-Type", "application/json")
	return req, true
}

var fuzzMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"}

func FuzzPath(f *testing.F) {
	for i, path := range []string{
		"/v1/beads/x1", "/v1/beads/ab-1/claim", "/v1/memory/a%2Fb/%E2%82%AC%00", "/v1/memory/x1/%zz", "/pods/a/%2e%2e/b", "/pods//x", "/pods/a%0d%0aX:1",
		"/v1/uri/urn:agentbox:bead:x", "/v1/uri/did:nostr:%0a", "/v1/agents/agent-1/events", "/v1/events/stream/..", "/v1/tasks/%2e", "/v1//beads", "/v1/uri/urn:agentbox:memory:a%23%0d%0ab",
	} {
		f.Add(uint8(i), path)
	}
	b := newTarget(f)
	f.Fuzz(func(t *testing.T, method uint8, path string) {
		if req, ok := fuzzRequest(fuzzMethods[int(method)%len(fuzzMethods)], path, []byte("{}")); ok {
			b.ask(t, req)
		}
	})
}

func FuzzQuery(f *testing.F) {
	b := newTarget(f)
	for i := range b.paths {
		f.Add(uint8(i), "limit=1&cursor=AAAA&after=1&status=all&label=a=b&kind=x.&priority_max=9&since=-1&grace_s=0&container=/&to=x&dry_run=1")
	}
	f.Add(uint8(0), "limit=00000000000000000001&limit=2;cursor=%zz&kind=&kind=.")
	f.Fuzz(func(t *testing.T, n uint8, query string) {
		method, path := b.route(n, "GET", "DELETE")
		req, _ := fuzzRequest(method, path, nil)
		req.URL.RawQuery = query
		b.ask(t, req)
	})
}

func FuzzBody(f *testing.F) {
	b := newTarget(f)
	for i := range b.paths {
		f.Add(uint8(i), "application/json", []byte(`{"title":"x","actor":"a","value":"v","query":"q","command":"c","kind":"k","source_agent_id":1,"action_type":0,"to":"x1","data":"d","events":[{}],"body":"x"}`))
	}
	f.Add(uint8(0), "application/x-ndjson", []byte("{\"id\":\"ab-x\",\"title\":\"t\"}\n{"))
	f.Add(uint8(3), "application/cloudevents-batch+json", []byte(`[{"specversion":"1.0"}]`))
	f.Add(uint8(5), "application/json-patch+json", []byte(`[{"op":"add"}]`))
	f.Add(uint8(7), "", []byte("\xff\xfe[[[[{\"a\":1e999}"))
	f.Fuzz(func(t *testing.T, n uint8, contentType string, body []byte) {
		method, path := b.route(n, "POST", "PUT", "PATCH")
		req, _ := fuzzRequest(method, path, body)
		req.Header.Set("Content-Type", contentType)
		b.ask(t, req)
	})
}

func FuzzHeaders(f *testing.F) {
	b := newTarget(f)
	for i := range b.paths {
		f.Add(uint8(i), "key-1", "7", "s-1", "beads/1", `"v1"`, "agent-1")
	}
	f.Add(uint8(0), " ", "-1", "a b", "beads/99999999999999999999", `W/"x`, "\xff")
	f.Add(uint8(9), strings.Repeat("k", 256), "18446744073709551616", strings.Repeat("s", 129), "/", "*", strings.Repeat("a", 201))
	f.Fuzz(func(t *testing.T, n uint8, key, lastID, session, contract, match, actor string) {
		method, path := b.route(n)
		req, _ := fuzzRequest(method, path, []byte(`{"title":"x","value":"v","kind":"k","command":"c"}`))
		for name, v := range map[string]string{
			"Idempotency-Key": key, "Last-Event-ID": lastID, "Agentbox-Session": session, "Agentbox-Execution": session,
			"Agentbox-Contract": contract, "If-Match": match, "If-None-Match": match, "Range": match, "Agentbox-Actor": actor,
		} {
			if v != "" {
				req.Header.Set(name, v)
			}
		}
		b.ask(t, req)
	})
}

func FuzzCloudEventHeaders(f *testing.F) {
	f.Add("1.0", "b-1", "/agents/7", "agentbox.x", "%C3%A9", "2026-01-02T03:04:05Z", "application/json", []byte(`{"n":1}`))
	f.Add(`"1.0"`, `"a\"`, "%", "agentbox.", "\xff", "noon", "application/cloudevents+json", []byte(`{"specversion":"1.0"}`))
	b := newTarget(f)
	f.Fuzz(func(t *testing.T, version, id, source, kind, subject, at, contentType string, body []byte) {
		req, _ := fuzzRequest("POST", "/v1/events", body)
		for name, v := range map[string]string{
			"ce-specversion": version, "ce-id": id, "ce-source": source, "ce-type": kind, "ce-subject": subject, "ce-time": at, "Content-Type": contentType,
		} {
			req.Header.Set(name, v)
		}
		w := b.ask(t, req)
		if w.Code != http.StatusAccepted || !strings.HasPrefix(contentType, "application/json") {
			return
		}
		var receipt adapters.Receipt
		if err := json.Unmarshal(w.Body.Bytes(), &receipt); err != nil || receipt.ID == "" || !strings.HasPrefix(version, "1.") && !strings.Contains(version, `"`) && !strings.Contains(version, "%") {
			t.Fatalf("version %q is taken: %s %v", version, w.Body, err)
		}
	})
}
