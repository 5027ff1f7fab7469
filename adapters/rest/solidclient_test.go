package rest_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods"
	"github.com/dreamlab-ai/agentinit/adapters/pods/solid"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// withOrigin takes the origin of the box from the Host of a request, as the real listener does.
func withOrigin(cfg *rest.Config) {
	cfg.Origin = func(r *http.Request) *url.URL { return &url.URL{Scheme: "http", Host: r.Host} }
}

// podBox returns a box in front of a running Solid server, and the URL of that server.
func podBox(t *testing.T) (*box, string) {
	t.Helper()
	server, err := foreign.Solid(t.Context(), nil)
	foreign.SkipOrFail(t, err)
	t.Cleanup(server.Stop)
	slot := must(pods.NewExternal(pods.Config{BaseURL: server.Address}))(t)
	return newBoxWith(t, map[adapters.Slot]adapters.Adapter{adapters.SlotPods: slot}, withOrigin), server.Address
}

// TestPods runs all tests with one Solid server, behind one box.
func TestPods(t *testing.T) {
	b, server := podBox(t)
	t.Run("a client of others", func(t *testing.T) { testSolidClient(t, b, server) })
	t.Run("the same meaning", func(t *testing.T) { testPodsKeepTheirMeaning(t, b, server) })
	t.Run("as a server", func(t *testing.T) { testPodsAsAServer(t, b, server) })
}

// podServer is the pod server of a box, in which everyone may do everything.
func podServer(t *testing.T) (base string) {
	t.Helper()
	dir := t.TempDir()
	const all = `@prefix acl: <http://www.w3.org/ns/auth/acl#>. <#all> a acl:Authorization; acl:agentClass <http://xmlns.com/foaf/0.1/Agent>;
		acl:accessTo <./>; acl:default <./>; acl:mode acl:Read, acl:Write, acl:Append, acl:Control.`
	if err := os.WriteFile(filepath.Join(dir, ".acl"), []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(nil)
	base = "http://" + s.Listener.Addr().String()
	server := must(solid.New(solid.Config{Root: dir, BaseURL: base, Quota: -1, Log: slog.New(slog.DiscardHandler)}))(t)
	s.Config.Handler = server
	s.Start()
	t.Cleanup(func() {
		s.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return base
}

// testSolidClient runs the same steps of Inrupt's client with a foreign Solid server itself, with /pods before it, and with our own
// pod server: each step must have the same result.
func testSolidClient(t *testing.T, b *box, server string) {
	node, module, err := foreign.SolidClient()
	foreign.SkipOrFail(t, err)
	run := func(base, authorization string) (results map[string]any) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), node, "testdata/solid-client.cjs", module, base, authorization).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := json.Unmarshal(out, &results); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return results
	}
	direct := run(server+"/direct/", "")
	others := map[string]map[string]any{
		"through the box": run(b.url+"/pods/through/", "Bearer admin"), "our pod server": run(podServer(t)+"/direct/", ""),
	}
	if len(direct) < 12 {
		t.Errorf("only %d steps", len(direct))
	}
	for step, want := range direct {
		if text, ok := want.(string); ok && strings.HasPrefix(text, "failed") {
			t.Errorf("%s: the server itself: %s", step, text)
		}
		for where, results := range others {
			if got := results[step]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s\n %s: %v\n directly: %v", step, where, got, want)
			}
		}
	}
}

