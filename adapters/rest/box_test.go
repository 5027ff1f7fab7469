package rest_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/dreamlab-ai/agentinit/adapters/memory"
	"github.com/dreamlab-ai/agentinit/adapters/middleware"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/rest/resttest"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/internal/exchange"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box is a server over slots: real beads and events, fakes for memory and orchestrator. Its clients
// use the tokens of principalOf, such as "admin" or "agent-1".
type box struct {
	t      testing.TB
	url    string
	server *rest.Server
	memory *memoryFake
	agents *agentsFake
}

type option func(*rest.Config)

// newBox serves a box with all slots except pods.
func newBox(t testing.TB, opts ...option) *box {
	t.Helper()
	return newBoxWith(t, nil, opts...)
}

// newBoxWith is newBox with further slots.
func newBoxWith(t testing.TB, more map[adapters.Slot]adapters.Adapter, opts ...option) *box {
	t.Helper()
	b := &box{t: t, memory: newMemoryFake(), agents: newAgentsFake()}
	wanted := map[adapters.Slot]adapters.Adapter{
		adapters.SlotBeads:        must(beads.NewLocal(beads.LocalConfig{Path: filepath.Join(t.TempDir(), "beads.db")}))(t),
		adapters.SlotEvents:       must(events.NewLocal(events.LocalConfig{Dir: t.TempDir(), Source: func() string { return "urn:agentbox:test" }}))(t),
		adapters.SlotMemory:       b.memory,
		adapters.SlotOrchestrator: b.agents,
	}
	maps.Copy(wanted, more)
	b.serve(newSet(t, wanted), opts...)
	return b
}

// must returns v, or fails the test if err is not nil.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newSet connects the adapters behind the full middleware. chain is at most one Options.
func newSet(t testing.TB, wanted map[adapters.Slot]adapters.Adapter, chain ...middleware.Options) *adapters.Set {
	t.Helper()
	cfg := adapters.Config{Slots: map[adapters.Slot]string{}}
	table := adapters.Table{}
	for slot, a := range wanted {
		cfg.Slots[slot] = a.Impl()
		table[slot] = map[string]adapters.Constructor{a.Impl(): func() (adapters.Adapter, error) { return a, nil }}
	}
	stack := must(middleware.New(append(chain, middleware.Options{})[0]))(t)
	set := adapters.NewSet(must(adapters.Resolve(cfg, table))(t), adapters.Options{Middleware: stack.Middleware()})
	if err := set.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return set
}

type principalKey struct{}

// serve starts a server for the slots, with a stand-in for the authentication of a box (principalOf).
func (b *box) serve(slots *adapters.Set, opts ...option) {
	cfg := rest.Config{
		Slots: slots, Version: "1.2.3",
		Principal: func(ctx context.Context) (rest.Principal, bool) {
			p, ok := ctx.Value(principalKey{}).(rest.Principal)
			return p, ok
		},
		Report: func(route string, err error) { b.t.Logf("report: %s: %v", route, err) },
	}
	for _, o := range opts {
		o(&cfg)
	}
	b.server = must(rest.New(cfg))(b.t)
	mux := http.NewServeMux()
	// As in a box, a wrapper that records the answer surrounds the listener's ResponseWriter:
	// streams and WebSockets must work through it.
	inner := b.authenticate(b.server.Handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(&exchange.Recorder{ResponseWriter: w}, r)
	})
	mux.HandleFunc("GET /v1/meta", func(w http.ResponseWriter, _ *http.Request) {
		versions, caps := map[adapters.Slot]string{}, map[adapters.Slot][]string{}
		for _, s := range slots.Status() {
			versions[s.Slot], caps[s.Slot] = s.ContractVersion, s.Capabilities
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"adapter_contract_versions": versions, "capabilities": caps})
	})
	srv := httptest.NewServer(mux)
	b.url = srv.URL
	b.t.Cleanup(func() {
		b.server.Close()
		srv.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
}

func (b *box) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := b.server.Redeem(r)
		if !ok {
			who, ok = principalOf(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		}
		if ok {
			r = r.WithContext(context.WithValue(r.Context(), principalKey{}, who))
		}
		next.ServeHTTP(w, r)
	})
}

