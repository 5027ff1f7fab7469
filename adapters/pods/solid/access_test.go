package solid_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods"
	"github.com/dreamlab-ai/agentinit/adapters/pods/solid"
)

// What each agent may do in a pod that is its owner's, with one public document.
func TestAccessControl(t *testing.T) {
	s := serve(t, nil)
	s.put("/public.txt", "text/plain", "hello").is(201)
	s.put("/secret.txt", "text/plain", "hush").is(201)
	s.put("/public.txt.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo </public.txt>")+rule("e", everyone, "acl:Read", "acl:accessTo </public.txt>")).is(201)
	for name, c := range map[string]struct {
		who    webID
		denied adapters.Code
	}{
		"nobody":   {"", adapters.CodeUnauthenticated},
		"stranger": {stranger, adapters.CodePermissionDenied},
		"owner":    {owner, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := client(t, pods.NewExternal, s, c.who)
			if err := p.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer p.Disconnect(t.Context())
			one := func(_ any, err error) error { return err }
			body := adapters.Body{ContentType: "text/plain", Reader: strings.NewReader("x"), Size: 1}
			for what, err := range map[string]error{
				"write":  one(p.Write(t.Context(), "/new.txt", body, adapters.Cond{})),
				"read":   one(p.Head(t.Context(), "/secret.txt", adapters.ReadOpt{})),
				"list":   one(p.List(t.Context(), "/", adapters.PageOpt{})),
				"create": one(p.CreateContainer(t.Context(), "/box-"+name+"/")),
				"acl":    one(p.Head(t.Context(), "/public.txt.acl", adapters.ReadOpt{})),
			} {
				if adapters.CodeOf(err) != c.denied {
					t.Errorf("%s: %v, want %q", what, err, c.denied)
				}
			}
			if c.denied == "" {
				return
			}
			_, delErr := p.Del(t.Context(), "/secret.txt", adapters.Cond{})
			_, subErr := p.Subscribe(t.Context(), "/secret.txt")
			if adapters.CodeOf(delErr) != c.denied || adapters.CodeOf(subErr) != c.denied {
				t.Errorf("delete: %v, subscribe: %v", delErr, subErr)
			}
			r, err := p.Head(t.Context(), "/public.txt", adapters.ReadOpt{})
			if err != nil || !strings.Contains(r.WACAllow, `public="read"`) {
				t.Errorf("public: %v, %s", err, r.WACAllow)
			}
		})
	}
}

// Append lets an agent add, and neither read nor replace.
func TestAppend(t *testing.T) {
	s := serve(t, nil)
	s.do(owner, "PUT", "/in/", "").is(201)
	s.put("/in/.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <./>; acl:default <./>")+rule("s", "acl:agent <"+stranger+">", "acl:Append", "acl:accessTo <./>; acl:default <./>")).is(201)
	a := s.do(stranger, "POST", "/in/", "x", "Content-Type", "text/plain").is(201)
	made := strings.TrimPrefix(a.header.Get("Location"), s.base)
	s.do(stranger, "GET", made, "").is(403)
	s.do(stranger, "PUT", made, "y", "Content-Type", "text/plain").is(403)
	s.do(stranger, "DELETE", made, "").is(403)
	s.do(stranger, "GET", "/in/", "").is(403)
	s.do(stranger, "PUT", "/in/.acl", "", "Content-Type", "text/turtle").is(403)
	s.do(stranger, "POST", "/", "x", "Content-Type", "text/plain").is(403)
	const n3 = "@prefix solid: <http://www.w3.org/ns/solid/terms#>.\n_:p a solid:InsertDeletePatch; "
	s.do(stranger, "PATCH", "/in/log.ttl", n3+`solid:inserts { <#a> <#b> <#c> }.`, "Content-Type", "text/n3").is(201)
	s.do(stranger, "PATCH", "/in/log.ttl", n3+`solid:inserts { <#d> <#b> <#c> }.`, "Content-Type", "text/n3").is(204)
	s.do(stranger, "PATCH", "/in/log.ttl", n3+`solid:deletes { <#d> <#b> <#c> }.`, "Content-Type", "text/n3").is(403)
	s.do(stranger, "PATCH", "/in/log.ttl", n3+`solid:where { ?x <#b> <#c> }; solid:inserts { ?x <#e> <#f> }.`, "Content-Type", "text/n3").is(403)
}

