package pods

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

	"github.com/dreamlab-ai/agentinit/adapters/pods/rebase"
)

// parseJSONLD reads JSON-LD 1.1 (https://www.w3.org/TR/json-ld11/) as Solid
// servers write it: one node, an array of nodes or a @graph, expanded or
// compacted by a context that is part of the document. A context elsewhere is
// never fetched; the terms in wellKnown then mean what they mean in the
// contexts of LDP and of Solid notifications. Lists, indexes, reverse
// properties and nested contexts of a term are not understood.
func parseJSONLD(doc []byte, base *url.URL, emit func(triple)) error {
	if len(doc) > maxJSONLD {
		return fmt.Errorf("is larger than %d bytes", maxJSONLD)
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
	switch v.(type) {
	case map[string]any, []any: // JSON-LD 1.1, section 9: "a single node object, a map …, or an array"
	default:
		return errors.New("is neither an object nor an array")
	}
	w := &ldWalker{emit: emit}
	return w.nodes(v, &ldContext{base: base}, 0)
}

// Limits for the memory that a document can use.
const (
	maxJSONLD   = 4 << 20 // bytes: a decoded one takes many times its size
	maxContexts = 1000    // per document
	maxTerms    = 1000    // per context
	maxIRI      = 4096    // bytes
)

type ldWalker struct {
	emit     func(triple)
	blanks   int
	contexts int
}

// nodes walks a value that may be a node or an array of nodes; other values are ignored.
func (w *ldWalker) nodes(v any, ctx *ldContext, depth int) error {
	for _, item := range list(v) {
		if m, ok := item.(map[string]any); ok {
			if _, err := w.node(m, ctx, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// node emits the triples of one node object and returns the node.
func (w *ldWalker) node(m map[string]any, ctx *ldContext, depth int) (term, error) {
	if depth > maxDepth {
		return term{}, errTooDeep
	}
	if c, ok := m["@context"]; ok {
		var err error
		if w.contexts++; w.contexts > maxContexts {
			return term{}, errors.New("has too many contexts")
		}
		if ctx, err = ctx.extend(c); err != nil {
			return term{}, err
		}
	}
	subject, err := w.identify(m, ctx)
	if err != nil {
		return term{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if err := w.property(subject, ctx.property(key), m[key], ctx, depth); err != nil {
			return term{}, err
		}
	}
	return subject, nil
}

func (w *ldWalker) identify(m map[string]any, ctx *ldContext) (term, error) {
	for key, v := range m {
		if s, ok := v.(string); ok && ctx.property(key) == "@id" {
			return ctx.reference(s)
		}
	}
	w.blanks++
	return term{blankTerm, " " + strconv.Itoa(w.blanks)}, nil
}

func (w *ldWalker) property(subject term, name string, v any, ctx *ldContext, depth int) error {
	switch {
	case name == "@graph", name == "@included":
		return w.nodes(v, ctx, depth)
	case name == "@type":
		for _, item := range list(v) {
			if s, ok := item.(string); ok {
				w.emit(triple{subject, rdfType, term{iriTerm, ctx.vocabulary(s)}})
			}
		}
		return nil
	case name == "", strings.HasPrefix(name, "@"):
		return nil
	}
	for _, item := range list(v) {
		object, ok, err := w.value(name, item, ctx, depth)
		if err != nil {
			return err
		}
		if ok {
			w.emit(triple{subject, name, object})
		}
	}
	return nil
}

// value is the term that an item means; false if it means none.
func (w *ldWalker) value(property string, item any, ctx *ldContext, depth int) (term, bool, error) {
	switch item := item.(type) {
	case string:
		if ctx.links(property) {
			t, err := ctx.reference(item)
			return t, true, err
		}
		return term{literalTerm, item}, true, nil
	case json.Number:
		return term{literalTerm, item.String()}, true, nil
	case bool:
		return term{literalTerm, strconv.FormatBool(item)}, true, nil
	case map[string]any:
		if v, ok := item["@value"]; ok {
			return term{literalTerm, fmt.Sprint(v)}, true, nil
		}
		t, err := w.node(item, ctx, depth+1)
		return t, true, err
	}
	return term{}, false, nil
}

// list is v as a list: arrays and sets are flattened, null is empty.
func list(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		return v
	case map[string]any:
		if set, ok := v["@set"]; ok && len(v) == 1 {
			return list(set)
		}
	}
	return []any{v}
}

// wellKnown are the terms of well-known contexts that a document may name.
var wellKnown = map[string]string{
	"id": "@id", "type": "@type", "contains": ldpContains, "ldp": "http://www.w3.org/ns/ldp#",
	"dcterms": "http://purl.org/dc/terms/", "posix": "http://www.w3.org/ns/posix/stat#", "stat": "http://www.w3.org/ns/posix/stat#",
	"subscription": notifications + "subscription", "channelType": notifications + "channelType",
	"notify": notifications, "WebSocketChannel2023": notifications + "WebSocketChannel2023",
}

// ldContext is the active context. It is never changed once made.
type ldContext struct {
	base   *url.URL
	vocab  string
	terms  map[string]string // as written; expanded when used
	ids    map[string]bool   // expanded properties whose strings are IRIs
	remote bool              // a context elsewhere was named
}

// extend is ctx with a local context on top.
func (c *ldContext) extend(local any) (*ldContext, error) {
	next := *c
	next.terms, next.ids = maps.Clone(c.terms), maps.Clone(c.ids)
	if next.terms == nil {
		next.terms, next.ids = map[string]string{}, map[string]bool{}
	}
	items := list(local)
	if local == nil {
		items = []any{nil}
	}
	for _, item := range items {
		switch item := item.(type) {
		case nil:
			next = ldContext{base: c.base, terms: map[string]string{}, ids: map[string]bool{}}
		case string:
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

func (c *ldContext) define(m map[string]any) error {
	if len(c.terms)+len(m) > maxTerms {
		return errors.New("has a context of too many terms")
	}
	if s, ok := m["@vocab"].(string); ok && len(s) <= maxIRI {
		c.vocab = s
	}
	if s, ok := m["@base"].(string); ok && len(s) <= maxIRI {
		abs, err := resolveIRI(c.base, s)
		if err != nil {
			return err
		}
		if c.base, err = url.Parse(abs); err != nil {
			return errors.New("has a broken base")
		}
	}
	links := []string{}
	for name, v := range m {
		switch v := v.(type) {
		case string:
			if len(v) <= maxIRI {
				c.terms[name] = v
			}
		case map[string]any:
			if id, ok := v["@id"].(string); ok && len(id) <= maxIRI {
				c.terms[name] = id
			}
			if kind := v["@type"]; kind == "@id" || kind == "@vocab" {
				links = append(links, name)
			}
		case nil:
			c.terms[name] = ""
		}
	}
	for _, name := range links {
		c.ids[c.property(name)] = true
	}
	return nil
}

// property is the meaning of a key: a keyword, an IRI, or "" for none.
func (c *ldContext) property(key string) string {
	if s := c.vocabulary(key); strings.HasPrefix(s, "@") || rebase.HasScheme(s) {
		return s
	}
	return ""
}

// vocabulary expands a term, a compact IRI, or an IRI.
func (c *ldContext) vocabulary(s string) string { return c.expand(s, 8) }

func (c *ldContext) expand(s string, steps int) string {
	if strings.HasPrefix(s, "@") || steps == 0 {
		return s
	}
	if def, ok := c.terms[s]; ok {
		if def == s {
			return s
		}
		return c.expand(def, steps-1)
	}
	if prefix, suffix, ok := strings.Cut(s, ":"); ok {
		if strings.HasPrefix(suffix, "//") || prefix == "_" {
			return s
		}
		if ns := c.namespace(prefix); ns != "" {
			return c.expand(ns, steps-1) + suffix
		}
		return s
	}
	if c.remote && wellKnown[s] != "" {
		return wellKnown[s]
	}
	if c.vocab != "" {
		return c.expand(c.vocab, steps-1) + s
	}
	return s
}

// namespace is the IRI of a prefix. The common prefixes work even if the document does not declare
// them.
func (c *ldContext) namespace(prefix string) string {
	if def, ok := c.terms[prefix]; ok {
		return def
	}
	if ns := wellKnown[prefix]; strings.HasSuffix(ns, "#") || strings.HasSuffix(ns, "/") {
		return ns
	}
	return ""
}

// links tells whether strings under a property are IRIs.
func (c *ldContext) links(property string) bool {
	return property == ldpContains || property == notifications+"subscription" ||
		property == notifications+"channelType" || c.ids[property]
}

// reference is the node a string names.
func (c *ldContext) reference(s string) (term, error) {
	if strings.HasPrefix(s, "_:") {
		return term{blankTerm, s[2:]}, nil
	}
	if prefix, suffix, ok := strings.Cut(s, ":"); ok && !strings.HasPrefix(suffix, "//") && c.namespace(prefix) != "" {
		return term{iriTerm, c.vocabulary(s)}, nil
	}
	if c.remote && strings.HasPrefix(wellKnown[s], "http") {
		return term{iriTerm, wellKnown[s]}, nil
	}
	iri, err := resolveIRI(c.base, s)
	return term{iriTerm, iri}, err
}
