package rdf

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// ldContext is the active context of JSON-LD. It is never changed once made.
type ldContext struct {
	base     Resolver
	document Resolver // the base without contexts
	vocab    string
	language string
	terms    map[string]ldTerm
	lenient  bool
	remote   bool // a context elsewhere was named; only if lenient

	direction string
}

// ldTerm is what a context says about a key.
type ldTerm struct {
	iri       string // or a keyword; "" if the key means nothing
	prefix    bool   // it may begin compact IRIs
	reverse   bool
	kind      string // @id, @vocab, a datatype, or ""
	language  *string
	direction *string
	list      bool // arrays are lists
	languages bool // objects are maps from languages
	indices   bool // objects are maps from @index
}

// scope is how a string is expanded.
type scope uint8

const (
	inVocabulary scope = 1 << iota // as a term, or relative to @vocab
	belowBase                      // relative to the base
)

// wellKnown has the terms of well-known contexts that a document of a server may name.
func wellKnown(term string) string {
	switch term {
	case "id", "type":
		return "@" + term
	case "contains":
		return LDP + term
	case "ldp":
		return LDP
	case "dcterms":
		return DCTerms
	case "posix", "stat":
		return Stat
	case "notify":
		return Notify
	case "subscription", "channelType", "WebSocketChannel2023":
		return Notify + term
	}
	return ""
}

// links tells whether strings under a property are IRIs, whatever the context says.
func links(property string) bool {
	return property == LDP+"contains" || property == Notify+"subscription" || property == Notify+"channelType"
}

// extend is c with a local context on top.
func (c *ldContext) extend(local any) (*ldContext, error) {
	next := *c
	next.terms = maps.Clone(c.terms)
	if next.terms == nil {
		next.terms = map[string]ldTerm{}
	}
	items, ok := local.([]any)
	if !ok {
		items = []any{local}
	}
	for _, item := range items {
		switch item := item.(type) {
		case nil:
			next = ldContext{base: c.document, document: c.document, terms: map[string]ldTerm{}, lenient: c.lenient}
		case string:
			if !c.lenient {
				return nil, fmt.Errorf("%w: its context is at %q", ErrUnsupported, escape.Line(item, 40))
			}
			next.remote = true
		case map[string]any:
			if err := next.define(item); err != nil {
				return nil, err
			}
		default:
			return nil, errors.New("has a context that is neither object nor IRI")
		}
	}
	return &next, nil
}

func (c *ldContext) unsupported(what string) error { return leftOut(c.lenient, ErrUnsupported, what) }

func (c *ldContext) invalid(what string) error {
	return leftOut(c.lenient, errors.New("has an invalid context"), what)
}

// definition is a local context while its terms are defined.
type definition struct {
	local map[string]any
	begun map[string]bool // false while the term is being defined
}

func (c *ldContext) define(m map[string]any) error {
	if len(c.terms)+len(m) > maxTerms {
		return fmt.Errorf("%w: has a context of too many terms", ErrTooLarge)
	}
	if err := c.setBase(m); err != nil {
		return err
	}
	if err := c.setDefaults(m); err != nil {
		return err
	}
	d := &definition{m, map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if strings.HasPrefix(name, "@") {
			if err := c.keyword(name, m[name]); err != nil {
				return err
			}
			continue
		}
		if err := c.term(name, d); err != nil {
			return err
		}
	}
	return nil
}

func (c *ldContext) setBase(m map[string]any) error {
	v, ok := m["@base"]
	if !ok {
		return nil
	}
	if v == nil {
		c.base = Resolver{}
		return nil
	}
	s, ok := v.(string)
	if !ok {
		return c.invalid("@base is not a string")
	}
	base, err := c.base.Below(s)
	if err != nil {
		return err
	}
	c.base = base
	return nil
}

func (c *ldContext) setDefaults(m map[string]any) error {
	if v, ok := m["@vocab"]; ok {
		s, isText := v.(string)
		if v != nil && !isText {
			return c.invalid("@vocab is not a string")
		}
		vocab := ""
		if isText {
			var err error
			if vocab, err = c.expand(s, inVocabulary|belowBase, nil); err != nil {
				return err
			}
		}
		if len(vocab) > maxIRI {
			return errLongIRI
		}
		c.vocab = vocab
	}
	if v, ok := m["@language"]; ok {
		s, _ := v.(string)
		if v != nil && !isLanguage(s) {
			return c.invalid("@language is not a tag")
		}
		c.language = s
	}
	if v, ok := m["@direction"]; ok {
		s, _ := v.(string)
		if v != nil && !isDirection(s) {
			return c.invalid("@direction is no direction")
		}
		c.direction = s
	}
	return nil
}