// An access list that cannot be read denies everything, also its owner, and is reported. Such a list cannot be written over
// HTTP.
func TestUnreadableAccessList(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/x", "text/plain", "x").is(201)
	s.put("/d/.acl", "text/turtle", "this is no Turtle").is(400)
	s.put("/d/.acl", "text/turtle", strings.Repeat("# comment\n", 10_000)).is(413)
	s.do(owner, "GET", "/d/x", "").is(200)
	if err := os.WriteFile(filepath.Join(s.dir, "d", ".acl"), []byte("this is no Turtle"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "GET", "/d/x", "").is(403)
	if !strings.Contains(s.log.String(), "an access list cannot be used") {
		t.Errorf("log: %s", s.log)
	}
}

// Without any access list, nobody has access.
func TestNoAccessList(t *testing.T) {
	s := serve(t, nil)
	if err := os.Remove(filepath.Join(s.dir, ".acl")); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "GET", "/", "").is(403)
	s.do("", "GET", "/", "").is(401)
}

// The access list of a document goes with it, and does not hold for a later document of that name.
func TestAccessListGoesWithItsDocument(t *testing.T) {
	s := serve(t, nil)
	s.put("/x", "text/plain", "x").is(201)
	s.put("/x.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo </x>")+rule("e", everyone, "acl:Read", "acl:accessTo </x>")).is(201)
	s.do("", "GET", "/x", "").is(200)
	s.do(owner, "DELETE", "/x", "").is(204)
	s.put("/x", "text/plain", "secret").is(201)
	s.do("", "GET", "/x", "").is(401)
}

// A refused patch does not tell whether there is a document, and of which type.
func TestRefusedPatchTellsNothing(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/j.json", "application/json", "{}").is(201)
	s.put("/d/t.txt", "text/plain", "x").is(201)
	s.put("/d/r.ttl", "text/turtle", "").is(201)
	for _, name := range []string{"j.json", "t.txt", "r.ttl", "none", "none.json"} {
		a := s.do("", "PATCH", "/d/"+name, "x", "Content-Type", "text/n3").is(401)
		for _, h := range []string{"Accept-Patch", "Accept-Put", "Allow", "ETag"} {
			if v := a.header.Get(h); v != "" {
				t.Errorf("%s: %s is %q", name, h, v)
			}
		}
	}
	s.do(owner, "PATCH", "/d/j.json", "x", "Content-Type", "text/n3").is(400).has("Accept-Patch", "application/json-patch+json")
}

// Who may only append does not learn from errors what a document holds.
func TestAppendWithoutRead(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/j", "application/json", "{}").is(201)
	s.put("/d/broken", "text/turtle", "no Turtle").is(201)
	s.put("/d/huge", "text/turtle", strings.Repeat(" ", 1<<20+1)).is(201)
	s.put("/d/r", "text/turtle", `<#a> <http://x/p> "1" .`).is(201)
	s.put("/d/.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <./>; acl:default <./>")+
		rule("s", "acl:agent <"+stranger+">", "acl:Append", "acl:accessTo <./>; acl:default <./>")).is(201)
	const insert = "@prefix solid: <http://www.w3.org/ns/solid/terms#>.\n_:p a solid:InsertDeletePatch; solid:inserts { <#a> <http://x/p> \"2\" }."
	answers := map[string]bool{}
	for _, name := range []string{"j", "broken", "huge"} {
		a := s.do(stranger, "PATCH", "/d/"+name, insert, "Content-Type", "text/n3").is(409)
		answers[a.body+a.header.Get("Accept-Patch")] = true
	}
	if len(answers) != 1 {
		t.Errorf("the answers differ: %v", answers)
	}
	s.do(owner, "PATCH", "/d/j", insert, "Content-Type", "text/n3").is(415)
	for who, want := range map[webID]bool{owner: true, stranger: false} {
		a := s.do(who, "PATCH", "/d/r", insert, "Content-Type", "text/n3", "If-Match", `"other"`).is(412)
		if got := a.header.Get("ETag") != ""; got != want {
			t.Errorf("%s gets the ETag: %v", who, got)
		}
	}
	s.do(stranger, "PATCH", "/d/r", insert, "Content-Type", "text/n3").is(204)
}

