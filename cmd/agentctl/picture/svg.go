// Package picture draws a boot record and a plan as SVG, Chrome trace, Graphviz DOT and Mermaid. It
// computes text from values, and escapes every name and reason for the output language. It must
// never read a file, ask agentinit, or read a clock.
package picture

import (
	"encoding/xml"
	"fmt"
	"strings"
	"unicode"

	"github.com/dreamlab-ai/agentinit/internal/table"
)

// style sets the colours for a light and for a dark page. A viewer without media queries shows the
// light colours.
const style = `<style>
svg{background:#fff}
text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}
.dim{fill:#59636e}
.grid{stroke:#d1d9e0}
.ok{fill:#57a773}.warning{fill:#d4a72c}.failed{fill:#cf222e}.running{fill:#8c959f}
.starting{fill:#9ecbff}.probing{fill:#0969da}.critical{stroke:#cf222e;stroke-width:2}
.node{fill:#f6f8fa;stroke:#59636e}.required{stroke:#0969da;stroke-width:2}.manual{stroke-dasharray:4 3}
.edge{fill:none;stroke:#59636e}.arrow{fill:#59636e}.seal{stroke:#1a7f37;stroke-width:2}
@media (prefers-color-scheme:dark){
svg{background:#0d1117}
text{fill:#e6edf3}
.dim{fill:#9198a1}
.grid{stroke:#3d444d}
.starting{fill:#1f4b7d}.probing{fill:#4493f8}
.node{fill:#151b23;stroke:#9198a1}.required{stroke:#4493f8}
.edge{stroke:#9198a1}.arrow{fill:#9198a1}
}
</style>
`

// charWidth is the width in pixels of one character of the pictures' font.
const charWidth = 7.3

// drawing is an SVG document that is being written.
type drawing struct{ b strings.Builder }

// begin writes the head. A screen reader reads the title.
func (d *drawing) begin(width, height float64, title string) {
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g %g" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&d.b, "<title>%s</title>\n%s", escape(title), style)
}

func (d *drawing) end() string {
	d.b.WriteString("</svg>\n")
	return d.b.String()
}

func (d *drawing) text(x, y float64, class, text string) {
	fmt.Fprintf(&d.b, `<text x="%.1f" y="%.1f"`, x, y)
	if class != "" {
		fmt.Fprintf(&d.b, ` class="%s"`, class)
	}
	fmt.Fprintf(&d.b, ">%s</text>\n", escape(text))
}

// rect draws a box that shows tip when the pointer rests on it.
func (d *drawing) rect(x, y, width, height float64, class, tip string) {
	fmt.Fprintf(&d.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" class="%s"><title>%s</title></rect>`+"\n",
		x, y, width, height, class, escape(tip))
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&d.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

// visible replaces characters that must not be in a picture's text: control characters and
// characters that reorder text.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// escape writes text for XML.
func escape(s string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(visible(s))); err != nil {
		return "" // a strings.Builder accepts every write
	}
	return b.String()
}

// shorten makes text visible and cuts it to a number of columns.
func shorten(s string, columns int) string { return table.Shorten(visible(s), columns) }
