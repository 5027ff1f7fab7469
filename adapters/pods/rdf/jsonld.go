package rdf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/ijson"
)

// parseJSONLD emits the triples of a JSON-LD document. Named graphs, JSON literals and directions, which
// are not triples, are ErrUnsupported, or left out where the reader is lenient.
func parseJSONLD(doc []byte, base *url.URL, lenient bool, emit func(pattern) error) error {
	w := &ldWalker{out: &ldTriples{emit: emit, lenient: lenient}, lenient: lenient, room: maxExpanded}
	if lenient {
		w.room = maxForeignExpanded
	}
	return w.document(doc, base)
}

// Expand returns a JSON-LD document in expanded form (JSON-LD 1.1 API, 5.1), with each IRI that it holds
// changed by rename. Numbers and JSON literals are as in the document. What Parse refuses in a context,
// Expand refuses, too.
func Expand(doc []byte, base *url.URL, rename func(iri string) string) ([]byte, error) {
	out := newLDText()
	w := &ldWalker{out: out, room: maxExpanded, rename: rename}
	if err := w.document(doc, base); err != nil {
		return nil, err
	}
	return out.text()
}

// ldWalker reads JSON-LD 1.1 (https://www.w3.org/TR/json-ld11/), expanded or compacted by a context that
// is part of the document, and gives what it says to out. A context elsewhere is never fetched. Contexts
// inside of terms, nesting by @nest, maps by id, type or graph, and protected terms are not understood:
// they are ErrUnsupported, or left out where the reader is lenient.
type ldWalker struct {
	out      ldOutput
	lenient  bool
	contexts int
	room     int // bytes that IRIs may still take
	rename   func(iri string) string
}

// ldOutput takes a document in expanded form, piece by piece in its order.
type ldOutput interface {
	// node begins a node: at the top, or as a value of the present key. id is "" if it has none.
	node(id, index string) error
	endNode()
	// key begins the values of a property of a node, or of @type, @graph or @included. Between
	// key("@reverse") and its end, properties have the node as their object.
	key(name string) error
	endKey(name string)
	class(iri string) error // a value of @type
	literal(l ldLiteral) error
	list(index string) error
	endList() error
}

// ldLiteral is a value object: a string, number or boolean, or any value if the datatype is @json.
type ldLiteral struct {
	value                                any
	datatype, language, direction, index string
}

