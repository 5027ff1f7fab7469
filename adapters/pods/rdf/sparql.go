package rdf

import (
	"fmt"
	"net/url"
	"slices"
)

// parseUpdate reads the part of SPARQL 1.1 Update (https://www.w3.org/TR/sparql11-update/) that Solid
// clients send: INSERT DATA, DELETE DATA, DELETE WHERE, and DELETE and INSERT with a WHERE of triples.
// All else of the language is ErrUnsupported.
func parseUpdate(doc []byte, base *url.URL) (*Patch, error) {
	p, err := newTurtle(doc, base, maxExpanded)
	if err != nil {
		return nil, err
	}
	p.dialect = sparql
	out := &Patch{}
	for {
		if err := p.prologue(); err != nil {
			return nil, p.at(err)
		}
		if p.pos == len(p.in) {
			return out, nil
		}
		if len(out.operations) == maxOperations {
			return nil, fmt.Errorf("%w: has more than %d operations", ErrTooLarge, maxOperations)
		}
		op, err := p.operation()
		if err != nil {
			return nil, p.at(err)
		}
		out.operations = append(out.operations, op)
		if p.take(';') {
			continue
		}
		if p.space(); p.pos < len(p.in) {
			return nil, p.at(syntaxError("';' or the end"))
		}
		return out, nil
	}
}

func (p *turtle) prologue() error {
	for {
		p.space()
		var err error
		switch {
		case p.word("PREFIX", true):
			err = p.prefix(false)
		case p.word("BASE", true):
			err = p.setBase(false)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// operation reads one operation. What its parts may hold is checked here, so that Apply need not.
func (p *turtle) operation() (op operation, err error) {
	switch {
	case p.word("DELETE", true):
		p.space()
		if p.word("DATA", true) {
			op.deletes, err = p.checked(false, false)
			return op, err
		}
		if p.word("WHERE", true) {
			op.deletes, err = p.checked(true, false)
			op.where = op.deletes
			return op, err
		}
		if op.deletes, err = p.checked(true, false); err != nil {
			return op, err
		}
		if p.space(); p.word("INSERT", true) {
			op.inserts, err = p.checked(true, true)
		}
	case p.word("INSERT", true):
		p.space()
		if p.word("DATA", true) {
			op.inserts, err = p.checked(false, true)
			return op, err
		}
		op.inserts, err = p.checked(true, true)
	default:
		for _, w := range []string{"WITH", "LOAD", "CLEAR", "DROP", "CREATE", "ADD", "MOVE", "COPY"} {
			if p.word(w, true) {
				return op, fmt.Errorf("%w: %s", ErrUnsupported, w)
			}
		}
		return op, syntaxError("INSERT or DELETE")
	}
	if err != nil {
		return op, err
	}
	p.space()
	if p.word("USING", true) {
		return op, fmt.Errorf("%w: USING", ErrUnsupported)
	}
	if !p.word("WHERE", true) {
		return op, syntaxError("WHERE")
	}
	op.where, err = p.checked(true, true)
	op.where = existential(op.where)
	return op, err
}

// checked reads a block and refuses variables and blank nodes where they may not be (SPARQL 1.1
// Update, 3.1.1 to 3.1.3 and the notes 6 to 10 of the grammar).
func (p *turtle) checked(variables, blanks bool) ([]pattern, error) {
	all, err := p.block()
	if err != nil {
		return nil, err
	}
	if !variables && slices.ContainsFunc(all, func(t pattern) bool { return t.has(variable) }) {
		return nil, syntaxError("no variables in DATA")
	}
	if !blanks && slices.ContainsFunc(all, func(t pattern) bool { return t.has(Blank) }) {
		return nil, syntaxError("no blank nodes in what is deleted")
	}
	return all, nil
}

// foreignClause tells whether a group holds, at this place, what is not a triple.
func (p *turtle) foreignClause() bool {
	if p.dialect != sparql {
		return false
	}
	p.space()
	if p.peek() == '{' {
		return true
	}
	here := p.pos
	defer func() { p.pos = here }()
	for _, w := range []string{"FILTER", "OPTIONAL", "GRAPH", "UNION", "MINUS", "BIND", "VALUES", "SERVICE", "SELECT"} {
		if p.word(w, true) {
			return true
		}
	}
	return false
}
