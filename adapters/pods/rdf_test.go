package pods

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

func docBase(t testing.TB) *url.URL {
	t.Helper()
	u, err := url.Parse("http://h.test/c/")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func show(x term) string { return [...]string{"<%s>", "_:%s", "%q"}[x.kind] }

func statements(t testing.TB, mediaType, doc string) ([]string, error) {
	t.Helper()
	var out []string
	err := parseRDF(mediaType, []byte(doc), docBase(t), func(x triple) {
		out = append(out, fmt.Sprintf(show(x.subject), x.subject.value)+" "+x.predicate+" "+fmt.Sprintf(show(x.object), x.object.value))
	})
	return out, err
}

func TestTurtle(t *testing.T) {
	for name, c := range map[string]struct {
		doc  string
		want []string
	}{
		"empty":         {" # nothing\n", nil},
		"absolute":      {"<http://a/s> <http://a/p> <http://a/o>.", []string{"<http://a/s> http://a/p <http://a/o>"}},
		"relative":      {"<> <#p> <x/>, <../y>, </z>, <?q>.", []string{"<http://h.test/c/> http://h.test/c/#p <http://h.test/c/x/>", "<http://h.test/c/> http://h.test/c/#p <http://h.test/y>", "<http://h.test/c/> http://h.test/c/#p <http://h.test/z>", "<http://h.test/c/> http://h.test/c/#p <http://h.test/c/?q>"}},
		"prefixes":      {"@prefix a: <http://a/>. PREFIX : <http://d/> prefix b.c: <b/>\na:s :p b.c:o.", []string{"<http://a/s> http://d/p <http://h.test/c/b/o>"}},
		"redefined":     {"@prefix a: <http://a/>. a:s a:p a:o. @prefix a: <http://b/>. a:s a:p a:o .", []string{"<http://a/s> http://a/p <http://a/o>", "<http://b/s> http://b/p <http://b/o>"}},
		"base":          {"@base <http://b/x/>. <s> <p> <o>. BASE <y/> <s> <p> <o>.", []string{"<http://b/x/s> http://b/x/p <http://b/x/o>", "<http://b/x/y/s> http://b/x/y/p <http://b/x/y/o>"}},
		"lists":         {"<s> a <A>, <B>; <p> <o>;; <q> <r> ; .", []string{"<http://h.test/c/s> " + rdfType + " <http://h.test/c/A>", "<http://h.test/c/s> " + rdfType + " <http://h.test/c/B>", "<http://h.test/c/s> http://h.test/c/p <http://h.test/c/o>", "<http://h.test/c/s> http://h.test/c/q <http://h.test/c/r>"}},
		"strings":       {`<s> <p> "a\"\n\u00fc", 'b', """c"d""e""", '''f'g''', "x"@en-GB, "5"^^<int>, """"q"""".`, []string{`<http://h.test/c/s> http://h.test/c/p "a\"\nü"`, `<http://h.test/c/s> http://h.test/c/p "b"`, `<http://h.test/c/s> http://h.test/c/p "c\"d\"\"e"`, `<http://h.test/c/s> http://h.test/c/p "f'g"`, `<http://h.test/c/s> http://h.test/c/p "x"`, `<http://h.test/c/s> http://h.test/c/p "5"`, `<http://h.test/c/s> http://h.test/c/p "\"q\""`}},
		"numbers":       {"<s> <p> 1, -2.5, +3e-4, .5, 6.", []string{`<http://h.test/c/s> http://h.test/c/p "1"`, `<http://h.test/c/s> http://h.test/c/p "-2.5"`, `<http://h.test/c/s> http://h.test/c/p "+3e-4"`, `<http://h.test/c/s> http://h.test/c/p ".5"`, `<http://h.test/c/s> http://h.test/c/p "6"`}},
		"booleans":      {"<s> <p> true, false.", []string{`<http://h.test/c/s> http://h.test/c/p "true"`, `<http://h.test/c/s> http://h.test/c/p "false"`}},
		"blank":         {"_:a <p> _:b.c. [] <p> [ <q> _:a ].", []string{"_:a http://h.test/c/p _:b.c", "_: 2 http://h.test/c/q _:a", "_: 1 http://h.test/c/p _: 2"}},
		"alone":         {"[ <p> <o> ].", []string{"_: 1 http://h.test/c/p <http://h.test/c/o>"}},
		"collection":    {"<s> <p> (1 [ <q> <r> ] <t>).", []string{"_: 1 http://h.test/c/q <http://h.test/c/r>", "<http://h.test/c/s> http://h.test/c/p _: 2"}},
		"local names":   {`@prefix a: <http://a/>. a:x.y a:%41\,b a:1:2, a: .`, []string{"<http://a/x.y> http://a/%41,b <http://a/1:2>", "<http://a/x.y> http://a/%41,b <http://a/>"}},
		"IRI escape":    {`<\u0073> <p> <o>.`, []string{"<http://h.test/c/s> http://h.test/c/p <http://h.test/c/o>"}},
		"a as a prefix": {"@prefix a: <http://a/>. <s> a:b <o>.", []string{"<http://h.test/c/s> http://a/b <http://h.test/c/o>"}},
		"byte order":    {"\ufeff<s> <p> <o>.", []string{"<http://h.test/c/s> http://h.test/c/p <http://h.test/c/o>"}},
	} {
		if got, err := statements(t, "text/turtle", c.doc); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v\n got %q\nwant %q", name, err, got, c.want)
		}
	}
}

