package rdf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/ijson"
)

// parseJSONLD reads JSON-LD 1.1 (https://www.w3.org/TR/json-ld11/), expanded or compacted by a context
// that is part of the document. A context elsewhere is never fetched. Contexts inside of terms, named
// graphs, nesting by @nest, maps by index, id, type or graph, JSON literals, directions, and protected
// terms are not understood: they are ErrUnsupported, or left out where the reader is lenient.
func parseJSONLD(doc []byte, base *url.URL, lenient bool, emit func(pattern) error) error {
	if len(doc) > maxForeign {
		return fmt.Errorf("%w: has more than %d bytes", ErrTooLarge, maxForeign)
	}
	w := &ldWalker{emit: emit, lenient: lenient, room: maxExpanded}
	if lenient {
		w.room = maxForeignExpanded
	} else if err := ijson.Check(doc); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("is not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("is not one JSON value")
	}
	ctx := &ldContext{base: newResolver(base), lenient: lenient}
	ctx.document = ctx.base
	switch v := v.(type) { // JSON-LD 1.1, section 9: "a single node object, a map …, or an array"
	case map[string]any:
		o, err := w.open(v, ctx)
		if err != nil {
			return err
		}
		if graph, ok := o.keywords["@graph"]; ok && len(o.keywords) == 1 && len(o.properties) == 0 {
			return w.nodes(graph, o.ctx, 1)
		}
		return w.topObject(o, 0)
	case []any:
		return w.nodes(v, ctx, 0)
	}
	return errors.New("is neither an object nor an array")
}

// Limits for the memory that a JSON-LD document can use.
const (
	maxContexts = 1000 // per document
	maxTerms    = 1000 // per context
)

type ldWalker struct {
	emit     func(pattern) error
	lenient  bool
	blanks   int
	contexts int
	room     int // bytes that IRIs may still take
}

// unsupported is the error for what is not understood; none if the reader is lenient.
func (w *ldWalker) unsupported(what string) error { return leftOut(w.lenient, ErrUnsupported, what) }

// invalid is the error for what JSON-LD forbids; none if the reader is lenient.
func (w *ldWalker) invalid(what string) error {
	return leftOut(w.lenient, errors.New("is not JSON-LD"), what)
}

func leftOut(lenient bool, kind error, what string) error {
	if lenient {
		return nil
	}
	return fmt.Errorf("%w: %s", kind, what)
}

// spend counts the bytes of an expanded IRI.
func (w *ldWalker) spend(s string) error {
	if w.room -= len(s); w.room < 0 {
		return errExpanded
	}
	if len(s) > maxIRI {
		return errLongIRI
	}
	return nil
}

// nodes walks a value at the top of a document or of a @graph: nodes and arrays of them. Other values
// say nothing there (JSON-LD 1.1 API, 5.1, "free-floating").
func (w *ldWalker) nodes(v any, ctx *ldContext, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if err := w.nodes(item, ctx, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		o, err := w.open(v, ctx)
		if err != nil {
			return err
		}
		return w.topObject(o, depth)
	}
	return nil
}

func (w *ldWalker) topObject(o *ldObject, depth int) error {
	if err := w.checkObject(o); err != nil {
		return err
	}
	if set, ok := o.keywords["@set"]; ok {
		return w.nodes(set, o.ctx, depth+1)
	}
	if o.has("@value") || o.has("@list") {
		return nil
	}
	_, err := w.node(o, depth+1)
	return err
}

// ldObject is an object with its keys expanded.
type ldObject struct {
	ctx        *ldContext
	keywords   map[string]any
	properties []ldProperty
}

type ldProperty struct {
	iri   string
	term  ldTerm
	value any
}

func (o *ldObject) has(keyword string) bool {
	_, ok := o.keywords[keyword]
	return ok
}

// open applies the context of an object and expands its keys. Keys that mean nothing are left out.
func (w *ldWalker) open(m map[string]any, ctx *ldContext) (*ldObject, error) {
	if c, ok := m["@context"]; ok {
		var err error
		if w.contexts++; w.contexts > maxContexts {
			return nil, fmt.Errorf("%w: has too many contexts", ErrTooLarge)
		}
		if ctx, err = ctx.extend(c); err != nil {
			return nil, err
		}
	}
	o := &ldObject{ctx: ctx, keywords: map[string]any{}}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key == "@context" {
			continue
		}
		name, err := ctx.expand(key, inVocabulary, nil)
		if err != nil {
			return nil, err
		}
		if err := w.spend(name); err != nil {
			return nil, err
		}
		switch {
		case strings.HasPrefix(name, "@"):
			if o.has(name) {
				if err := w.invalid("an object says " + name + " twice"); err != nil {
					return nil, err
				}
				continue
			}
			o.keywords[name] = m[key]
		case strings.HasPrefix(name, "_:"):
			if err := w.unsupported("a property is a blank node"); err != nil {
				return nil, err
			}
		case HasScheme(name):
			o.properties = append(o.properties, ldProperty{name, ctx.terms[key], m[key]})
		}
	}
	return o, nil
}

