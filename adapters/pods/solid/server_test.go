package solid_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/pods"
	"github.com/dreamlab-ai/agentinit/adapters/pods/solid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	owner    = "https://owner.test/#me"
	stranger = "https://stranger.test/#me"
)

// webID logs in as an agent in a way that only the servers of these tests accept.
type webID string

func (w webID) Authorize(r *http.Request, _ []byte) error {
	if w != "" {
		r.Header.Set("Authorization", "WebID "+string(w))
	}
	return nil
}

func (w webID) IDs() []string { return []string{string(w)} }

func (w webID) Use(s solid.Standing) error {
	if (s == solid.Owner) != (w == owner) {
		return errors.New("the server errs about who owns the tree")
	}
	return nil
}

func (w webID) Body(_ [sha256.Size]byte, s solid.Standing) error {
	if s == solid.Anyone {
		return nil
	}
	return w.Use(s)
}

func identify(r *http.Request, _ string) (solid.Identity, error) {
	id, ok := strings.CutPrefix(r.Header.Get("Authorization"), "WebID ")
	if !ok {
		return nil, errors.New("not a WebID")
	}
	return webID(id), nil
}

// rule is an authorization of an access list.
func rule(name, agent, modes, on string) string {
	return fmt.Sprintf("@prefix acl: <http://www.w3.org/ns/auth/acl#>.\n<#%s> a acl:Authorization; %s; acl:mode %s; %s.\n", name, agent, modes, on)
}

const (
	allModes = "acl:Read, acl:Write, acl:Append, acl:Control"
	me       = "acl:agent <" + owner + ">"
	everyone = "acl:agentClass <http://xmlns.com/foaf/0.1/Agent>"
)

// served is a running server of a test.
type served struct {
	t    *testing.T
	dir  string
	base string
	log  *lockedLog
}

// serve starts a server whose root belongs to owner.
func serve(t testing.TB, change func(*solid.Config)) *served {
	t.Helper()
	return serveTo(t, me, change)
}

// serveTo starts a server whose root belongs to an agent.
func serveTo(t testing.TB, agent string, change func(*solid.Config)) *served {
	t.Helper()
	s := &served{dir: t.TempDir(), log: &lockedLog{}}
	s.t, _ = t.(*testing.T)
	if err := os.WriteFile(filepath.Join(s.dir, ".acl"), []byte(rule("owner", agent, allModes, "acl:accessTo <./>; acl:default <./>")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.base = start(t, s.dir, s.log, change)
	return s
}

func start(t testing.TB, dir string, log io.Writer, change func(*solid.Config)) (base string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base = "http://" + l.Addr().String()
	cfg := solid.Config{
		Root: dir, BaseURL: base, Identify: identify, Quota: -1, Notifications: true, Log: logger(log),
	}
	if change != nil {
		change(&cfg)
	}
	server, err := solid.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, server.Close()); err != nil {
			t.Error(err)
		}
	})
	return base
}

func logger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// lockedLog is a log that can be read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var transport = &http.Transport{DisableCompression: true}

// answer is what a request got.
type answer struct {
	t      *testing.T
	what   string
	status int
	header http.Header
	body   string
}

// do sends a request as an agent. headers are names and values in turn.
func (s *served) do(who webID, method, path, body string, headers ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	_ = who.Authorize(req, nil)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return answer{s.t, method + " " + path, res.StatusCode, res.Header, string(raw)}
}

func (a answer) is(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Errorf("%s: %d, want %d: %s", a.what, a.status, status, a.body)
	}
	return a
}

func (a answer) has(header, value string) answer {
	a.t.Helper()
	if got := strings.Join(a.header.Values(header), ", "); !strings.Contains(got, value) {
		a.t.Errorf("%s: %s is %q, without %q", a.what, header, got, value)
	}
	return a
}

// put writes a document as owner.
func (s *served) put(path, contentType, body string) answer {
	s.t.Helper()
	return s.do(owner, "PUT", path, body, "Content-Type", contentType)
}

