package rebase

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

func move(t testing.TB, from, to string) Move {
	t.Helper()
	f, err := url.Parse(from)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	return Move{f, u}
}

const (
	box    = "http://box:9090/pods/"
	server = "http://localhost:3000/"
)

func TestTerse(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"an IRI below the root", `<http://box:9090/pods/a#me> a <http://x/T> .`, `<http://localhost:3000/a#me> a <http://x/T> .`},
		{"the root", `<http://box:9090/pods/>`, `<http://localhost:3000/>`},
		{"beside the root", `<http://box:9090/podsX> <http://box:9090/pods> <http://box:9091/pods/a>`, `<http://box:9090/podsX> <http://box:9090/pods> <http://box:9091/pods/a>`},
		{"case of scheme and host", `<HTTP://Box:9090/pods/a>`, `<http://localhost:3000/a>`},
		{"relative", `<> <#me> <b> <?q> <c/d>`, `<> <#me> <b> <?q> <c/d>`},
		{"relative up", `<../up> <../../out> <./x>`, `<../up> <http://box:9090/out> <./x>`},
		{"relative to the origin", `</pods/x> </other> <//box:9090/pods/y>`, `<http://localhost:3000/x> <http://box:9090/other> <http://localhost:3000/y>`},
		{"literals", `<a> <b> "<http://box:9090/pods/a>", '<http://box:9090/pods/a>', """<http://box:9090/pods/a> "" \" """, '''it's <http://box:9090/pods/a>'''@en .`, ""},
		{"a datatype", `<a> <b> "1"^^<http://box:9090/pods/t> .`, `<a> <b> "1"^^<http://localhost:3000/t> .`},
		{"comments", "# <http://box:9090/pods/a>\n<http://box:9090/pods/a#x> # <http://box:9090/pods/b>", "# <http://box:9090/pods/a>\n<http://localhost:3000/a#x> # <http://box:9090/pods/b>"},
		{"escapes", `<http://box:9090/\u0070ods/a\U00000062> <http://box:9090/pods/ä>`, `<http://localhost:3000/ab> <http://localhost:3000/ä>`},
		{"a prefix", `@prefix p: <http://box:9090/pods/>. p:a <b> p:c\/d.`, `@prefix p: <http://localhost:3000/>. p:a <b> p:c\/d.`},
		{"a shorter prefix", `PREFIX b: <http://box:9090/> PREFIX x: <http://x/> b:pods\/a x:a b:other, b:pods\/c .`,
			`PREFIX b: <http://box:9090/> PREFIX x: <http://x/> <http://localhost:3000/a> x:a <http://box:9090/other>, <http://localhost:3000/c> .`},
		{"the empty prefix, relative", `@prefix : </>. :pods\/a :b "c".`, `@prefix : <http://box:9090/>. <http://localhost:3000/a> <http://box:9090/b> "c".`},
		{"a prefix called base", `@prefix base: <http://box:9090/pods/x#>. base:a base:b </pods/y>.`, `@prefix base: <http://localhost:3000/x#>. base:a base:b <http://localhost:3000/y>.`},
		{"a base", `@base <http://box:9090/pods/dir/> . <a> <../b> <../../c> .`, `@base <http://localhost:3000/dir/> . <a> <../b> <http://box:9090/c> .`},
		{"a base elsewhere", `BASE <http://x/y/> <a> </pods/b> <../c>`, `BASE <http://x/y/> <a> </pods/b> <../c>`},
		{"SPARQL", `DELETE DATA { <http://box:9090/pods/a> <b> "x" }; INSERT DATA { <http://box:9090/pods/a> <b> 3 }`, `DELETE DATA { <http://localhost:3000/a> <b> "x" }; INSERT DATA { <http://localhost:3000/a> <b> 3 }`},
		{"operators", `DELETE { ?a ?b ?c } WHERE { ?a ?b ?c FILTER(?c < 5 && ?c <= 7 || ?c<?d && ?d > 1) }`, ""},
		{"an N3 patch", `_:p a <http://www.w3.org/ns/solid/terms#InsertDeletePatch>; <http://www.w3.org/ns/solid/terms#inserts> { <http://box:9090/pods/a> <b> <c>. }.`,
			`_:p a <http://www.w3.org/ns/solid/terms#InsertDeletePatch>; <http://www.w3.org/ns/solid/terms#inserts> { <http://localhost:3000/a> <b> <c>. }.`},
		{"broken", `<http://box:9090/pods/a`, ""},
		{"a broken escape", `<http://box:9090/pods/\u00zz>`, ""},
		{"a string without an end", "\"abc\n<http://box:9090/pods/a>", "\"abc\n<http://localhost:3000/a>"},
	} {
		m := move(t, box, server)
		got, err := m.Document("text/turtle", "dir/doc", []byte(c.in))
		if c.want == "" {
			c.want = c.in
		}
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.name, err, got, c.want)
		}
	}
}

