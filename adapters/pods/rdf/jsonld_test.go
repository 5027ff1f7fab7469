package rdf

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// linkedDocs are documents that the strict reader understands, and the same in Turtle.
var linkedDocs = map[string]struct{ doc, turtle string }{
	"node": {`{"@id": "#me", "@type": ["http://x/T", "rel"], "http://x/p": ["a", {"@id": "b"}, {"@value": "c", "@language": "EN"}, {"@value": "1", "@type": "http://x/d"}, null, {"@value": null}]}`,
		`<#me> a x:T, <rel>; x:p "a", <b>, "c"@en, "1"^^x:d.`},
	"blank": {`{"@id": "_:a", "http://x/p": {"@id": "_:b", "@type": "_:c", "http://x/q": {}}}`,
		`_:a x:p _:b. _:b a _:c; x:q [].`},
	"numbers": {`{"@id": "s", "http://x/p": [1, -0, 2.0, 1.5, 1e3, 1.25e-7, 1e21, 5.5e30, true, false, {"@value": 3}, {"@value": 3, "@type": "http://www.w3.org/2001/XMLSchema#double"}]}`,
		`<s> x:p 1, 0, 2, 1.5E0, 1000, 1.25E-7, 1.0E21, 5.5E30, true, false, 3, 3.0E0.`},
	"lists": {`{"@id": "s", "http://x/p": [{"@list": [1, "a", {"@id": "b"}]}, {"@list": []}, {"@list": "one"}, {"@list": [null]}]}`,
		`<s> x:p (1 "a" <b>), (), ("one"), ().`},
	"sets": {`{"@id": "s", "http://x/p": {"@set": ["a", ["b", {"@set": ["c"]}]]}}`,
		`<s> x:p "a", "b", "c".`},
	"terms": {`{"@context": {"x": "http://x/", "n": "x:name", "k": {"@id": "x:k", "@type": "@id"}, "v": {"@id": "x:v", "@type": "@vocab"}, "d": {"@id": "x:d", "@type": "x:T"}, "off": null}, "@id": "x:s", "n": "N", "k": ["o", "x:o", "n"], "v": ["n", "x:v", "else"], "d": ["1", 2, true], "off": "gone", "gone": 1, "x:y": {"@id": "n"}}`,
		`x:s x:name "N"; x:k <o>, x:o, <n>; x:v x:name, x:v, <else>; x:d "1"^^x:T, "2"^^x:T, "true"^^x:T; x:y <n>.`},
	"aliases": {`{"@context": {"id": "@id", "type": "@type", "value": "@value", "lang": "@language", "list": "@list", "set": "@set"}, "id": "s", "type": "http://x/T", "http://x/p": [{"value": "a", "lang": "de"}, {"list": [1]}, {"set": [2]}, {"id": "o"}]}`,
		`<s> a x:T; x:p "a"@de, (1), 2, <o>.`},
	"vocabulary": {`{"@context": {"@vocab": "http://v/", "@base": "http://b/c/", "@language": "fr"}, "@id": "../d", "@type": "T", "p": ["a", {"@value": "b"}], "q:r": 1, "http://x/z": 2}`,
		`<http://b/d> a <http://v/T>; <http://v/p> "a"@fr, "b"; <q:r> 1; x:z 2.`},
	"vocabulary twice": {`{"@context": [{"@vocab": "http://v/"}, {"@vocab": "w/"}], "@id": "s", "p": "o"}`,
		`<s> <http://v/w/p> "o".`},
	"vocabulary, base": {`{"@context": {"@vocab": ""}, "@id": "s", "p": "o"}`,
		`<s> <p> "o".`},
	"languages": {`{"@context": {"@language": "it", "l": {"@id": "http://x/l", "@container": "@language"}, "n": {"@id": "http://x/n", "@language": null}, "g": {"@id": "http://x/g", "@language": "de-AT"}}, "@id": "s", "l": {"en": ["a", "b"], "@none": "c", "fr": null}, "n": "plain", "g": ["servus", 1], "http://x/p": "ciao"}`,
		`<s> x:l "a"@en, "b"@en, "c"; x:n "plain"; x:g "servus"@de-at, 1; x:p "ciao"@it.`},
	"list container": {`{"@context": {"l": {"@id": "http://x/l", "@container": "@list"}, "k": {"@id": "http://x/k", "@container": ["@set"], "@type": "@id"}}, "@id": "s", "l": [1, [2, 3]], "k": "o"}`,
		`<s> x:l (1 (2 3)); x:k <o>.`},
	"list in a list": {`{"@context": {"l": {"@id": "http://x/l", "@container": "@list"}}, "@id": "s", "l": {"@list": ["a"]}}`,
		`<s> x:l ("a").`},
	"reverse": {`{"@context": {"child": {"@reverse": "http://x/parent", "@type": "@id"}}, "@id": "s", "child": ["a", "b"], "@reverse": {"http://x/of": [{"@id": "c"}, {"http://x/p": 1}], "child": {"@id": "d"}}}`,
		`<a> x:parent <s>. <b> x:parent <s>. <c> x:of <s>. [ x:p 1 ] x:of <s>. <s> x:parent <d>.`},
	"graph": {`{"@context": {"p": "http://x/p"}, "@graph": [{"@id": "a", "p": 1}, {"@id": "b", "p": {"@id": "a"}}, "floating", {"@value": 1}, [{"@id": "c", "p": 2}]]}`,
		`<a> x:p 1. <b> x:p <a>. <c> x:p 2.`},
	"included": {`{"@id": "s", "@included": [{"@id": "a", "http://x/p": 1}], "http://x/q": 2}`,
		`<a> x:p 1. <s> x:q 2.`},
	"nested contexts": {`{"@context": {"p": "http://x/p"}, "@id": "s", "p": {"@context": {"p": "http://y/p", "q": "http://y/q"}, "@id": "o", "p": 1, "q": {"@context": null, "@id": "z", "p": 2, "http://z/p": 3}}}`,
		`<s> x:p <o>. <o> <http://y/p> 1; <http://y/q> <z>. <z> <http://z/p> 3.`},
	"prefix flag": {`{"@context": {"a": {"@id": "http://a/"}, "b": {"@id": "http://b/x", "@prefix": true}, "c": "http://c/nodelim"}, "@id": "s", "a:p": 1, "b:p": 2, "c:p": 3}`,
		`<s> <a:p> 1; <http://b/xp> 2; <c:p> 3.`},
	"term is compact": {`{"@context": {"x": "http://x/", "x:p": {"@type": "@id"}, "x:q": null}, "@id": "s", "x:p": "o", "x:q": 1}`,
		`<s> x:p <o>.`},
	"chain": {`{"@context": {"a": "b:a", "b": "c:b/", "c": "http://c/"}, "@id": "s", "a": 1, "b:x": 2}`,
		`<s> <http://c/b/a> 1; <http://c/b/x> 2.`},
	"unknown keyword": {`{"@id": "s", "@future": 1, "http://x/p": 1}`,
		`<s> x:p 1.`},
	"no context": {`{"@context": {"@base": "http://b/", "p": "http://x/p"}, "@id": "s", "p": {"@context": null, "@id": "o", "p": 1, "http://x/q": 2}}`,
		`<http://b/s> x:p <o>. <o> x:q 2.`},
	"term as a prefix": {`{"@context": {"x": "http://x/l", "x:p": {"@type": "@id"}}, "@id": "s", "x:p": "o", "x:q": 1}`,
		`<s> x:lp <o>; <x:q> 1.`},
	"index": {`{"@id": "s", "@index": "i", "http://x/p": {"@value": "a", "@index": "j"}}`,
		`<s> x:p "a".`},
	"version": {`{"@context": {"@version": 1.1, "p": "http://x/p", "@type": {"@container": "@set"}}, "@id": "s", "p": 1}`,
		`<s> x:p 1.`},
	"characters": {`{"@id": "s", "http://x/p": "\ud83d\ude00\u0000\n\"\\"}`,
		`<s> x:p "😀\u0000\n\"\\".`},
	"index map": {`{"@context": {"i": {"@id": "http://x/i", "@container": "@index"}}, "@id": "s", "i": {"a": ["x", 1], "b": {"@id": "o"}, "@none": null}}`,
		`<s> x:i "x", 1, <o>.`},
	"two keys": {`{"@context": {"p": {"@id": "http://x/p", "@type": "@id"}}, "@id": "s", "p": "o", "http://x/p": "o"}`,
		`<s> x:p <o>, "o".`},
	"lists of lists": {`{"@id": "s", "http://x/p": {"@list": [["x"], [], [["y"]]]}}`,
		`<s> x:p (("x") () (("y"))).`},
	"large integers": {`{"@id": "s", "http://x/p": [100000000000000000000, 1e20]}`,
		`<s> x:p 100000000000000000000.`},
	"negative numbers": {`{"@id": "s", "http://x/p": [-1e20, -0.1e21, -0.0, -1e21]}`,
		`<s> x:p -100000000000000000000, 0, -1.0E21.`},
	"too many digits": {`{"@id": "s", "http://x/p": [123456789012345678901234]}`,
		`<s> x:p 1.234567890123457E23.`},
}