// A document has the same statements in the box and in the server, in every RDF format. Only the
// URLs below the pods' root differ.
func testPodsKeepTheirMeaning(t *testing.T, b *box, server string) {
	direct := func(path, accept string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", server+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return string(must(io.ReadAll(res.Body))(t))
	}
	here, there := b.url+"/pods/", server+"/"
	for name, c := range map[string]struct{ contentType, body string }{
		"turtle":    {"text/turtle", `@prefix p: <` + here + `>. p:a\/b <http://x/p> <` + here + `c>, "<` + here + `d>".`},
		"n-triples": {"application/n-triples", `<` + here + `a/b> <http://x/p> <` + here + "c> .\n<" + here + `a/b> <http://x/p> "<` + here + `d>" .`},
		"json-ld": {"application/ld+json", `{"@context": {"p": {"@id": "http://x/p", "@type": "@id"}, "q": "http://x/p"}, "@id": "` + here +
			`a/b", "p": "` + here + `c", "q": "<` + here + `d>"}`},
	} {
		t.Run(name, func(t *testing.T) {
			path := "/pods/" + name
			b.do("admin", "PUT", path, c.body, "Content-Type", c.contentType).is(201)
			want := []string{`<` + there + `a/b> <http://x/p> <` + there + `c> .`, `<` + there + `a/b> <http://x/p> "<` + here + `d>" .`}
			for _, line := range want {
				if got := direct("/"+name, "application/n-triples"); !strings.Contains(got, line) {
					t.Errorf("the server has\n%s, not %s", got, line)
				}
			}
			for _, accept := range []string{"application/n-triples", "text/turtle", "application/ld+json"} {
				a := b.do("admin", "GET", path, "", "Accept", accept).is(200)
				text := string(a.body)
				if strings.Contains(text, there) || !strings.Contains(text, here+"a/b") && !strings.Contains(text, `a\/b`) || !strings.Contains(text, here+"d") {
					t.Errorf("%s: %s", accept, text)
				}
			}
		})
	}
	b.do("admin", "PATCH", "/pods/turtle", `INSERT DATA { <`+here+`a/b> <http://x/q> <`+here+`e> }`, "Content-Type", "application/sparql-update").is(200)
	b.do("admin", "PATCH", "/pods/turtle", `@prefix solid: <http://www.w3.org/ns/solid/terms#>.
_:p a solid:InsertDeletePatch; solid:where { <`+here+`a/b> <http://x/q> ?x. }; solid:deletes { <`+here+`a/b> <http://x/q> ?x. }; solid:inserts { ?x <http://x/r> <`+here+`f>. }.`,
		"Content-Type", "text/n3").is(200)
	if got := direct("/turtle", "application/n-triples"); !strings.Contains(got, `<`+there+`e> <http://x/r> <`+there+`f> .`) || strings.Contains(got, "http://x/q") {
		t.Errorf("after two patches:\n%s", got)
	}
	for _, refused := range []struct{ contentType, body string }{
		{"application/rdf+xml", `<rdf:RDF/>`}, {"application/ld+json", `{"@context": "https://www.w3.org/ns/activitystreams", "@id": "x"}`},
	} {
		b.do("admin", "PUT", "/pods/refused", refused.body, "Content-Type", refused.contentType).is(415)
	}
}

// POST, OPTIONS, and the headers that a client uses for discovery.
func testPodsAsAServer(t *testing.T, b *box, server string) {
	b.do("admin", "PUT", "/pods/c/", "").is(201)
	b.do("admin", "PUT", "/pods/c/", "", "If-None-Match", " * ").is(412)
	b.do("admin", "PUT", "/pods/c/", "", "If-None-Match", `"a", "b"`).is(200)
	b.do("admin", "PUT", "/pods/d/", "<> <a:b> <c:d>.", "Content-Type", "text/turtle").is(415)
	container := []string{"Link", `<http://www.w3.org/ns/ldp#BasicContainer>; rel="type"`}
	var locations []string
	for _, c := range []struct {
		slug string
		more []string
	}{{"a name", nil}, {"a name", nil}, {"", nil}, {"../../etc", nil}, {"x.acl", nil}, {"box", container}, {"box", container}, {"a name", container}} {
		a := b.do("admin", "POST", "/pods/c/", "", append([]string{"Slug", c.slug, "Content-Type", "text/plain"}, c.more...)...).is(201)
		locations = append(locations, a.header.Get("Location"))
	}
	seen := map[string]bool{}
	for i, l := range locations {
		if !strings.HasPrefix(l, "/pods/c/") || seen[l] || strings.Contains(l, "..%2F") || strings.HasSuffix(l, ".acl") || (i > 4) != strings.HasSuffix(l, "/") {
			t.Errorf("location %q of %q", l, locations)
		}
		seen[l] = true
		b.do("admin", "GET", l, "").is(200)
	}
	if locations[0] != "/pods/c/a%20name" || locations[5] != "/pods/c/box/" {
		t.Errorf("%q", locations)
	}
	b.do("admin", "POST", "/pods/none/", "x", "Content-Type", "text/plain").is(404)
	b.do("admin", "POST", "/pods/c/a%20name", "x", "Content-Type", "text/plain").is(415)
	for path, allow := range map[string]string{
		"/pods/c/": "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE", "/pods/c/a%20name": "GET, HEAD, OPTIONS, PUT, PATCH, DELETE", "/pods/nothing": "GET, HEAD, OPTIONS, PUT, PATCH, DELETE",
	} {
		a := b.do("admin", "OPTIONS", path, "").is(204)
		if a.header.Get("Allow") != allow || !strings.Contains(a.header.Get("Accept-Patch"), "application/sparql-update") || (a.header.Get("Accept-Post") != "") != strings.HasSuffix(path, "/") {
			t.Errorf("%s: %v", path, a.header)
		}
	}
	a := b.do("admin", "HEAD", "/pods/c/", "", "Accept", "text/turtle").is(200)
	links := strings.Join(a.header.Values("Link"), ", ")
	for _, want := range []string{`</pods/c/.acl>; rel="acl"`, `</pods/c/.meta>; rel="describedby"`, `<http://www.w3.org/ns/ldp#BasicContainer>; rel="type"`} {
		if !strings.Contains(links, want) {
			t.Errorf("no %s in %s", want, links)
		}
	}
	if strings.Contains(links, server) {
		t.Errorf("a link leads past the box: %s", links)
	}
}
