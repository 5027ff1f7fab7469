package rdf

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// The media types of the documents that this package reads and writes.
const (
	MediaTurtle   = "text/turtle"
	MediaNTriples = "application/n-triples"
	MediaJSONLD   = "application/ld+json"
)

// Limits of a document that Parse reads, and of what a patch makes of it.
const (
	MaxDocument = 1 << 20 // bytes
	MaxTriples  = 100_000
)

const (
	maxWritten  = 32 << 20 // bytes that Write writes, without escapes and punctuation
	maxDepth    = 64       // how deeply a document may nest
	maxIRI      = 4096     // bytes
	maxExpanded = 32 << 20 // bytes of all IRIs as they are after prefixes and bases were applied
	maxForeign  = 4 << 20  // bytes of JSON-LD that ParseLenient reads: a decoded one takes many times its size
	// The same as maxExpanded, for ParseLenient.
	maxForeignExpanded = 128 << 20
)

// Errors to which callers react. All other errors of a reader mean that the document is malformed.
const (
	// ErrUnsupported means that the document may be valid, but uses what this package does not know.
	ErrUnsupported = errorText("not supported")
	// ErrTooLarge means that a document or the result of a patch is beyond a limit.
	ErrTooLarge = errorText("too large")
)

const (
	errTooDeep   = tooLarge("nests too deeply")
	errExpanded  = tooLarge("has too many long IRIs")
	errLongIRI   = tooLarge("holds an IRI that is too long")
	errBrokenIRI = errorText("holds a broken IRI")
	errNotUTF8   = errorText("is not valid UTF-8")
)

// errorText is an error that is a constant: PID 1 links this package, and a variable would have to be
// initialised before its main.
type errorText string

func (e errorText) Error() string { return string(e) }

// tooLarge is an ErrTooLarge with its reason.
type tooLarge string

func (e tooLarge) Error() string { return string(ErrTooLarge) + ": " + string(e) }

func (e tooLarge) Unwrap() error { return ErrTooLarge }

// Kind tells the three kinds of RDF terms.
type Kind uint8

// The kinds of terms. Patterns of patches and N3 documents have two more.
const (
	IRI Kind = iota
	Blank
	Literal
	variable // Value is its name; that of a blank node in a where clause begins with "_:"
	formula  // Value is its index
)

// Term is an IRI (absolute), a blank node (Value is its label, of meaning in one document only), or a
// literal. Datatype is "" for xsd:string, and for rdf:langString if there is a Language, which is in
// lower case (RDF 1.1 Concepts, 3.3). Equal terms are equal values.
type Term struct {
	Kind                      Kind
	Value, Datatype, Language string
}

// Triple is one statement; the predicate is an IRI.
type Triple struct {
	Subject   Term
	Predicate string
	Object    Term
}

// pattern is a triple whose terms may be variables.
type pattern struct{ s, p, o Term }

func iri(s string) Term { return Term{Kind: IRI, Value: s} }

// text is a literal; it has the one form that equal literals have.
func text(value, datatype, language string) Term {
	if datatype == XSD+"string" {
		datatype = ""
	}
	return Term{Kind: Literal, Value: value, Datatype: datatype, Language: strings.ToLower(language)}
}

// Parse reads a document of one of the three media types and gives each triple to emit, in the order
// of the document; a triple may come twice. Relative IRIs are resolved against base. If Parse returns
// an error, the triples so far are not the document. A document that says something in a way that
// this package does not know is an error (ErrUnsupported), as is a JSON-LD document whose context is
// elsewhere.
func Parse(mediaType string, doc []byte, base *url.URL, emit func(Triple)) error {
	if len(doc) > MaxDocument {
		return fmt.Errorf("%w: has more than %d bytes", ErrTooLarge, MaxDocument)
	}
	left := MaxTriples
	take := func(p pattern) error {
		if left--; left < 0 {
			return fmt.Errorf("%w: has more than %d triples", ErrTooLarge, MaxTriples)
		}
		if !validIRI(p.p.Value) || !validIRIs(p.s) || !validIRIs(p.o) {
			return errBrokenIRI
		}
		emit(Triple{p.s, p.p.Value, p.o})
		return nil
	}
	switch mediaType {
	case MediaTurtle, MediaNTriples:
		return parseTurtle(doc, base, maxExpanded, take)
	case MediaJSONLD:
		return parseJSONLD(doc, base, false, take)
	}
	return fmt.Errorf("%w: %q is not a media type of RDF", ErrUnsupported, escape.Line(mediaType, 40))
}

// ParseLenient reads what a foreign Solid server says about itself and its containers. There the
// statements that the caller looks for count, and not that all are read: what is not understood in
// JSON-LD is left out, a context elsewhere is taken for those of LDP and of Solid notifications, and
// application/json is read as JSON-LD. The number of triples has no limit.
func ParseLenient(mediaType string, doc []byte, base *url.URL, emit func(Triple)) error {
	take := func(p pattern) error {
		emit(Triple{p.s, p.p.Value, p.o})
		return nil
	}
	switch mediaType {
	case MediaTurtle, MediaNTriples:
		return parseTurtle(doc, base, maxForeignExpanded, take)
	case MediaJSONLD, "application/json":
		return parseJSONLD(doc, base, true, take)
	}
	return fmt.Errorf("%w: %q is not a media type of RDF", ErrUnsupported, escape.Line(mediaType, 40))
}

// validIRIs tells whether the IRI in a term is valid: its own, or the datatype of a literal.
func validIRIs(t Term) bool {
	return t.Kind != IRI && t.Datatype == "" || t.Kind == IRI && validIRI(t.Value) || t.Kind == Literal && validIRI(t.Datatype)
}

// utf8Text is a document as a string, without the byte order mark.
func utf8Text(doc []byte) (string, error) {
	if !utf8.Valid(doc) {
		return "", errNotUTF8
	}
	return string(bytes.TrimPrefix(doc, []byte("\xef\xbb\xbf"))), nil
}