func TestJSONLDTriples(t *testing.T) {
	for name, c := range linkedDocs {
		got, want := anonymous(collect(t, MediaJSONLD, c.doc)), anonymous(collect(t, MediaTurtle, "@prefix x: <http://x/>. "+c.turtle))
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
}

// An expanded document says what the document says, and expanded again it stays as it is.
func TestExpandedSaysTheSame(t *testing.T) {
	for name, c := range linkedDocs {
		once, err := Expand([]byte(c.doc), docBase(t), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := anonymous(collect(t, MediaJSONLD, string(once))), anonymous(collect(t, MediaJSONLD, c.doc)); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
		if twice, err := Expand(once, nil, nil); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, twice, once)
		}
	}
}

func TestExpand(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"nothing", `[{"@value": 1}, "a"]`, `[]`},
		{"numbers keep their digits", `{"http://x/p": [1.50, 12345678901234567890, 1e999, -0]}`, `[{"http://x/p":[{"@value":1.50},{"@value":12345678901234567890},{"@value":1e999},{"@value":-0}]}]`},
		{"languages keep their case", `{"@context": {"@language": "de-AT"}, "http://x/p": "a<b>"}`, `[{"http://x/p":[{"@value":"a<b>","@language":"de-AT"}]}]`},
		{"a named graph", `{"@id": "g", "@graph": [{"@id": "s", "http://x/p": 1}]}`, `[{"@id":"http://h.test/c/g","@graph":[{"@id":"http://h.test/c/s","http://x/p":[{"@value":1}]}]}]`},
		{"directions", `{"@context": {"@direction": "rtl", "l": {"@id": "http://x/l", "@direction": "ltr"}, "n": {"@id": "http://x/n", "@direction": null}}, "l": "a", "n": "b", "http://x/p": ["c", {"@value": "d"}, {"@value": "e", "@direction": "ltr"}, 1]}`,
			`[{"http://x/l":[{"@value":"a","@direction":"ltr"}],"http://x/n":[{"@value":"b"}],"http://x/p":[{"@value":"c","@direction":"rtl"},{"@value":"d"},{"@value":"e","@direction":"ltr"},{"@value":1}]}]`},
		{"JSON", `{"@context": {"j": {"@id": "http://x/j", "@type": "@json"}}, "j": {"@id": ["a", null]}, "http://x/p": {"@type": "@json", "@value": null}}`,
			`[{"http://x/j":[{"@value":{"@id":["a",null]},"@type":"@json"}],"http://x/p":[{"@value":null,"@type":"@json"}]}]`},
		{"indices", `{"@context": {"i": {"@id": "http://x/i", "@container": "@index"}}, "@index": "top", "i": {"a": ["x", {"@id": "http://x/o", "http://x/p": 1}, {"@list": [1], "@index": "own"}], "@none": "y"}}`,
			`[{"@index":"top","http://x/i":[{"@value":"y"},{"@value":"x","@index":"a"},{"@id":"http://x/o","@index":"a","http://x/p":[{"@value":1}]},{"@index":"own","@list":[{"@value":1}]}]}]`},
		{"reverse", `{"@context": {"child": {"@reverse": "http://x/parent", "@type": "@id"}}, "@id": "http://x/s", "child": "http://x/a", "@reverse": {"http://x/of": {"@id": "_:b"}}, "http://x/p": []}`,
			`[{"@id":"http://x/s","http://x/p":[],"@reverse":{"http://x/of":[{"@id":"_:b"}],"http://x/parent":[{"@id":"http://x/a"}]}}]`},
		{"included, types", `{"@type": "x:T", "@included": {"@id": "x:i"}}`, `[{"@included":[{"@id":"x:i"}],"@type":["x:T"]}]`},
		{"renamed", `{"@context": {"d": {"@id": "http://old/d", "@type": "http://old/D"}}, "@id": "http://old/", "@type": "http://old/T", "http://old/p": {"@id": "_:old"}, "http://new/p": "http://old/", "d": "a", "http://x/e": {"@value": "b", "@type": "http://old/E"}}`,
			`[{"@id":"http://new/","@type":["http://new/T"],"http://new/d":[{"@value":"a","@type":"http://new/D"}],"http://new/p":[{"@value":"http://old/"},{"@id":"_:old"}],"http://x/e":[{"@value":"b","@type":"http://new/E"}]}]`},
	} {
		rename := func(iri string) string { return strings.Replace(iri, "http://old/", "http://new/", 1) }
		if got, err := Expand([]byte(c.doc), docBase(t), rename); err != nil || string(got) != c.want+"\n" {
			t.Errorf("%s: %v\n got %s\nwant %s", c.name, err, got, c.want)
		}
	}
}

