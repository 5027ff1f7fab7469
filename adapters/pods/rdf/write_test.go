package rdf

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var mediaTypes = []string{MediaTurtle, MediaNTriples, MediaJSONLD}

func TestWrite(t *testing.T) {
	all := collect(t, MediaTurtle, `@prefix acl: <http://www.w3.org/ns/auth/acl#>. @prefix x: <http://x/>.
		<#r> a acl:Authorization, x:T; acl:mode acl:Read; x:p "a\"\n\u0000\u007f ü 😀"@EN, 5, "5", [ x:q true ]; x:a "x"^^x:1 .
		_:keep x:p _:b0, _:a.b, acl:, x:\/ .`)
	for mediaType, want := range map[string]string{
		MediaTurtle: `@prefix acl: <http://www.w3.org/ns/auth/acl#>.
@prefix xsd: <http://www.w3.org/2001/XMLSchema#>.

<http://h.test/c/#r> a acl:Authorization, <http://x/T>;
    acl:mode acl:Read;
    <http://x/a> "x"^^<http://x/1>;
    <http://x/p> _:b1, "5", "5"^^xsd:integer, "a\"\n\u0000\u007F ü 😀"@en.
_:b1 <http://x/q> "true"^^xsd:boolean.
_:keep <http://x/p> <http://www.w3.org/ns/auth/acl#>, <http://x//>, _:b2, _:b0.
`,
		MediaNTriples: `<http://h.test/c/#r> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <http://www.w3.org/ns/auth/acl#Authorization> .
<http://h.test/c/#r> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <http://x/T> .
<http://h.test/c/#r> <http://www.w3.org/ns/auth/acl#mode> <http://www.w3.org/ns/auth/acl#Read> .
<http://h.test/c/#r> <http://x/a> "x"^^<http://x/1> .
<http://h.test/c/#r> <http://x/p> _:b1 .
<http://h.test/c/#r> <http://x/p> "5" .
<http://h.test/c/#r> <http://x/p> "5"^^<http://www.w3.org/2001/XMLSchema#integer> .
<http://h.test/c/#r> <http://x/p> "a\"\n\u0000\u007F ü 😀"@en .
_:b1 <http://x/q> "true"^^<http://www.w3.org/2001/XMLSchema#boolean> .
_:keep <http://x/p> <http://www.w3.org/ns/auth/acl#> .
_:keep <http://x/p> <http://x//> .
_:keep <http://x/p> _:b2 .
_:keep <http://x/p> _:b0 .
`,
		MediaJSONLD: `[{"@id":"http://h.test/c/#r","@type":["http://www.w3.org/ns/auth/acl#Authorization","http://x/T"],` +
			`"http://www.w3.org/ns/auth/acl#mode":[{"@id":"http://www.w3.org/ns/auth/acl#Read"}],"http://x/a":[{"@type":"http://x/1","@value":"x"}],` +
			`"http://x/p":[{"@id":"_:b1"},{"@value":"5"},{"@type":"http://www.w3.org/2001/XMLSchema#integer","@value":"5"},{"@language":"en","@value":"a\"\n\u0000` + "\x7f" + ` ü 😀"}]},` +
			`{"@id":"_:b1","http://x/q":[{"@type":"http://www.w3.org/2001/XMLSchema#boolean","@value":"true"}]},` +
			`{"@id":"_:keep","http://x/p":[{"@id":"http://www.w3.org/ns/auth/acl#"},{"@id":"http://x//"},{"@id":"_:b2"},{"@id":"_:b0"}]}]` + "\n",
	} {
		var out bytes.Buffer
		if err := Write(&out, mediaType, all); err != nil || out.String() != want {
			t.Errorf("%s: %v\n got %s\nwant %s", mediaType, err, out.String(), want)
		}
	}
	for _, mediaType := range mediaTypes {
		var out bytes.Buffer
		if err := Write(&out, mediaType, nil); err != nil || len(collect(t, mediaType, out.String())) > 0 {
			t.Errorf("%s of nothing: %v", mediaType, err)
		}
	}
}

