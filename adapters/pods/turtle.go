package pods

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// parseTurtle reads Turtle 1.1 (https://www.w3.org/TR/turtle/), of which
// N-Triples is a part, and hands each triple to emit. It is strict about what
// would change the triples and lenient about which characters a name may hold.
func parseTurtle(doc []byte, base *url.URL, emit func(triple)) error {
	p := &turtle{in: string(bytes.TrimPrefix(doc, []byte("\xef\xbb\xbf"))), base: base, prefixes: map[string]string{}, emit: emit}
	for {
		p.space()
		if p.pos == len(p.in) {
			return nil
		}
		if err := p.statement(); err != nil {
			return fmt.Errorf("line %d: %w", 1+strings.Count(p.in[:p.pos], "\n"), err)
		}
	}
}

type turtle struct {
	in       string
	pos      int
	base     *url.URL
	prefixes map[string]string
	emit     func(triple)
	blanks   int
	depth    int
}

// syntaxError is what a reader of the document was promised and did not find.
type syntaxError string

func (e syntaxError) Error() string { return "expected " + string(e) }

// space skips white space and comments.
func (p *turtle) space() {
	for p.pos < len(p.in) {
		switch p.in[p.pos] {
		case ' ', '\t', '\r', '\n':
			p.pos++
		case '#':
			end := strings.IndexAny(p.in[p.pos:], "\r\n")
			if end < 0 {
				end = len(p.in) - p.pos
			}
			p.pos += end
		default:
			return
		}
	}
}

func (p *turtle) peek() byte {
	if p.pos < len(p.in) {
		return p.in[p.pos]
	}
	return 0
}

// take skips space and then c, if c comes next.
func (p *turtle) take(c byte) bool {
	p.space()
	if p.peek() != c || p.pos == len(p.in) {
		return false
	}
	p.pos++
	return true
}

func (p *turtle) want(c byte) error {
	if !p.take(c) {
		return syntaxError(strconv.QuoteRune(rune(c)))
	}
	return nil
}

// word takes a keyword that no name character follows.
func (p *turtle) word(w string, fold bool) bool {
	end := p.pos + len(w)
	if end > len(p.in) {
		return false
	}
	have := p.in[p.pos:end]
	if have != w && !(fold && strings.EqualFold(have, w)) {
		return false
	}
	if r, _ := utf8.DecodeRuneInString(p.in[end:]); end < len(p.in) && (nameRune(r) || r == ':') {
		return false
	}
	p.pos = end
	return true
}

func (p *turtle) statement() error {
	switch {
	case p.word("@prefix", false):
		return p.prefix(true)
	case p.word("@base", false):
		return p.setBase(true)
	case p.word("PREFIX", true):
		return p.prefix(false)
	case p.word("BASE", true):
		return p.setBase(false)
	}
	if err := p.triples(); err != nil {
		return err
	}
	return p.want('.')
}

func (p *turtle) prefix(dot bool) error {
	p.space()
	name := p.name()
	if p.peek() != ':' {
		return syntaxError("a prefix and a colon")
	}
	p.pos++
	p.space()
	iri, err := p.iriRef()
	if err != nil {
		return err
	}
	p.prefixes[name] = iri
	if dot {
		return p.want('.')
	}
	return nil
}

func (p *turtle) setBase(dot bool) error {
	p.space()
	iri, err := p.iriRef()
	if err != nil {
		return err
	}
	u, err := url.Parse(iri)
	if err != nil {
		return syntaxError("an absolute IRI as base")
	}
	p.base = u
	if dot {
		return p.want('.')
	}
	return nil
}

func (p *turtle) triples() error {
	subject, alone, err := p.subject()
	if err != nil {
		return err
	}
	p.space()
	if alone && p.peek() == '.' {
		return nil
	}
	return p.predicates(subject)
}

