package rdf

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parseTurtle reads Turtle 1.1 (https://www.w3.org/TR/turtle/), of which N-Triples is a part. It is
// strict about what would change the triples and lenient about which letters a name may hold.
func parseTurtle(doc []byte, base *url.URL, room int, emit func(pattern) error) error {
	p, err := newTurtle(doc, base, room)
	if err != nil {
		return err
	}
	p.emit = emit
	return p.document()
}

// dialect is what a document may hold beyond Turtle.
type dialect uint8

const (
	plain  dialect = iota
	n3             // variables and formulas
	sparql         // variables, keywords in any case
)

// turtle reads Turtle and the parts of N3 and SPARQL that write triples as Turtle does.
type turtle struct {
	in       string
	pos      int
	base     Resolver
	prefixes map[string]string
	emit     func(pattern) error
	dialect  dialect
	formulas [][]pattern
	inside   bool // a formula
	blanks   int
	depth    int
	room     int // bytes that IRIs may still take
}

func newTurtle(doc []byte, base *url.URL, room int) (*turtle, error) {
	in, err := utf8Text(doc)
	if err != nil {
		return nil, err
	}
	return &turtle{in: in, base: NewResolver(base), prefixes: map[string]string{}, room: room}, nil
}

// maxFormulas is how many a patch may have: solid:where, solid:deletes and solid:inserts.
const maxFormulas = 3

func (p *turtle) document() error {
	for {
		p.space()
		if p.pos == len(p.in) {
			return nil
		}
		if err := p.statement(); err != nil {
			return p.at(err)
		}
	}
}

// at adds the line to an error.
func (p *turtle) at(err error) error {
	return fmt.Errorf("line %d: %w", 1+strings.Count(p.in[:p.pos], "\n"), err)
}

// syntaxError is what the grammar requires at a place that has something else.
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
	namespace, err := p.iriRef()
	if err != nil {
		return err
	}
	p.prefixes[name] = namespace
	if dot {
		return p.want('.')
	}
	return nil
}

func (p *turtle) setBase(dot bool) error {
	p.space()
	base, err := p.iriRef()
	if err != nil {
		return err
	}
	p.base = Resolver{parseReference(base), true}
	if dot {
		return p.want('.')
	}
	return nil
}

// block reads the triples between braces; the dot behind the last one may be missing (SPARQL 1.1,
// TriplesTemplate; N3).
func (p *turtle) block() ([]pattern, error) {
	if err := p.want('{'); err != nil {
		return nil, err
	}
	outer := p.emit
	defer func() { p.emit = outer }()
	var all []pattern
	p.emit = func(t pattern) error {
		if len(all) == MaxTriples {
			return fmt.Errorf("%w: has more than %d triples", ErrTooLarge, MaxTriples)
		}
		all = append(all, t)
		return nil
	}
	for !p.take('}') {
		if err := p.triples(); err != nil {
			return nil, err
		}
		if !p.take('.') && !p.foreignClause() {
			return all, p.want('}')
		}
	}
	return all, nil
}

func (p *turtle) triples() error {
	if p.foreignClause() {
		return fmt.Errorf("%w: a group of SPARQL that holds more than triples", ErrUnsupported)
	}
	subject, alone, err := p.subject()
	if err != nil {
		return err
	}
	p.space()
	if c := p.peek(); alone && (c == '.' || c == '}') {
		return nil
	}
	return p.predicates(subject)
}

// subject also tells whether it may occur without a predicate, like a filled [ … ].
func (p *turtle) subject() (t Term, alone bool, err error) {
	switch c := p.peek(); {
	case c == '[':
		return p.anon()
	case c == '(':
		t, err = p.collection()
		return t, false, err
	case c == '_':
		t, err = p.blank()
		return t, false, err
	case p.startsVariable(c):
		t, err = p.variable()
		return t, false, err
	}
	s, err := p.iri()
	return iri(s), false, err
}

func (p *turtle) predicates(subject Term) error {
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
		if c := p.peek(); c == '.' || c == ']' || c == '}' || p.pos == len(p.in) {
			return nil
		}
	}
}

func (p *turtle) verb() (Term, error) {
	p.space()
	if p.word("a", false) {
		return iri(Type), nil
	}
	switch c := p.peek(); {
	case p.startsVariable(c):
		return p.variable()
	case p.dialect == sparql && (c == '^' || c == '!' || c == '('):
		return Term{}, fmt.Errorf("%w: a property path", ErrUnsupported)
	}
	s, err := p.iri()
	if err != nil {
		return Term{}, err
	}
	if p.dialect == sparql {
		p.space()
		if c := p.peek(); c == '/' || c == '|' || c == '*' || c == '+' && !p.signed() || c == '?' && !p.startsName() {
			return Term{}, fmt.Errorf("%w: a property path", ErrUnsupported)
		}
	}
	return iri(s), nil
}