func principalOf(token string) (rest.Principal, bool) {
	switch token {
	case "":
		return rest.Principal{}, false
	case "admin":
		return rest.Principal{Role: rest.RoleAdmin, ID: "management-key"}, true
	case "reader":
		return rest.Principal{Role: rest.RoleReader, ID: "reader"}, true
	case "host":
		return rest.Principal{Role: rest.RoleHost, ID: "host"}, true
	}
	if id, ok := strings.CutPrefix(token, "ended:"); ok {
		return rest.Principal{Role: rest.RoleEnded, ID: id}, true
	}
	if id, ok := strings.CutPrefix(token, "member:"); ok {
		return rest.Principal{Role: rest.RoleMember, ID: id}, true
	}
	if id, ok := strings.CutPrefix(token, "box:"); ok {
		return rest.Principal{Role: rest.RoleBox, ID: id}, true
	}
	return rest.Principal{Role: rest.RoleAgent, ID: token}, true
}

// answer is the response to a request.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// newRequest makes a request; pairs are headers.
func newRequest(t testing.TB, b *box, method, path, body string, pairs ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, b.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer admin")
	for i := 0; i+1 < len(pairs); i += 2 {
		req.Header.Set(pairs[i], pairs[i+1])
	}
	return req
}

// do sends one request with the token who; pairs are headers.
func (b *box) do(who, method, path, body string, pairs ...string) answer {
	b.t.Helper()
	req := newRequest(b.t, b, method, path, body, pairs...)
	req.Header.Set("Authorization", "Bearer "+who)
	if who == "" {
		req.Header.Del("Authorization")
	}
	return b.send(req)
}

func (b *box) send(req *http.Request) answer {
	b.t.Helper()
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer{b.t, res.StatusCode, res.Header, raw}
}

// is fails the test unless the answer has this status.
func (a answer) is(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

func (a answer) into(v any) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		a.t.Fatalf("%v: %s", err, a.body)
	}
}

// fields are the members of a JSON object.
func (a answer) fields() map[string]any {
	a.t.Helper()
	var m map[string]any
	a.into(&m)
	return m
}

// problem fails the test unless the answer is a problem document with this code.
func (a answer) problem(code adapters.Code) map[string]any {
	a.t.Helper()
	if ct := a.header.Get("Content-Type"); ct != adapters.ProblemType {
		a.t.Fatalf("content type %q, status %d: %s", ct, a.status, a.body)
	}
	m := a.fields()
	if m["code"] != string(code) || m["status"] != float64(a.status) || m["message"] != m["detail"] {
		a.t.Fatalf("%s, want %s", a.body, code)
	}
	return m
}

func token(s string) wire.Bearer { return func() string { return s } }

func TestExternalBeadsOverThisServer(t *testing.T) {
	contract.Beads(t, func(t testing.TB) adapters.Beads {
		b := newBox(t)
		return must(beads.NewExternal(beads.ExternalConfig{URL: b.url, Auth: token("admin")}))(t)
	})
}

func TestExternalEventsOverThisServer(t *testing.T) {
	contract.Events(t, func(t testing.TB) adapters.Events {
		b := newBox(t)
		return must(events.NewExternal(events.ExternalConfig{URL: b.url, Dir: t.TempDir(), Source: func() string { return "urn:agentbox:other" }, Auth: token("admin")}))(t)
	})
}

// The beads slot answers the same in the process and over HTTP.
func TestSameBeads(t *testing.T) {
	contract.SameBeads(t, func(t testing.TB) adapters.Beads { return localBeads(t) }, func(t testing.TB) adapters.Beads {
		return must(beads.NewExternal(beads.ExternalConfig{URL: newBox(t, unlimited).url, Auth: token("admin")}))(t)
	})
}

func TestSameEvents(t *testing.T) {
	contract.SameEvents(t, func(t testing.TB) adapters.Events {
		return must(events.NewLocal(events.LocalConfig{Dir: t.TempDir()}))(t)
	}, func(t testing.TB) adapters.Events {
		return must(events.NewExternal(events.ExternalConfig{URL: newBox(t, unlimited).url, Dir: t.TempDir(), Source: func() string { return "urn:agentbox:other" }, Auth: token("admin")}))(t)
	})
}

func memoryOver(e memory.Embedder) func(*testing.T) adapters.Memory {
	return func(t *testing.T) adapters.Memory {
		local := must(memory.NewEmbedded(memory.EmbeddedConfig{Dir: t.TempDir(), Embedder: e}))(t)
		b := &box{t: t}
		b.serve(newSet(t, map[adapters.Slot]adapters.Adapter{adapters.SlotMemory: local}, patient), unlimited)
		return must(resttest.NewMemory(b.url, token("admin")))(t)
	}
}