// Parts make one document. A blank node of a later part does not get the label that one of an earlier part has.
func TestWriteParts(t *testing.T) {
	blank := func(label string) Term { return Term{Kind: Blank, Value: label} }
	parts := [][]Triple{
		{{iri("http://x/s"), LDP + "contains", blank("a.b")}, {iri("http://x/s"), Type, iri(LDP + "Container")}},
		{},
		{{blank("b0"), DCTerms + "modified", text("1", XSD+"integer", "")}},
		{{blank("a.b"), DCTerms + "title", text("t", "", "")}, {blank("b0"), DCTerms + "title", text("u", "", "")}},
	}
	for mediaType, want := range map[string]string{
		MediaTurtle: `@prefix ldp: <http://www.w3.org/ns/ldp#>.

<http://x/s> ldp:contains _:b0;
    a ldp:Container.
@prefix dcterms: <http://purl.org/dc/terms/>.
@prefix xsd: <http://www.w3.org/2001/XMLSchema#>.

_:b1 dcterms:modified "1"^^xsd:integer.
_:b0 dcterms:title "t".
_:b1 dcterms:title "u".
`,
		MediaNTriples: `<http://x/s> <http://www.w3.org/ns/ldp#contains> _:b0 .
<http://x/s> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <http://www.w3.org/ns/ldp#Container> .
_:b1 <http://purl.org/dc/terms/modified> "1"^^<http://www.w3.org/2001/XMLSchema#integer> .
_:b0 <http://purl.org/dc/terms/title> "t" .
_:b1 <http://purl.org/dc/terms/title> "u" .
`,
		MediaJSONLD: `[{"@id":"http://x/s","@type":["http://www.w3.org/ns/ldp#Container"],"http://www.w3.org/ns/ldp#contains":[{"@id":"_:b0"}]},` +
			`{"@id":"_:b1","http://purl.org/dc/terms/modified":[{"@type":"http://www.w3.org/2001/XMLSchema#integer","@value":"1"}]},` +
			`{"@id":"_:b0","http://purl.org/dc/terms/title":[{"@value":"t"}]},{"@id":"_:b1","http://purl.org/dc/terms/title":[{"@value":"u"}]}]` + "\n",
	} {
		var out bytes.Buffer
		if err := WriteParts(&out, mediaType, slices.Values(parts)); err != nil || out.String() != want {
			t.Errorf("%s: %v\n got %s\nwant %s", mediaType, err, out.String(), want)
		}
		if got := collect(t, mediaType, out.String()); len(got) != 5 {
			t.Errorf("%s: %d triples are read", mediaType, len(got))
		}
	}
	asked := 0
	endless := func(yield func([]Triple) bool) {
		for asked++; yield(parts[0]); asked++ {
		}
	}
	if err := WriteParts(full{}, MediaTurtle, endless); !errors.Is(err, errFull) {
		t.Errorf("to a full disk: %v after %d parts", err, asked)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteRefusals(t *testing.T) {
	good := Triple{iri("http://x/s"), "http://x/p", text("a", "", "")}
	with := func(change func(*Triple)) Triple {
		x := good
		change(&x)
		return x
	}
	for name, bad := range map[string]Triple{
		"IRI that ends early": with(func(x *Triple) { x.Subject.Value = "http://x/> <http://x/p> <http://x/o> . <http://x/s" }),
		"predicate":           with(func(x *Triple) { x.Predicate = "http://x/\n" }),
		"relative":            with(func(x *Triple) { x.Predicate = "p" }),
		"keyword":             with(func(x *Triple) { x.Predicate = "@id" }),
		"datatype":            with(func(x *Triple) { x.Object.Datatype = "http://x/>" }),
		"language":            with(func(x *Triple) { x.Object.Language = "en . <http://x/s> <http://x/p> 1" }),
		"both":                with(func(x *Triple) { x.Object.Datatype, x.Object.Language = "http://x/d", "en" }),
		"literal subject":     with(func(x *Triple) { x.Subject = x.Object }),
		"variable":            with(func(x *Triple) { x.Object.Kind = variable }),
		"not UTF-8":           with(func(x *Triple) { x.Object.Value = "\xff" }),
		"IRI not UTF-8":       with(func(x *Triple) { x.Subject.Value = "http://x/\xff" }),
	} {
		for _, mediaType := range mediaTypes {
			var out bytes.Buffer
			if err := Write(&out, mediaType, []Triple{good, bad}); err == nil || out.Len() > 0 {
				t.Errorf("%s, %s: %v\n%s", name, mediaType, err, out.String())
			}
		}
	}
	if err := Write(&bytes.Buffer{}, "text/html", nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("HTML: %v", err)
	}
}

// renamed shows triples with the blank nodes numbered as they come.
func renamed(all []Triple) []string {
	numbers := map[string]string{}
	var out []string
	for _, t := range all {
		for _, x := range []*Term{&t.Subject, &t.Object} {
			if x.Kind != Blank {
				continue
			}
			if numbers[x.Value] == "" {
				numbers[x.Value] = strconv.Itoa(len(numbers))
			}
			x.Value = numbers[x.Value]
		}
		out = append(out, show(t.Subject)+" "+t.Predicate+" "+show(t.Object))
	}
	return out
}

// checkRoundTrip writes triples in each form and reads them again.
func checkRoundTrip(t *testing.T, all []Triple) {
	t.Helper()
	for _, mediaType := range mediaTypes {
		var out bytes.Buffer
		if err := Write(&out, mediaType, all); err != nil {
			t.Fatalf("%s of %q: %v", mediaType, renamed(all), err)
		}
		var again []Triple
		if err := Parse(mediaType, out.Bytes(), nil, func(x Triple) { again = append(again, x) }); err != nil {
			if errors.Is(err, ErrTooLarge) {
				continue // it is longer than the document that it came from
			}
			t.Fatalf("%s: %v\n%s", mediaType, err, out.String())
		}
		got, want := renamed(again), renamed(all)
		if mediaType == MediaJSONLD { // ordered by subject
			got, want = anonymous(again), anonymous(all)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s:\n got %s\nwant %s\n%s", mediaType, strings.Join(got, "\n     "), strings.Join(want, "\n     "), out.String())
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for _, c := range linkedDocs {
		checkRoundTrip(t, collect(t, MediaJSONLD, c.doc))
	}
	for _, doc := range []string{
		"<s> <p> (1 [ <q> <r> ] <t>), 'a'@en, 'b'^^<x:d>, true, 1.5, 1e3 ; a 'literal', <T>, _:x . _:x <p> _:b0, _:b1, []. <x:\\u00e9> <p> <q>.",
		"<s> <p> '\\u0000\\u0001\\b\\f\\t\\r\\n\\u2028\\ufeff'.",
	} {
		checkRoundTrip(t, collect(t, MediaTurtle, doc))
	}
}
