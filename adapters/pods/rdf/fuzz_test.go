package rdf

import (
	"errors"
	"slices"
	"testing"
)

// What Parse reads can be written in each form, and is then read as the same triples.
func FuzzParse(f *testing.F) {
	f.Add(uint8(0), "@prefix a: <b>. a:c a [ <p> (1 'x'@en \"\"\"y\"\"\"^^a:z) ] ; <q> -1.5e3, true .")
	f.Add(uint8(0), "<> <http://www.w3.org/ns/ldp#contains> <a>, <b/>, '\\u0000\\U0010ffff' .")
	f.Add(uint8(0), "BASE <x:/y> _:a <p> _:b.c, (), ([]), <\\u00e9>, 1., .5, '''a'b''' . [] <q> _:b0.")
	f.Add(uint8(1), "<http://a/s> <http://a/p> \"a\\n\"^^<http://a/d> .\n")
	f.Add(uint8(2), `{"@context": {"id": "@1"}, "id:": {}}`)
	f.Add(uint8(2), `{"@context": {"0": "@value"}, "@type": "a", "0:": {"a": "b"}}`)
	for _, c := range linkedDocs {
		f.Add(uint8(2), c.doc)
	}
	f.Fuzz(func(t *testing.T, kind uint8, doc string) {
		mediaType := mediaTypes[int(kind)%len(mediaTypes)]
		var all []Triple
		err := Parse(mediaType, []byte(doc), docBase(t), func(x Triple) { all = append(all, x) })
		if len(all) > 3*len(doc) {
			t.Fatalf("%d triples (%v) of %d bytes", len(all), err, len(doc))
		}
		if err == nil {
			checkRoundTrip(t, all)
			if mediaType == MediaJSONLD {
				checkExpanded(t, doc, all)
			}
		}
		// What the strict reader takes, the lenient one takes.
		n := 0
		lenient := ParseLenient(mediaType, []byte(doc), docBase(t), func(x Triple) {
			n++
			if x.Predicate == "" || x.Subject.Kind == Literal {
				t.Fatalf("%+v", x)
			}
		})
		if err == nil && (lenient != nil || n < len(all)) {
			t.Fatalf("lenient: %d of %d triples, %v", n, len(all), lenient)
		}
	})
}

// checkExpanded expands a document and reads it again.
func checkExpanded(t *testing.T, doc string, want []Triple) {
	once, err := Expand([]byte(doc), docBase(t), nil)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	var got []Triple
	if err := Parse(MediaJSONLD, once, docBase(t), func(x Triple) { got = append(got, x) }); err == nil && !slices.Equal(anonymous(got), anonymous(want)) {
		t.Fatalf("%s\n got %s\nwant %s", once, anonymous(got), anonymous(want))
	}
}

// A patch is applied as a whole or not at all, and leaves a document that can be written.
func FuzzPatch(f *testing.F) {
	f.Add(true, n3Prefixes+"_:p a solid:InsertDeletePatch; solid:where { ?s x:p ?o. [] x:q 2 }; solid:deletes { ?s x:p ?o }; solid:inserts { ?o x:p ?s }.")
	f.Add(true, n3Prefixes+"<> solid:patches <>. [ a solid:InsertDeletePatch; solid:inserts { <a> x:p () } ].")
	f.Add(false, "PREFIX x: <http://x/> DELETE DATA { x:a x:p x:b }; INSERT DATA { <a> <b> [ x:p (1 'x'@en) ] };")
	f.Add(false, "BASE <http://x/> DELETE { ?s ?p $o } INSERT { ?o ?p ?s . [] ?p _:a } WHERE { ?s ?p ?o . _:a ?p [] }")
	f.Add(false, "DELETE WHERE { ?s <http://x/p> ?o }")
	f.Fuzz(func(t *testing.T, isN3 bool, doc string) {
		mediaType := MediaSPARQLUpdate
		if isN3 {
			mediaType = MediaN3
		}
		p, err := ParsePatch(mediaType, []byte(doc), docBase(t))
		if err != nil {
			return
		}
		g := graphOf(t, "x:a x:p x:b, [ x:q 1, 2 ]. x:b x:p x:a. _:n x:q 'x'@en.")
		before := len(g.triples)
		read, add, write := p.Needs()
		err = p.Apply(g)
		switch {
		case err != nil:
			if !errors.Is(err, ErrNoMatch) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrTooComplex) {
				t.Fatal(err)
			}
			if g.Len() != before {
				t.Fatalf("%v, and yet a change", err)
			}
		case g.Len() < before && !(write && read), g.Len() > before && !add:
			t.Fatalf("%d triples became %d by a patch that needs %v %v %v", before, g.Len(), read, add, write)
		}
		checkRoundTrip(t, g.Triples())
	})
}
