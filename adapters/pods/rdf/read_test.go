package rdf

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func docBase(t testing.TB) *url.URL {
	t.Helper()
	u, err := url.Parse("http://h.test/c/")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// show writes a term as N-Triples does, but for labels of blank nodes.
func show(x Term) string {
	switch x.Kind {
	case IRI:
		return "<" + x.Value + ">"
	case Blank:
		return "_:" + x.Value
	}
	s := fmt.Sprintf("%q", x.Value)
	if x.Language != "" {
		s += "@" + x.Language
	}
	if x.Datatype != "" {
		s += "^^" + strings.Replace("<"+x.Datatype+">", "<"+XSD, "<xsd:", 1)
	}
	return s
}

type parser func(string, []byte, *url.URL, func(Triple)) error

func statements(t testing.TB, parse parser, mediaType, doc string) ([]string, error) {
	t.Helper()
	var out []string
	err := parse(mediaType, []byte(doc), docBase(t), func(x Triple) {
		out = append(out, show(x.Subject)+" "+strings.Replace(x.Predicate, NS, "rdf:", 1)+" "+show(x.Object))
	})
	return out, err
}

func TestTurtle(t *testing.T) {
	for name, c := range map[string]struct {
		doc  string
		want []string
	}{
		"empty":     {" # nothing\n", nil},
		"absolute":  {"<http://a/s> <http://a/p> <http://a/o>.", []string{"<http://a/s> http://a/p <http://a/o>"}},
		"relative":  {"<> <#p> <x/>, <../y>, </z>, <?q>.", []string{"<http://h.test/c/> http://h.test/c/#p <http://h.test/c/x/>", "<http://h.test/c/> http://h.test/c/#p <http://h.test/y>", "<http://h.test/c/> http://h.test/c/#p <http://h.test/z>", "<http://h.test/c/> http://h.test/c/#p <http://h.test/c/?q>"}},
		"prefixes":  {"@prefix a: <http://a/>. PREFIX : <http://d/> prefix b.c: <b/>\na:s :p b.c:o.", []string{"<http://a/s> http://d/p <http://h.test/c/b/o>"}},
		"redefined": {"@prefix a: <http://a/>. a:s a:p a:o. @prefix a: <http://b/>. a:s a:p a:o .", []string{"<http://a/s> http://a/p <http://a/o>", "<http://b/s> http://b/p <http://b/o>"}},
		"base":      {"@base <http://b/x/>. <s> <p> <o>. BASE <y/> <s> <p> <o>.", []string{"<http://b/x/s> http://b/x/p <http://b/x/o>", "<http://b/x/y/s> http://b/x/y/p <http://b/x/y/o>"}},
		"lists":     {"<s> a <A>, <B>; <p> <o>;; <q> <r> ; .", []string{"<http://h.test/c/s> rdf:type <http://h.test/c/A>", "<http://h.test/c/s> rdf:type <http://h.test/c/B>", "<http://h.test/c/s> http://h.test/c/p <http://h.test/c/o>", "<http://h.test/c/s> http://h.test/c/q <http://h.test/c/r>"}},
		"strings":   {`<s> <p> "a\"\n\u00fc", 'b', """c"d""e""", '''f'g''', "x"@en-GB, "5"^^<int>, """"q"""".`, []string{`<http://h.test/c/s> http://h.test/c/p "a\"\nü"`, `<http://h.test/c/s> http://h.test/c/p "b"`, `<http://h.test/c/s> http://h.test/c/p "c\"d\"\"e"`, `<http://h.test/c/s> http://h.test/c/p "f'g"`, `<http://h.test/c/s> http://h.test/c/p "x"@en-gb`, `<http://h.test/c/s> http://h.test/c/p "5"^^<http://h.test/c/int>`, `<http://h.test/c/s> http://h.test/c/p "\"q\""`}},
		"numbers":   {"<s> <p> 1, -2.5, +3e-4, .5, 6.", []string{`<http://h.test/c/s> http://h.test/c/p "1"^^<xsd:integer>`, `<http://h.test/c/s> http://h.test/c/p "-2.5"^^<xsd:decimal>`, `<http://h.test/c/s> http://h.test/c/p "+3e-4"^^<xsd:double>`, `<http://h.test/c/s> http://h.test/c/p ".5"^^<xsd:decimal>`, `<http://h.test/c/s> http://h.test/c/p "6"^^<xsd:integer>`}},
		"booleans":  {"<s> <p> true, false.", []string{`<http://h.test/c/s> http://h.test/c/p "true"^^<xsd:boolean>`, `<http://h.test/c/s> http://h.test/c/p "false"^^<xsd:boolean>`}},
		"blank":     {"_:a <p> _:b.c. [] <p> [ <q> _:a ].", []string{"_:a http://h.test/c/p _:b.c", "_: 2 http://h.test/c/q _:a", "_: 1 http://h.test/c/p _: 2"}},
		"alone":     {"[ <p> <o> ].", []string{"_: 1 http://h.test/c/p <http://h.test/c/o>"}},
		"collection": {"<s> <p> (1 [ <q> <r> ] <t>).", []string{
			`_: 1 rdf:first "1"^^<xsd:integer>`, "_: 2 http://h.test/c/q <http://h.test/c/r>", "_: 1 rdf:rest _: 3", "_: 3 rdf:first _: 2",
			"_: 3 rdf:rest _: 4", "_: 4 rdf:first <http://h.test/c/t>", "_: 4 rdf:rest <" + NS + "nil>", "<http://h.test/c/s> http://h.test/c/p _: 1"}},
		"empty list":    {"() <p> ().", []string{"<" + NS + "nil> http://h.test/c/p <" + NS + "nil>"}},
		"more numbers":  {"<s> <p> 1.e3, 1.5E+3, -0, 7.", []string{`<http://h.test/c/s> http://h.test/c/p "1.e3"^^<xsd:double>`, `<http://h.test/c/s> http://h.test/c/p "1.5E+3"^^<xsd:double>`, `<http://h.test/c/s> http://h.test/c/p "-0"^^<xsd:integer>`, `<http://h.test/c/s> http://h.test/c/p "7"^^<xsd:integer>`}},
		"xsd:string":    {`<s> <p> "a"^^<` + XSD + `string>.`, []string{`<http://h.test/c/s> http://h.test/c/p "a"`}},
		"as it is":      {"<ä%2f%zz> <#ü> <http://h.test/c/../x>.", []string{"<http://h.test/c/ä%2f%zz> http://h.test/c/#ü <http://h.test/c/../x>"}},
		"local names":   {`@prefix a: <http://a/>. a:x.y a:%41\,b a:1:2, a: .`, []string{"<http://a/x.y> http://a/%41,b <http://a/1:2>", "<http://a/x.y> http://a/%41,b <http://a/>"}},
		"IRI escape":    {`<\u0073> <p> <o>.`, []string{"<http://h.test/c/s> http://h.test/c/p <http://h.test/c/o>"}},
		"a as a prefix": {"@prefix a: <http://a/>. <s> a:b <o>.", []string{"<http://h.test/c/s> http://a/b <http://h.test/c/o>"}},
		"byte order":    {"\ufeff<s> <p> <o>.", []string{"<http://h.test/c/s> http://h.test/c/p <http://h.test/c/o>"}},
	} {
		if got, err := statements(t, Parse, "text/turtle", c.doc); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v\n got %q\nwant %q", name, err, got, c.want)
		}
	}
}

