package rdf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const n3Prefixes = "@prefix solid: <http://www.w3.org/ns/solid/terms#>. @prefix x: <http://x/>. "

func graphOf(t testing.TB, doc string) *Graph {
	t.Helper()
	g := NewGraph()
	for _, x := range collect(t, MediaTurtle, "@prefix x: <http://x/>. "+doc) {
		g.Add(x)
	}
	return g
}

type patchCase struct {
	doc, patch string
	want       string // Turtle; "" if Apply fails
	err        error
}

func checkPatches(t *testing.T, mediaType, before string, cases map[string]patchCase) {
	t.Helper()
	for name, c := range cases {
		p, err := ParsePatch(mediaType, []byte(before+c.patch), docBase(t))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		g := graphOf(t, c.doc)
		was := g.Triples()
		err = p.Apply(g)
		if c.err != nil {
			if !errors.Is(err, c.err) || !slices.Equal(g.Triples(), was) {
				t.Errorf("%s: %v\n%s", name, err, strings.Join(renamed(g.Triples()), "\n"))
			}
			continue
		}
		got, want := anonymous(g.Triples()), anonymous(graphOf(t, c.want).Triples())
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
}

func TestN3Patch(t *testing.T) {
	patch := func(parts string) string { return "_:p a solid:InsertDeletePatch; " + parts + " ." }
	checkPatches(t, MediaN3, n3Prefixes, map[string]patchCase{
		"the Protocol's example": {`<a> x:familyName "Garcia"; x:givenName "Jane". <b> x:familyName "Lopez".`,
			patch(`solid:where { ?person x:familyName "Garcia". }; solid:inserts { ?person x:givenName "Alex". }; solid:deletes { ?person x:givenName "Jane". }`),
			`<a> x:familyName "Garcia"; x:givenName "Alex". <b> x:familyName "Lopez".`, nil},
		"insert":                        {"<a> x:p 1.", patch("solid:inserts { <a> x:p 2, 3; a x:T }"), "<a> x:p 1, 2, 3; a x:T.", nil},
		"insert what is there":          {"<a> x:p 1.", patch("solid:inserts { <a> x:p 1 }"), "<a> x:p 1.", nil},
		"insert below the URL":          {"", patch("solid:inserts { <#me> <> <b> }"), "<#me> <> <b>.", nil},
		"delete":                        {"<a> x:p 1, 2.", patch("solid:deletes { <a> x:p 1 }"), "<a> x:p 2.", nil},
		"delete and insert the same":    {"<a> x:p 1.", patch("solid:deletes { <a> x:p 1 }; solid:inserts { <a> x:p 1 }"), "<a> x:p 1.", nil},
		"nothing":                       {"<a> x:p 1.", patch("solid:inserts {}"), "<a> x:p 1.", nil},
		"named patch, other statements": {"", "<> solid:patches <a>. <#p> a solid:InsertDeletePatch, x:T; x:comment 'c'; solid:inserts { <a> x:p () }.", "<a> x:p ().", nil},
		"anonymous patch":               {"", "[ a solid:InsertDeletePatch; solid:inserts { <a> x:p 1 } ] .", "<a> x:p 1.", nil},
		"type last":                     {"", "_:p solid:inserts { <a> x:p 1 }. _:p a solid:InsertDeletePatch.", "<a> x:p 1.", nil},
		"several conditions":            {"<a> x:p 1; x:q <c>. <b> x:p 1; x:q <d>. <d> x:r 5.", patch("solid:where { ?s x:p 1. ?s x:q ?o. ?o x:r ?v }; solid:deletes { ?s x:q ?o. ?o x:r ?v }; solid:inserts { ?s x:r ?v }"), "<a> x:p 1; x:q <c>. <b> x:p 1; x:r 5.", nil},
		"a ground condition":            {"<a> x:p 1.", patch("solid:where { <a> x:p 1 }; solid:inserts { <a> x:p 2 }"), "<a> x:p 1, 2.", nil},
		"predicate":                     {"<a> x:p 1.", patch("solid:where { <a> ?p 1 }; solid:deletes { <a> ?p 1 }"), "", nil},
		"a node of the document":        {"<a> x:p [ x:q 1 ].", patch("solid:where { <a> x:p ?b. ?b x:q ?v }; solid:deletes { ?b x:q ?v }; solid:inserts { ?b x:q 2 }"), "<a> x:p [ x:q 2 ].", nil},
		"blank node in where":           {"<a> x:p [ x:q 1 ], [ x:q 1 ]; x:r 7.", patch("solid:where { ?s x:p [ x:q 1 ]; x:r ?v }; solid:deletes { ?s x:r ?v }"), "<a> x:p [ x:q 1 ], [ x:q 1 ].", nil},
		"same variable twice":           {"<a> x:p <a>, <b>.", patch("solid:where { ?s x:p ?s }; solid:deletes { ?s x:p ?s }"), "<a> x:p <b>.", nil},
		"literals differ":               {"<a> x:p '1', 1, '1'@en, '1'^^x:d.", patch("solid:deletes { <a> x:p '1'@EN, 1 }"), "<a> x:p '1', '1'^^x:d.", nil},

		"no match":        {"<a> x:p 1.", patch("solid:where { ?s x:p 2 }; solid:inserts { ?s x:p 3 }"), "", ErrNoMatch},
		"ground no match": {"<a> x:p 1.", patch("solid:where { <a> x:p 2 }; solid:inserts { <a> x:p 3 }"), "", ErrNoMatch},
		"several matches": {"<a> x:p 1, 2.", patch("solid:where { <a> x:p ?v }; solid:deletes { <a> x:p ?v }"), "", ErrNoMatch},
		"blanks, several": {"<a> x:p [ x:q 1 ], [ x:q 2 ].", patch("solid:where { <a> x:p [ x:q ?v ] }; solid:inserts { <a> x:r ?v }"), "", ErrNoMatch},
		"not there":       {"<a> x:p 1.", patch("solid:deletes { <a> x:p 1, 2 }; solid:inserts { <a> x:p 3 }"), "", ErrNoMatch},
		"literal subject": {"<a> x:p 1.", patch("solid:where { <a> x:p ?v }; solid:inserts { ?v x:p 1 }"), "", ErrNoMatch},
		"blank predicate": {"<a> x:p [].", patch("solid:where { <a> x:p ?v }; solid:inserts { <a> ?v 1 }"), "", ErrNoMatch},
		"empty document":  {"", patch("solid:where { ?s ?p ?o }"), "", ErrNoMatch},
	})
}

func TestN3PatchRefusals(t *testing.T) {
	malformed := map[string]bool{"a variable with no name": true, "no end": true, "rule": true, "SPARQL": true, "literal subject": true}
	for name, patch := range map[string]string{
		"empty":                   "",
		"no type":                 "_:p solid:inserts { <a> x:p 1 }.",
		"another type":            "_:p a solid:Patch; solid:inserts { <a> x:p 1 }.",
		"two patches":             "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p 1 }. _:q a solid:InsertDeletePatch.",
		"parts of two":            "_:p a solid:InsertDeletePatch. _:q solid:inserts { <a> x:p 1 }.",
		"two insertions":          "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p 1 }, { <b> x:p 1 }.",
		"no formula":              "_:p a solid:InsertDeletePatch; solid:inserts <a>.",
		"formula elsewhere":       "_:p a solid:InsertDeletePatch; x:p { <a> x:p 1 }.",
		"formula as type":         "_:p a { <a> x:p 1 }, solid:InsertDeletePatch.",
		"nested":                  "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p { <b> x:p 1 } }.",
		"many formulas":           "_:p a solid:InsertDeletePatch; x:p " + strings.Repeat("{},", 100) + "{}.",
		"unknown variable":        "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p ?v }.",
		"unknown in deletes":      "_:p a solid:InsertDeletePatch; solid:where { <a> x:p ?w }; solid:deletes { <a> x:p ?v }.",
		"blank in inserts":        "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p _:b }.",
		"anonymous in inserts":    "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p [] }.",
		"list in inserts":         "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p (1) }.",
		"blank in deletes":        "_:p a solid:InsertDeletePatch; solid:deletes { _:b x:p 1 }.",
		"blank of where":          "_:p a solid:InsertDeletePatch; solid:where { _:b x:p 1 }; solid:deletes { _:b x:p 1 }.",
		"variable outside":        "?p a solid:InsertDeletePatch; solid:inserts { <a> x:p 1 }.",
		"a variable with no name": "_:p a solid:InsertDeletePatch; solid:where { ? x:p 1 }.",
		"no end":                  "_:p a solid:InsertDeletePatch; solid:inserts { <a> x:p 1 .",
		"rule":                    "{ ?a x:p 1 } => { ?a x:p 2 }.",
		"Turtle":                  "<a> x:p 1.",
		"SPARQL":                  "INSERT DATA { <a> x:p 1 }",
		"literal subject":         "_:p a solid:InsertDeletePatch; solid:inserts { 'a' x:p 1 }.",
	} {
		if p, err := ParsePatch(MediaN3, []byte(n3Prefixes+patch), docBase(t)); err == nil || errors.Is(err, ErrNotPatch) == malformed[name] {
			t.Errorf("%s: read as %v: %v", name, p, err)
		}
	}
	if _, err := ParsePatch("application/json-patch+json", nil, docBase(t)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("JSON Patch: %v", err)
	}
}

func TestSPARQLUpdate(t *testing.T) {
	checkPatches(t, MediaSPARQLUpdate, "PREFIX x: <http://x/>\n", map[string]patchCase{
		"a client's":               {"<a> x:p 1.", "DELETE DATA { <a> x:p 1 . }; INSERT DATA { <a> x:p 2 . };", "<a> x:p 2.", nil},
		"insert":                   {"", "insert data { <#a> x:p 1, TRUE; a x:T . <b> x:p [ x:q () ] }", "<#a> x:p 1, true; a x:T. <b> x:p [ x:q () ].", nil},
		"nothing":                  {"<a> x:p 1.", "", "<a> x:p 1.", nil},
		"nothing twice":            {"<a> x:p 1.", "INSERT DATA {}; DELETE DATA {}", "<a> x:p 1.", nil},
		"delete what is not there": {"<a> x:p 1.", "DELETE DATA { <a> x:p 2 }", "<a> x:p 1.", nil},
		"new nodes":                {"_:n x:p 1.", "INSERT DATA { _:n x:p 1 }; INSERT DATA { _:n x:p 1 }", "_:n x:p 1. _:m x:p 1. _:o x:p 1.", nil},
		"delete where":             {"<a> x:p 1, 2; x:q 1.", "DELETE WHERE { <a> x:p ?v }", "<a> x:q 1.", nil},
		"all mappings":             {"<a> x:p 1, 2. <b> x:p 3.", "DELETE { ?s x:p ?v } INSERT { ?s x:q $v } WHERE { ?s x:p ?v . }", "<a> x:q 1, 2. <b> x:q 3.", nil},
		"a new node each":          {"<a> x:p 1, 2.", "INSERT { <a> x:q [ x:v ?v ] } WHERE { <a> x:p ?v }", "<a> x:p 1, 2; x:q [ x:v 1 ], [ x:v 2 ].", nil},
		"no mapping":               {"<a> x:p 1.", "DELETE { <a> x:p 1 } WHERE { <a> x:p 2 }", "<a> x:p 1.", nil},
		"an empty where":           {"<a> x:p 1.", "DELETE { <a> x:p 1 } INSERT { <b> x:p 1 } WHERE {}", "<b> x:p 1.", nil},
		"unbound, not RDF":         {"<a> x:p 1.", "INSERT { <a> x:q ?w . ?v x:q 1 . <a> ?v 1 . <b> x:p ?v } WHERE { <a> x:p ?v }", "<a> x:p 1. <b> x:p 1.", nil},
		"what was inserted before": {"<a> x:p 1.", "DELETE { ?s x:p 1 } INSERT { ?s x:p 2 } WHERE { ?s x:p 1 }; DELETE { ?s x:p 2 } INSERT { ?s x:p 3 } WHERE { ?s x:p 2 }; DELETE { ?s ?p 1 } INSERT { ?s ?p 4 } WHERE { ?s ?p 1 }", "<a> x:p 3.", nil},
		"there and back":           {"<a> x:p 1.", "DELETE { ?s x:p 1 } INSERT { ?s x:p 2 } WHERE { ?s x:p 1 }; DELETE { ?s x:p 2 } INSERT { ?s x:p 1 } WHERE { ?s x:p 2 }; DELETE { ?s x:p 1 } INSERT { ?s x:p 5 } WHERE { ?s x:p 1 }", "<a> x:p 5.", nil},
		"blank in where":           {"<a> x:p [ x:q 1 ].", "DELETE { ?s x:p ?b } WHERE { ?s x:p ?b . ?b x:q _:any . _:any2 x:q 1 }", "[] x:q 1.", nil},
		"prefixes between":         {"", "BASE <http://y/> PREFIX : <z#> INSERT DATA { <a> :p :o }; PREFIX : <http://x/> INSERT DATA { :a :b :c }", "<http://y/a> <http://y/z#p> <http://y/z#o>. x:a x:b x:c.", nil},
		"comments":                 {"", "# one\nINSERT # two\nDATA { <a> x:p 1 # three }\n }", "<a> x:p 1.", nil},
	})
}

func TestSPARQLUpdateRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		patch       string
		unsupported bool
	}{
		"query":                 {"SELECT * WHERE { ?s ?p ?o }", false},
		"variable in data":      {"INSERT DATA { ?s x:p 1 }", false},
		"blank in deletes":      {"DELETE DATA { _:b x:p 1 }", false},
		"blank in template":     {"DELETE { [] x:p 1 } WHERE {}", false},
		"blank in DELETE WHERE": {"DELETE WHERE { [] x:p 1 }", false},
		"no where":              {"DELETE { <a> x:p 1 }", false},
		"no separator":          {"INSERT DATA { <a> x:p 1 } INSERT DATA { <a> x:p 1 }", false},
		"two separators":        {"INSERT DATA { <a> x:p 1 };; INSERT DATA {}", false},
		"no end":                {"INSERT DATA { <a> x:p 1", false},
		"literal subject":       {"INSERT DATA { 1 x:p 1 }", false},
		"insert, delete":        {"INSERT { <a> x:p 1 } DELETE { <a> x:p 1 } WHERE {}", false},
		"@prefix":               {"@prefix y: <http://y/>. INSERT DATA {}", false},
		"operations":            {strings.Repeat("INSERT DATA {};", maxOperations+1), false},

		"filter":      {"DELETE { ?s x:p ?v } WHERE { ?s x:p ?v FILTER (?v > 1) }", true},
		"filter, dot": {"DELETE { ?s x:p ?v } WHERE { ?s x:p ?v . FILTER (?v > 1) }", true},
		"optional":    {"DELETE { ?s x:p ?v } WHERE { optional { ?s x:p ?v } }", true},
		"group":       {"DELETE { ?s x:p ?v } WHERE { { ?s x:p ?v } UNION { ?v x:p ?s } }", true},
		"graph":       {"INSERT DATA { GRAPH <g> { <a> x:p 1 } }", true},
		"select":      {"DELETE { ?s x:p ?v } WHERE { SELECT * WHERE { ?s x:p ?v } }", true},
		"path":        {"DELETE { ?s x:p ?v } WHERE { ?s x:p/x:q ?v }", true},
		"path, star":  {"DELETE { ?s x:p ?v } WHERE { ?s x:p* ?v }", true},
		"path, plus":  {"DELETE { ?s x:p ?v } WHERE { ?s x:p+ ?v }", true},
		"path, maybe": {"DELETE { ?s x:p ?v } WHERE { ?s x:p? ?v }", true},
		"path, back":  {"DELETE { ?s x:p ?v } WHERE { ?s ^x:p ?v }", true},
		"with":        {"WITH <g> DELETE { ?s x:p ?v } WHERE { ?s x:p ?v }", true},
		"using":       {"DELETE { ?s x:p ?v } USING <g> WHERE { ?s x:p ?v }", true},
		"load":        {"LOAD <http://x/>", true},
		"clear":       {"CLEAR ALL", true},
	} {
		p, err := ParsePatch(MediaSPARQLUpdate, []byte("PREFIX x: <http://x/> "+c.patch), docBase(t))
		if err == nil || errors.Is(err, ErrUnsupported) != c.unsupported {
			t.Errorf("%s: %v %v", name, p, err)
		}
	}
}

