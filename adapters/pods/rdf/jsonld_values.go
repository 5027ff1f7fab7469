package rdf

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// languages reads a map from languages to strings.
func (w *ldWalker) languages(m map[string]any, put func(Term) error) error {
	for _, lang := range slices.Sorted(maps.Keys(m)) {
		items, ok := m[lang].([]any)
		if !ok {
			items = []any{m[lang]}
		}
		tag := lang
		if lang == "@none" {
			tag = ""
		} else if languageTag(lang) != lang {
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
			if err := put(text(s, "", tag)); err != nil {
				return err
			}
		}
	}
	return nil
}

// scalar is the term of a string, number or boolean under a property.
func (w *ldWalker) scalar(p ldProperty, v any, ctx *ldContext) (Term, error) {
	datatype := ""
	if !strings.HasPrefix(p.term.kind, "@") {
		datatype = p.term.kind
	}
	s, ok := v.(string)
	if !ok {
		return native(v, datatype)
	}
	switch {
	case p.term.kind == "@vocab":
		return w.reference(s, ctx, inVocabulary)
	case p.term.kind == "@id", ctx.lenient && links(p.iri):
		return w.reference(s, ctx, 0)
	case datatype != "":
		return text(s, datatype, ""), nil
	case p.term.language != nil:
		return text(s, "", *p.term.language), nil
	}
	return text(s, "", ctx.language), nil
}

// literal reads a value object.
func (w *ldWalker) literal(o *ldObject) (Term, error) {
	datatype, language := "", ""
	for _, name := range slices.Sorted(maps.Keys(o.keywords)) {
		v := o.keywords[name]
		s, isText := v.(string)
		var err error
		switch {
		case name == "@value", name == "@index", v == nil:
		case name == "@type" && s == "@json", name == "@direction":
			err = w.unsupported("a literal has " + name)
		case name == "@type" && isText:
			var t Term
			if t, err = w.reference(s, o.ctx, inVocabulary); err == nil && t.Kind != IRI {
				err = w.invalid("a datatype is no IRI")
			}
			datatype = t.Value
		case name == "@language" && isText && languageTag(s) == s && s != "":
			language = s
		default:
			err = w.invalid("a literal has a wrong " + name)
		}
		if err != nil {
			return Term{}, err
		}
	}
	if datatype != "" && language != "" {
		if err := w.invalid("a literal has both a type and a language"); err != nil {
			return Term{}, err
		}
	}
	s, ok := o.keywords["@value"].(string)
	if ok {
		return text(s, datatype, language), nil
	}
	if language != "" {
		if err := w.invalid("a number has a language"); err != nil {
			return Term{}, err
		}
	}
	return native(o.keywords["@value"], datatype)
}

// native is the literal of a number or a boolean (JSON-LD 1.1 API, 8.2.2). An integer keeps all its digits.
func native(v any, datatype string) (Term, error) {
	switch v := v.(type) {
	case bool:
		return text(strconv.FormatBool(v), cmp.Or(datatype, XSD+"boolean"), ""), nil
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return Term{}, errNoLiteral
		}
		if f != math.Trunc(f) || math.Abs(f) >= 1e21 || datatype == XSD+"double" {
			return text(canonicalDouble(f), cmp.Or(datatype, XSD+"double"), ""), nil
		}
		s := v.String()
		if strings.ContainsAny(s, ".eE") || s == "-0" {
			s = strconv.FormatFloat(math.Abs(f), 'f', 0, 64)
			if f < 0 {
				s = "-" + s
			}
		}
		return text(s, cmp.Or(datatype, XSD+"integer"), ""), nil
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