func (w *ldWalker) document(doc []byte, base *url.URL) error {
	if len(doc) > maxForeign {
		return fmt.Errorf("%w: has more than %d bytes", ErrTooLarge, maxForeign)
	}
	if !w.lenient {
		if err := ijson.Check(doc); err != nil {
			return err
		}
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
	ctx := &ldContext{base: NewResolver(base), lenient: w.lenient}
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

// named gives an expanded IRI its new name, and counts its bytes.
func (w *ldWalker) named(s string) (string, error) {
	if w.room -= len(s); w.room < 0 {
		return "", errExpanded
	}
	if len(s) > maxIRI {
		return "", errLongIRI
	}
	if w.rename != nil && hasScheme(s) {
		s = w.rename(s)
	}
	return s, nil
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
	return w.node(o, o.index(ldProperty{}), depth+1)
}

// ldObject is an object with its keys expanded.
type ldObject struct {
	ctx        *ldContext
	keywords   map[string]any
	properties []ldProperty
}

type ldProperty struct {
	iri     string
	term    ldTerm
	value   any
	reverse bool
	index   string // that its values have if they have none of their own
}

func (o *ldObject) has(keyword string) bool {
	_, ok := o.keywords[keyword]
	return ok
}

// index is the @index of an object, or else that of the property it is a value of.
func (o *ldObject) index(p ldProperty) string {
	own, _ := o.keywords["@index"].(string)
	return cmp.Or(own, p.index)
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
		if name, err = w.named(name); err != nil {
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
		case hasScheme(name):
			t := ctx.terms[key]
			o.properties = append(o.properties, ldProperty{iri: name, term: t, value: m[key], reverse: t.reverse})
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

// node reads one node object.
func (w *ldWalker) node(o *ldObject, index string, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	id, err := w.identify(o)
	if err != nil {
		return err
	}
	if err := w.out.node(id, index); err != nil {
		return err
	}
	for _, keyword := range slices.Sorted(maps.Keys(o.keywords)) {
		if err := w.keyword(o, keyword, depth); err != nil {
			return err
		}
	}
	if err := w.properties(o, depth); err != nil {
		return err
	}
	w.out.endNode()
	return nil
}

func (w *ldWalker) identify(o *ldObject) (string, error) {
	id, ok := o.keywords["@id"]
	if s, isText := id.(string); isText {
		return w.reference(s, o.ctx, 0)
	}
	if ok {
		return "", w.invalid("an @id is not a string")
	}
	return "", nil
}

// keyword reads a keyword of a node.
func (w *ldWalker) keyword(o *ldObject, name string, depth int) error {
	v := o.keywords[name]
	items, ok := v.([]any)
	if !ok {
		items = []any{v}
	}
	switch name {
	case "@id", "@index":
		return nil
	case "@type":
		return w.types(items, o.ctx)
	case "@included":
		for _, item := range items {
			if _, isObject := item.(map[string]any); !isObject {
				if err := w.invalid("what is @included is no node"); err != nil {
					return err
				}
			}
		}
		fallthrough
	case "@graph":
		if err := w.out.key(name); err != nil {
			return err
		}
		err := w.nodes(items, o.ctx, depth+1)
		w.out.endKey(name)
		return err
	case "@reverse":
		m, ok := v.(map[string]any)
		if !ok {
			return w.invalid("a @reverse is not an object")
		}
		back, err := w.open(m, o.ctx)
		if err != nil {
			return err
		}
		if len(back.keywords) > 0 {
			return w.invalid("a @reverse has keywords")
		}
		for _, p := range back.properties {
			p.reverse = !p.reverse
			o.properties = append(o.properties, p)
		}
		return nil
	case "@nest":
		return w.unsupported(name)
	}
	return w.invalid("a node has " + name)
}

func (w *ldWalker) types(items []any, ctx *ldContext) error {
	if err := w.out.key("@type"); err != nil {
		return err
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
		if err := w.out.class(class); err != nil {
			return err
		}
	}
	w.out.endKey("@type")
	return nil
}

// properties reads the properties of a node, the reverse ones last.
func (w *ldWalker) properties(o *ldObject, depth int) error {
	var forward, back []ldProperty
	for _, p := range o.properties {
		if p.reverse {
			back = append(back, p)
		} else {
			forward = append(forward, p)
		}
	}
	if err := w.keys(forward, o.ctx, depth); err != nil || len(back) == 0 {
		return err
	}
	if err := w.out.key("@reverse"); err != nil {
		return err
	}
	err := w.keys(back, o.ctx, depth)
	w.out.endKey("@reverse")
	return err
}

// keys reads properties in the order of their IRIs. Several may have the same one.
func (w *ldWalker) keys(all []ldProperty, ctx *ldContext, depth int) error {
	slices.SortStableFunc(all, func(a, b ldProperty) int { return strings.Compare(a.iri, b.iri) })
	for i, p := range all {
		if i == 0 || all[i-1].iri != p.iri {
			if err := w.out.key(p.iri); err != nil {
				return err
			}
		}
		if err := w.property(p, ctx, depth); err != nil {
			return err
		}
		if i == len(all)-1 || all[i+1].iri != p.iri {
			w.out.endKey(p.iri)
		}
	}
	return nil
}

// property reads the values of one property, or one key of several that mean it.
func (w *ldWalker) property(p ldProperty, ctx *ldContext, depth int) error {
	m, isMap := p.value.(map[string]any)
	switch {
	case p.term.kind == "@json":
		return w.put(p, ldLiteral{value: p.value, datatype: "@json"})
	case isMap && p.term.languages:
		return w.languages(p, m, ctx)
	case isMap && p.term.indices:
		for _, key := range slices.Sorted(maps.Keys(m)) {
			name, err := ctx.expand(key, inVocabulary, nil)
			if err != nil {
				return err
			}
			if p.index = key; name == "@none" {
				p.index = ""
			}
			if err := w.values(p, m[key], ctx, depth+1); err != nil {
				return err
			}
		}
		return nil
	case p.term.list && !w.isList(p.value, ctx):
		return w.list(p, p.value, "", ctx, depth+1)
	}
	return w.values(p, p.value, ctx, depth)
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

// values reads a value: it means none for null, several for arrays and sets.
func (w *ldWalker) values(p ldProperty, v any, ctx *ldContext, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		for _, item := range v {
			if err := w.values(p, item, ctx, depth+1); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		o, err := w.open(v, ctx)
		if err != nil {
			return err
		}
		return w.object(p, o, depth)
	}
	return w.scalar(p, v, ctx)
}

// object is values for what is an object.
func (w *ldWalker) object(p ldProperty, o *ldObject, depth int) error {
	if err := w.checkObject(o); err != nil {
		return err
	}
	switch {
	case o.has("@set"):
		return w.values(p, o.keywords["@set"], o.ctx, depth+1)
	case o.has("@list"):
		return w.list(p, o.keywords["@list"], o.index(p), o.ctx, depth+1)
	case o.has("@value"):
		return w.valueObject(p, o)
	}
	return w.node(o, o.index(p), depth+1)
}

// list reads a list. An array in it is a list of its own.
func (w *ldWalker) list(p ldProperty, v any, index string, ctx *ldContext, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	if p.reverse {
		return w.invalid("a list has a reverse property")
	}
	items, ok := v.([]any)
	if !ok {
		items = []any{v}
	}
	if err := w.out.list(index); err != nil {
		return err
	}
	p.index = ""
	for _, item := range items {
		var err error
		if inner, ok := item.([]any); ok {
			err = w.list(p, inner, "", ctx, depth+1)
		} else {
			err = w.values(p, item, ctx, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return w.out.endList()
}

// reference is the node that a string names: below the base, or in the vocabulary.
func (w *ldWalker) reference(s string, ctx *ldContext, where scope) (string, error) {
	if ctx.lenient && ctx.remote && where != inVocabulary && strings.HasPrefix(wellKnown(s), "http") {
		return wellKnown(s), nil
	}
	abs, err := ctx.expand(s, where|belowBase, nil)
	if err != nil {
		return "", err
	}
	if abs == "" && !w.lenient {
		return "", errBrokenIRI // it looks like a keyword
	}
	if label, ok := strings.CutPrefix(abs, "_:"); ok {
		if p := (turtle{in: label}); !w.lenient && (p.name() != label || label == "") {
			return "", errors.New("has a blank node label that is no name")
		}
	}
	return w.named(abs)
}