func TestNeeds(t *testing.T) {
	for _, c := range []struct{ mediaType, patch, want string }{
		{MediaSPARQLUpdate, "INSERT DATA { <a> <b> <c> }", "false true false"},
		{MediaSPARQLUpdate, "DELETE DATA { <a> <b> <c> }", "true false true"},
		{MediaSPARQLUpdate, "DELETE DATA { <a> <b> <c> }; INSERT DATA { <a> <b> <c> }", "true true true"},
		{MediaSPARQLUpdate, "INSERT { <a> <b> <c> } WHERE { <a> <b> <d> }", "true true false"},
		{MediaSPARQLUpdate, "DELETE WHERE { <a> <b> ?c }", "true false true"},
		{MediaSPARQLUpdate, "INSERT DATA {}", "false false false"},
		{MediaN3, n3Prefixes + "[] a solid:InsertDeletePatch; solid:inserts { <a> <b> <c> }.", "false true false"},
		{MediaN3, n3Prefixes + "[] a solid:InsertDeletePatch; solid:where { <a> <b> <c> }.", "true false false"},
		{MediaN3, n3Prefixes + "[] a solid:InsertDeletePatch; solid:deletes { <a> <b> <c> }.", "true false true"},
		{MediaN3, n3Prefixes + "[] a solid:InsertDeletePatch; solid:deletes {}; solid:where {}; solid:inserts {}.", "false false false"},
	} {
		p, err := ParsePatch(c.mediaType, []byte(c.patch), docBase(t))
		if err != nil {
			t.Errorf("%s: %v", c.patch, err)
			continue
		}
		read, add, write := p.Needs()
		if got := fmt.Sprint(read, add, write); got != c.want {
			t.Errorf("%s needs %s", c.patch, got)
		}
	}
}

// A patch keeps its nodes apart from those of the document and of a patch before it.
func TestPatchesTwice(t *testing.T) {
	g := graphOf(t, "[] x:p 1.")
	p, err := ParsePatch(MediaSPARQLUpdate, []byte("INSERT DATA { [] <http://x/p> 1 }"), docBase(t))
	if err != nil {
		t.Fatal(err)
	}
	for n := 2; n < 5; n++ {
		if err := p.Apply(g); err != nil || g.Len() != n {
			t.Fatalf("%d triples, not %d: %v", g.Len(), n, err)
		}
	}
}