// subject also tells whether it may occur without a predicate, like a filled [ … ].
func (p *turtle) subject() (term, bool, error) {
	switch p.peek() {
	case '[':
		before := p.pos
		t, err := p.anon()
		return t, strings.TrimSpace(p.in[before+1:max(p.pos-1, before+1)]) != "", err
	case '(':
		t, err := p.collection()
		return t, false, err
	case '_':
		t, err := p.blank()
		return t, false, err
	}
	iri, err := p.iri()
	return term{iriTerm, iri}, false, err
}

func (p *turtle) predicates(subject term) error {
	for {
		verb, err := p.verb()
		if err != nil {
			return err
		}
		if err := p.objects(subject, verb); err != nil {
			return err
		}
		if !p.take(';') {
			return nil
		}
		for p.take(';') {
		}
		p.space()
		if c := p.peek(); c == '.' || c == ']' || p.pos == len(p.in) {
			return nil
		}
	}
}

func (p *turtle) verb() (string, error) {
	p.space()
	if p.word("a", false) {
		return rdfType, nil
	}
	return p.iri()
}

func (p *turtle) objects(subject term, verb string) error {
	for {
		object, err := p.object()
		if err != nil {
			return err
		}
		p.emit(triple{subject, verb, object})
		if !p.take(',') {
			return nil
		}
	}
}

func (p *turtle) object() (term, error) {
	p.space()
	switch c := p.peek(); {
	case c == '[':
		return p.anon()
	case c == '(':
		return p.collection()
	case c == '_':
		return p.blank()
	case c == '"', c == '\'':
		return p.literal()
	case c >= '0' && c <= '9', c == '+', c == '-', c == '.':
		return p.number()
	case p.word("true", false):
		return term{literalTerm, "true"}, nil
	case p.word("false", false):
		return term{literalTerm, "false"}, nil
	}
	iri, err := p.iri()
	return term{iriTerm, iri}, err
}

func (p *turtle) enter() error {
	if p.depth++; p.depth > maxDepth {
		return errTooDeep
	}
	return nil
}

func (p *turtle) fresh() term {
	p.blanks++
	// A label in the document cannot hold a space.
	return term{blankTerm, " " + strconv.Itoa(p.blanks)}
}

// anon reads [ ] or [ predicates ].
func (p *turtle) anon() (term, error) {
	if err := p.enter(); err != nil {
		return term{}, err
	}
	defer func() { p.depth-- }()
	p.pos++
	t := p.fresh()
	if p.take(']') {
		return t, nil
	}
	if err := p.predicates(t); err != nil {
		return t, err
	}
	return t, p.want(']')
}

// collection reads ( … ). It emits the triples of the members but not the list cells, because no
// code here uses lists.
func (p *turtle) collection() (term, error) {
	if err := p.enter(); err != nil {
		return term{}, err
	}
	defer func() { p.depth-- }()
	p.pos++
	for !p.take(')') {
		if p.pos == len(p.in) {
			return term{}, syntaxError("')'")
		}
		if _, err := p.object(); err != nil {
			return term{}, err
		}
	}
	return p.fresh(), nil
}

func (p *turtle) blank() (term, error) {
	if !strings.HasPrefix(p.in[p.pos:], "_:") {
		return term{}, syntaxError("a blank node label")
	}
	p.pos += 2
	label := p.name()
	if label == "" {
		return term{}, syntaxError("a blank node label")
	}
	return term{blankTerm, label}, nil
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
	ns, ok := p.prefixes[prefix]
	if !ok {
		return "", fmt.Errorf("the prefix %q is not declared", cutText(prefix))
	}
	p.pos++
	local, err := p.local()
	return ns + local, err
}

func (p *turtle) iriRef() (string, error) {
	if p.peek() != '<' {
		return "", syntaxError("an IRI in <>")
	}
	end := strings.IndexAny(p.in[p.pos:], ">\n")
	if end < 0 || p.in[p.pos+end] != '>' {
		return "", syntaxError("the > of an IRI")
	}
	if end > maxIRI {
		return "", errors.New("holds an IRI that is too long")
	}
	raw := p.in[p.pos+1 : p.pos+end]
	p.pos += end + 1
	if strings.ContainsAny(raw, " <\"{}|^`") || strings.ContainsFunc(raw, func(r rune) bool { return r < ' ' }) {
		return "", syntaxError("an IRI without spaces or quotes")
	}
	iri, err := unescape(raw, false)
	if err != nil {
		return "", err
	}
	return resolveIRI(p.base, iri)
}