// The examples of RFC 3986, 5.4, and those of the W3C's Turtle tests with odd bases.
func TestReferences(t *testing.T) {
	for base, all := range map[string]map[string]string{
		"http://a/bb/ccc/d;p?q": {
			"g:h": "g:h", "g": "http://a/bb/ccc/g", "./g": "http://a/bb/ccc/g", "g/": "http://a/bb/ccc/g/", "/g": "http://a/g", "//g": "http://g", "?y": "http://a/bb/ccc/d;p?y",
			"g?y": "http://a/bb/ccc/g?y", "#s": "http://a/bb/ccc/d;p?q#s", "g#s": "http://a/bb/ccc/g#s", "g?y#s": "http://a/bb/ccc/g?y#s", ";x": "http://a/bb/ccc/;x", "g;x": "http://a/bb/ccc/g;x",
			"": "http://a/bb/ccc/d;p?q", ".": "http://a/bb/ccc/", "./": "http://a/bb/ccc/", "..": "http://a/bb/", "../": "http://a/bb/", "../g": "http://a/bb/g", "../..": "http://a/", "../../": "http://a/",
			"../../g": "http://a/g", "../../../g": "http://a/g", "../../../../g": "http://a/g", "/./g": "http://a/g", "/../g": "http://a/g", "g.": "http://a/bb/ccc/g.", ".g": "http://a/bb/ccc/.g",
			"g..": "http://a/bb/ccc/g..", "..g": "http://a/bb/ccc/..g", "./../g": "http://a/bb/g", "./g/.": "http://a/bb/ccc/g/", "g/./h": "http://a/bb/ccc/g/h", "g/../h": "http://a/bb/ccc/h",
			"g;x=1/./y": "http://a/bb/ccc/g;x=1/y", "g;x=1/../y": "http://a/bb/ccc/y", "g?y/./x": "http://a/bb/ccc/g?y/./x", "g?y/../x": "http://a/bb/ccc/g?y/../x", "g#s/./x": "http://a/bb/ccc/g#s/./x", "g#s/../x": "http://a/bb/ccc/g#s/../x",
		},
		"http://abc/def/ghi":    {".": "http://abc/def/", ".?a=b": "http://abc/def/?a=b", ".#a=b": "http://abc/def/#a=b", "..": "http://abc/", "..?a=b": "http://abc/?a=b", "..#a=b": "http://abc/#a=b"},
		"http://ab//de//ghi":    {"xyz": "http://ab//de//xyz", "./xyz": "http://ab//de//xyz", "../xyz": "http://ab//de/xyz"},
		"http://abc/d:f/ghi":    {"xyz": "http://abc/d:f/xyz", "./xyz": "http://abc/d:f/xyz", "../xyz": "http://abc/xyz"},
		"http://h.test":         {"a": "http://h.test/a", "": "http://h.test", "?q": "http://h.test?q"},
		"urn:a:b":               {"#c": "urn:a:b#c", "c": "urn:c"},
		"urn:a/b":               {"../c": "urn:/c", "./c:d": "urn:a/c:d", "..": "urn:/"},
		"http://h.test/a#frag":  {"": "http://h.test/a", "#g": "http://h.test/a#g"},
		"file:///a/b/../c":      {"d": "file:///a/d", "//e/f": "file://e/f"},
		"http://h.test/%7Ea/ä?": {"b": "http://h.test/%7Ea/b", "%2e%2e/": "http://h.test/%7Ea/%2e%2e/"},
	} {
		r := Resolver{parseReference(base), true}
		for ref, want := range all {
			if got, err := r.Resolve(ref); err != nil || got != want {
				t.Errorf("%q below %q is %q (%v), not %q", ref, base, got, err, want)
			}
		}
	}
	if got, err := (Resolver{}).Resolve("a"); err == nil {
		t.Errorf("without a base, a is %q", got)
	}
}

