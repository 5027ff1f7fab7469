package rdf

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// The media types of patches.
const (
	MediaN3           = "text/n3"
	MediaSPARQLUpdate = "application/sparql-update"
)

const (
	maxOperations = 64        // of one SPARQL Update
	maxSteps      = 1_000_000 // that a patch may take: triples looked at, patterns compared, terms made
)

const (
	// ErrNoMatch means that an N3 patch does not fit the document: its conditions hold for no mapping of
	// its variables or for several, or a triple that it deletes is not there. The Solid Protocol wants 409.
	ErrNoMatch = errorText("the patch does not match the document")
	// ErrTooComplex means that the conditions of a patch would take too long to find in the document.
	ErrTooComplex = errorText("the patch is too complex for the document")
	// ErrNotPatch means that an N3 document is well-formed, but breaks a rule for patches. The Solid Protocol wants 422.
	ErrNotPatch = errorText("not an N3 patch")
)

// notPatch is an ErrNotPatch with its reason.
type notPatch string

func (e notPatch) Error() string { return string(e) }

func (e notPatch) Unwrap() error { return ErrNotPatch }

// Patch is a list of changes of one document.
type Patch struct {
	operations []operation
	// exact means the rules of N3 patches: one mapping, and each deleted triple is there. SPARQL Update
	// makes the change for each mapping, and deletes what is there.
	exact bool
}

// operation replaces deletes by inserts for mappings for which where holds. In where, blank nodes are
// variables whose names begin with "_:".
type operation struct{ where, deletes, inserts []pattern }

// ParsePatch reads a patch: text/n3 as the Solid Protocol 0.11 defines it in 5.3.1, or
// application/sparql-update. Relative IRIs are resolved against base, the URL of the document.
//
// As the Protocol says, blank nodes in solid:inserts and solid:deletes of an N3 patch are an error: a
// blank node of a document has no name by which a patch could mean it. A blank
// node in solid:where means any node, as a variable does; if two mappings of the variables differ only
// in what blank nodes stand for, they are the same mapping. SPARQL Update
// inserts blank nodes as new nodes and refuses them in what is deleted.
func ParsePatch(mediaType string, doc []byte, base *url.URL) (*Patch, error) {
	if len(doc) > MaxDocument {
		return nil, fmt.Errorf("%w: has more than %d bytes", ErrTooLarge, MaxDocument)
	}
	switch mediaType {
	case MediaN3:
		return parseN3Patch(doc, base)
	case MediaSPARQLUpdate:
		return parseUpdate(doc, base)
	}
	return nil, fmt.Errorf("%w: %q is not a media type of patches", ErrUnsupported, escape.Line(mediaType, 40))
}

// Needs tells which WAC modes the patch needs (Solid Protocol 0.11, 5.3.1): an insertion needs Append, a
// condition Read, a deletion Read and Write. For a SPARQL Update it is the same.
func (p *Patch) Needs() (read, add, write bool) {
	for _, op := range p.operations {
		read = read || len(op.where) > 0 || len(op.deletes) > 0
		add = add || len(op.inserts) > 0
		write = write || len(op.deletes) > 0
	}
	return read, add, write
}

func parseN3Patch(doc []byte, base *url.URL) (*Patch, error) {
	p, err := newTurtle(doc, base, maxExpanded)
	if err != nil {
		return nil, err
	}
	p.dialect = n3
	r := n3Patch{parts: map[string]Term{}}
	p.emit = r.take
	if err := p.document(); err != nil {
		return nil, err
	}
	if !r.typed {
		return nil, notPatch("has no solid:InsertDeletePatch")
	}
	part := func(name string) []pattern {
		f, ok := r.parts[Solid+name]
		if !ok {
			return nil
		}
		i, _ := strconv.Atoi(f.Value) // formula made it
		return p.formulas[i]
	}
	op := operation{where: existential(part("where")), deletes: part("deletes"), inserts: part("inserts")}
	known := map[Term]bool{}
	for _, t := range op.where {
		for _, x := range t.terms() {
			known[x] = true
		}
	}
	for _, t := range slices.Concat(op.deletes, op.inserts) {
		if t.has(Blank) {
			return nil, notPatch("has a blank node in solid:inserts or solid:deletes")
		}
		for _, x := range t.terms() {
			if x.Kind == variable && !known[x] {
				return nil, notPatch(fmt.Sprintf("has a variable %q that solid:where does not have", escape.Line(x.Value, 40)))
			}
		}
	}
	return &Patch{operations: []operation{op}, exact: true}, nil
}

// n3Patch gathers the statements about the one patch of a document.
type n3Patch struct {
	subject Term
	found   bool
	typed   bool
	parts   map[string]Term
}

