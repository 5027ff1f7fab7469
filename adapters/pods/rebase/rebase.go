// Package rebase owns the moving of RDF documents between two addresses of one
// tree: the pod server's, and the one under which the box serves it. A statement
// about http://box/pods/a is one about http://server/a, so that each IRI below one
// root becomes the same IRI below the other, and a relative one that would then
// lead elsewhere is written out. All other bytes of a document stay as they are.
//
// It must never change a literal, guess the meaning of a text that is no IRI, or
// let a document through whose IRIs it cannot see: such a document is an error.
package rebase

import (
	"errors"
	"net/url"
	"strings"
)

// ErrUnsupported is in the error of a document whose IRIs cannot be seen.
var ErrUnsupported = errors.New("its IRIs cannot be translated")

// Move is from one root to another; both are absolute URLs that end with "/".
type Move struct{ From, To *url.URL }

// Back is the opposite way.
func (m Move) Back() Move { return Move{m.To, m.From} }

// kinds tells how the IRIs of a media type are found. RDF that is not in it is in
// opaque.
var kinds = map[string]func(m Move, path string, doc []byte) ([]byte, error){
	"text/turtle": terse, "application/x-turtle": terse, "application/n-triples": terse, "application/n-quads": terse,
	"application/trig": terse, "text/n3": terse, "application/sparql-update": terse, "application/sparql-query": terse,
	"application/ld+json": linked,
}

// opaque are media types of RDF whose IRIs this package does not find.
var opaque = map[string]bool{
	"application/rdf+xml": true, "application/rdf+json": true, "application/rdf+thrift": true, "application/xhtml+xml": true,
}

// Concerns tells whether documents of a media type, in lower case and without
// parameters, hold IRIs that have to be moved.
func Concerns(mediaType string) bool { return kinds[mediaType] != nil || opaque[mediaType] }

// Document moves a document that lies at path below the roots: path is escaped and
// has no slash at its beginning.
func (m Move) Document(mediaType, path string, doc []byte) ([]byte, error) {
	if move := kinds[mediaType]; move != nil {
		return move(m, path, doc)
	}
	if opaque[mediaType] {
		return nil, ErrUnsupported
	}
	return doc, nil
}

// IRI moves an absolute IRI. What does not lie below the root stays.
func (m Move) IRI(iri string) string {
	rest, ok := below(m.From, iri)
	if !ok {
		return iri
	}
	return m.To.String() + rest
}

// below cuts the root off an absolute IRI. Scheme and host are compared as URLs
// are (RFC 3986, 6.2.2.1), the path byte for byte.
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

// frame is what relative IRIs are resolved against, on either side.
type frame struct{ from, to *url.URL }

func (m Move) frame(path string) (frame, error) {
	from, err := m.From.Parse(path)
	if err != nil {
		return frame{}, err
	}
	to, err := m.To.Parse(path)
	return frame{from, to}, err
}

// moved is the reference that on the other side means what ref means on this one:
// ref itself, where it does.
func (m Move) moved(f frame, ref string) string {
	from, err := f.from.Parse(ref)
	if err != nil {
		return ref // the reader of the document refuses it
	}
	absolute := ref
	if !strings.Contains(ref, "://") || !hasScheme(ref) {
		absolute = from.String()
	}
	want := m.IRI(absolute)
	if to, err := f.to.Parse(ref); err == nil && (want == ref || !hasScheme(ref) && to.String() == want) {
		return ref
	}
	return want
}

// hasScheme tells an absolute IRI (RFC 3986, 3.1).
func hasScheme(ref string) bool {
	for i := range len(ref) {
		switch c := ref[i]; {
		case c == ':':
			return i > 0
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return false
}

// shortens tells whether a namespace is only the beginning of the root, so that a
// prefixed name may or may not lie below it.
func (m Move) shortens(namespace string) bool {
	root := m.From.String()
	return len(namespace) < len(root) && strings.EqualFold(root[:len(namespace)], namespace)
}