func TestTurtleRefusals(t *testing.T) {
	for name, doc := range map[string]string{
		"no dot": "<s> <p> <o>", "no object": "<s> <p> .", "literal subject": `"s" <p> <o>.`, "literal predicate": `<s> "p" <o>.`, "unknown prefix": "a:s <p> <o>.",
		"open IRI": "<s> <p> <o", "IRI with a space": "<s> <p> <a b>.", "open string": `<s> <p> "a`, "line break in a string": "<s> <p> \"a\nb\".",
		"bad escape": `<s> <p> "\x".`, "half escape": `<s> <p> "\u12".`, "surrogate": `<s> <p> "\ud800".`, "beyond Unicode": `<s> <p> "\U00110000".`, "open [": "<s> <p> [ <q> <r>",
		"open (": "<s> <p> ( 1 2", "HTML": "<!DOCTYPE html><html></html>", "JSON": `{"a":1}`, "sign alone": "<s> <p> - .", "two dots": "<s> <p> 1.2.3 .", "NUL": "\x00",
		"deep": "<s> <p> " + strings.Repeat("[ <p> ", 100), "long IRI": "<s> <p> <" + strings.Repeat("a", maxIRI+1) + ">.", "empty []": "[] .", "comment in []": "[ # x\n] .", "not UTF-8": "<s> <p> '\xff'.",
		"escaped >": `<s> <p> <http://a/\u003e>.`, "escaped space": `<s> <p> <http://a/\u0020b>.`, "backslash": `<s> <p> <http://a/\U0000005cb>.`, "language": `<s> <p> "a"@1.`, "half language": `<s> <p> "a"@en- .`,
		"variable": "<s> <p> ?x.", "formula": "<s> <p> {}.", "prefix with a dot": "@prefix a.: <b>.", "prefix from a dot": "@prefix .a: <b>.", "blank predicate": "<s> _:p <o>.", "exponent": "<s> <p> 1e.", "broken scheme": "<h_ttp://x/> <p> <o>.", "minus": "@prefix a: <b>. <s> <p> a:-1.", "an authority by ..": "@base <x:/a/b>. <..//x> <p> <o>.",
	} {
		if got, err := statements(t, Parse, "text/turtle", doc); err == nil {
			t.Errorf("%s: read as %q", name, got)
		}
	}
}