func TestTurtleRefusals(t *testing.T) {
	for name, doc := range map[string]string{
		"no dot": "<s> <p> <o>", "no object": "<s> <p> .", "literal subject": `"s" <p> <o>.`, "literal predicate": `<s> "p" <o>.`, "unknown prefix": "a:s <p> <o>.",
		"open IRI": "<s> <p> <o", "IRI with a space": "<s> <p> <a b>.", "open string": `<s> <p> "a`, "line break in a string": "<s> <p> \"a\nb\".",
		"bad escape": `<s> <p> "\x".`, "half escape": `<s> <p> "\u12".`, "surrogate": `<s> <p> "\ud800".`, "beyond Unicode": `<s> <p> "\U00110000".`, "open [": "<s> <p> [ <q> <r>",
		"open (": "<s> <p> ( 1 2", "HTML": "<!DOCTYPE html><html></html>", "JSON": `{"a":1}`, "sign alone": "<s> <p> - .", "two dots": "<s> <p> 1.2.3 .", "NUL": "\x00",
		"deep": "<s> <p> " + strings.Repeat("[ <p> ", 100), "long IRI": "<s> <p> <" + strings.Repeat("a", maxIRI+1) + ">.", "empty []": "[] .",
	} {
		if got, err := statements(t, "text/turtle", doc); err == nil {
			t.Errorf("%s: read as %q", name, got)
		}
	}
}

func TestJSONLD(t *testing.T) {
	contains := []string{"<http://h.test/c/> " + ldpContains + " <http://h.test/c/a>", "<http://h.test/c/> " + ldpContains + " <http://h.test/c/b/>"}
	for name, doc := range map[string]string{
		"expanded array":  `[{"@id":"http://h.test/c/","` + ldpContains + `":[{"@id":"http://h.test/c/a"}]},{"@id":"http://h.test/c/","` + ldpContains + `":[{"@id":"http://h.test/c/b/"}]}]`,
		"relative":        `{"@id":"","` + ldpContains + `":[{"@id":"a"},{"@id":"b/"}]}`,
		"graph":           `{"@context":{"ldp":"http://www.w3.org/ns/ldp#"},"@graph":[{"@id":"./","ldp:contains":[{"@id":"a"},{"@id":"b/"}]}]}`,
		"prefix":          `{"@context":{"l":"http://www.w3.org/ns/ldp#"},"@id":"http://h.test/c/","l:contains":["a","b/"]}`,
		"term":            `{"@context":{"id":"@id","has":{"@id":"ldp:contains","@type":"@id"},"ldp":"http://www.w3.org/ns/ldp#"},"id":".","has":["a","b/"]}`,
		"vocab":           `{"@context":{"@vocab":"http://www.w3.org/ns/ldp#"},"@id":"","contains":[{"@id":"a"},"b/"]}`,
		"base":            `{"@context":{"@base":"http://h.test/"},"@id":"c/","http://www.w3.org/ns/ldp#contains":["c/a","c/b/"]}`,
		"foreign context": `{"@context":"https://www.w3.org/ns/ldp.jsonld","id":"","contains":["a","b/"]}`,
		"no context":      `{"@id":"","ldp:contains":{"@set":["a","b/"]}}`,
		"context array":   `{"@context":["https://x.test/y",{"@base":"http://h.test/c/"}],"@id":"","ldp:contains":["a","b/"]}`,
	} {
		got, err := statements(t, "application/ld+json", doc)
		if err != nil || !slices.Equal(got, contains) {
			t.Errorf("%s: %v\n got %q\nwant %q", name, err, got, contains)
		}
	}
	got, err := statements(t, "application/ld+json", `{"@id":"s","@type":["http://t/A"],"http://p/n":[1,true,"x",{"@value":"y"},null,{"http://p/q":"z"}],"dropped":"v"}`)
	want := []string{
		"<http://h.test/c/s> " + rdfType + " <http://t/A>", `<http://h.test/c/s> http://p/n "1"`, `<http://h.test/c/s> http://p/n "true"`, `<http://h.test/c/s> http://p/n "x"`,
		`<http://h.test/c/s> http://p/n "y"`, `_: 1 http://p/q "z"`, `<http://h.test/c/s> http://p/n _: 1`,
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\n got %q\nwant %q", err, got, want)
	}
}