// unlimited removes the rate limit.
func unlimited(c *rest.Config) { c.RateLimit = -1 }

// deaf is an embedder that always fails.
type deaf struct{}

func (deaf) ID() string { return "deaf" }
func (deaf) Dim() int   { return 0 }
func (deaf) Embed(context.Context, []string) ([][]float32, error) {
	return nil, adapters.Errorf(adapters.CodeEmbedding, "the embedder is down")
}

// patient is for slow machines: with the race detector, an embedding of 1 MiB takes seconds.
var patient = middleware.Options{ReadLimit: 5 * time.Minute, WriteLimit: 5 * time.Minute}

func memoryOverThisServer(t testing.TB) contract.MemoryClass {
	words := must(memory.NewEmbedder(memory.EmbedderConfig{}))(t)
	return contract.MemoryClass{New: memoryOver(words), Deaf: memoryOver(deaf{})}
}

func TestMemoryOverThisServer(t *testing.T) { contract.Memory(t, memoryOverThisServer(t)) }

// The memory slot answers the same in the process and over HTTP.
func TestSameMemory(t *testing.T) {
	words := must(memory.NewEmbedder(memory.EmbedderConfig{}))(t)
	local := contract.MemoryClass{New: func(t *testing.T) adapters.Memory {
		return must(memory.NewEmbedded(memory.EmbeddedConfig{Dir: t.TempDir(), Embedder: words}))(t)
	}}
	contract.SameMemory(t, local, memoryOverThisServer(t))
}

// memoryFake is a memory slot in a map.
type memoryFake struct {
	slot
	entries map[[2]string]adapters.MemoryEntry
}

func newMemoryFake() *memoryFake {
	return &memoryFake{slot: slot{adapters.SlotMemory, "embedded-ruvector"}, entries: map[[2]string]adapters.MemoryEntry{}}
}

func (m *memoryFake) Store(_ context.Context, key, value, ns string, opt adapters.StoreOpt) (adapters.Stored, error) {
	_, there := m.entries[[2]string{ns, key}]
	m.entries[[2]string{ns, key}] = adapters.MemoryEntry{Key: key, Namespace: ns, Value: value, Metadata: opt.Metadata}
	return adapters.Stored{Key: key, Namespace: ns, Created: !there}, nil
}

func (m *memoryFake) Retrieve(_ context.Context, key, ns string) (adapters.MemoryEntry, bool, error) {
	e, ok := m.entries[[2]string{ns, key}]
	return e, ok, nil
}

func (m *memoryFake) Search(_ context.Context, query string, opt adapters.SearchOpt) ([]adapters.Hit, error) {
	var hits []adapters.Hit
	for k, e := range m.entries {
		if k[0] == opt.Namespace && strings.Contains(e.Value, query) {
			hits = append(hits, adapters.Hit{Score: 1, Key: e.Key, Value: e.Value, Metadata: e.Metadata})
		}
	}
	return hits, nil
}

func (m *memoryFake) Del(_ context.Context, key, ns string) (bool, error) {
	_, ok := m.entries[[2]string{ns, key}]
	delete(m.entries, [2]string{ns, key})
	return ok, nil
}

func (m *memoryFake) List(_ context.Context, ns string, _ adapters.PageOpt) (adapters.Page[adapters.MemoryKey], error) {
	var p adapters.Page[adapters.MemoryKey]
	for k := range m.entries {
		if k[0] == ns {
			p.Items = append(p.Items, adapters.MemoryKey{Key: k[1]})
		}
	}
	slices.SortFunc(p.Items, func(a, b adapters.MemoryKey) int { return strings.Compare(a.Key, b.Key) })
	return p, nil
}

func (m *memoryFake) Namespaces(context.Context) ([]adapters.Namespace, error) { return nil, nil }

// slot has the descriptive methods of a fake adapter.
type slot struct {
	name adapters.Slot
	impl string
}

func (s slot) Slot() adapters.Slot                  { return s.name }
func (s slot) Impl() string                         { return s.impl }
func (slot) Class() adapters.Class                  { return adapters.ClassLocal }
func (slot) Enabled() bool                          { return true }
func (slot) ContractVersion() string                { return "1.1" }
func (slot) Capabilities() []string                 { return []string{} }
func (slot) Connect(context.Context) error          { return nil }
func (slot) Disconnect(context.Context) error       { return nil }
func (slot) Health(context.Context) adapters.Health { return adapters.Healthy() }