func collect(t testing.TB, mediaType, doc string) (all []Triple) {
	t.Helper()
	g := NewGraph()
	if err := Parse(mediaType, []byte(doc), docBase(t), g.Add); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return g.Triples()
}

// anonymous shows triples without the labels of their blank nodes, sorted.
func anonymous(all []Triple) []string {
	var out []string
	for _, t := range all {
		for _, x := range []*Term{&t.Subject, &t.Object} {
			if x.Kind == Blank {
				x.Value = ""
			}
		}
		out = append(out, show(t.Subject)+" "+t.Predicate+" "+show(t.Object))
	}
	slices.Sort(out)
	return out
}

// What the strict reader does not understand, it does not leave out in silence.
func TestJSONLDUnsupported(t *testing.T) {
	for name, doc := range map[string]string{
		"remote context":     `{"@context": "https://www.w3.org/ns/did/v1", "@id": "s"}`,
		"remote in a list":   `{"@context": [{}, "https://x.test/"], "@id": "s"}`,
		"import":             `{"@context": {"@import": "https://x.test/"}}`,
		"propagate":          `{"@context": {"@propagate": false}}`,
		"scoped context":     `{"@context": {"p": {"@id": "http://x/p", "@context": {}}}}`,
		"protected":          `{"@context": {"@protected": true}}`,
		"protected term":     `{"@context": {"p": {"@id": "http://x/p", "@protected": true}}}`,
		"named graph":        `{"@id": "g", "@graph": []}`,
		"graph in a list":    `[{"@graph": [{"http://x/p": 1}]}]`,
		"graph in a graph":   `{"@graph": [{"@graph": [{"http://x/p": 1}]}]}`,
		"graph and property": `{"http://x/p": 1, "@graph": []}`,
		"nest":               `{"@nest": {"http://x/p": 1}}`,
		"nest in a term":     `{"@context": {"p": {"@id": "http://x/p", "@nest": "n"}}}`,
		"id container":       `{"@context": {"p": {"@id": "http://x/p", "@container": "@id"}}}`,
		"two containers":     `{"@context": {"p": {"@id": "http://x/p", "@container": ["@list", "@index"]}}}`,
		"index property":     `{"@context": {"p": {"@id": "http://x/p", "@container": "@index", "@index": "q"}}}`,
		"graph container":    `{"@context": {"p": {"@id": "http://x/p", "@container": ["@graph", "@id"]}}}`,
		"JSON":               `{"http://x/p": {"@value": {}, "@type": "@json"}}`,
		"JSON term":          `{"@context": {"p": {"@id": "http://x/p", "@type": "@json"}}, "p": []}`,
		"blank predicate":    `{"@id": "s", "_:p": 1, "http://x/p": 2}`,
		"direction":          `{"http://x/p": {"@value": "a", "@direction": "rtl"}}`,
		"default direction":  `{"@context": {"@direction": "rtl"}, "http://x/p": "a"}`,
		"not RDF":            `{"@id": "s"}`,
	} {
		mediaType := MediaJSONLD
		if name == "not RDF" {
			mediaType = "application/json"
		}
		if got, err := statements(t, Parse, mediaType, doc); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %q %v", name, got, err)
		}
		if _, err := statements(t, ParseLenient, mediaType, doc); err != nil {
			t.Errorf("%s, lenient: %v", name, err)
		}
	}
}

