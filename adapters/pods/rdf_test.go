package pods

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
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

// A prefix that is a long IRI makes a document of some bytes a list of some thousand times as many.
func TestLongPrefix(t *testing.T) {
	var doc strings.Builder
	doc.WriteString("@prefix p: <http://h.test/c/" + strings.Repeat("a", 4000) + ">. <> <" + rdf.Contains + "> p:0")
	for i := range 40_000 {
		doc.WriteString(",p:" + strconv.Itoa(i))
	}
	res := &wire.Response{Header: http.Header{"Content-Type": {rdf.MediaTurtle}}, Body: []byte(doc.String() + "."), URL: docBase(t)}
	if err := newListing("/c/").read(res, docBase(t)); err == nil || !strings.Contains(err.Error(), "too many long IRIs") {
		t.Error(err)
	}
}

func FuzzListing(f *testing.F) {
	f.Add(true, "<> <http://www.w3.org/ns/ldp#contains> <a>, <b/> .")
	f.Add(false, `{"@context":{"@vocab":"http://www.w3.org/ns/ldp#","x":{"@id":"y","@type":"@id"}},"@graph":[{"@id":"","contains":["a"]}]}`)
	f.Fuzz(func(t *testing.T, turtle bool, doc string) {
		mediaType := rdf.MediaJSONLD
		if turtle {
			mediaType = rdf.MediaTurtle
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
