package rebase

import (
	"bytes"
	"cmp"
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
		{"a variable and a language called base", `SELECT ?base { ?base <http://x/p> </o>; $prefix "x"@base, <http://x/>, </q> }`,
			`SELECT ?base { ?base <http://x/p> <http://box:9090/o>; $prefix "x"@base, <http://x/>, <http://box:9090/q> }`},
		{"a relative IRI as it is written", `</ä%2f?%7e> </pods/ä%2f>`, `<http://box:9090/ä%2f?%7e> <http://localhost:3000/ä%2f>`},
		{"an escaped end", `<http://box:9090/pods/\u003e>`, ""},
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
		{"a long name", `BASE <http://x/` + strings.Repeat("a", 3000) + `/> <b>`, ""},
	} {
		m := move(t, box, server)
		got, err := m.Document("text/turtle", "dir/doc", []byte(c.in))
		c.want = cmp.Or(c.want, c.in)
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
		{"formatting", "{\n  \"@context\": {\"@version\": 1.1, \"@vocab\": \"http://x/\"},\n  \"@id\": \"\", \"p\": 1.50,\n  \"@graph\": [{\"q\": {\"@id\": \"a\"}}]\n}\n", ""},
		{"a named graph", `{"@id": "http://box:9090/pods/g", "@graph": {"@id": "http://box:9090/pods/a", "http://x/p": {"@id": "/out"}}}`,
			`[{"@id": "http://localhost:3000/g", "@graph": [{"@id": "http://localhost:3000/a", "http://x/p": [{"@id": "http://box:9090/out"}]}]}]`},
		{"a JSON literal", `{"@id": "http://box:9090/pods/a", "http://x/p": {"@type": "@json", "@value": {"@id": "http://box:9090/pods/a"}}}`,
			`[{"@id": "http://localhost:3000/a", "http://x/p": [{"@type": "@json", "@value": {"@id": "http://box:9090/pods/a"}}]}]`},
		{"a property of both sides", `{"@id": "#a", "http://box:9090/pods/p": 1, "http://localhost:3000/p": 2}`, `[{"@id": "http://localhost:3000/dir/doc#a", "http://localhost:3000/p": [{"@value": 1}, {"@value": 2}]}]`},
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
	for _, bad := range []string{`{"@context": "https://www.w3.org/ns/activitystreams", "@id": "x"}`, `{`, ``, `5`, `{} {}`, `{"@id": 5}`, `{"@context": {"a": {"@id": "http://x/a", "@context": {}}}, "a": {}}`} {
		if got, err := m.Document("application/ld+json", "doc", []byte(bad)); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %s %v", bad, got, err)
		}
	}
	if _, err := m.Document("application/ld+json", "doc", []byte(`{"@context": ["http://x/c", {}]}`)); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), `its context is at "http://x/c"`) {
		t.Error(err)
	}
	if _, err := m.Document("application/rdf+xml", "doc", nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("RDF/XML: %v", err)
	}
}

// Documents that are made to take much time or memory end in an error. Those that would not end
// would make the test time out.
func TestHostile(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct{ mediaType, doc string }{
		"a growing base":   {"text/turtle", strings.Repeat("BASE <a/>", size/9)},
		"a long base":      {"text/turtle", "BASE <http://x/" + strings.Repeat("a", 4000) + "/>" + strings.Repeat("<>", 1000)},
		"a broken base":    {"text/turtle", "BASE <h_ttp://x/> <c>"},
		"deep arrays":      {"application/ld+json", strings.Repeat("[", size/2) + strings.Repeat("]", size/2)},
		"deep nodes":       {"application/ld+json", strings.Repeat(`{"x:p":`, 9000) + "1" + strings.Repeat("}", 9000)},
		"a long list":      {"application/ld+json", `{"x:p": {"@list": [` + strings.Repeat("1,", 4*size) + "1]}}"},
		"datatypes":        {"application/ld+json", `{"@context": {"p": {"@id": "x:p", "@type": "x:` + strings.Repeat("a", 4000) + `"}}, "p": [` + strings.Repeat("1,", size/3) + "1]}"},
		"a term of a term": {"application/ld+json", `{"@context": {"a": "b:", "b": "a:"}}`},
	} {
		got, err := move(t, box, server).Document(c.mediaType, "doc", []byte(c.doc))
		if !errors.Is(err, ErrUnsupported) || len(err.Error()) > 200 {
			t.Errorf("%s: %d bytes, %.200v", name, len(got), err)
		}
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
			if !errors.Is(err, ErrUnsupported) || !strings.Contains(strings.ToLower(doc), "base") {
				t.Fatal(err)
			}
			return
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