// If the root is the server's own origin, answers contain the addresses that the caller uses.
func TestBack(t *testing.T) {
	m := move(t, box, server).Back()
	for in, want := range map[string]string{
		`<http://localhost:3000/a> <b> </c>, <../x>, <http://localhost:3000x/>.`: `<http://box:9090/pods/a> <b> <http://box:9090/pods/c>, <../x>, <http://localhost:3000x/>.`,
		`@prefix s: <http://localhost:3000>. s:\/a <b> <c>.`:                     `@prefix s: <http://localhost:3000>. <http://box:9090/pods/a> <b> <c>.`,
	} {
		if got, err := m.Document("application/n-triples", "dir/doc", []byte(in)); err != nil || string(got) != want {
			t.Errorf("%v\n got %s\nwant %s", err, got, want)
		}
	}
}

func TestLinked(t *testing.T) {
	m := move(t, box, server)
	for _, c := range []struct{ name, in, want string }{
		{"nothing to move", `{"@context": {"name": "http://x/name"}, "@id": "#me", "name": "http://box:9090/pods/a"}`, ""},
		{"an id", `{"@id": "http://box:9090/pods/a", "http://x/p": "http://box:9090/pods/b"}`, `[{"@id": "http://localhost:3000/a", "http://x/p": [{"@value": "http://box:9090/pods/b"}]}]`},
		{"a term that is a link", `{"@context": {"knows": {"@id": "http://x/knows", "@type": "@id"}, "b": "http://box:9090/"}, "@id": "b:pods/a", "knows": "http://box:9090/pods/c"}`,
			`[{"@id": "http://localhost:3000/a", "http://x/knows": [{"@id": "http://localhost:3000/c"}]}]`},
		{"types, properties, numbers, lists", `{"@id": "", "@type": "http://box:9090/pods/T", "http://box:9090/pods/p": [12345678901234567890, 1.50, true, {"@list": [{"@id": "../x"}]}], "http://x/d": {"@value": "1", "@type": "http://box:9090/pods/d"}}`,
			`[{"@id": "http://localhost:3000/dir/doc", "@type": ["http://localhost:3000/T"], "http://localhost:3000/p": [{"@value": 12345678901234567890}, {"@value": 1.50}, {"@value": true}, {"@list": [{"@id": "http://localhost:3000/x"}]}], "http://x/d": [{"@value": "1", "@type": "http://localhost:3000/d"}]}]`},
	} {
		got, err := m.Document("application/ld+json", "dir/doc", []byte(c.in))
		if c.want == "" {
			if err != nil || string(got) != c.in {
				t.Errorf("%s: %s %v", c.name, got, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(numbers(t, got), numbers(t, []byte(c.want))) {
			t.Errorf("%s: %v\n got %s\nwant %s", c.name, err, got, c.want)
		}
	}
	for _, bad := range []string{`{"@context": "https://www.w3.org/ns/activitystreams", "@id": "x"}`, `{`, `{"@context": ["http://x/", {}]}`} {
		if got, err := m.Document("application/ld+json", "doc", []byte(bad)); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %s %v", bad, got, err)
		}
	}
	if _, err := m.Document("application/rdf+xml", "doc", nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("RDF/XML: %v", err)
	}
}

func numbers(t *testing.T, raw []byte) (v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return v
}

// A document without IRIs and prefixed names is not changed.
func FuzzTerse(f *testing.F) {
	f.Add(`@prefix p: <http://a.example/pods/>. p:a <b> "c\"<d>" . # e`)
	f.Add("BASE <../x> PREFIX : <> SELECT * { ?a<?b }")
	f.Fuzz(func(t *testing.T, doc string) {
		got, err := move(t, "http://a.example/pods/", "http://b.example/x/").Document("text/turtle", "d/doc", []byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(doc, "<") && string(got) != doc {
			t.Errorf("%q became %q", doc, got)
		}
	})
}

func FuzzLinked(f *testing.F) {
	f.Add(`{"@context": {"a": {"@id": "http://x/a", "@type": "@id"}}, "@id": "http://a.example/pods/x", "a": ["b", {"@list": []}]}`)
	f.Fuzz(func(t *testing.T, doc string) {
		got, err := move(t, "http://a.example/pods/", "http://b.example/").Document("application/ld+json", "d", []byte(doc))
		if err == nil && !json.Valid(got) {
			t.Errorf("%q became %q", doc, got)
		}
	})
}