func TestJSONLDRefusals(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"t%d":"http://a/%d",`, i, i)
		}
		return b.String()
	}
	for name, doc := range map[string]string{
		"empty": "", "HTML": "<html>", "two values": "{} {}", "context": `{"@context":5}`,
		"deep":     strings.Repeat(`{"http://p/x":`, 100) + "1" + strings.Repeat("}", 100),
		"terms":    `{"@context":{` + many(maxTerms) + `"x":"y"}}`,
		"contexts": "[" + strings.Repeat(`{"@context":{}},`, maxContexts+1) + "1]",
		"size":     `"` + strings.Repeat("a", maxJSONLD) + `"`,
	} {
		if got, err := statements(t, "application/ld+json", doc); err == nil {
			t.Errorf("%s: read as %q", name, got)
		}
	}
	// A cycle of terms ends.
	if _, err := statements(t, "application/ld+json", `{"@context":{"a":"b","b":"a","c":"c:x"},"a":"1","c":"2"}`); err != nil {
		t.Error(err)
	}
}

func FuzzRDF(f *testing.F) {
	f.Add(true, "@prefix a: <b>. a:c a [ <p> (1 'x'@en \"\"\"y\"\"\"^^a:z) ] ; <q> -1.5e3, true .")
	f.Add(true, "<> <http://www.w3.org/ns/ldp#contains> <a>, <b/> .")
	f.Add(false, `{"@context":{"@vocab":"http://www.w3.org/ns/ldp#","x":{"@id":"y","@type":"@id"}},"@graph":[{"@id":"","contains":["a"]}]}`)
	f.Fuzz(func(t *testing.T, turtle bool, doc string) {
		mediaType := "application/ld+json"
		if turtle {
			mediaType = "text/turtle"
		}
		n := 0
		err := parseRDF(mediaType, []byte(doc), docBase(t), func(x triple) {
			n++
			if x.predicate == "" || x.subject.kind == literalTerm {
				t.Fatalf("%+v", x)
			}
		})
		if n > len(doc) {
			t.Fatalf("%d triples (%v) of %d bytes", n, err, len(doc))
		}
		res := &wire.Response{Header: http.Header{"Content-Type": {mediaType}}, Body: []byte(doc), URL: docBase(t)}
		l := newListing("/c/")
		if l.read(res, docBase(t)) != nil {
			return
		}
		for _, e := range l.entries() {
			if adapters.CheckPodPath(e.Path) != nil || !strings.HasPrefix(e.Path, "/c/") || strings.Count(strings.TrimSuffix(e.Path, "/"), "/") != 2 {
				t.Fatalf("member %q", e.Path)
			}
		}
	})
}

func FuzzLinks(f *testing.F) {
	f.Add(`<a>; rel="next type"; title="x, y", <b>;rel=acl`)
	f.Add(`<a>; rel="unfinished`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, l := range adapters.ParseLinks(http.Header{"Link": {line}}) {
			if l.Rel == "" || strings.ContainsAny(l.Target, ">") {
				t.Fatalf("%+v", l)
			}
		}
	})
}

func TestLinks(t *testing.T) {
	got := adapters.ParseLinks(http.Header{"Link": {
		`<a>; rel="next type"; title="x, <y>; \"z\"", <b> ;REL=acl`, ` <c>;rel="first";rel="second",<d>`, `garbage`, `<e>; rel="open`,
	}})
	want := []adapters.Link{{Rel: "next", Target: "a"}, {Rel: "type", Target: "a"}, {Rel: "acl", Target: "b"}, {Rel: "first", Target: "c"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
