package picture

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/internal/table"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// node is one program of a graph.
type node struct {
	name, note       string
	required, manual bool
	wave             int // from 1
	layer, row       int // position in the SVG
}

// edge leads from a program to the one that waits for it.
type edge struct {
	from, to int // of nodes
	label    string
}

// Graph is the dependency graph of a plan: an arrow leads from a program to the
// one that waits for it.
type Graph struct {
	nodes []node
	edges []edge
	waves int
}

// NewGraph makes the graph of a plan. A need that names no program of the plan is left out; the
// findings of the plan report it.
func NewGraph(p *plan.Plan) Graph {
	g := Graph{waves: len(p.Waves)}
	wave := map[string]int{}
	for n, names := range p.Waves {
		for _, name := range names {
			wave[name] = n + 1
		}
	}
	at := map[string]int{}
	for n, prog := range p.Programs {
		s := prog.Spec
		at[s.Name] = n
		g.nodes = append(g.nodes, node{name: s.Name, note: string(s.Type), required: s.Required, manual: !s.Autostart, wave: wave[s.Name]})
	}
	for n, prog := range p.Programs {
		for _, need := range prog.Spec.Needs {
			from, ok := at[need.Program]
			if !ok {
				continue
			}
			e := edge{from: from, to: n}
			if need.Condition != program.NeedReady {
				e.label = string(need.Condition)
			}
			g.edges = append(g.edges, e)
		}
	}
	return g
}

// members are the nodes of one wave.
func (g Graph) members(wave int) (out []int) {
	for n, node := range g.nodes {
		if node.wave == wave {
			out = append(out, n)
		}
	}
	return out
}

// writeWaves writes the nodes wave by wave. If there are several waves, each stands
// between begin, a format for its number, and end.
func (g Graph) writeWaves(b *strings.Builder, begin, end string, writeNode func(n int)) {
	for wave := 0; wave <= g.waves; wave++ {
		members := g.members(wave)
		clustered := g.waves > 1 && wave > 0 && len(members) > 0
		if clustered {
			fmt.Fprintf(b, begin, wave)
		}
		for _, n := range members {
			writeNode(n)
		}
		if clustered {
			b.WriteString(end)
		}
	}
}

// DOT writes the graph for Graphviz. A wave is a cluster if there are several.
func (g Graph) DOT() string {
	var b strings.Builder
	b.WriteString("digraph programs {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n  edge [fontname=\"monospace\"];\n")
	g.writeWaves(&b, "  subgraph cluster_%[1]d {\n    label=\"wave %[1]d\";\n", "  }\n", func(n int) {
		fmt.Fprintf(&b, "  n%d [label=%s%s];\n", n, quoteDOT(g.nodes[n].caption()), g.nodes[n].dotStyle())
	})
	for _, e := range g.edges {
		fmt.Fprintf(&b, "  n%d -> n%d", e.from, e.to)
		if e.label != "" {
			fmt.Fprintf(&b, " [label=%s]", quoteDOT(e.label))
		}
		b.WriteString(";\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// caption is a node's text on one line: the name, and the type unless it is a service.
func (n node) caption() string {
	text := n.name
	if n.note != string(program.Service) && n.note != "" {
		text += " (" + n.note + ")"
	}
	return text
}

func (n node) dotStyle() string {
	var out string
	if n.required {
		out += ", penwidth=2"
	}
	if n.manual {
		out += ", style=dashed"
	}
	return out
}

// quoteDOT writes a quoted string of DOT, in which a backslash begins an escape
// (https://graphviz.org/doc/info/lang.html).
func quoteDOT(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(visible(s)) + `"`
}

// Mermaid writes the graph as a Mermaid flowchart.
func (g Graph) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	g.writeWaves(&b, "  subgraph wave%[1]d[\"wave %[1]d\"]\n", "  end\n", func(n int) {
		fmt.Fprintf(&b, "  n%d[\"%s\"]\n", n, quoteMermaid(g.nodes[n].caption()))
	})
	for _, e := range g.edges {
		if e.label == "" {
			fmt.Fprintf(&b, "  n%d --> n%d\n", e.from, e.to)
		} else {
			fmt.Fprintf(&b, "  n%d -->|\"%s\"| n%d\n", e.from, quoteMermaid(e.label), e.to)
		}
	}
	for n, node := range g.nodes {
		if node.required {
			fmt.Fprintf(&b, "  style n%d stroke-width:3px\n", n)
		}
		if node.manual {
			fmt.Fprintf(&b, "  style n%d stroke-dasharray:4 3\n", n)
		}
	}
	return b.String()
}

// quoteMermaid writes every character that Mermaid, Markdown or HTML could read as
// markup as an entity code of Mermaid: #, the number, ;
// (https://mermaid.js.org/syntax/flowchart.html).
func quoteMermaid(s string) string {
	var b strings.Builder
	for _, r := range visible(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune(" .:-()", r), r > 0x7f:
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "#%d;", r)
		}
	}
	return b.String()
}