func TestJSONLDInvalid(t *testing.T) {
	for name, doc := range map[string]string{
		"id":              `{"@id": 5}`,
		"id of a keyword": `{"@id": "@future", "http://x/p": 1}`,
		"no class":        `{"@type": "@future"}`,
		"ids":             `{"@context": {"id": "@id"}, "id": "a", "@id": "b"}`,
		"type":            `{"@type": 5}`,
		"relative":        `{"@context": {"@base": null}, "@id": "a", "http://x/p": 1}`,
		"IRI":             `{"@id": "http://x/a b", "http://x/p": 1}`,
		"predicate":       `{"@id": "s", "http://x/> <y": 1}`,
		"datatype":        `{"http://x/p": {"@value": "a", "@type": "_:b"}}`,
		"language":        `{"http://x/p": {"@value": "a", "@language": "x y"}}`,
		"both":            `{"http://x/p": {"@value": "a", "@language": "en", "@type": "http://x/d"}}`,
		"number's tongue": `{"http://x/p": {"@value": 1, "@language": "en"}}`,
		"value":           `{"http://x/p": {"@value": ["a"]}}`,
		"value and id":    `{"http://x/p": {"@value": "a", "@id": "b"}}`,
		"value, property": `{"http://x/p": {"@value": "a", "http://x/q": 1}}`,
		"huge number":     `{"http://x/p": 1e999}`,
		"label":           `{"@id": "_: 1", "http://x/p": 1}`,
		"empty label":     `{"@id": "_:", "http://x/p": 1}`,
		"reverse literal": `{"@reverse": {"http://x/p": "a"}}`,
		"reverse list":    `{"@reverse": {"http://x/p": {"@list": []}}}`,
		"direction":       `{"http://x/p": {"@value": "a", "@direction": "up"}}`,
		"long language":   `{"http://x/p": {"@value": "a", "@language": "` + strings.Repeat("a", maxLanguage+1) + `"}}`,
		"reverse id":      `{"@reverse": {"@id": "a"}}`,
		"cycle":           `{"@context": {"a": "b:x", "b": "a:y"}}`,
		"cycle of one":    `{"@context": {"a": "a:x"}}`,
		"relative term":   `{"@context": {"a": "b"}}`,
		"no keyword":      `{"@context": {"a": "@1"}, "a:": {}}`,
		"no term":         `{"@context": {"": "http://x/"}}`,
		"term's type":     `{"@context": {"a": {"@id": "http://x/", "@type": "rel"}}}`,
		"term's language": `{"@context": {"a": {"@id": "http://x/", "@language": 5}}}`,
		"prefix":          `{"@context": {"a": {"@id": "http://x/", "@prefix": 5}}}`,
		"vocab":           `{"@context": {"@vocab": 5}}`,
		"base":            `{"@context": {"@base": 5}}`,
		"list of a node":  `{"@id": "s", "@list": [], "http://x/p": 1}`,
		"list and node":   `{"http://x/p": {"@list": [], "http://x/q": 1}}`,
		"set of a node":   `{"http://x/p": {"@set": [], "@id": "s"}}`,
		"value at top":    `{"@value": 1, "http://x/p": 1}`,
		"index":           `{"@index": 1, "http://x/p": 1}`,
		"included":        `{"@id": "s", "@included": "a"}`,
		"version":         `{"@context": {"@version": 2}, "http://x/p": 1}`,
		"IRI as another":  `{"@context": {"http://x/p": "http://x/q"}, "http://x/p": 1}`,
		"compact, other":  `{"@context": {"x": "http://x/", "x:p": "x:q"}, "x:p": 1}`,
		"surrogate":       `{"http://x/p": "\ud800"}`,
		"not UTF-8":       "{\"http://x/p\": \"\xff\"}",
		"language map":    `{"@context": {"l": {"@id": "http://x/l", "@container": "@language"}}, "l": {"en": 5}}`,
	} {
		if got, err := statements(t, Parse, MediaJSONLD, doc); err == nil {
			t.Errorf("%s: read as %q", name, got)
		}
	}
}
