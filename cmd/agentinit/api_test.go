package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

func TestBoundary(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	m := &schema.Manifest{API: schema.API{
		PublicURLs: []string{"https://Box.example.org:8443/"}, TrustedProxies: []string{"10.0.0.0/8", "::1"},
		CORSOrigins: []string{"HTTPS://app.example:443/"},
	}}
	got, err := newBoundary(m, "box.lan:9090", getenv)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"box.example.org", "box.lan", hostname}; !slices.Equal(got.names, want) {
		t.Errorf("names %q, want %q", got.names, want)
	}
	if len(got.proxies) != 2 || got.proxies[0].String() != "10.0.0.0/8" || !slices.Equal(got.origins, []string{"https://app.example"}) {
		t.Errorf("%+v", got)
	}
	env["MANAGEMENT_API_PUBLIC_URLS"] = "http://[fd00::1]:9090, https://other"
	if got, err = newBoundary(m, bootstrap.Off, getenv); err != nil || !slices.Equal(got.names, []string{"fd00::1", "other", hostname}) {
		t.Errorf("%q %v", got.names, err)
	}
	if got, err = newBoundary(&schema.Manifest{}, ":9090", func(string) string { return "" }); err != nil || !slices.Equal(got.names, []string{hostname}) {
		t.Errorf("a box that says nothing: %q %v", got.names, err)
	}
	for _, api := range []schema.API{{PublicURLs: []string{"x"}}, {TrustedProxies: []string{"x"}}, {CORSOrigins: []string{"*"}}} {
		if _, err := newBoundary(&schema.Manifest{API: api}, "", func(string) string { return "" }); err == nil {
			t.Errorf("%+v is taken", api)
		}
	}
}

// A refusal by the listener and a refusal by a handler both have a code of the same table, with the
// status of that code.
func TestRefusalsAreOfOneTable(t *testing.T) {
	b := &box{bus: event.NewBus(64), registry: prometheus.NewRegistry(), core: &core{}, servers: &servers{}}
	b.boundary = boundary{names: []string{"box"}, origins: []string{"https://app.example"}}
	b.self = &self{b: b}
	var err error
	if b.auth, err = probes.NewAuth(probes.AuthBearer, nil, b.registry); err != nil {
		t.Fatal(err)
	}
	b.auth.SetKey("k")
	resolved, err := adapters.Resolve(adapters.Config{}, adapters.Table{})
	if err != nil {
		t.Fatal(err)
	}
	b.slots = adapters.NewSet(resolved, adapters.Options{})
	readiness := probes.NewReadiness(b.bus)
	if b.server, err = probes.NewServer(probes.Config{
		Bus: b.bus, Readiness: readiness, Liveness: probes.NewLiveness(stillPings{}, time.Now()), Auth: b.auth, Gatherer: b.registry, Registerer: b.registry,
		Health: func() probes.Health { return probes.NewHealth(probes.Facts{}) }, Meta: func(*http.Request) any { return map[string]string{} },
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.serveAPI(&schema.Manifest{Adapters: schema.Adapters{Orchestrator: "off"}}, b.servers); err != nil {
		t.Fatal(err)
	}
	defer b.api.Close()
	for _, c := range []struct {
		method, path, key string
		status            int
		code              adapters.Code
	}{
		{"GET", "/v1/beads", "", 401, adapters.CodeUnauthenticated},
		{"GET", "/v1/beads", "wrong", 401, adapters.CodeUnauthenticated},
		{"GET", "/v1/beads", "k", 501, adapters.CodeDisabled},
		{"PUT", "/v1/beads", "k", 405, adapters.CodeUnsupported},
		{"GET", "/v1/beads/a/b/c", "k", 404, adapters.CodeNotFound},
		{"GET", "/nothing", "k", 404, adapters.CodeNotFound},
		{"POST", "/livez", "k", 405, adapters.CodeUnsupported},
		{"GET", "/health/pods", "", 404, adapters.CodeNotFound},
		{"GET", "/health/relay", "", 404, adapters.CodeNotFound},
		{"GET", "/v1/federation", "k", 200, ""},
		{"GET", "/openapi.json", "", 200, ""},
		{"GET", "/", "", 200, ""},
	} {
		req := httptest.NewRequest(c.method, c.path, nil)
		if c.key != "" {
			req.Header.Set("Authorization", "Bearer "+c.key)
		}
		w := httptest.NewRecorder()
		b.server.Handler().ServeHTTP(w, req)
		var doc struct {
			Code    adapters.Code
			Status  int
			Title   string
			Detail  string
			Message string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
			t.Errorf("%s %s: %v in %s", c.method, c.path, err, w.Body)
		}
		if w.Code != c.status || doc.Code != c.code {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, w.Code, w.Body, c.status, c.code)
		}
		if c.code == "" {
			continue
		}
		row := c.code.Row()
		if !doc.Code.Known() || doc.Status != c.status || doc.Title != row.Title || doc.Message != doc.Detail || w.Header().Get("Content-Type") != adapters.ProblemType {
			t.Errorf("%s %s: %s", c.method, c.path, w.Body)
		}
		if c.status != row.HTTP && c.status != http.StatusMethodNotAllowed {
			t.Errorf("%s is answered with %d", c.code, c.status)
		}
		// Our client reads the same code from the refusal.
		if e := adapters.FromProblem(w.Code, w.Header(), w.Body.Bytes()); e.Code != c.code {
			t.Errorf("%s %s is read as %s", c.method, c.path, e.Code)
		}
	}
}

type stillPings struct{}

func (stillPings) Ping(context.Context) error { return nil }