// nameRune tells whether r may occur in a prefix or a label.
func nameRune(r rune) bool {
	return r == '_' || r == '-' || r == 0xb7 || unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r)
}

// name reads a prefix or a label: dots may stand inside, not at the end.
func (p *turtle) name() string {
	start, end := p.pos, p.pos
	for p.pos < len(p.in) {
		r, n := utf8.DecodeRuneInString(p.in[p.pos:])
		if !nameRune(r) && r != '.' {
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
	end, kept := p.pos, 0
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
		case nameRune(r), r == ':', r == '.':
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
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (p *turtle) literal() (term, error) {
	text, err := p.quoted()
	if err != nil {
		return term{}, err
	}
	switch {
	case p.peek() == '@':
		p.pos++
		start := p.pos
		for p.pos < len(p.in) && (p.in[p.pos] == '-' || isAlnum(p.in[p.pos])) {
			p.pos++
		}
		if p.pos == start {
			return term{}, syntaxError("a language")
		}
	case strings.HasPrefix(p.in[p.pos:], "^^"):
		p.pos += 2
		if _, err := p.iri(); err != nil {
			return term{}, err
		}
	}
	return term{literalTerm, text}, nil
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

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
			text := p.in[start:p.pos]
			p.pos += len(quote)
			return unescape(text, true)
		case !isLong && (p.in[p.pos] == '\n' || p.in[p.pos] == '\r'):
			return "", syntaxError("the end of a string")
		}
		p.pos++
	}
	p.pos = len(p.in)
	return "", syntaxError("the end of a string")
}

func (p *turtle) number() (term, error) {
	start, digits := p.pos, 0
	for p.pos < len(p.in) {
		c := p.in[p.pos]
		exponentSign := (c == '+' || c == '-') && (p.pos == start || p.in[p.pos-1] == 'e' || p.in[p.pos-1] == 'E')
		// A dot that no digit follows ends the statement.
		dot := c == '.' && p.pos+1 < len(p.in) && (isAlnum(p.in[p.pos+1]))
		switch {
		case c >= '0' && c <= '9':
			digits++
		case exponentSign, dot, c == 'e', c == 'E':
		default:
			c = 0
		}
		if c == 0 {
			break
		}
		p.pos++
	}
	if digits == 0 {
		return term{}, syntaxError("a term")
	}
	if _, err := strconv.ParseFloat(p.in[start:p.pos], 64); err != nil && !strings.Contains(err.Error(), "range") {
		return term{}, syntaxError("a number")
	}
	return term{literalTerm, p.in[start:p.pos]}, nil
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
		n := map[byte]int{'u': 4, 'U': 8}[c]
		switch {
		case n > 0:
			if len(s) < n {
				return "", syntaxError("hexadecimal digits")
			}
			v, err := strconv.ParseUint(s[:n], 16, 32)
			if err != nil || !utf8.ValidRune(rune(v)) || v > unicode.MaxRune {
				return "", syntaxError("a code point")
			}
			out.WriteRune(rune(v))
			s = s[n:]
		case str && stringEscapes[c] != 0:
			out.WriteByte(stringEscapes[c])
		default:
			return "", syntaxError("an escape")
		}
		i = strings.IndexByte(s, '\\')
	}
	out.WriteString(s)
	return out.String(), nil
}

var stringEscapes = map[byte]byte{
	't': '\t', 'b': '\b', 'n': '\n', 'r': '\r', 'f': '\f', '"': '"', '\'': '\'', '\\': '\\',
}

// cutText keeps a foreign document's words short in a message.
func cutText(s string) string {
	if len(s) > 40 {
		return strings.ToValidUTF8(s[:40], "") + "…"
	}
	return s
}