func client(t testing.TB, build func(pods.Config) (*pods.Solid, error), s *served, who webID) *pods.Solid {
	t.Helper()
	p, err := build(pods.Config{BaseURL: s.base, Auth: who})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestContractLocal(t *testing.T) {
	contract.Pods(t, func(t testing.TB) adapters.Pods { return client(t, pods.NewLocal, serve(t, nil), owner) })
}

func TestContractExternal(t *testing.T) {
	contract.Pods(t, func(t testing.TB) adapters.Pods { return client(t, pods.NewExternal, serve(t, nil), owner) })
}

func TestSamePods(t *testing.T) {
	contract.SamePods(t, func(t testing.TB) adapters.Pods { return client(t, pods.NewLocal, serve(t, nil), owner) },
		func(t testing.TB) adapters.Pods { return client(t, pods.NewExternal, serve(t, nil), owner) })
}

// The statuses and headers of the Solid Protocol that the client of the slot does not look at.
func TestProtocol(t *testing.T) {
	s := serve(t, nil)
	s.put("/a/doc.txt", "text/plain", "hello").is(201).has("Location", s.base+"/a/doc.txt").has("ETag", `"`)
	s.put("/a/doc.txt", "text/plain", "hello!").is(204)
	got := s.do(owner, "GET", "/a/doc.txt", "").is(200).has("Content-Type", "text/plain").has("Allow", "PATCH, DELETE").
		has("Link", "<"+s.base+`/a/doc.txt.acl>; rel="acl"`).has("Link", `/a/doc.txt.meta>; rel="describedby"`).
		has("Link", `<http://www.w3.org/ns/ldp#Resource>; rel="type"`).has("WAC-Allow", `user="read write append control",public=""`).
		has("Content-Security-Policy", "sandbox")
	if got.body != "hello!" {
		t.Errorf("body %q", got.body)
	}
	s.do(owner, "GET", "/a/doc.txt", "", "Range", "bytes=1-2").is(206).has("Content-Range", "bytes 1-2/6")
	s.do(owner, "GET", "/a/doc.txt", "", "Range", "bytes=9-").is(416)
	s.do(owner, "GET", "/a/doc.txt", "", "Accept", "image/png").is(406)
	s.do(owner, "GET", "/a/doc.txt", "", "If-None-Match", got.header.Get("ETag")).is(304)
	s.do(owner, "HEAD", "/a/doc.txt", "").is(200).has("Content-Length", "6")
	s.do(owner, "OPTIONS", "/a/doc.txt", "").is(204).has("Allow", "GET")
	s.do(owner, "GET", "/a/", "").is(200).has("Content-Type", "text/turtle").has("Link", "BasicContainer").has("Accept-Post", "*/*")
	s.do(owner, "GET", "/a/", "", "Accept", "application/n-triples").is(200).has("Content-Type", "application/n-triples")
	s.do(owner, "GET", "/a/", "", "Accept", "text/html").is(406)
	s.do(owner, "GET", "/", "").is(200).has("Link", "space#Storage")
	s.do(owner, "PUT", "/a/doc.txt", "x").is(400)    // no Content-Type
	s.do(owner, "PUT", "/a/", "").is(409)            // exists
	s.put("/a/doc.txt/x", "text/plain", "x").is(409) // its container is a document
	s.put("/a", "text/plain", "x").is(409)
	s.do(owner, "DELETE", "/a/", "").is(409)
	s.do(owner, "DELETE", "/", "").is(405)
	s.do(owner, "DELETE", "/.acl", "").is(405)
	s.do(owner, "TRACE", "/a/doc.txt", "").is(405)
	s.do(owner, "POST", "/a/doc.txt", "x", "Content-Type", "text/plain").is(405)
	s.do(owner, "PATCH", "/a/", "x", "Content-Type", "text/n3").is(405)
	s.do(owner, "PATCH", "/a/doc.txt", "x", "Content-Type", "text/plain").is(415)
	s.do(owner, "GET", "/nothing", "").is(404)
	s.do(owner, "GET", "/.git", "").is(400)
	s.do(owner, "GET", "/.pod-server/", "").is(400)
	s.do(owner, "GET", "/.types/doc.txt", "").is(400)
	s.do(owner, "GET", "/a.acl/b", "").is(400)
}

func TestPost(t *testing.T) {
	s := serve(t, nil)
	post := func(headers ...string) string {
		t.Helper()
		a := s.do(owner, "POST", "/", "x", append([]string{"Content-Type", "text/plain"}, headers...)...).is(201)
		return strings.TrimPrefix(a.header.Get("Location"), s.base)
	}
	if got := post("Slug", "a name"); got != "/a%20name" {
		t.Errorf("with a slug: %s", got)
	}
	for _, slug := range []string{"a name", "x.acl", "../up", "health", ".dot", "a/b", ""} {
		got := post("Slug", slug)
		if strings.Count(got, "/") != 1 || strings.HasSuffix(got, ".acl") || strings.Contains(got, "..") || got == "/health" || got == "/a%20name" {
			t.Errorf("slug %q: %s", slug, got)
		}
		s.do(owner, "GET", got, "").is(200).has("Content-Type", "text/plain")
	}
	a := s.do(owner, "POST", "/", "", "Link", `<http://www.w3.org/ns/ldp#BasicContainer>; rel="type"`, "Slug", "box").is(201)
	if got := a.header.Get("Location"); got != s.base+"/box/" {
		t.Errorf("container %s", got)
	}
	s.do(owner, "POST", "/none/", "x", "Content-Type", "text/plain").is(404)
}

// RDF is given in each of three forms, with an ETag of its own, and each ETag may be sent back.
func TestForms(t *testing.T) {
	s := serve(t, nil)
	s.put("/d", "text/turtle", `<#a> <http://x/p> "v"@en, 1 .`).is(201)
	tags := map[string]bool{}
	for _, accept := range []string{"text/turtle", "application/ld+json", "application/n-triples"} {
		a := s.do(owner, "GET", "/d", "", "Accept", accept).is(200).has("Content-Type", accept)
		if accept != "text/turtle" && !strings.Contains(a.body, s.base+"/d#a") {
			t.Errorf("%s: %s", accept, a.body)
		}
		tag := a.header.Get("ETag")
		if tags[tag] {
			t.Errorf("%s: two forms have the ETag %s", accept, tag)
		}
		tags[tag] = true
		s.do(owner, "GET", "/d", "", "Accept", accept, "If-None-Match", tag).is(304)
		s.do(owner, "PUT", "/d", "x", "Content-Type", "text/turtle", "If-None-Match", tag).is(412)
	}
	for tag := range tags {
		s.do(owner, "PUT", "/other", "x", "Content-Type", "text/turtle", "If-Match", tag).is(412)
	}
	for tag := range tags {
		s.do(owner, "PUT", "/d", "<#a> <http://x/p> 2 .", "Content-Type", "text/turtle", "If-Match", tag).is(204)
		break
	}
	for tag := range tags {
		s.do(owner, "PUT", "/d", "x", "Content-Type", "text/turtle", "If-Match", tag).is(412)
	}
	s.put("/broken", "text/turtle", "this is no Turtle").is(201)
	s.do(owner, "GET", "/broken", "").is(200)
	s.do(owner, "GET", "/broken", "", "Accept", "application/ld+json").is(406)
}

func TestPatches(t *testing.T) {
	s := serve(t, nil)
	s.put("/d.ttl", "text/turtle", `<#a> <http://x/p> "one" .`).is(201)
	s.do(owner, "GET", "/d.ttl", "").has("Accept-Patch", "text/n3, application/sparql-update")
	patch := func(path, contentType, body string) answer {
		t.Helper()
		return s.do(owner, "PATCH", path, body, "Content-Type", contentType)
	}
	const n3 = "@prefix solid: <http://www.w3.org/ns/solid/terms#>.\n_:p a solid:InsertDeletePatch; "
	patch("/d.ttl", "text/n3", n3+`solid:deletes { <#a> <http://x/p> "one" }; solid:inserts { <#a> <http://x/p> "two" }.`).is(204)
	patch("/d.ttl", "text/n3", n3+`solid:deletes { <#a> <http://x/p> "one" }.`).is(409)
	patch("/d.ttl", "text/n3", "no patch").is(400)
	patch("/d.ttl", "text/n3", "<#a> <http://x/p> 1 .").is(422)
	patch("/d.ttl", "text/n3", n3+`solid:inserts { <#a> <http://x/p> [] }.`).is(422)
	patch("/d.ttl", "application/sparql-update", "no patch").is(400)
	patch("/d.ttl", "application/sparql-update", `DELETE DATA { <#a> <http://x/p> "two" }; INSERT DATA { <#a> <http://x/p> "three" }`).is(204)
	if a := s.do(owner, "GET", "/d.ttl", "", "Accept", "application/n-triples"); strings.TrimSpace(a.body) != "<"+s.base+`/d.ttl#a> <http://x/p> "three" .` {
		t.Errorf("patched: %s", a.body)
	}
	patch("/new.jsonld", "text/n3", n3+`solid:inserts { <#a> <http://x/p> "one" }.`).is(201)
	s.do(owner, "GET", "/new.jsonld", "").is(200).has("Content-Type", "application/ld+json").has("Accept-Patch", "application/json-patch+json")
	s.put("/j.json", "application/json", `{"a":1}`).is(201)
	patch("/j.json", "application/json-patch+json", `[{"op":"add","path":"/b","value":2}]`).is(204)
	patch("/j.json", "application/json-patch+json", `[{"op":"remove","path":"/zz"}]`).is(409)
	patch("/j.json", "text/n3", n3+`solid:inserts { <#a> <http://x/p> "one" }.`).is(415)
	patch("/none.json", "application/json-patch+json", `[]`).is(404)
}

// A tree that the mesh has written is served as it is.
func TestTreeOfTheMesh(t *testing.T) {
	s := serve(t, func(c *solid.Config) {
		c.Quota = 1 << 40
		c.Document = func(name string) ([]byte, string, bool) {
			return []byte(`{"id":"` + name + `","of":"key"}`), "npub1mine", name == "did:nostr:mine" || name == "did:nostr:other"
		}
	})
	pod := filepath.Join(s.dir, "pods", "npub1mine")
	for name, content := range map[string]string{
		"profile.json": `{"name":"me"}`, "did-nostr.json": `{"id":"did:nostr:mine","of":"pod"}`,
		".acl": rule("owner", me, allModes, "acl:accessTo <./>; acl:default <./>"), ".quota.json": `{"limit": 50000}`, "events/inbox/1.json": "{}",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(pod, name)), 0o750), os.WriteFile(filepath.Join(pod, name), []byte(content), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("npub1mine", filepath.Join(s.dir, "pods", "npub1former")); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "GET", "/pods/npub1mine/profile.json", "").is(200).has("Content-Type", "application/json")
	s.do(owner, "GET", "/pods/npub1former/profile.json", "").is(200)
	s.do(stranger, "GET", "/pods/npub1former/profile.json", "").is(403)
	s.do("", "GET", "/pods/npub1mine/profile.json", "").is(401).has("WWW-Authenticate", "Nostr").has("WAC-Allow", `user="",public=""`)
	if a := s.do(owner, "GET", "/pods/npub1mine/", "").is(200); !strings.Contains(a.body, "/events/") || strings.Contains(a.body, ".quota") || strings.Contains(a.body, ".acl>") {
		t.Errorf("listing %s", a.body)
	}
	s.put("/pods/npub1mine/big", "text/plain", strings.Repeat("x", 50001)).is(413)
	s.put("/pods/npub1mine/fits", "text/plain", strings.Repeat("x", 20000)).is(201)
	s.put("/pods/npub1mine/fits-no-more", "text/plain", strings.Repeat("x", 20000)).is(413)
	s.do(owner, "DELETE", "/pods/npub1mine/fits", "").is(204)
	if a := s.do("", "GET", "/did:nostr:mine", "").is(200); !strings.Contains(a.body, `"key"`) {
		t.Errorf("own DID, which only its owner may read: %s", a.body)
	}
	s.put("/pods/npub1mine/did-nostr.json.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <did-nostr.json>")+rule("e", everyone, "acl:Read", "acl:accessTo <did-nostr.json>")).is(201)
	if a := s.do("", "GET", "/did:nostr:mine", "").is(200); !strings.Contains(a.body, `"pod"`) {
		t.Errorf("own DID: %s", a.body)
	}
	if a := s.do("", "GET", "/did:nostr:other", "").is(200); !strings.Contains(a.body, `"key"`) {
		t.Errorf("other DID: %s", a.body)
	}
	s.do("", "GET", "/did:nostr:nobody", "").is(400)
	s.do("", "GET", "/health", "").is(200)
	s.do("", "PUT", "/health", "x").is(405)
	s.do("", "GET", "/.well-known/solid", "", "Accept", "application/n-triples").is(200)
	s.do("", "GET", "/.well-known/solid", "", "Accept", "image/png").is(406)
}

