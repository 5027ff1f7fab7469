package rdf

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// Write writes triples as a document of one of the three media types. JSON-LD is in expanded form,
// without a context. Labels of blank nodes that no document may have are replaced; two nodes never get
// one label. A term that no document of RDF can hold, such as an IRI with a space, is an error, and
// nothing is written. So is a document that would be longer than any that Parse reads: one long subject
// or literal that many triples share takes little memory, and is repeated here.
func Write(w io.Writer, mediaType string, triples []Triple) error {
	return WriteParts(w, mediaType, slices.Values([][]Triple{triples}))
}

// WriteParts is Write for a document of which only one part at a time is to be in memory. In JSON-LD, a subject has
// one object in each part that it is in. If a part is an error, the parts before it may have been written.
func WriteParts(w io.Writer, mediaType string, parts iter.Seq[[]Triple]) error {
	out := &writer{Writer: bufio.NewWriter(w), labels: map[string]string{}, taken: map[string]bool{}}
	if mediaType == MediaJSONLD {
		out.WriteByte('[')
	}
	for triples := range parts {
		if err := out.part(mediaType, triples); err != nil {
			return err
		}
		if _, err := out.WriteString(""); err != nil { // w takes no more
			return err
		}
	}
	if mediaType == MediaJSONLD {
		out.WriteString("]\n")
	}
	return out.Flush()
}

// part writes one part, after it has checked all of it.
func (w *writer) part(mediaType string, triples []Triple) error {
	for i, t := range triples {
		subject := i == 0 || triples[i-1].Subject != t.Subject
		predicate := i == 0 || triples[i-1].Predicate != t.Predicate
		if subject && !validSubject(t.Subject) || predicate && !validTerm(iri(t.Predicate)) || !validTerm(t.Object) {
			return errors.New("cannot write a triple: it has a term that RDF does not allow")
		}
		w.size += len(t.Object.Value) + len(t.Object.Datatype)
		if subject || mediaType == MediaNTriples {
			w.size += len(t.Subject.Value)
		}
		if predicate || mediaType == MediaNTriples {
			w.size += len(t.Predicate)
		}
		if w.size > maxWritten {
			return tooLarge("the document would be too long")
		}
		w.keep(t.Subject)
		w.keep(t.Object)
	}
	switch mediaType {
	case MediaTurtle:
		w.turtle(triples)
	case MediaNTriples:
		for _, t := range triples {
			w.term(t.Subject)
			w.WriteString(" <" + t.Predicate + "> ")
			w.term(t.Object)
			w.WriteString(" .\n")
		}
	case MediaJSONLD:
		return w.jsonLD(triples)
	default:
		return fmt.Errorf("%w: %q is not a media type of RDF", ErrUnsupported, escape.Line(mediaType, 40))
	}
	return nil
}

func validSubject(t Term) bool { return t.Kind != Literal && validTerm(t) }

func validTerm(t Term) bool {
	if !utf8.ValidString(t.Value) {
		return false
	}
	switch t.Kind {
	case IRI:
		return validIRI(t.Value)
	case Literal:
		return (t.Datatype == "" || t.Language == "" && utf8.ValidString(t.Datatype) && validIRI(t.Datatype)) && languageTag(t.Language) == t.Language
	}
	return t.Kind == Blank
}

// writer writes one document. Its errors are kept until Flush.
type writer struct {
	*bufio.Writer
	labels map[string]string // of blank nodes, as they are written
	taken  map[string]bool
	made   int
	used   []namespace
	size   int  // see maxWritten
	nodes  bool // of JSON-LD were written
}

// keep keeps the label of a blank node, if a document may have it, and if no other node in an earlier part has got it.
func (w *writer) keep(t Term) {
	if t.Kind == Blank && plainLabel(t.Value) && !w.taken[t.Value] {
		w.labels[t.Value], w.taken[t.Value] = t.Value, true
	}
}

func plainLabel(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isLetter(c) && !isDigit(c) && c != '_' {
			return false
		}
	}
	return s != ""
}

func (w *writer) label(of string) string {
	if l, ok := w.labels[of]; ok {
		return "_:" + l
	}
	for {
		l := "b" + strconv.Itoa(w.made)
		w.made++
		if !w.taken[l] {
			w.labels[of], w.taken[l] = l, true
			return "_:" + l
		}
	}
}

// term writes a term as N-Triples and Turtle have it.
func (w *writer) term(t Term) {
	switch t.Kind {
	case IRI:
		w.WriteString(w.short(t.Value))
	case Blank:
		w.WriteString(w.label(t.Value))
	default:
		w.quote(t.Value)
		if t.Language != "" {
			w.WriteString("@" + t.Language)
		} else if t.Datatype != "" {
			w.WriteString("^^" + w.short(t.Datatype))
		}
	}
}