// uses is an agent that remembers how its signatures were used.
type uses struct {
	webID
	of *sync.Map // webID → solid.Standing
}

func (u uses) Use(s solid.Standing) error {
	u.of.Store(u.webID, s)
	return nil
}

// Keys cost nothing: the signatures of keys that no access list names are not remembered, except for a subscription, which lasts.
func TestSignaturesThatAreRemembered(t *testing.T) {
	var used sync.Map
	s := serve(t, func(c *solid.Config) {
		c.Identify = func(r *http.Request, url string) (solid.Identity, error) {
			who, err := identify(r, url)
			if err != nil {
				return nil, err
			}
			return uses{who.(webID), &used}, nil
		}
	})
	const here = "acl:accessTo <./>; acl:default <./>"
	s.do(owner, "PUT", "/a/.acl", rule("o", me, allModes, here)+rule("l", "acl:agent <https://listed.test/#me>", allModes, here)+
		"<#any> a acl:Authorization; acl:agentClass acl:AuthenticatedAgent; "+here+"; acl:mode acl:Read, acl:Append.", "Content-Type", "text/turtle").is(201)
	for _, c := range []struct {
		what   string
		do     func()
		who    webID
		want   any
		unused bool
	}{
		{what: "any key reads", who: "https://fresh.test/1", do: func() { s.do("https://fresh.test/1", "GET", "/a/", "").is(200) }, unused: true},
		{what: "any key posts", who: "https://fresh.test/2", do: func() { s.do("https://fresh.test/2", "POST", "/a/", "x", "Content-Type", "a/b").is(201) }, unused: true},
		{what: "any key is refused", who: "https://fresh.test/3", do: func() { s.do("https://fresh.test/3", "PUT", "/a/x", "x", "Content-Type", "a/b").is(403) }, unused: true},
		{what: "any key subscribes", who: "https://fresh.test/4", do: func() { a, _ := s.subscribe("https://fresh.test/4", s.base+"/a/"); a.is(200) }, want: solid.Anyone},
		{what: "a listed key writes", who: "https://listed.test/#me", do: func() { s.do("https://listed.test/#me", "PUT", "/a/x", "x", "Content-Type", "a/b").is(201) }, want: solid.Listed},
		{what: "the owner subscribes", who: owner, do: func() { a, _ := s.subscribe(owner, s.base+"/a/"); a.is(200) }, want: solid.Owner},
	} {
		used.Clear()
		c.do()
		if got, ok := used.Load(c.who); ok == c.unused || ok && got != c.want {
			t.Errorf("%s: used %v as %v, want %v", c.what, ok, got, c.want)
		}
	}
}

// crowded is an agent whose signature is good, and for whom there is no room.
type crowded struct{ webID }

func (crowded) Use(solid.Standing) error { return solid.ErrTooManySigned }

// It is no matter of its credential.
func TestTooManySignaturesAreNoWrongOnes(t *testing.T) {
	s := serve(t, func(c *solid.Config) {
		c.Identify = func(r *http.Request, url string) (solid.Identity, error) {
			who, err := identify(r, url)
			if err != nil || who.(webID) != "https://listed.test/#me" {
				return who, err
			}
			return crowded{who.(webID)}, nil
		}
	})
	s.do(owner, "PUT", "/a/.acl", rule("o", me, allModes, "acl:accessTo <./>")+rule("l", "acl:agent <https://listed.test/#me>", allModes, "acl:accessTo <./>"), "Content-Type", "text/turtle").is(201)
	a := s.do("https://listed.test/#me", "GET", "/a/", "").is(429).has("Retry-After", "15").has("WWW-Authenticate", "")
	if !strings.Contains(a.body, `"code":"RATE_LIMITED"`) || !strings.Contains(a.body, `"retryable":true`) {
		t.Error(a.body)
	}
}
