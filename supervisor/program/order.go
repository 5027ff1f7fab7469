package program

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Barrier says what a wave waits for in the wave before it.
type Barrier string

// The barriers.
const (
	BarrierReady   Barrier = "ready"   // exec'ed and, if declared, ready; a oneshot: completed
	BarrierRunning Barrier = "running" // RUNNING; a oneshot: completed
	BarrierNone    Barrier = "none"    // does not wait
)

// CycleError says that the needs of some programs form cycles.
type CycleError struct {
	// Cycles name the programs; each needs the next. The first is repeated at the end. No program is
	// in two of them: where cycles overlap, one is named.
	Cycles [][]string
}

func (e *CycleError) Error() string {
	var all []string
	for _, c := range e.Cycles {
		all = append(all, strings.Join(c, " → "))
	}
	return "programs need each other in a circle: " + strings.Join(all, "; ")
}

// UnknownNeedError says that a program needs one that does not exist.
type UnknownNeedError struct {
	Program, Need string
}

func (e *UnknownNeedError) Error() string {
	return fmt.Sprintf("program %s needs %s, which does not exist", e.Program, e.Need)
}

// DuplicateError says that two programs have the same name.
type DuplicateError struct {
	Program string
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("two programs are named %s", e.Program)
}

// graph is a set of programs with its edges, by position.
type graph struct {
	specs []*Spec
	at    map[string]int
	needs [][]int
	wave  []int // priority in force
	topo  []int // needed programs first
}

func newGraph(specs []*Spec) (*graph, error) {
	g := &graph{specs: specs, at: make(map[string]int, len(specs)), needs: make([][]int, len(specs)), wave: make([]int, len(specs))}
	for i := range specs {
		if _, twice := g.at[specs[i].Name]; twice {
			return nil, &DuplicateError{Program: specs[i].Name}
		}
		g.at[specs[i].Name] = i
	}
	for i := range specs {
		for _, need := range specs[i].Needs {
			j, ok := g.at[need.Program]
			if !ok {
				return nil, &UnknownNeedError{Program: specs[i].Name, Need: need.Program}
			}
			g.needs[i] = append(g.needs[i], j)
		}
	}
	if err := g.sort(); err != nil {
		return nil, err
	}
	for _, i := range g.topo {
		g.wave[i] = specs[i].Priority
		for _, j := range g.needs[i] {
			g.wave[i] = max(g.wave[i], g.wave[j])
		}
	}
	return g, nil
}

// sort fills topo by a depth-first search with its own stack: a chain of needs may be as long as
// the list of programs. A cycle that it meets is closed as a whole, so that it finds the cycles
// apart from that one.
func (g *graph) sort() error {
	const (
		fresh = iota
		open
		closed
	)
	mark := make([]uint8, len(g.specs))
	done := make([]int, len(g.specs)) // needs already followed
	var stack []int
	var cycles [][]string
	for root := range g.specs {
		if mark[root] != fresh {
			continue
		}
		stack = append(stack[:0], root)
		mark[root] = open
		for len(stack) > 0 {
			i := stack[len(stack)-1]
			if done[i] == len(g.needs[i]) {
				mark[i] = closed
				g.topo = append(g.topo, i)
				stack = stack[:len(stack)-1]
				continue
			}
			j := g.needs[i][done[i]]
			done[i]++
			switch mark[j] {
			case fresh:
				mark[j] = open
				stack = append(stack, j)
			case open:
				start := len(stack) - 1
				for stack[start] != j {
					start--
				}
				var names []string
				for _, k := range stack[start:] {
					names = append(names, g.specs[k].Name)
					mark[k] = closed
				}
				cycles = append(cycles, append(names, g.specs[j].Name))
				stack = stack[:start]
			}
		}
	}
	if cycles != nil {
		return &CycleError{Cycles: cycles}
	}
	return nil
}

// waves groups the programs by the priority in force, ascending. In a wave, needed programs come
// first; otherwise the given order stays.
func (g *graph) waves() [][]int {
	depth := g.depths()
	order := make([]int, len(g.specs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(g.wave[a], g.wave[b]), cmp.Compare(depth[a], depth[b]))
	})
	var waves [][]int
	for n, i := range order {
		if n == 0 || g.wave[i] != g.wave[order[n-1]] {
			waves = append(waves, nil)
		}
		waves[len(waves)-1] = append(waves[len(waves)-1], i)
	}
	return waves
}

// depths counts the edges of the longest chain of needs inside each program's wave.
func (g *graph) depths() []int {
	depth := make([]int, len(g.specs))
	for _, i := range g.topo {
		for _, j := range g.needs[i] {
			if g.wave[j] == g.wave[i] {
				depth[i] = max(depth[i], depth[j]+1)
			}
		}
	}
	return depth
}

func (g *graph) names(set []int) []string {
	names := make([]string, len(set))
	for n, i := range set {
		names[n] = g.specs[i].Name
	}
	return names
}

// Waves returns the names of the programs in the order of their start. A wave holds the programs of
// one priority. If a program needs one of a later wave, it moves into that wave, because needs take
// precedence over priorities. In a wave, needed programs come first, and only the needs decide
// which program waits for which.
//
// The error is a *CycleError, *UnknownNeedError or *DuplicateError.
func Waves(specs []*Spec) ([][]string, error) {
	g, err := newGraph(specs)
	if err != nil {
		return nil, err
	}
	waves := g.waves()
	names := make([][]string, len(waves))
	for n, wave := range waves {
		names[n] = g.names(wave)
	}
	return names, nil
}

// Pointers returns the addresses of the elements.
func Pointers(specs []Spec) []*Spec {
	all := make([]*Spec, len(specs))
	for i := range specs {
		all[i] = &specs[i]
	}
	return all
}