// quote writes a string; characters that terminals obey or that end a line are escaped.
func (w *writer) quote(s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch {
		case r < ' ' || r == '"' || r == '\\' || r == 0x7f:
			if i := strings.IndexByte(means, byte(r)); i >= 0 {
				w.WriteString(`\` + escaped[i:i+1])
			} else {
				fmt.Fprintf(w, `\u%04X`, r)
			}
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// namespace is a prefix that Turtle documents declare if they use it.
type namespace struct{ prefix, iri string }

func namespaces() []namespace {
	return []namespace{
		{"acl", ACL}, {"dcterms", DCTerms}, {"foaf", FOAF},
		{"ldp", LDP}, {"pim", PIM}, {"rdf", NS}, {"rdfs", "http://www.w3.org/2000/01/rdf-schema#"},
		{"schema", "https://schema.org/"}, {"solid", Solid}, {"stat", Stat},
		{"vcard", "http://www.w3.org/2006/vcard/ns#"}, {"xsd", XSD},
	}
}

// split finds the prefix of an IRI among spaces.
func split(s string, spaces []namespace) (of namespace, local string, ok bool) {
	for _, ns := range spaces {
		if local, ok = strings.CutPrefix(s, ns.iri); ok && plainLabel(local) {
			return ns, local, true
		}
	}
	return of, "", false
}

func (w *writer) short(s string) string {
	if ns, local, ok := split(s, w.used); ok {
		return ns.prefix + ":" + local
	}
	return "<" + s + ">"
}

// turtle writes one statement for each subject.
func (w *writer) turtle(triples []Triple) {
	w.declare(triples)
	for i, t := range triples {
		same := i > 0 && triples[i-1].Subject == t.Subject
		switch {
		case same && triples[i-1].Predicate == t.Predicate:
			w.WriteString(", ")
		case same:
			w.WriteString(";\n    ")
		case i > 0:
			w.WriteString(".\n")
			fallthrough
		default:
			w.term(t.Subject)
			w.WriteByte(' ')
		}
		if !same || triples[i-1].Predicate != t.Predicate {
			if t.Predicate == Type {
				w.WriteString("a ")
			} else {
				w.WriteString(w.short(t.Predicate) + " ")
			}
		}
		w.term(t.Object)
	}
	if len(triples) > 0 {
		w.WriteString(".\n")
	}
}

// declare declares the prefixes that these triples are the first to use.
func (w *writer) declare(triples []Triple) {
	all := namespaces()
	var more []namespace
	note := func(s string) {
		if ns, _, ok := split(s, all); ok && !slices.Contains(w.used, ns) && !slices.Contains(more, ns) {
			more = append(more, ns)
		}
	}
	for _, t := range triples {
		note(t.Subject.Value)
		if t.Predicate != Type {
			note(t.Predicate)
		}
		if t.Object.Kind == IRI {
			note(t.Object.Value)
		}
		note(t.Object.Datatype)
	}
	slices.SortFunc(more, func(a, b namespace) int { return strings.Compare(a.prefix, b.prefix) })
	for _, ns := range more {
		w.WriteString("@prefix " + ns.prefix + ": <" + ns.iri + ">.\n")
	}
	if len(more) > 0 {
		w.WriteByte('\n')
	}
	w.used = append(w.used, more...)
}

// jsonLD writes one object for each subject, in the order in which they come first.
func (w *writer) jsonLD(triples []Triple) error {
	at := map[Term]int{}
	nodes := []map[string]any{}
	for _, t := range triples {
		i, ok := at[t.Subject]
		if !ok {
			i = len(nodes)
			at[t.Subject] = i
			nodes = append(nodes, map[string]any{"@id": w.id(t.Subject)})
		}
		if t.Predicate == Type && t.Object.Kind != Literal {
			types, _ := nodes[i]["@type"].([]string)
			nodes[i]["@type"] = append(types, w.id(t.Object))
			continue
		}
		values, _ := nodes[i][t.Predicate].([]any)
		nodes[i][t.Predicate] = append(values, w.value(t.Object))
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	for _, node := range nodes {
		text.Reset()
		if err := enc.Encode(node); err != nil {
			return err
		}
		if w.nodes {
			w.WriteByte(',')
		}
		w.nodes = true
		w.Write(bytes.TrimSuffix(text.Bytes(), []byte{'\n'}))
	}
	return nil
}

func (w *writer) id(t Term) string {
	if t.Kind == Blank {
		return w.label(t.Value)
	}
	return t.Value
}

func (w *writer) value(t Term) map[string]any {
	if t.Kind != Literal {
		return map[string]any{"@id": w.id(t)}
	}
	v := map[string]any{"@value": t.Value}
	if t.Language != "" {
		v["@language"] = t.Language
	} else if t.Datatype != "" {
		v["@type"] = t.Datatype
	}
	return v
}