// checkObject refuses objects that are of two kinds, and would lose what only the other kind says.
func (w *ldWalker) checkObject(o *ldObject) error {
	n := len(o.keywords) + len(o.properties)
	if index, ok := o.keywords["@index"]; ok {
		n--
		if _, isText := index.(string); !isText {
			return w.invalid("an @index is not a string")
		}
	}
	if n > 1 && (o.has("@set") || o.has("@list")) {
		return w.invalid("a @set or a @list has more keys")
	}
	if o.has("@value") {
		for key := range o.keywords {
			switch key {
			case "@value", "@type", "@language", "@direction", "@index":
				continue
			}
			return w.invalid("a literal has " + key)
		}
		if len(o.properties) > 0 {
			return w.invalid("a literal has properties")
		}
	}
	return nil
}

// node emits the triples of one node object and returns the node.
func (w *ldWalker) node(o *ldObject, depth int) (Term, error) {
	if depth > maxDepth {
		return Term{}, errTooDeep
	}
	subject, err := w.identify(o)
	if err != nil {
		return Term{}, err
	}
	for _, keyword := range slices.Sorted(maps.Keys(o.keywords)) {
		if err := w.keyword(subject, keyword, o.keywords[keyword], o.ctx, depth); err != nil {
			return Term{}, err
		}
	}
	for _, p := range o.properties {
		if err := w.property(subject, p, p.term.reverse, o.ctx, depth); err != nil {
			return Term{}, err
		}
	}
	return subject, nil
}

func (w *ldWalker) identify(o *ldObject) (Term, error) {
	id, ok := o.keywords["@id"]
	if s, isText := id.(string); isText {
		return w.reference(s, o.ctx, 0)
	}
	if ok {
		if err := w.invalid("an @id is not a string"); err != nil {
			return Term{}, err
		}
	}
	return w.fresh(), nil
}

func (w *ldWalker) fresh() Term {
	w.blanks++
	return Term{Kind: Blank, Value: " " + strconv.Itoa(w.blanks)}
}

func (w *ldWalker) keyword(subject Term, name string, v any, ctx *ldContext, depth int) error {
	switch name {
	case "@id", "@index":
	case "@type":
		return w.types(subject, v, ctx)
	case "@included":
		items, ok := v.([]any)
		if !ok {
			items = []any{v}
		}
		for _, item := range items {
			if _, isObject := item.(map[string]any); !isObject {
				if err := w.invalid("what is @included is no node"); err != nil {
					return err
				}
			}
		}
		return w.nodes(items, ctx, depth+1)
	case "@graph":
		if err := w.unsupported("a named graph"); err != nil {
			return err
		}
		return w.nodes(v, ctx, depth+1)
	case "@reverse":
		m, ok := v.(map[string]any)
		if !ok {
			return w.invalid("a @reverse is not an object")
		}
		o, err := w.open(m, ctx)
		if err != nil {
			return err
		}
		if len(o.keywords) > 0 {
			return w.invalid("a @reverse has keywords")
		}
		for _, p := range o.properties {
			if err := w.property(subject, p, !p.term.reverse, ctx, depth); err != nil {
				return err
			}
		}
	case "@nest":
		return w.unsupported(name)
	default:
		return w.invalid("a node has " + name)
	}
	return nil
}

func (w *ldWalker) types(subject Term, v any, ctx *ldContext) error {
	items, ok := v.([]any)
	if !ok {
		items = []any{v}
	}
	for _, item := range items {
		s, ok := item.(string)
		if !ok {
			if err := w.invalid("a @type is not a string"); err != nil {
				return err
			}
			continue
		}
		class, err := w.reference(s, ctx, inVocabulary)
		if err != nil {
			return err
		}
		if err := w.emit(pattern{subject, iri(Type), class}); err != nil {
			return err
		}
	}
	return nil
}

