package rdf

import "strings"

// query is a where clause with its variables numbered.
type query struct {
	patterns  []slots
	variables map[string]int
}

// slots are the three terms of a pattern. variable has the number of each, or -1 for a term.
type slots struct {
	terms    [3]Term
	variable [3]int
}

func compile(where []pattern) query {
	q := query{variables: map[string]int{}}
	for _, t := range where {
		s := slots{terms: t.terms()}
		for i, x := range s.terms {
			s.variable[i] = -1
			if x.Kind != variable {
				continue
			}
			if _, ok := q.variables[x.Value]; !ok {
				q.variables[x.Value] = len(q.variables)
			}
			s.variable[i] = q.variables[x.Value]
		}
		q.patterns = append(q.patterns, s)
	}
	return q
}

// same tells whether two mappings are the same one but for what blank nodes stand for.
func (q query) same(a, b []Term) bool {
	for name, i := range q.variables {
		if !strings.HasPrefix(name, "_:") && a[i] != b[i] {
			return false
		}
	}
	return true
}

// matcher finds patterns in a graph. It has a number of steps for a whole patch: in general, the
// time to match a where clause grows exponentially with the number of its triples.
type matcher struct {
	g     *Graph
	steps int
	// The positions in all of the triples with a term at each of the three places; nil until they are
	// needed. A triple stays in them when it is deleted from g.
	all     []Triple
	indexes [3]map[Term][]int32
}

func (m *matcher) step(n int) error {
	if m.steps += n; m.steps > maxSteps {
		return ErrTooComplex
	}
	return nil
}

// effort is how many steps it takes to look a triple up: long texts take longer.
func effort(t Triple) int {
	return 1 + (len(t.Subject.Value)+len(t.Predicate)+len(t.Object.Value))/256
}

// add adds a triple to the graph and to what indexes have been made.
func (m *matcher) add(t Triple) {
	if m.g.Has(t) {
		return
	}
	m.g.Add(t)
	if m.indexes[0] != nil {
		m.index(t)
	}
}

func (m *matcher) index(t Triple) {
	at := int32(len(m.all))
	m.all = append(m.all, t)
	for i, x := range [3]Term{t.Subject, iri(t.Predicate), t.Object} {
		m.indexes[i][x] = append(m.indexes[i][x], at)
	}
}

// solve calls found for each mapping of the variables, until found returns false. found must not keep
// its argument.
func (m *matcher) solve(q query, found func([]Term) bool) error {
	values, bound := make([]Term, len(q.variables)), make([]bool, len(q.variables))
	var rest []slots
	for _, s := range q.patterns {
		if s.variable != [3]int{-1, -1, -1} {
			rest = append(rest, s)
			continue
		}
		t := Triple{s.terms[0], s.terms[1].Value, s.terms[2]}
		if err := m.step(effort(t)); err != nil {
			return err
		}
		if !m.g.Has(t) {
			return nil
		}
	}
	if len(rest) > 0 && m.indexes[0] == nil {
		for i := range m.indexes {
			m.indexes[i] = map[Term][]int32{}
		}
		for _, t := range m.g.Triples() {
			m.index(t)
		}
	}
	_, err := m.search(rest, values, bound, found)
	return err
}

// search binds the variables of the pattern for which the fewest triples can be it, then those of the
// other patterns. It returns false to end the search.
func (m *matcher) search(rest []slots, values []Term, bound []bool, found func([]Term) bool) (more bool, err error) {
	if len(rest) == 0 {
		if err := m.step(len(values)); err != nil {
			return false, err
		}
		return found(values), nil
	}
	if err := m.step(len(rest)); err != nil {
		return false, err
	}
	best, candidates, all := 0, []int32(nil), true
	for i, s := range rest {
		if c, some := m.candidates(s, values, bound); some && (all || len(c) < len(candidates)) {
			best, candidates, all = i, c, false
		}
	}
	n := len(candidates)
	if all {
		n = len(m.all)
	}
	rest[0], rest[best] = rest[best], rest[0]
	defer func() { rest[0], rest[best] = rest[best], rest[0] }()
	s := rest[0]
	for i := range n {
		at := int32(i)
		if !all {
			at = candidates[i]
		}
		t := m.all[at]
		if err := m.step(effort(t)); err != nil {
			return false, err
		}
		if !m.g.Has(t) {
			continue
		}
		var set [3]int // the numbers, from 1 on, of the variables that are bound here
		fits := true
		for place, x := range [3]Term{t.Subject, iri(t.Predicate), t.Object} {
			v := s.variable[place]
			switch {
			case v < 0:
				fits = fits && s.terms[place] == x
			case bound[v]:
				fits = fits && values[v] == x
			default:
				values[v], bound[v], set[place] = x, true, v+1
			}
		}
		if fits {
			more, err = m.search(rest[1:], values, bound, found)
		}
		for _, v := range set {
			if v > 0 {
				bound[v-1] = false
			}
		}
		if fits && (err != nil || !more) {
			return false, err
		}
	}
	return true, nil
}

// candidates are the positions of the triples that can be a pattern; false if that may be any triple.
func (m *matcher) candidates(s slots, values []Term, bound []bool) (at []int32, some bool) {
	for place := range 3 {
		x, v := s.terms[place], s.variable[place]
		if v >= 0 {
			if !bound[v] {
				continue
			}
			x = values[v]
		}
		m.steps += len(x.Value) / 256
		if c := m.indexes[place][x]; !some || len(c) < len(at) {
			at, some = c, true
		}
	}
	return at, some
}
