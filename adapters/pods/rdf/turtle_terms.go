package rdf

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

func (p *turtle) variable() (Term, error) {
	p.pos++
	start := p.pos
	for p.pos < len(p.in) {
		r, n := utf8.DecodeRuneInString(p.in[p.pos:])
		if !nameRune(r) {
			break
		}
		p.pos += n
	}
	if p.pos == start {
		return Term{}, syntaxError("the name of a variable")
	}
	return Term{Kind: variable, Value: p.in[start:p.pos]}, nil
}

// iri reads <…> or prefix:local.
func (p *turtle) iri() (string, error) {
	if p.peek() == '<' {
		return p.iriRef()
	}
	prefix := p.name()
	if p.peek() != ':' {
		return "", syntaxError("an IRI")
	}
	namespace, ok := p.prefixes[prefix]
	if !ok {
		return "", fmt.Errorf("the prefix %q is not declared", escape.Line(prefix, 40))
	}
	p.pos++
	local, err := p.local()
	if err != nil {
		return "", err
	}
	return p.expanded(namespace + local)
}

// expanded counts an IRI that is longer than in the document: a few bytes can stand for thousands.
func (p *turtle) expanded(s string) (string, error) {
	if p.room -= len(s); p.room < 0 {
		return "", errExpanded
	}
	if len(s) > maxIRI {
		return "", errLongIRI
	}
	return s, nil
}

func (p *turtle) iriRef() (string, error) {
	if p.peek() != '<' {
		return "", syntaxError("an IRI in <>")
	}
	end := strings.IndexAny(p.in[p.pos:], ">\n")
	if end < 0 || p.in[p.pos+end] != '>' {
		return "", syntaxError("the > of an IRI")
	}
	ref, err := Reference(p.in[p.pos+1 : p.pos+end])
	if err != nil {
		return "", err
	}
	p.pos += end + 1
	abs, err := p.base.Resolve(ref)
	if err != nil {
		return "", err
	}
	return p.expanded(abs)
}

// nameRune tells whether r may occur in a prefix or a label.
func nameRune(r rune) bool {
	return r == '_' || r == '-' || r == 0xb7 || unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r)
}

// firstRune tells whether a name may begin with r.
func firstRune(r rune) bool {
	return nameRune(r) && r != '-' && r != 0xb7 && !unicode.Is(unicode.Mn, r)
}

// name reads a prefix or a label: dots may stand inside, neither at the beginning nor at the end.
func (p *turtle) name() string {
	start, end := p.pos, p.pos
	for p.pos < len(p.in) {
		r, n := utf8.DecodeRuneInString(p.in[p.pos:])
		if !nameRune(r) && r != '.' || p.pos == start && !firstRune(r) {
			break
		}
		if p.pos += n; r != '.' {
			end = p.pos
		}
	}
	p.pos = end
	return p.in[start:end]
}

// local reads the part of a prefixed name behind the colon.
func (p *turtle) local() (string, error) {
	var out strings.Builder
	start, end, kept := p.pos, p.pos, 0
	for p.pos < len(p.in) {
		r, n := utf8.DecodeRuneInString(p.in[p.pos:])
		switch {
		case r == '\\':
			if p.pos+1 >= len(p.in) || !strings.ContainsRune("_~.-!$&'()*+,;=/?#@%", rune(p.in[p.pos+1])) {
				return "", syntaxError("an escape of a local name")
			}
			out.WriteByte(p.in[p.pos+1])
			n = 2
		case r == '%':
			if p.pos+2 >= len(p.in) || !isHex(p.in[p.pos+1]) || !isHex(p.in[p.pos+2]) {
				return "", syntaxError("two hexadecimal digits")
			}
			out.WriteString(p.in[p.pos : p.pos+3])
			n = 3
		case r == ':', p.pos == start && firstRune(r), p.pos > start && (nameRune(r) || r == '.'):
			out.WriteRune(r)
		default:
			n = 0
		}
		if n == 0 {
			break
		}
		if p.pos += n; r != '.' {
			end, kept = p.pos, out.Len()
		}
	}
	p.pos = end
	return out.String()[:kept], nil
}