func (r *n3Patch) take(t pattern) error {
	if t.has(variable) {
		return notPatch("has a variable outside of the formulas")
	}
	part := t.p.Value == Solid+"where" || t.p.Value == Solid+"deletes" || t.p.Value == Solid+"inserts"
	typed := t.p.Value == Type && t.o == iri(Solid+"InsertDeletePatch")
	switch {
	case !part && t.o.Kind == formula:
		return notPatch("has a formula that is no part of a patch")
	case !part && !typed:
		return nil
	case r.found && r.subject != t.s:
		return notPatch("has more than one patch")
	}
	r.subject, r.found = t.s, true
	if typed {
		r.typed = true
		return nil
	}
	if _, twice := r.parts[t.p.Value]; twice || t.o.Kind != formula {
		return notPatch("does not have exactly one formula as " + strings.TrimPrefix(t.p.Value, Solid))
	}
	r.parts[t.p.Value] = t.o
	return nil
}

func (t pattern) terms() [3]Term { return [3]Term{t.s, t.p, t.o} }

func (t pattern) has(k Kind) bool { return t.s.Kind == k || t.p.Kind == k || t.o.Kind == k }

// existential makes variables of the blank nodes of a where clause.
func existential(where []pattern) []pattern {
	for i := range where {
		for _, x := range []*Term{&where[i].s, &where[i].o} {
			if x.Kind == Blank {
				*x = Term{Kind: variable, Value: "_:" + x.Value}
			}
		}
	}
	return where
}

// Apply changes g. If it returns an error, g is as before.
func (p *Patch) Apply(g *Graph) error {
	a := &application{exact: p.exact, matcher: matcher{g: &Graph{maps.Clone(g.triples), g.fresh}}}
	for _, op := range p.operations {
		if err := a.operation(op); err != nil {
			return err
		}
	}
	*g = *a.g
	return nil
}

// application is a patch on its way.
type application struct {
	matcher
	exact bool
}

func (a *application) operation(op operation) error {
	variables, mappings, err := a.mappings(op)
	if err != nil {
		return err
	}
	var gone, come []Triple
	for _, m := range mappings {
		if len(come) > MaxTriples {
			return fmt.Errorf("%w: the patch inserts more than %d triples", ErrTooLarge, MaxTriples)
		}
		made := map[Term]Term{}
		for _, t := range op.deletes {
			x, ok, err := a.instance(t, variables, m, made)
			switch {
			case err != nil:
				return err
			case ok && (a.g.Has(x) || !a.exact):
				gone = append(gone, x)
			case a.exact:
				return fmt.Errorf("%w: a triple to delete is not there", ErrNoMatch)
			}
		}
		for _, t := range op.inserts {
			x, ok, err := a.instance(t, variables, m, made)
			switch {
			case err != nil:
				return err
			case ok:
				come = append(come, x)
			case a.exact:
				return fmt.Errorf("%w: an insertion would not be a triple", ErrNoMatch)
			}
		}
	}
	for _, t := range gone {
		a.g.Delete(t)
	}
	for _, t := range come {
		a.add(t)
	}
	if a.g.Len() > MaxTriples {
		return fmt.Errorf("%w: the document would have more than %d triples", ErrTooLarge, MaxTriples)
	}
	return nil
}

// mappings are the values of the variables for which the where clause holds.
func (a *application) mappings(op operation) (variables map[string]int, found [][]Term, err error) {
	if len(op.where) == 0 {
		return nil, [][]Term{nil}, nil
	}
	q := compile(op.where)
	several := false
	err = a.solve(q, func(m []Term) (more bool) {
		if a.exact && len(found) > 0 {
			several = several || !q.same(found[0], m)
			return !several
		}
		found = append(found, slices.Clone(m))
		return true
	})
	switch {
	case err != nil:
		return nil, nil, err
	case several:
		return nil, nil, fmt.Errorf("%w: the conditions hold in several ways", ErrNoMatch)
	case a.exact && len(found) == 0:
		return nil, nil, fmt.Errorf("%w: the conditions do not hold", ErrNoMatch)
	}
	return q.variables, found, nil
}

// instance is a template with the values of its variables; false if that is no triple. Blank nodes
// become new ones, the same ones for one mapping.
func (a *application) instance(t pattern, variables map[string]int, values []Term, made map[Term]Term) (Triple, bool, error) {
	terms := t.terms()
	for i, x := range terms {
		switch x.Kind {
		case variable:
			at, ok := variables[x.Value]
			if !ok {
				return Triple{}, false, nil
			}
			terms[i] = values[at]
		case Blank:
			if _, ok := made[x]; !ok {
				a.g.fresh++
				// Neither labels in documents nor those of the readers begin with two spaces.
				made[x] = Term{Kind: Blank, Value: "  " + strconv.Itoa(a.g.fresh)}
			}
			terms[i] = made[x]
		}
	}
	out := Triple{terms[0], terms[1].Value, terms[2]}
	return out, terms[0].Kind != Literal && terms[1].Kind == IRI, a.step(effort(out))
}
