package rebase

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/piprate/json-gold/ld"
)

// linked moves a JSON-LD document. Which of its texts are IRIs, its context says:
// the document is expanded (JSON-LD 1.1 Processing Algorithms, 5.1), and goes on in
// its expanded form where that has to change. A context that is not in the document
// itself is not fetched: such a document is an error.
func linked(m Move, path string, doc []byte) ([]byte, error) {
	f, err := m.frame(path)
	if err != nil {
		return nil, err
	}
	here, err := expand(doc, f.from.String())
	if err != nil {
		return nil, err
	}
	there, err := expand(doc, f.to.String())
	if err != nil {
		return nil, err
	}
	moved := m.node(here)
	if reflect.DeepEqual(moved, there) {
		return doc, nil // as it is, it says the same on the other side
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(moved); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// noLoader fetches no context.
type noLoader struct{}

func (noLoader) LoadDocument(u string) (*ld.RemoteDocument, error) {
	return nil, fmt.Errorf("its context is at %q", u)
}

// expand reads a document of its own each time: the processor may change it.
func expand(doc []byte, base string) (expanded any, err error) {
	defer func() {
		// The processor panics on some documents that are no JSON-LD (seen by fuzzing).
		if v := recover(); v != nil {
			expanded, err = nil, fmt.Errorf("%w: it is not JSON-LD: %v", ErrUnsupported, v)
		}
	}()
	if !json.Valid(doc) {
		return nil, fmt.Errorf("%w: it is not JSON", ErrUnsupported)
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber() // a number keeps all its digits
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.Join(ErrUnsupported, err)
	}
	opts := ld.NewJsonLdOptions(base)
	opts.DocumentLoader = noLoader{}
	out, err := ld.NewJsonLdProcessor().Expand(v, opts)
	if err != nil {
		return nil, errors.Join(ErrUnsupported, err)
	}
	return any(out), nil
}

// node moves the IRIs of an expanded document: those of nodes, types, datatypes
// and properties. What is below @value is a literal.
func (m Move) node(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = m.node(item)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			switch key {
			case "@id", "@type":
				out[key] = m.names(value)
			case "@value", "@language", "@direction", "@index":
				out[key] = value
			default:
				out[m.IRI(key)] = m.node(value)
			}
		}
		return out
	}
	return v
}

// names moves one IRI or several.
func (m Move) names(v any) any {
	switch v := v.(type) {
	case string:
		return m.IRI(v)
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = m.names(item)
		}
		return out
	}
	return v
}