// property emits the triples of one property of a node; reverse swaps subject and object.
func (w *ldWalker) property(subject Term, p ldProperty, reverse bool, ctx *ldContext, depth int) error {
	put := func(object Term) error {
		s, o := subject, object
		if reverse {
			if object.Kind == Literal {
				return w.invalid("a literal has a reverse property")
			}
			s, o = o, s
		}
		return w.emit(pattern{s, iri(p.iri), o})
	}
	m, isMap := p.value.(map[string]any)
	switch {
	case isMap && p.term.languages:
		return w.languages(m, put)
	case p.term.list && !w.isList(p.value, ctx):
		head, err := w.list(p, p.value, ctx, depth+1)
		if err != nil {
			return err
		}
		return put(head)
	}
	return w.values(p, p.value, ctx, depth, put)
}

// isList tells whether a value is a list object by itself.
func (w *ldWalker) isList(v any, ctx *ldContext) bool {
	m, ok := v.(map[string]any)
	if !ok {
		return false
	}
	for key := range m {
		if name, err := ctx.expand(key, inVocabulary, nil); err == nil && name == "@list" {
			return true
		}
	}
	return false
}

// values gives the terms that a value means to put: none for null, several for arrays and sets.
func (w *ldWalker) values(p ldProperty, v any, ctx *ldContext, depth int, put func(Term) error) error {
	if depth > maxDepth {
		return errTooDeep
	}
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		for _, item := range v {
			if err := w.values(p, item, ctx, depth+1, put); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		o, err := w.open(v, ctx)
		if err != nil {
			return err
		}
		return w.object(p, o, depth, put)
	}
	t, err := w.scalar(p, v, ctx)
	return w.put(t, err, put)
}

// put gives a term on. A literal that is none is left out where the reader is lenient.
func (w *ldWalker) put(t Term, err error, put func(Term) error) error {
	if w.lenient && errors.Is(err, errNoLiteral) {
		return nil
	}
	if err != nil {
		return err
	}
	return put(t)
}

// object is values for what is an object.
func (w *ldWalker) object(p ldProperty, o *ldObject, depth int, put func(Term) error) error {
	var t Term
	err := w.checkObject(o)
	switch {
	case err != nil:
	case o.has("@set"):
		return w.values(p, o.keywords["@set"], o.ctx, depth+1, put)
	case o.has("@list"):
		t, err = w.list(p, o.keywords["@list"], o.ctx, depth+1)
	case o.has("@value"):
		if o.keywords["@value"] == nil {
			return nil
		}
		t, err = w.literal(o)
	default:
		t, err = w.node(o, depth+1)
	}
	return w.put(t, err, put)
}

// list makes the cells of a list. An array in it is a list of its own.
func (w *ldWalker) list(p ldProperty, v any, ctx *ldContext, depth int) (Term, error) {
	if depth > maxDepth {
		return Term{}, errTooDeep
	}
	items, ok := v.([]any)
	if !ok {
		items = []any{v}
	}
	head, cell := iri(NS+"nil"), Term{}
	put := func(item Term) error {
		next := w.fresh()
		if cell == (Term{}) {
			head = next
		} else if err := w.emit(pattern{cell, iri(NS + "rest"), next}); err != nil {
			return err
		}
		cell = next
		return w.emit(pattern{cell, iri(NS + "first"), item})
	}
	for _, item := range items {
		var err error
		if inner, ok := item.([]any); ok {
			var t Term
			if t, err = w.list(p, inner, ctx, depth+1); err == nil {
				err = put(t)
			}
		} else {
			err = w.values(p, item, ctx, depth+1, put)
		}
		if err != nil {
			return Term{}, err
		}
	}
	if cell == (Term{}) {
		return head, nil
	}
	return head, w.emit(pattern{cell, iri(NS + "rest"), iri(NS + "nil")})
}

const errNoLiteral = errorText("has a literal that is neither text nor boolean nor a number in range")

// reference is the node that a string names: below the base, or in the vocabulary.
func (w *ldWalker) reference(s string, ctx *ldContext, where scope) (Term, error) {
	if ctx.lenient && ctx.remote && where != inVocabulary && strings.HasPrefix(wellKnown(s), "http") {
		return iri(wellKnown(s)), nil
	}
	abs, err := ctx.expand(s, where|belowBase, nil)
	if err != nil {
		return Term{}, err
	}
	if err := w.spend(abs); err != nil {
		return Term{}, err
	}
	if label, ok := strings.CutPrefix(abs, "_:"); ok {
		if p := (turtle{in: label}); !w.lenient && (p.name() != label || label == "") {
			return Term{}, errors.New("has a blank node label that is no name")
		}
		return Term{Kind: Blank, Value: label}, nil
	}
	return iri(abs), nil
}