func isHex(c byte) bool {
	return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func (p *turtle) literal() (Term, error) {
	value, err := p.quoted()
	if err != nil {
		return Term{}, err
	}
	switch {
	case p.peek() == '@':
		p.pos++
		tag := languageTag(p.in[p.pos:])
		if tag == "" {
			return Term{}, syntaxError("a language")
		}
		p.pos += len(tag)
		return text(value, "", tag), nil
	case strings.HasPrefix(p.in[p.pos:], "^^"):
		p.pos += 2
		datatype, err := p.iri()
		return text(value, datatype, ""), err
	}
	return text(value, "", ""), nil
}

// languageTag is the tag at the beginning of s: letters, then parts of letters and digits, each after
// a hyphen (Turtle, LANGTAG).
func languageTag(s string) string {
	end := 0
	for end < len(s) && isLetter(s[end]) {
		end++
	}
	for end > 0 && end < len(s) && s[end] == '-' {
		part := end + 1
		for part < len(s) && (isLetter(s[part]) || isDigit(s[part])) {
			part++
		}
		if part == end+1 {
			break
		}
		end = part
	}
	return s[:end]
}

// maxLanguage is far more than a tag needs (RFC 5646, 4.4.1: 35). The context of a JSON-LD document can
// give one tag to many texts, each of which gets a copy in lower case.
const maxLanguage = 255

// isLanguage tells whether all of s is a tag.
func isLanguage(s string) bool { return s != "" && len(s) <= maxLanguage && languageTag(s) == s }

// quoted reads a string in any of the four kinds of quotes.
func (p *turtle) quoted() (string, error) {
	quote := p.in[p.pos : p.pos+1]
	long := strings.Repeat(quote, 3)
	isLong := strings.HasPrefix(p.in[p.pos:], long)
	if isLong {
		quote = long
	}
	p.pos += len(quote)
	start := p.pos
	for p.pos < len(p.in) {
		switch {
		case p.in[p.pos] == '\\':
			p.pos++
		case strings.HasPrefix(p.in[p.pos:], quote):
			// """a"""" ends with a quote of its own.
			for isLong && p.pos+3 < len(p.in) && p.in[p.pos+3] == quote[0] {
				p.pos++
			}
			value := p.in[start:p.pos]
			p.pos += len(quote)
			return unescape(value, true)
		case !isLong && (p.in[p.pos] == '\n' || p.in[p.pos] == '\r'):
			return "", syntaxError("the end of a string")
		}
		p.pos++
	}
	p.pos = len(p.in)
	return "", syntaxError("the end of a string")
}

// number reads an integer, a decimal or a double (Turtle, 2.5.2).
func (p *turtle) number() (Term, error) {
	start := p.pos
	if c := p.peek(); c == '+' || c == '-' {
		p.pos++
	}
	whole := p.digits()
	datatype, fraction := XSD+"integer", 0
	if p.peek() == '.' {
		p.pos++
		fraction = p.digits()
		switch {
		case fraction > 0:
			datatype = XSD + "decimal"
		case whole == 0:
			return Term{}, syntaxError("a term")
		case !p.exponent(false):
			p.pos-- // the dot ends the statement
			return text(p.in[start:p.pos], datatype, ""), nil
		}
	}
	if whole+fraction == 0 {
		return Term{}, syntaxError("a term")
	}
	if p.exponent(true) {
		datatype = XSD + "double"
	}
	return text(p.in[start:p.pos], datatype, ""), nil
}

func (p *turtle) digits() (n int) {
	for isDigit(p.peek()) {
		p.pos++
		n++
	}
	return n
}

// exponent tells whether an exponent comes next, and takes it if told so.
func (p *turtle) exponent(take bool) bool {
	start := p.pos
	if c := p.peek(); c == 'e' || c == 'E' {
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if p.digits() > 0 {
			if !take {
				p.pos = start
			}
			return true
		}
	}
	p.pos = start
	return false
}

// unescape decodes \uXXXX and \UXXXXXXXX, in strings also \t \n and their like.
func unescape(s string, str bool) (string, error) {
	i := strings.IndexByte(s, '\\')
	if i < 0 {
		return s, nil
	}
	var out strings.Builder
	for i >= 0 {
		out.WriteString(s[:i])
		s = s[i+1:]
		if s == "" {
			return "", syntaxError("an escape")
		}
		c := s[0]
		s = s[1:]
		n := 0
		switch c {
		case 'u':
			n = 4
		case 'U':
			n = 8
		}
		switch {
		case n > 0:
			if len(s) < n {
				return "", syntaxError("hexadecimal digits")
			}
			v, err := strconv.ParseUint(s[:n], 16, 32)
			if err != nil || v > unicode.MaxRune || !utf8.ValidRune(rune(v)) {
				return "", syntaxError("a code point")
			}
			out.WriteRune(rune(v))
			s = s[n:]
		case str && strings.IndexByte(escaped, c) >= 0:
			out.WriteByte(means[strings.IndexByte(escaped, c)])
		default:
			return "", syntaxError("an escape")
		}
		i = strings.IndexByte(s, '\\')
	}
	out.WriteString(s)
	return out.String(), nil
}
