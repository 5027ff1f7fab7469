package rdf

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/piprate/json-gold/ld"
)

// linkedDocs are documents that the strict reader understands.
var linkedDocs = map[string]string{
	"node":             `{"@id": "#me", "@type": ["http://x/T", "rel"], "http://x/p": ["a", {"@id": "b"}, {"@value": "c", "@language": "EN"}, {"@value": "1", "@type": "http://x/d"}, null, {"@value": null}]}`,
	"blank":            `{"@id": "_:a", "http://x/p": {"@id": "_:b", "@type": "_:c", "http://x/q": {}}}`,
	"numbers":          `{"@id": "s", "http://x/p": [1, -0, 2.0, 1.5, 1e3, 1.25e-7, 1e21, 5.5e30, true, false, {"@value": 3}, {"@value": 3, "@type": "http://www.w3.org/2001/XMLSchema#double"}]}`,
	"lists":            `{"@id": "s", "http://x/p": [{"@list": [1, "a", {"@id": "b"}]}, {"@list": []}, {"@list": "one"}, {"@list": [null]}]}`,
	"sets":             `{"@id": "s", "http://x/p": {"@set": ["a", ["b", {"@set": ["c"]}]]}}`,
	"terms":            `{"@context": {"x": "http://x/", "n": "x:name", "k": {"@id": "x:k", "@type": "@id"}, "v": {"@id": "x:v", "@type": "@vocab"}, "d": {"@id": "x:d", "@type": "x:T"}, "off": null}, "@id": "x:s", "n": "N", "k": ["o", "x:o", "n"], "v": ["n", "x:v", "else"], "d": ["1", 2, true], "off": "gone", "gone": 1, "x:y": {"@id": "n"}}`,
	"aliases":          `{"@context": {"id": "@id", "type": "@type", "value": "@value", "lang": "@language", "list": "@list", "set": "@set"}, "id": "s", "type": "http://x/T", "http://x/p": [{"value": "a", "lang": "de"}, {"list": [1]}, {"set": [2]}, {"id": "o"}]}`,
	"vocabulary":       `{"@context": {"@vocab": "http://v/", "@base": "http://b/c/", "@language": "fr"}, "@id": "../d", "@type": "T", "p": ["a", {"@value": "b"}], "q:r": 1, "http://x/z": 2}`,
	"vocabulary twice": `{"@context": [{"@vocab": "http://v/"}, {"@vocab": "w/"}], "@id": "s", "p": "o"}`,
	"vocabulary, base": `{"@context": {"@vocab": ""}, "@id": "s", "p": "o"}`,
	"languages":        `{"@context": {"@language": "it", "l": {"@id": "http://x/l", "@container": "@language"}, "n": {"@id": "http://x/n", "@language": null}, "g": {"@id": "http://x/g", "@language": "de-AT"}}, "@id": "s", "l": {"en": ["a", "b"], "@none": "c", "fr": null}, "n": "plain", "g": ["servus", 1], "http://x/p": "ciao"}`,
	"list container":   `{"@context": {"l": {"@id": "http://x/l", "@container": "@list"}, "k": {"@id": "http://x/k", "@container": ["@set"], "@type": "@id"}}, "@id": "s", "l": [1, [2, 3]], "k": "o"}`,
	"list in a list":   `{"@context": {"l": {"@id": "http://x/l", "@container": "@list"}}, "@id": "s", "l": {"@list": ["a"]}}`,
	"reverse":          `{"@context": {"child": {"@reverse": "http://x/parent", "@type": "@id"}}, "@id": "s", "child": ["a", "b"], "@reverse": {"http://x/of": [{"@id": "c"}, {"http://x/p": 1}], "child": {"@id": "d"}}}`,
	"graph":            `{"@context": {"p": "http://x/p"}, "@graph": [{"@id": "a", "p": 1}, {"@id": "b", "p": {"@id": "a"}}, "floating", {"@value": 1}, [{"@id": "c", "p": 2}]]}`,
	"included":         `{"@id": "s", "@included": [{"@id": "a", "http://x/p": 1}], "http://x/q": 2}`,
	"nested contexts":  `{"@context": {"p": "http://x/p"}, "@id": "s", "p": {"@context": {"p": "http://y/p", "q": "http://y/q"}, "@id": "o", "p": 1, "q": {"@context": null, "@id": "z", "p": 2, "http://z/p": 3}}}`,
	"prefix flag":      `{"@context": {"a": {"@id": "http://a/"}, "b": {"@id": "http://b/x", "@prefix": true}, "c": "http://c/nodelim"}, "@id": "s", "a:p": 1, "b:p": 2, "c:p": 3}`,
	"term is compact":  `{"@context": {"x": "http://x/", "x:p": {"@type": "@id"}, "x:q": null}, "@id": "s", "x:p": "o", "x:q": 1}`,
	"chain":            `{"@context": {"a": "b:a", "b": "c:b/", "c": "http://c/"}, "@id": "s", "a": 1, "b:x": 2}`,
	"unknown keyword":  `{"@id": "s", "@future": 1, "http://x/p": 1}`,
	"no context":       `{"@context": {"@base": "http://b/", "p": "http://x/p"}, "@id": "s", "p": {"@context": null, "@id": "o", "p": 1, "http://x/q": 2}}`,
	"term as a prefix": `{"@context": {"x": "http://x/l", "x:p": {"@type": "@id"}}, "@id": "s", "x:p": "o", "x:q": 1}`,
	"index":            `{"@id": "s", "@index": "i", "http://x/p": {"@value": "a", "@index": "j"}}`,
	"version":          `{"@context": {"@version": 1.1, "p": "http://x/p", "@type": {"@container": "@set"}}, "@id": "s", "p": 1}`,
	"characters":       `{"@id": "s", "http://x/p": "\ud83d\ude00\u0000\n\"\\"}`,
}

