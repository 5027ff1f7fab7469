package pods

import (
	"errors"
	"net/url"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rebase"
)

// The terms that this client uses.
const (
	ldpContains   = "http://www.w3.org/ns/ldp#contains"
	rdfType       = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
	dctModified   = "http://purl.org/dc/terms/modified"
	posixSize     = "http://www.w3.org/ns/posix/stat#size"
	posixMtime    = "http://www.w3.org/ns/posix/stat#mtime"
	ianaTypes     = "http://www.w3.org/ns/iana/media-types/"
	notifications = "http://www.w3.org/ns/solid/notifications#"
)

// termKind tells the three kinds of RDF term.
type termKind uint8

const (
	iriTerm termKind = iota
	blankTerm
	literalTerm
)

// term is an IRI (absolute where a base made that possible), a blank node's
// label, or a literal's text; its language and datatype are not kept.
type term struct {
	kind  termKind
	value string
}

// triple is one statement; the predicate is an IRI.
type triple struct {
	subject   term
	predicate string
	object    term
}

// maxDepth bounds how deeply a document may nest.
const maxDepth = 64

var errTooDeep = errors.New("nests too deeply")

// parseRDF reads a document of one of the media types of rdfTypes and hands
// each triple to emit.
func parseRDF(mediaType string, doc []byte, base *url.URL, emit func(triple)) error {
	switch mediaType {
	case "text/turtle", "application/n-triples":
		return parseTurtle(doc, base, emit)
	case "application/ld+json", "application/json":
		return parseJSONLD(doc, base, emit)
	}
	return errors.New("is not RDF")
}

// acceptRDF asks for what parseRDF reads, the cheapest first.
const acceptRDF = "text/turtle, application/ld+json;q=0.9, application/n-triples;q=0.8"

// resolveIRI makes a reference absolute (RFC 3986, 5). An absolute reference stays unchanged.
func resolveIRI(base *url.URL, ref string) (string, error) {
	if rebase.HasScheme(ref) || base == nil {
		return ref, nil
	}
	u, err := base.Parse(ref)
	if err != nil {
		return "", errors.New("holds a broken IRI")
	}
	return u.String(), nil
}
