// Package rebase moves RDF documents between two addresses of one tree: that of the pod server, and
// the one under which the box serves it. A statement about http://box/pods/a is a statement about
// http://server/a. So each IRI below one root becomes the same IRI below the other. A relative IRI
// that would then lead elsewhere becomes absolute. All other bytes of a document stay unchanged.
//
// It must never change a literal, guess the meaning of a text that is no IRI, or accept a document
// whose IRIs it cannot find: for such a document it returns an error.
package rebase

import (
	"errors"
	"net/url"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
)

// ErrUnsupported means that the IRIs of a document cannot be found.
var ErrUnsupported = errors.New("its IRIs cannot be translated")

// Move is from one root to another; both are absolute URLs that end with "/".
type Move struct{ From, To *url.URL }

// Back is the move in the opposite direction.
func (m Move) Back() Move { return Move{m.To, m.From} }

// kinds says how the IRIs of a media type are found. opaque has the other media types of RDF.
var kinds = map[string]func(m Move, path string, doc []byte) ([]byte, error){
	"text/turtle": terse, "application/x-turtle": terse, "application/n-triples": terse, "application/n-quads": terse,
	"application/trig": terse, "text/n3": terse, "application/sparql-update": terse, "application/sparql-query": terse,
	"application/ld+json": linked,
}

// opaque are media types of RDF whose IRIs this package does not find.
var opaque = map[string]bool{
	"application/rdf+xml": true, "application/rdf+json": true, "application/rdf+thrift": true, "application/xhtml+xml": true,
}

// Concerns tells whether documents of a media type may hold IRIs that must be moved. The media type
// is in lower case and without parameters.
func Concerns(mediaType string) bool { return kinds[mediaType] != nil || opaque[mediaType] }

// Document moves a document. path is its place below both roots, escaped and without a slash at its
// beginning.
func (m Move) Document(mediaType, path string, doc []byte) ([]byte, error) {
	if move := kinds[mediaType]; move != nil {
		return move(m, path, doc)
	}
	if opaque[mediaType] {
		return nil, ErrUnsupported
	}
	return doc, nil
}

// IRI moves an absolute IRI. An IRI that is not below the root stays unchanged.
func (m Move) IRI(iri string) string {
	rest, ok := below(m.From, iri)
	if !ok {
		return iri
	}
	return m.To.String() + rest
}

// below cuts the root off an absolute IRI. Case does not matter in scheme and host (RFC 3986,
// 6.2.2.1), but does in the path.
func below(root *url.URL, iri string) (rest string, ok bool) {
	scheme, after, ok := strings.Cut(iri, "://")
	if !ok || !strings.EqualFold(scheme, root.Scheme) {
		return "", false
	}
	end := strings.IndexAny(after, "/?#")
	if end < 0 || !sameHost(after[:end], root) {
		return "", false
	}
	return strings.CutPrefix(after[end:], root.EscapedPath())
}

func sameHost(host string, root *url.URL) bool {
	if strings.EqualFold(host, root.Host) {
		return true
	}
	port := map[string]string{"http": ":80", "https": ":443"}[root.Scheme]
	return strings.EqualFold(strings.TrimSuffix(host, port), strings.TrimSuffix(root.Host, port))
}

// bases are the addresses of a document before and after the move.
func (m Move) bases(path string) (from, to *url.URL, err error) {
	if from, err = m.From.Parse(path); err == nil {
		to, err = m.To.Parse(path)
	}
	return from, to, err
}

// frame has the bases against which relative IRIs are resolved, before and after the move.
type frame struct{ from, to rdf.Resolver }

// moved returns the reference that has the meaning of ref after the move; it is ref itself if that
// does not change its meaning. size is that of the absolute IRI.
func (m Move) moved(f frame, ref string) (moved string, size int) {
	absolute, err := f.from.Resolve(ref)
	if err != nil {
		return ref, len(ref) // the reader of the document refuses it
	}
	want := m.IRI(absolute)
	if to, err := f.to.Resolve(ref); err == nil && to == want {
		return ref, len(absolute)
	}
	return want, len(absolute)
}

// shortens tells whether a namespace is a beginning of the root. Then a name with this prefix may
// or may not be below the root.
func (m Move) shortens(namespace string) bool {
	root := m.From.String()
	return len(namespace) < len(root) && strings.EqualFold(root[:len(namespace)], namespace)
}