// place gives every node a column and a row. The column is after those of its needs and after the
// wave before; the row is near those of its needs.
func (g *Graph) place() (layers [][]int) {
	first := 0
	for wave := 0; wave <= g.waves; wave++ {
		members := g.members(wave)
		for _, n := range members {
			g.nodes[n].layer = first
		}
		// As many rounds as the longest chain can need; this also ends a cycle.
		for range members {
			if !g.push() {
				break
			}
		}
		for _, n := range members {
			if wave > 0 {
				first = max(first, g.nodes[n].layer+1)
			}
		}
	}
	for n := range g.nodes {
		for len(layers) <= g.nodes[n].layer {
			layers = append(layers, nil)
		}
		layers[g.nodes[n].layer] = append(layers[g.nodes[n].layer], n)
	}
	needed := make([][]int, len(g.nodes))
	for _, e := range g.edges {
		needed[e.to] = append(needed[e.to], e.from)
	}
	middle := make([]float64, len(g.nodes))
	for _, layer := range layers {
		for _, n := range layer {
			middle[n] = g.middle(needed[n])
		}
		slices.SortStableFunc(layer, func(a, b int) int { return cmp.Compare(middle[a], middle[b]) })
		for row, n := range layer {
			g.nodes[n].row = row
		}
	}
	return layers
}

// push moves each program behind its needs and tells whether one moved.
func (g *Graph) push() bool {
	moved := false
	for _, e := range g.edges {
		if from, to := g.nodes[e.from], &g.nodes[e.to]; to.layer <= from.layer && from.layer < len(g.nodes) {
			to.layer = from.layer + 1
			moved = true
		}
	}
	return moved
}

// middle is the mean row of programs; a program without a row counts as row 0.
func (g *Graph) middle(of []int) float64 {
	sum := 0
	for _, n := range of {
		sum += g.nodes[n].row
	}
	return float64(sum) / float64(max(1, len(of)))
}

// The measures of a graph in pixels; nodeColumns is the longest caption.
const (
	nodeColumns = 30
	nodeHeight  = 30
	rowGap      = 16
	layerGap    = 110
	margin      = 16
	graphHead   = 44
)

// SVG draws the graph: columns in the order of the start, required programs with
// a thick frame, those that start only by hand with a dashed one.
func (g Graph) SVG() string {
	g.nodes = slices.Clone(g.nodes)
	layers := g.place()
	left, width, height := make([]float64, len(layers)), make([]float64, len(layers)), 0.0
	x := float64(margin)
	for l, layer := range layers {
		left[l] = x
		for _, n := range layer {
			width[l] = max(width[l], float64(table.Width(shorten(g.nodes[n].caption(), nodeColumns)))*charWidth+20)
		}
		x += width[l] + layerGap
		height = max(height, float64(len(layer))*(nodeHeight+rowGap))
	}
	d := &drawing{}
	title := plural.Of(len(g.nodes), "program") + "; an arrow leads from a program to the one that waits for it"
	d.begin(max(x-layerGap+margin, charWidth*float64(len(title))+2*margin), graphHead+height+rowGap+margin, title)
	d.text(margin, 24, "dim", title)
	top := func(n int) float64 { return graphHead + float64(g.nodes[n].row)*(nodeHeight+rowGap) }
	for _, e := range g.edges {
		from, to := g.nodes[e.from].layer, g.nodes[e.to].layer
		sag := 0.0
		if to > from+1 { // pass below the programs in between
			sag = nodeHeight + rowGap
		}
		d.arrow(left[from]+width[from], top(e.from)+nodeHeight/2, left[to], top(e.to)+nodeHeight/2, sag, e.label)
	}
	for l, layer := range layers {
		for _, n := range layer {
			d.node(g.nodes[n], left[l], top(n), width[l])
		}
	}
	return d.end()
}

func (d *drawing) node(n node, x, y, width float64) {
	class, tip := "node", n.caption()
	if n.required {
		class += " required"
		tip += ", required"
	}
	if n.manual {
		class += " manual"
		tip += ", started by hand"
	}
	if n.wave > 0 {
		tip += fmt.Sprintf(", wave %d", n.wave)
	}
	d.rect(x, y, width, nodeHeight, class, tip)
	d.text(x+10, y+nodeHeight/2+4, "", shorten(n.caption(), nodeColumns))
}

// arrow draws a curve from one point to another, bent downwards by sag, with its head at the second
// point.
func (d *drawing) arrow(x1, y1, x2, y2, sag float64, label string) {
	bend := layerGap / 2.0
	fmt.Fprintf(&d.b, `<path d="M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f" class="edge"/>`+"\n", x1, y1, x1+bend, y1+sag, x2-bend, y2+sag, x2-6, y2)
	fmt.Fprintf(&d.b, `<path d="M%.1f %.1fl-8 -4v8z" class="arrow"/>`+"\n", x2, y2)
	if label != "" {
		d.text(x2-charWidth*float64(len(label))-12, y2-5, "dim", label)
	}
}