// A name is short enough for the names of its access lists and its type: what can be made can also be read, given rules and deleted.
func TestLongNames(t *testing.T) {
	s := serve(t, nil)
	long := strings.Repeat("n", 215)
	for _, path := range []string{"/" + long + "n", "/" + long + "n.acl", "/" + long + "n.meta.acl", "/" + long + "n/x", "/" + long + "n/"} {
		s.do(owner, "PUT", path, "", "Content-Type", "a/b").is(400)
	}
	all := rule("o", me, allModes, "acl:accessTo </"+long+">")
	s.put("/"+long, "a/b", "1").is(201)
	s.put("/"+long, "c/d", "2").is(204)
	s.put("/"+long+".meta", "a/b", "1").is(201) // the type of each of these is kept beside it
	s.put("/"+long+".meta.acl", "application/n-triples", "").is(201)
	s.put("/"+long+".acl", "text/turtle", all).is(201)
	s.do(owner, "GET", "/"+long, "").is(200)
	s.do(owner, "DELETE", "/"+long, "").is(204)
	s.do(owner, "PUT", "/"+long+"/", "").is(201)
	s.do(owner, "DELETE", "/"+long+"/", "").is(204)
	for _, slug := range []string{long + "n.txt", long[:212] + ".txt"} {
		at := s.do(owner, "POST", "/", "x", "Content-Type", "text/plain", "Slug", slug).is(201).header.Get("Location")
		if name := strings.TrimPrefix(at, s.base+"/"); len(name) > 215 {
			t.Errorf("the name has %d bytes", len(name))
		} else {
			s.do(owner, "DELETE", "/"+name, "").is(204)
		}
	}
}
