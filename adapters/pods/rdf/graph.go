package rdf

import (
	"cmp"
	"maps"
	"slices"
)

// Graph is a set of triples. It is not safe for concurrent use.
type Graph struct {
	triples map[Triple]struct{}
	fresh   int // blank nodes that patches have made
}

// NewGraph makes an empty graph.
func NewGraph() *Graph { return &Graph{triples: map[Triple]struct{}{}} }

// Add adds a triple.
func (g *Graph) Add(t Triple) { g.triples[t] = struct{}{} }

// Delete takes a triple out.
func (g *Graph) Delete(t Triple) { delete(g.triples, t) }

// Has tells whether a triple is in the graph.
func (g *Graph) Has(t Triple) bool {
	_, ok := g.triples[t]
	return ok
}

// Len is the number of triples.
func (g *Graph) Len() int { return len(g.triples) }

// Triples returns the triples ordered by subject, predicate and object.
func (g *Graph) Triples() []Triple {
	return slices.SortedFunc(maps.Keys(g.triples), compareTriples)
}

func compareTriples(a, b Triple) int {
	return cmp.Or(compareTerms(a.Subject, b.Subject), cmp.Compare(a.Predicate, b.Predicate), compareTerms(a.Object, b.Object))
}

func compareTerms(a, b Term) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Datatype, b.Datatype), cmp.Compare(a.Language, b.Language))
}