// signed tells whether the + that comes next belongs to a number.
func (p *turtle) signed() bool {
	return p.pos+1 < len(p.in) && (isDigit(p.in[p.pos+1]) || p.in[p.pos+1] == '.')
}

// startsName tells whether a name follows the byte that comes next.
func (p *turtle) startsName() bool {
	r, _ := utf8.DecodeRuneInString(p.in[p.pos+1:])
	return nameRune(r)
}

func (p *turtle) objects(subject, verb Term) error {
	for {
		object, err := p.object()
		if err != nil {
			return err
		}
		if err := p.emit(pattern{subject, verb, object}); err != nil {
			return err
		}
		if !p.take(',') {
			return nil
		}
	}
}

func (p *turtle) object() (Term, error) {
	p.space()
	switch c := p.peek(); {
	case c == '[':
		t, _, err := p.anon()
		return t, err
	case c == '(':
		return p.collection()
	case c == '_':
		return p.blank()
	case c == '"', c == '\'':
		return p.literal()
	case isDigit(c), c == '+', c == '-', c == '.':
		return p.number()
	case p.startsVariable(c):
		return p.variable()
	case c == '{' && p.dialect == n3:
		return p.formula()
	case p.word("true", p.dialect == sparql):
		return text("true", XSD+"boolean", ""), nil
	case p.word("false", p.dialect == sparql):
		return text("false", XSD+"boolean", ""), nil
	}
	s, err := p.iri()
	return iri(s), err
}

func (p *turtle) enter() error {
	if p.depth++; p.depth > maxDepth {
		return errTooDeep
	}
	return nil
}

func (p *turtle) fresh() Term {
	p.blanks++
	// A label in the document cannot hold a space.
	return Term{Kind: Blank, Value: " " + strconv.Itoa(p.blanks)}
}

// anon reads [ ] or [ predicates ], and tells whether it has predicates.
func (p *turtle) anon() (t Term, filled bool, err error) {
	if err := p.enter(); err != nil {
		return t, false, err
	}
	defer func() { p.depth-- }()
	p.pos++
	t = p.fresh()
	if p.take(']') {
		return t, false, nil
	}
	if err := p.predicates(t); err != nil {
		return t, true, err
	}
	return t, true, p.want(']')
}

// collection reads ( … ), a list of cells with rdf:first and rdf:rest.
func (p *turtle) collection() (Term, error) {
	if err := p.enter(); err != nil {
		return Term{}, err
	}
	defer func() { p.depth-- }()
	p.pos++
	head, cell := iri(NS+"nil"), Term{}
	for !p.take(')') {
		if p.pos == len(p.in) {
			return Term{}, syntaxError("')'")
		}
		item, err := p.object()
		if err != nil {
			return Term{}, err
		}
		next := p.fresh()
		if cell == (Term{}) {
			head = next
		} else if err := p.emit(pattern{cell, iri(NS + "rest"), next}); err != nil {
			return Term{}, err
		}
		cell = next
		if err := p.emit(pattern{cell, iri(NS + "first"), item}); err != nil {
			return Term{}, err
		}
	}
	if cell == (Term{}) {
		return head, nil
	}
	return head, p.emit(pattern{cell, iri(NS + "rest"), iri(NS + "nil")})
}

func (p *turtle) blank() (Term, error) {
	if !strings.HasPrefix(p.in[p.pos:], "_:") {
		return Term{}, syntaxError("a blank node label")
	}
	p.pos += 2
	label := p.name()
	if label == "" {
		return Term{}, syntaxError("a blank node label")
	}
	return Term{Kind: Blank, Value: label}, nil
}

// formula reads { … } of N3. In a patch, it has only triples in it (Solid Protocol 0.11, 5.3.1).
func (p *turtle) formula() (Term, error) {
	if p.inside || len(p.formulas) == maxFormulas {
		return Term{}, notPatch("has a formula in a formula, or more than three")
	}
	p.inside = true
	triples, err := p.block()
	p.inside = false
	p.formulas = append(p.formulas, triples)
	return Term{Kind: formula, Value: strconv.Itoa(len(p.formulas) - 1)}, err
}

func (p *turtle) startsVariable(c byte) bool {
	return c == '?' && p.dialect != plain || c == '$' && p.dialect == sparql
}

// escaped are the letters behind a backslash, and means the characters that they mean (Turtle, ECHAR).
const (
	escaped = `tbnrf"'\`
	means   = "\t\b\n\r\f\"'\\"
)
