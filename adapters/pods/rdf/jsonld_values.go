package rdf

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// languages reads a map from languages to strings.
func (w *ldWalker) languages(p ldProperty, m map[string]any, ctx *ldContext) error {
	for _, lang := range slices.Sorted(maps.Keys(m)) {
		items, ok := m[lang].([]any)
		if !ok {
			items = []any{m[lang]}
		}
		l := ldLiteral{language: lang, direction: ctx.directionOf(p.term)}
		if name, err := ctx.expand(lang, inVocabulary, nil); err != nil {
			return err
		} else if name == "@none" {
			l.language = ""
		} else if !isLanguage(lang) {
			if err := w.invalid("a language is not a tag"); err != nil {
				return err
			}
		}
		for _, item := range items {
			s, ok := item.(string)
			if !ok {
				if item == nil {
					continue
				}
				if err := w.invalid("a language has a value that is not a string"); err != nil {
					return err
				}
				continue
			}
			l.value = s
			if err := w.put(p, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// scalar reads a string, number or boolean under a property.
func (w *ldWalker) scalar(p ldProperty, v any, ctx *ldContext) error {
	l := ldLiteral{value: v, index: p.index}
	if p.term.kind != "" && p.term.kind[0] != '@' {
		var err error
		if l.datatype, err = w.named(p.term.kind); err != nil {
			return err
		}
	}
	s, isText := v.(string)
	var where scope
	switch {
	case isText && p.term.kind == "@vocab":
		where = inVocabulary
	case isText && (p.term.kind == "@id" || ctx.lenient && links(p.iri)):
	case !isText, l.datatype != "":
		return w.put(p, l)
	default:
		l.language, l.direction = ctx.language, ctx.directionOf(p.term)
		if p.term.language != nil {
			l.language = *p.term.language
		}
		return w.put(p, l)
	}
	id, err := w.reference(s, ctx, where)
	if err != nil {
		return err
	}
	if err := w.out.node(id, p.index); err != nil {
		return err
	}
	w.out.endNode()
	return nil
}

// put gives a literal on. One that is none is left out where the reader is lenient.
func (w *ldWalker) put(p ldProperty, l ldLiteral) error {
	if p.reverse {
		return w.invalid("a literal has a reverse property")
	}
	err := w.out.literal(l)
	if w.lenient && errors.Is(err, errNoLiteral) {
		return nil
	}
	return err
}

// valueObject reads a value object.
func (w *ldWalker) valueObject(p ldProperty, o *ldObject) error {
	l := ldLiteral{value: o.keywords["@value"], index: o.index(p)}
	for _, name := range slices.Sorted(maps.Keys(o.keywords)) {
		v := o.keywords[name]
		s, isText := v.(string)
		var err error
		switch {
		case name == "@value", name == "@index", v == nil:
		case name == "@type" && s == "@json":
			l.datatype = s
		case name == "@type" && isText:
			if l.datatype, err = w.reference(s, o.ctx, inVocabulary); err == nil && strings.HasPrefix(l.datatype, "_:") {
				l.datatype, err = "", w.invalid("a datatype is no IRI")
			}
		case name == "@language" && isLanguage(s):
			l.language = s
		case name == "@direction" && isDirection(s):
			l.direction = s
		default:
			err = w.invalid("a literal has a wrong " + name)
		}
		if err != nil {
			return err
		}
	}
	if l.datatype != "" && l.language+l.direction != "" {
		if err := w.invalid("a literal has both a type and a language"); err != nil {
			return err
		}
	}
	switch _, isText := l.value.(string); {
	case l.datatype == "@json":
	case l.value == nil:
		return nil
	case !isText && l.language != "":
		if err := w.invalid("a number has a language"); err != nil {
			return err
		}
		l.language = ""
	}
	return w.put(p, l)
}

func isDirection(s string) bool { return s == "ltr" || s == "rtl" }

const errNoLiteral = errorText("has a literal that is neither text nor boolean nor a number in range")

// term is the literal in RDF. A number gets the form that JSON-LD gives it (JSON-LD 1.1 API, 8.2.2); an
// integer keeps all its digits.
func (l ldLiteral) term() (Term, error) {
	switch v := l.value.(type) {
	case string:
		return text(v, l.datatype, l.language), nil
	case bool:
		return text(strconv.FormatBool(v), cmp.Or(l.datatype, XSD+"boolean"), ""), nil
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return Term{}, errNoLiteral
		}
		if f != math.Trunc(f) || math.Abs(f) >= 1e21 || l.datatype == XSD+"double" {
			return text(canonicalDouble(f), cmp.Or(l.datatype, XSD+"double"), ""), nil
		}
		s := v.String()
		if strings.ContainsAny(s, ".eE") || s == "-0" {
			s = strconv.FormatFloat(math.Abs(f), 'f', 0, 64)
			if f < 0 {
				s = "-" + s
			}
		}
		return text(s, cmp.Or(l.datatype, XSD+"integer"), ""), nil
	}
	return Term{}, errNoLiteral
}

// canonicalDouble is the form that JSON-LD gives a double: 1.5E0.
func canonicalDouble(f float64) string {
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'E', 15, 64), "E")
	mantissa = strings.TrimRight(mantissa, "0")
	if strings.HasSuffix(mantissa, ".") {
		mantissa += "0"
	}
	sign := ""
	if exponent[0] == '-' {
		sign = "-"
	}
	exponent = strings.TrimLeft(exponent[1:], "0")
	if exponent == "" {
		sign, exponent = "", "0"
	}
	return mantissa + "E" + sign + exponent
}
