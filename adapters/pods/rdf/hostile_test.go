package rdf

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// fill repeats a text up to the size of the largest document.
func fill(before, again, after string) string {
	return before + strings.Repeat(again, (MaxDocument-len(before)-len(after))/len(again)) + after
}

// Documents that are made to take much time or memory end in an error. Those that would not end
// would make the test time out.
func TestHostileDocuments(t *testing.T) {
	long := strings.Repeat("a", maxIRI-100)
	for name, c := range map[string]struct {
		mediaType, doc string
		want           error // nil: any
	}{
		"larger":             {MediaTurtle, strings.Repeat(" ", MaxDocument+1), ErrTooLarge},
		"brackets":           {MediaTurtle, fill("<s> <p> ", "[", ""), nil},
		"nested nodes":       {MediaTurtle, fill("<s> <p> ", "[<p>", ""), ErrTooLarge},
		"nested lists":       {MediaTurtle, fill("<s> <p> ", "(", ""), ErrTooLarge},
		"braces":             {MediaTurtle, fill("", "{", ""), nil},
		"quotes":             {MediaTurtle, fill("<s> <p> ", `"`, ""), nil},
		"open IRIs":          {MediaTurtle, fill("", "<", ""), nil},
		"a long IRI":         {MediaTurtle, fill("<s> <p> <", "a", ">."), ErrTooLarge},
		"a long IRI escaped": {MediaTurtle, fill("<s> <p> <", `\u0061`, ">."), ErrTooLarge},
		"many triples":       {MediaTurtle, fill("<s> <p> 0", ",1", "."), ErrTooLarge},
		"a long list":        {MediaTurtle, fill("<s> <p> (", "1 ", ")."), ErrTooLarge},
		"long prefix":        {MediaTurtle, fill("@prefix a: <x:"+long+">. a: a: a:", ",a:", "."), ErrTooLarge},
		"long base":          {MediaTurtle, fill("@base <x:/"+long+"/>. <> <> <>", ",<>", "."), ErrTooLarge},
		"growing base":       {MediaTurtle, fill("", "@base <a/>.", ""), ErrTooLarge},
		"growing prefix":     {MediaTurtle, fill("@base <x:/>. @prefix a: <a>.", "@base <aaaaaaaaaaaaaaaaaaaaaaaaaaa/>. @prefix a: <a>.", ""), ErrTooLarge},
		"dots":               {MediaTurtle, fill("<s> <p> <", "../", "x>."), nil},
		"not UTF-8":          {MediaTurtle, "<s> <p> <\xc3\x28>.", errNotUTF8},
		"not UTF-8, JSON":    {MediaJSONLD, "{\"@id\": \"\xc3\x28\"}", nil},
		"arrays":             {MediaJSONLD, fill("", "[", ""), nil},
		"closed arrays":      {MediaJSONLD, strings.Repeat("[", 9000) + strings.Repeat("]", 9000), ErrTooLarge},
		"objects":            {MediaJSONLD, fill("", `{"http://x/p":`, ""), nil},
		"closed objects":     {MediaJSONLD, strings.Repeat(`{"http://x/p":`, 9000) + "1" + strings.Repeat("}", 9000), ErrTooLarge},
		"arrays of values":   {MediaJSONLD, `{"http://x/p":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}", ErrTooLarge},
		"lists of lists":     {MediaJSONLD, `{"http://x/p":{"@list":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}}", ErrTooLarge},
		"sets of sets":       {MediaJSONLD, `{"http://x/p":` + strings.Repeat(`{"@set":`, 9000) + "1" + strings.Repeat("}", 9000) + "}", ErrTooLarge},
		"reverse of reverse": {MediaJSONLD, strings.Repeat(`{"@reverse":{"http://x/p":`, 4000) + "{}" + strings.Repeat("}}", 4000), ErrTooLarge},
		"included":           {MediaJSONLD, strings.Repeat(`{"@included":`, 9000) + "{}" + strings.Repeat("}", 9000), ErrTooLarge},
		"types of a node":    {MediaJSONLD, fill(`{"@type":["x:a"`, `,"x:a"`, "]}"), ErrTooLarge},
		"long term":          {MediaJSONLD, fill(`{"@context":{"a":"x:`+long+`"},"@id":"x:s","a":[0`, `,{"a":1}`, "]}"), ErrTooLarge},
		"long vocabulary":    {MediaJSONLD, fill(`{"@context":{"@vocab":"x:`+long+`"},"@id":"x:s","a":[0`, `,{"a":1}`, "]}"), ErrTooLarge},
		"long base, JSON":    {MediaJSONLD, fill(`{"@context":{"@base":"x:/`+long+`/"},"x:p":[0`, `,{"@id":"a"}`, "]}"), ErrTooLarge},
		"many contexts":      {MediaJSONLD, fill("[0", `,{"@context":{}}`, "]"), ErrTooLarge},
		"contexts of a node": {MediaJSONLD, fill(`{"@context":[{"a0":"x:a"}`, `,{}`, "]}"), nil},
		"laughs":             {MediaJSONLD, laughs(), nil},
	} {
		n := 0
		err := Parse(c.mediaType, []byte(c.doc), docBase(t), func(Triple) { n++ })
		switch {
		case (name == "contexts of a node" || name == "dots") && err == nil: // valid, and quickly read
		case err == nil:
			t.Errorf("%s: read as %d triples", name, n)
		case c.want != nil && !errors.Is(err, c.want):
			t.Errorf("%s: %v", name, err)
		}
		if n > MaxTriples {
			t.Errorf("%s: %d triples", name, n)
		}
		if c.mediaType == MediaJSONLD {
			if out, err := Expand([]byte(c.doc), docBase(t), nil); len(out) > maxWritten {
				t.Errorf("%s: expanded to %d bytes, %v", name, len(out), err)
			}
		}
		err = ParseLenient(c.mediaType, []byte(c.doc), docBase(t), func(Triple) {})
		if n := len(fmt.Sprint(err)); n > 200 {
			t.Errorf("%s: an error of %d bytes", name, n)
		}
	}
}

// What a context says once is written at each use.
func TestHostileExpansions(t *testing.T) {
	long := strings.Repeat("a", maxIRI-100)
	for name, doc := range map[string]string{
		"numbers":       fill(`{"http://x/p":[1`, ",1", "]}") + strings.Repeat(" ", maxForeign),
		"datatype":      fill(`{"@context":{"p":{"@id":"x:p","@type":"x:`+long+`"}},"p":[0`, `,0`, "]}"),
		"language":      fill(`{"@context":{"@language":"`+strings.Repeat("a", maxLanguage)+`"},"x:p":[0`, `,""`, "]}"),
		"long language": fill(`{"@context":{"@language":"`+strings.Repeat("a", MaxDocument/2)+`"},"x:p":[0`, `,""`, "]}"),
		"index":         fill(`{"@context":{"p":{"@id":"x:p","@container":"@index"}},"p":{"`+strings.Repeat("a", MaxDocument/2)+`":[0`, `,0`, "]}}"),
		"lists":         strings.Repeat(`{"x:p":{"@list":[`, 9000) + strings.Repeat("]}}", 9000),
		"graphs":        strings.Repeat(`{"@graph":`, 9000) + "{}" + strings.Repeat("}", 9000),
		"index maps":    `{"@context":{"p":{"@id":"x:p","@container":"@index"}},"p":` + strings.Repeat(`{"p":`, 9000) + "1" + strings.Repeat("}", 9000) + "}",
	} {
		if out, err := Expand([]byte(doc), docBase(t), nil); err == nil || len(fmt.Sprint(err)) > 200 || len(out) > 0 {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
}

// laughs is a context in which each term is made of two others, so that a reader which evaluates a
// term at each use would evaluate it 2^30 times.
func laughs() string {
	var b strings.Builder
	b.WriteString(`{"@context": {"t0": "http://x/"`)
	for i := range 30 {
		fmt.Fprintf(&b, `, "t%d": {"@id": "http://x/%d", "@context": {"a": "t%d:a", "b": "t%d:b"}}`, i+1, i, i, i)
	}
	b.WriteString(`}, "@id": "http://x/s", "t30": "ha"}`)
	return b.String()
}

func TestHostilePatches(t *testing.T) {
	var clique, chain, many strings.Builder
	for i := range 30 {
		for j := range i {
			fmt.Fprintf(&clique, "?v%d x:p ?v%d. ", i, j)
		}
		fmt.Fprintf(&chain, "?c%d x:p ?c%d. ", i, i+1)
	}
	for i := range 5000 {
		fmt.Fprintf(&many, "?m%d x:p ?n%d. ", i, i)
	}
	var doc strings.Builder
	for i := range 300 {
		for j := range 10 {
			fmt.Fprintf(&doc, "x:%d x:p x:%d. ", i, (i*7+j)%300)
		}
	}
	g := graphOf(t, doc.String())
	for name, where := range map[string]string{
		"product":  "?a ?b ?c. ?d ?e ?f. ?g ?h ?i.",
		"clique":   clique.String(),
		"chain":    chain.String(),
		"many":     many.String(),
		"no match": "?a x:p ?b. ?b x:p ?c. ?c x:p ?d. ?d x:p ?e. ?e x:p x:none. ?f x:p ?a. ?g x:p ?f. ",
	} {
		for _, p := range []struct{ mediaType, patch string }{
			{MediaSPARQLUpdate, "PREFIX x: <http://x/> INSERT { x:a x:b x:c } WHERE { " + where + " }"},
			{MediaN3, n3Prefixes + "_:p a solid:InsertDeletePatch; solid:where { " + where + " x:none x:none ?none }."},
		} {
			patch, err := ParsePatch(p.mediaType, []byte(p.patch), docBase(t))
			if err != nil {
				t.Fatal(err)
			}
			before := g.Len()
			err = patch.Apply(g)
			if name != "no match" && p.mediaType == MediaSPARQLUpdate && !errors.Is(err, ErrTooComplex) || g.Len() != before {
				t.Errorf("%s, %s: %v", name, p.mediaType, err)
			}
			if p.mediaType == MediaN3 && !errors.Is(err, ErrNoMatch) && !errors.Is(err, ErrTooComplex) {
				t.Errorf("%s, %s: %v", name, p.mediaType, err)
			}
		}
	}
	for name, c := range map[string]struct {
		patch string
		want  error
	}{
		"too many insertions": {"INSERT { ?s x:q ?o, [], [], [], []. ?a x:q [], [], [], [], [], [], [], [], [], [], [] } WHERE { ?s x:p ?o. ?s x:p ?a }", ErrTooLarge},
		"grows":               {strings.Repeat("INSERT { [] ?p ?o. [] ?p ?o. [] ?p ?o } WHERE { ?s ?p ?o };", 10), ErrTooLarge},
		"a large template":    {"INSERT { x:a x:b " + strings.Repeat("[], ", 1000) + "[] } WHERE { ?s ?p ?o }", ErrTooLarge},
	} {
		patch, err := ParsePatch(MediaSPARQLUpdate, []byte("PREFIX x: <http://x/> "+c.patch), docBase(t))
		if err != nil {
			t.Fatal(err)
		}
		before := g.Len()
		if err := patch.Apply(g); !errors.Is(err, c.want) || g.Len() != before {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Few triples with long texts are much work, too, and so is one long text for many nodes.
	long := graphOf(t, "x:a x:p 1.")
	for i := range 10 {
		long.Add(Triple{iri("http://x/s"), "http://x/p", text(strings.Repeat("a", 100_000)+fmt.Sprint(i), "", "")})
	}
	for _, c := range []struct {
		g     *Graph
		patch string
	}{
		{long, "INSERT { x:a x:b x:c } WHERE { ?a ?b ?c. ?d ?e ?f. ?g ?h ?i. ?j ?k ?l }"},
		{g, "INSERT { ?a x:b '" + strings.Repeat("a", 500_000) + "' } WHERE { ?a x:p ?b }"},
	} {
		patch, err := ParsePatch(MediaSPARQLUpdate, []byte("PREFIX x: <http://x/> "+c.patch), docBase(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := patch.Apply(c.g); !errors.Is(err, ErrTooComplex) {
			t.Errorf("%.50s: %v", c.patch, err)
		}
	}
	// All that a large document says can still be deleted.
	all := graphOf(t, "<s> <p> 1.")
	for i := range 50_000 {
		all.Add(Triple{iri("http://x/s"), "http://x/p", text(fmt.Sprint(i), "", "")})
	}
	patch, err := ParsePatch(MediaSPARQLUpdate, []byte("DELETE WHERE { ?s ?p ?o }"), docBase(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := patch.Apply(all); err != nil || all.Len() != 0 {
		t.Errorf("%d triples are left: %v", all.Len(), err)
	}
}

// A few bytes in Turtle must not become gigabytes in another form.
func TestHostileWrites(t *testing.T) {
	subject := "http://x/" + strings.Repeat("s", maxIRI-100)
	var all, texts []Triple
	for i := range MaxTriples {
		all = append(all, Triple{iri(subject), subject, text(fmt.Sprint(i), "", "")})
		texts = append(texts, Triple{iri(fmt.Sprint("http://x/", i)), "http://x/p", text(subject, "", "")})
	}
	for _, mediaType := range mediaTypes {
		var n counter
		err := Write(&n, mediaType, all)
		if long := errors.Is(err, ErrTooLarge); long != (mediaType == MediaNTriples) || long != (n == 0) || n > 4<<20 {
			t.Errorf("%s: %d bytes, %v", mediaType, n, err)
		}
		n = 0
		if err := Write(&n, mediaType, texts); !errors.Is(err, ErrTooLarge) || n > 0 {
			t.Errorf("%s of texts: %d bytes, %v", mediaType, n, err)
		}
	}
}

type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