// keyword checks a keyword of a context that is no default.
func (c *ldContext) keyword(name string, v any) error {
	switch name {
	case "@base", "@vocab", "@language", "@direction":
		return nil
	case "@version":
		if n, ok := v.(json.Number); ok && n == "1.1" {
			return nil
		}
	case "@type": // only {"@container": "@set"}: a type is an array
		if m, ok := v.(map[string]any); ok && len(m) == 1 && m["@container"] == "@set" {
			return nil
		}
	}
	return c.unsupported("a context has " + name)
}

// term defines a term, and before it those that it is made of (JSON-LD 1.1 API, 4.2).
func (c *ldContext) term(name string, d *definition) error {
	if done, begun := d.begun[name]; begun {
		if !done {
			return c.invalid("terms are defined by each other")
		}
		return nil
	}
	d.begun[name] = false
	defer func() { d.begun[name] = true }()
	delete(c.terms, name)
	v := d.local[name]
	if s, ok := v.(string); ok {
		v = map[string]any{"@id": s}
	}
	if v == nil {
		v = map[string]any{"@id": nil}
	}
	m, ok := v.(map[string]any)
	if !ok || name == "" {
		return c.invalid("a term is defined by neither an IRI nor an object")
	}
	var t ldTerm
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if err := c.attribute(&t, key, m[key], d); err != nil {
			return err
		}
	}
	if t.list && (t.languages || t.indices) || t.languages && t.indices || t.kind == "@json" && (t.list || t.languages || t.indices) {
		if err := c.unsupported("containers of a term that do not go together"); err != nil {
			return err
		}
	}
	if err := c.meaning(&t, name, m, d); err != nil {
		return err
	}
	if len(t.iri) > maxIRI {
		return errLongIRI
	}
	_, simple := d.local[name].(string)
	if simple && t.iri != "" && strings.IndexByte(":/?#[]@", t.iri[len(t.iri)-1]) >= 0 && !strings.ContainsAny(name, ":/") {
		t.prefix = true
	}
	if id, given := m["@id"]; t.iri != "" || given && id == nil {
		c.terms[name] = t
	}
	return nil
}

// attribute reads one entry of the definition of a term; those that give its IRI are read by meaning.
func (c *ldContext) attribute(t *ldTerm, key string, v any, d *definition) error {
	s, isText := v.(string)
	switch key {
	case "@id", "@reverse":
	case "@type":
		kind, err := c.expand(s, inVocabulary, d)
		switch {
		case err != nil:
			return err
		case !isText:
			return c.invalid("the type of a term is no string")
		case kind == "@none":
		case kind == "@id", kind == "@vocab", kind == "@json", validIRI(kind):
			t.kind = kind
		default:
			return c.invalid("the type of a term is no IRI")
		}
	case "@language":
		if v != nil && !isLanguage(s) {
			return c.invalid("the language of a term is no tag")
		}
		t.language = &s
	case "@direction":
		if v != nil && !isDirection(s) {
			return c.invalid("the direction of a term is none")
		}
		t.direction = &s
	case "@container":
		items, ok := v.([]any)
		if !ok {
			items = []any{v}
		}
		for _, item := range items {
			switch item {
			case nil, "@set":
			case "@list":
				t.list = true
			case "@language":
				t.languages = true
			case "@index":
				t.indices = true
			default:
				return c.unsupported("a container of a term")
			}
		}
	case "@prefix":
		b, ok := v.(bool)
		if !ok {
			return c.invalid("@prefix is neither true nor false")
		}
		t.prefix = b
	default:
		if key == "@protected" && v == false {
			return nil
		}
		return c.unsupported("a term has " + escape.Line(key, 40))
	}
	return nil
}