// The processor json-gold, which this reader is compared with, is complete but has no limits: a
// context inside of a term is evaluated again at each use.
func TestJSONLDAgrees(t *testing.T) {
	for name, doc := range linkedDocs {
		got := collect(t, MediaJSONLD, doc)
		want := reference11(t, doc)
		if g, w := anonymous(got), anonymous(want); !slices.Equal(g, w) {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(g, "\n     "), strings.Join(w, "\n     "))
		}
		if len(got) == 0 {
			t.Errorf("%s has no triples", name)
		}
	}
}

// In lists of lists and in large numbers, json-gold does not do what JSON-LD 1.1 says.
func TestJSONLDBeyondTheReference(t *testing.T) {
	for doc, want := range map[string]string{
		`{"@id": "s", "http://x/p": {"@list": [["x"], [], [["y"]]]}}`: `<s> <http://x/p> (("x") () (("y"))).`,
		`{"@id": "s", "http://x/p": [100000000000000000000, 1e20]}`:   `<s> <http://x/p> 100000000000000000000.`,
		`{"@id": "s", "http://x/p": [-1e20, -0.1e21, -0.0, -1e21]}`:   `<s> <http://x/p> -100000000000000000000, 0, "-1.0E21"^^<` + XSD + `double>.`,
		`{"@id": "s", "http://x/p": [123456789012345678901234]}`:      `<s> <http://x/p> "1.234567890123457E23"^^<` + XSD + `double>.`,
	} {
		if got, want := anonymous(collect(t, MediaJSONLD, doc)), anonymous(collect(t, MediaTurtle, want)); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", doc, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
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

// reference11 reads a document with json-gold.
func reference11(t *testing.T, doc string) []Triple {
	t.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out, err := ld.NewJsonLdProcessor().ToRDF(plainNumbers(v), ld.NewJsonLdOptions(docBase(t).String()))
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	g := NewGraph()
	for _, q := range out.(*ld.RDFDataset).Graphs["@default"] {
		g.Add(Triple{fromGold(q.Subject), q.Predicate.GetValue(), fromGold(q.Object)})
	}
	return g.Triples()
}

// plainNumbers has the numbers as encoding/json decodes them without UseNumber.
func plainNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
		}
	}
	return v
}

func fromGold(n ld.Node) Term {
	switch n := n.(type) {
	case ld.IRI:
		return iri(n.Value)
	case ld.BlankNode:
		return Term{Kind: Blank, Value: n.Attribute}
	case ld.Literal:
		if n.Language != "" {
			return text(n.Value, "", n.Language)
		}
		return text(n.Value, n.Datatype, "")
	}
	panic("no term")
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
		"index container":    `{"@context": {"p": {"@id": "http://x/p", "@container": "@index"}}}`,
		"graph container":    `{"@context": {"p": {"@id": "http://x/p", "@container": ["@graph", "@id"]}}}`,
		"JSON":               `{"http://x/p": {"@value": {}, "@type": "@json"}}`,
		"JSON term":          `{"@context": {"p": {"@id": "http://x/p", "@type": "@json"}}}`,
		"blank predicate":    `{"@id": "s", "_:p": 1, "http://x/p": 2}`,
		"direction":          `{"http://x/p": {"@value": "a", "@direction": "rtl"}}`,
		"default direction":  `{"@context": {"@direction": "rtl"}}`,
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
		"reverse id":      `{"@reverse": {"@id": "a"}}`,
		"cycle":           `{"@context": {"a": "b:x", "b": "a:y"}}`,
		"cycle of one":    `{"@context": {"a": "a:x"}}`,
		"relative term":   `{"@context": {"a": "b"}}`,
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
