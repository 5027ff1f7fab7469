package rdf

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// ldTriples makes triples of a document.
type ldTriples struct {
	emit    func(pattern) error
	lenient bool
	blanks  int
	open    []ldFrame
}

// ldFrame is a node or a list that has begun.
type ldFrame struct {
	subject   Term   // the node, or the last cell of the list; a list without cells has none
	predicate string // "" if the values of the present key say nothing about the node
	reverse   bool
	list      bool
}

func (x *ldTriples) top() *ldFrame { return &x.open[len(x.open)-1] }

func (x *ldTriples) fresh() Term {
	x.blanks++
	return Term{Kind: Blank, Value: " " + strconv.Itoa(x.blanks)}
}

func (x *ldTriples) node(id, _ string) error {
	t := iri(id)
	if label, ok := strings.CutPrefix(id, "_:"); ok {
		t = Term{Kind: Blank, Value: label}
	} else if id == "" {
		t = x.fresh()
	}
	err := x.put(len(x.open)-1, t)
	x.open = append(x.open, ldFrame{subject: t})
	return err
}

func (x *ldTriples) endNode() { x.open = x.open[:len(x.open)-1] }

func (x *ldTriples) key(name string) error {
	switch name {
	case "@graph":
		return leftOut(x.lenient, ErrUnsupported, "a named graph")
	case "@reverse":
		x.top().reverse = true
	case "@type", "@included":
	default:
		x.top().predicate = name
	}
	return nil
}

func (x *ldTriples) endKey(name string) {
	x.top().predicate = ""
	if name == "@reverse" {
		x.top().reverse = false
	}
}

func (x *ldTriples) class(name string) error {
	x.top().predicate = Type
	if err := x.node(name, ""); err != nil {
		return err
	}
	x.endNode()
	return nil
}

func (x *ldTriples) literal(l ldLiteral) error {
	switch {
	case l.datatype == "@json":
		return leftOut(x.lenient, ErrUnsupported, "a JSON literal")
	case l.direction != "" && !x.lenient:
		return leftOut(false, ErrUnsupported, "a literal has a @direction")
	}
	t, err := l.term()
	if err != nil {
		return err
	}
	return x.put(len(x.open)-1, t)
}

func (x *ldTriples) list(string) error {
	x.open = append(x.open, ldFrame{list: true})
	return nil
}

func (x *ldTriples) endList() error {
	last := x.top().subject
	x.endNode()
	if last == (Term{}) {
		return x.put(len(x.open)-1, iri(NS+"nil"))
	}
	return x.emit(pattern{last, iri(NS + "rest"), iri(NS + "nil")})
}

// put makes a term a value of a frame: the next element of a list, or an object of a node. At the top, it
// is none.
func (x *ldTriples) put(frame int, t Term) error {
	if frame < 0 {
		return nil
	}
	f := &x.open[frame]
	switch {
	case f.list:
		cell := x.fresh()
		var err error
		if f.subject == (Term{}) {
			err = x.put(frame-1, cell)
		} else {
			err = x.emit(pattern{f.subject, iri(NS + "rest"), cell})
		}
		if err != nil {
			return err
		}
		f.subject = cell
		return x.emit(pattern{cell, iri(NS + "first"), t})
	case f.predicate == "":
		return nil
	case f.reverse:
		return x.emit(pattern{t, iri(f.predicate), f.subject})
	}
	return x.emit(pattern{f.subject, iri(f.predicate), t})
}

// ldText writes a document in expanded form. Behind each value there is a comma, until what is around it
// ends. It keeps its first error.
type ldText struct {
	bytes.Buffer
	enc *json.Encoder
	err error
}

func newLDText() *ldText {
	t := &ldText{}
	t.enc = json.NewEncoder(t)
	t.enc.SetEscapeHTML(false)
	t.WriteByte('[')
	return t
}

// text ends the document.
func (t *ldText) text() ([]byte, error) {
	t.end("]")
	t.Truncate(t.Len() - 1)
	t.WriteByte('\n')
	return t.Bytes(), t.err
}

// end replaces the comma behind the last value, if there is one.
func (t *ldText) end(closing string) {
	if n := t.Len() - 1; t.Bytes()[n] == ',' {
		t.Truncate(n)
	}
	t.WriteString(closing + ",")
}

// value writes a JSON value and what comes behind it.
func (t *ldText) value(v any, behind byte) {
	switch {
	case t.err != nil:
		return
	case t.Len() > maxWritten:
		t.err = tooLarge("the expanded document would be too long")
		return
	}
	if t.err = t.enc.Encode(v); t.err == nil {
		t.Bytes()[t.Len()-1] = behind // for the line break of Encode
	}
}

// entry writes an entry of an object, but none without a value.
func (t *ldText) entry(key, value string) {
	if value != "" {
		t.value(key, ':')
		t.value(value, ',')
	}
}

func (t *ldText) node(id, index string) error {
	t.WriteByte('{')
	t.entry("@id", id)
	t.entry("@index", index)
	return t.err
}

func (t *ldText) endNode() { t.end("}") }

func (t *ldText) key(name string) error {
	t.value(name, ':')
	if name == "@reverse" {
		t.WriteByte('{')
	} else {
		t.WriteByte('[')
	}
	return t.err
}

func (t *ldText) endKey(name string) {
	if name == "@reverse" {
		t.end("}")
	} else {
		t.end("]")
	}
}

func (t *ldText) class(iri string) error {
	t.value(iri, ',')
	return t.err
}

func (t *ldText) literal(l ldLiteral) error {
	switch l.value.(type) {
	case []any, map[string]any:
		if l.datatype != "@json" {
			return errNoLiteral
		}
	}
	t.WriteByte('{')
	t.value("@value", ':')
	t.value(l.value, ',')
	t.entry("@type", l.datatype)
	t.entry("@language", l.language)
	t.entry("@direction", l.direction)
	t.entry("@index", l.index)
	t.end("}")
	return t.err
}

func (t *ldText) list(index string) error {
	t.WriteByte('{')
	t.entry("@index", index)
	t.value("@list", ':')
	t.WriteByte('[')
	return t.err
}

func (t *ldText) endList() error {
	t.end("]")
	t.end("}")
	return nil
}