// meaning finds the IRI of a term.
func (c *ldContext) meaning(t *ldTerm, name string, m map[string]any, d *definition) (err error) {
	from, given := m["@id"]
	if r, ok := m["@reverse"]; ok {
		if given || t.list || t.languages || t.kind == "@json" {
			return c.invalid("a reverse term has more than its property")
		}
		from, given, t.reverse = r, true, true
	}
	if given && from == nil {
		return nil
	}
	if given && from != name {
		s, ok := from.(string)
		if !ok {
			return c.invalid("the IRI of a term is no string")
		}
		if t.iri, err = c.expand(s, inVocabulary, d); err != nil {
			return err
		}
		if t.iri == "@context" || !isKeyword(t.iri) && !hasScheme(t.iri) && !strings.HasPrefix(t.iri, "_:") {
			t.iri = ""
			return c.invalid("the IRI of a term is relative")
		}
		if strings.Contains(strings.Trim(name, ":"), ":") || strings.Contains(name, "/") {
			if self, err := c.compact(name, inVocabulary, d); err != nil || self != t.iri {
				return errors.Join(err, c.invalid("an IRI is defined as another one"))
			}
		}
		return nil
	}
	if t.iri, err = c.compact(name, inVocabulary, d); err != nil {
		return err
	}
	// Here any term is a prefix, also one that is none in keys and values.
	if prefix, suffix, ok := strings.Cut(name, ":"); ok && prefix != "" && !strings.HasPrefix(suffix, "//") && c.terms[prefix].iri != "" {
		t.iri = c.terms[prefix].iri + suffix
	}
	if !hasScheme(t.iri) {
		t.iri = ""
		return c.invalid("a term has no IRI")
	}
	return nil
}

// expand is the meaning of a string (JSON-LD 1.1 API, 5.2): a keyword, an IRI, the name of a blank node
// with "_:", or the string itself. d is the context that is being defined, or nil.
func (c *ldContext) expand(s string, where scope, d *definition) (string, error) {
	if strings.HasPrefix(s, "@") {
		if isKeyword(s) {
			return s, nil
		}
		if len(s) > 1 && !strings.ContainsFunc(s[1:], func(r rune) bool { return r > 'z' || !isLetter(byte(r)) }) {
			return "", nil // it looks like a keyword of a later version
		}
	}
	if err := c.needs(s, d); err != nil {
		return "", err
	}
	t, defined := c.terms[s]
	if defined && (where&inVocabulary != 0 || strings.HasPrefix(t.iri, "@")) {
		return t.iri, nil
	}
	return c.compact(s, where, d)
}

// compact is expand for what is no term.
func (c *ldContext) compact(s string, where scope, d *definition) (string, error) {
	if prefix, suffix, ok := strings.Cut(s, ":"); ok && prefix != "" {
		if prefix == "_" || strings.HasPrefix(suffix, "//") {
			return s, nil
		}
		if err := c.needs(prefix, d); err != nil {
			return "", err
		}
		if namespace := c.namespace(prefix); namespace != "" {
			return namespace + suffix, nil
		}
		if hasScheme(s) {
			return s, nil
		}
	}
	if c.remote && where&inVocabulary != 0 && wellKnown(s) != "" {
		return wellKnown(s), nil
	}
	switch {
	case where&inVocabulary != 0 && c.vocab != "":
		return c.vocab + s, nil
	case where&belowBase != 0:
		return c.base.Resolve(s)
	}
	return s, nil
}

// directionOf is the direction of the texts under a term.
func (c *ldContext) directionOf(t ldTerm) string {
	if t.direction != nil {
		return *t.direction
	}
	return c.direction
}

// needs defines a term that another one is made of.
func (c *ldContext) needs(name string, d *definition) error {
	if d == nil {
		return nil
	}
	if _, local := d.local[name]; !local || strings.HasPrefix(name, "@") {
		return nil
	}
	return c.term(name, d)
}

// namespace is the IRI of a prefix. In the documents of servers, any term for an IRI is one, and the
// common prefixes work even if the document does not declare them.
func (c *ldContext) namespace(prefix string) string {
	t, defined := c.terms[prefix]
	if defined && (t.prefix || c.lenient && !isKeyword(t.iri)) {
		return t.iri
	}
	if ns := wellKnown(prefix); !defined && c.lenient && (strings.HasSuffix(ns, "#") || strings.HasSuffix(ns, "/")) {
		return ns
	}
	return ""
}

func isKeyword(s string) bool {
	switch s {
	case "@base", "@container", "@context", "@direction", "@graph", "@id", "@import", "@included", "@index", "@json", "@language",
		"@list", "@nest", "@none", "@prefix", "@propagate", "@protected", "@reverse", "@set", "@type", "@value", "@version", "@vocab":
		return true
	}
	return false
}