func TestJSONLD(t *testing.T) {
	contains := []string{"<http://h.test/c/> " + Contains + " <http://h.test/c/a>", "<http://h.test/c/> " + Contains + " <http://h.test/c/b/>"}
	for name, doc := range map[string]string{
		"expanded array":  `[{"@id":"http://h.test/c/","` + Contains + `":[{"@id":"http://h.test/c/a"}]},{"@id":"http://h.test/c/","` + Contains + `":[{"@id":"http://h.test/c/b/"}]}]`,
		"relative":        `{"@id":"","` + Contains + `":[{"@id":"a"},{"@id":"b/"}]}`,
		"graph":           `{"@context":{"ldp":"http://www.w3.org/ns/ldp#"},"@graph":[{"@id":"./","ldp:contains":[{"@id":"a"},{"@id":"b/"}]}]}`,
		"prefix":          `{"@context":{"l":"http://www.w3.org/ns/ldp#"},"@id":"http://h.test/c/","l:contains":["a","b/"]}`,
		"term":            `{"@context":{"id":"@id","has":{"@id":"ldp:contains","@type":"@id"},"ldp":"http://www.w3.org/ns/ldp#"},"id":".","has":["a","b/"]}`,
		"vocab":           `{"@context":{"@vocab":"http://www.w3.org/ns/ldp#"},"@id":"","contains":[{"@id":"a"},"b/"]}`,
		"base":            `{"@context":{"@base":"http://h.test/"},"@id":"c/","http://www.w3.org/ns/ldp#contains":["c/a","c/b/"]}`,
		"foreign context": `{"@context":"https://www.w3.org/ns/ldp.jsonld","id":"","contains":["a","b/"]}`,
		"no context":      `{"@id":"","ldp:contains":{"@set":["a","b/"]}}`,
		"context array":   `{"@context":["https://x.test/y",{"@base":"http://h.test/c/"}],"@id":"","ldp:contains":["a","b/"]}`,
	} {
		got, err := statements(t, ParseLenient, "application/ld+json", doc)
		if err != nil || !slices.Equal(got, contains) {
			t.Errorf("%s: %v\n got %q\nwant %q", name, err, got, contains)
		}
	}
	got, err := statements(t, ParseLenient, "application/ld+json", `{"@id":"s","@type":["http://t/A"],"http://p/n":[1,true,"x",{"@value":"y"},null,{"http://p/q":"z"}],"dropped":"v"}`)
	want := []string{
		"<http://h.test/c/s> rdf:type <http://t/A>", `<http://h.test/c/s> http://p/n "1"^^<xsd:integer>`, `<http://h.test/c/s> http://p/n "true"^^<xsd:boolean>`, `<http://h.test/c/s> http://p/n "x"`,
		`<http://h.test/c/s> http://p/n "y"`, `<http://h.test/c/s> http://p/n _: 1`, `_: 1 http://p/q "z"`,
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
		"size":     `"` + strings.Repeat("a", maxForeign) + `"`,
	} {
		if got, err := statements(t, ParseLenient, "application/ld+json", doc); err == nil {
			t.Errorf("%s: read as %q", name, got)
		}
	}
	// A cycle of terms ends.
	if _, err := statements(t, ParseLenient, "application/ld+json", `{"@context":{"a":"b","b":"a","c":"c:x"},"a":"1","c":"2"}`); err != nil {
		t.Error(err)
	}
}
