package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/cmd/agentctl/picture"
	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/internal/table"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"github.com/gdamore/tcell/v2"
)

// cells is the surface that top draws on: a tcell.Screen.
type cells interface {
	Clear()
	Put(x, y int, text string, style tcell.Style) (rest string, width int)
}

// canvas draws printable text within the terminal's width.
type canvas struct {
	to            cells
	width, height int
	colours       bool
}

// put writes text from column x on and returns the column after it. Text never reaches the terminal
// unchanged: control characters are written as escapes.
func (v canvas) put(x, y int, text string, style tcell.Style) int {
	if y < 0 || y >= v.height {
		return x
	}
	for rest := strings.ReplaceAll(printable(text), "\t", " "); rest != "" && x < v.width; {
		var width int
		before := rest
		if rest, width = v.to.Put(x, y, rest, style); rest == before {
			return x
		}
		x += max(1, width)
	}
	return x
}

// fill writes text, and blanks up to the right edge.
func (v canvas) fill(y int, text string, style tcell.Style) {
	x := v.put(0, y, text, style)
	v.put(x, y, strings.Repeat(" ", max(0, v.width-x)), style)
}

// ink is an SGR colour as a tcell style.
func (v canvas) ink(code string) tcell.Style {
	style := tcell.StyleDefault
	if !v.colours {
		return style
	}
	switch code {
	case red:
		return style.Foreground(tcell.ColorMaroon)
	case green:
		return style.Foreground(tcell.ColorGreen)
	case yellow:
		return style.Foreground(tcell.ColorOlive)
	case cyan:
		return style.Foreground(tcell.ColorTeal)
	case dim:
		return style.Dim(true)
	}
	return style
}

func drawTop(t *topState, to cells) {
	v := canvas{to: to, width: t.width, height: t.height, colours: t.colours}
	to.Clear()
	v.fill(0, t.title(), tcell.StyleDefault.Reverse(true))
	switch t.view {
	case viewPrograms:
		t.drawPrograms(v)
	case viewLogs:
		t.drawLogs(v)
	case viewBoot:
		t.drawText(v, bootLines(t.boot, v.width, t.blocks))
	case viewGraph:
		t.drawText(v, graphLines(t.boot))
	case viewHelp:
		t.drawText(v, strings.Split(topHelp, "\n"))
	}
	if t.height > 1 {
		v.fill(t.height-1, t.footer(), tcell.StyleDefault.Reverse(true))
	}
}

func (t *topState) title() string {
	count := map[string]int{}
	for _, p := range t.programs {
		count[p.Display()]++
	}
	var parts []string
	for _, state := range []program.State{program.Running, program.Starting, program.Stopping, program.Backoff, program.Exited, program.Fatal} {
		if n := count[state.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %v", n, state))
		}
	}
	text := fmt.Sprintf("agentctl top  %s  %s  %s: %s", t.now.UTC().Format(time.TimeOnly), t.phase, plural.Of(len(t.programs), "program"), strings.Join(parts, ", "))
	switch t.view {
	case viewLogs:
		of := "all programs"
		if len(t.logsOf) > 0 {
			of = t.logsOf[0]
		}
		text = "output of " + of
		if t.only != "" {
			text += "  only: " + t.only
		}
		if t.back > 0 {
			text += fmt.Sprintf("  %s above the newest", plural.Of(t.back, "line"))
		}
	case viewBoot:
		text = "boot"
	case viewGraph:
		text = "dependencies"
	case viewHelp:
		text = "keys"
	}
	return text
}

func (t *topState) footer() string {
	switch {
	case t.confirm != nil:
		what := t.confirm.verb
		if t.confirm.signal != "" {
			what += " " + t.confirm.signal
		}
		return what + " " + t.confirm.program + "? y/n"
	case t.prompt == 'k':
		return "signal to " + t.selected + ": " + t.pending
	case t.prompt == '&':
		return "only lines with: " + t.pending
	case t.prompt != 0:
		return "find: " + t.pending
	case t.message != "":
		return t.message
	case t.view == viewPrograms:
		return "q quit ? keys ⏎ logs s start x stop r restart k signal / find o order b boot d deps"
	case t.view == viewLogs:
		return "q back / find n N next & only ↑↓ PgUp PgDn G newest"
	}
	return "q back ↑↓ PgUp PgDn"
}

const topHelp = `q  Ctrl-C     quit, or back to the programs
arrows PgUp PgDn Home End    move
Enter l       output of the selected program, as it comes
L             output of all programs
/             programs: show those whose name or state has a text
              output: find a text; n older, N newer
&             output: show only lines with a text
Esc           back, or show all programs again
o             order: start, cpu, memory, restarts, state, name
s x r         start, stop, restart the selected program
k             send it a signal
b             how the box booted
d             who needs whom
?             these keys`

func (t *topState) drawPrograms(v canvas) {
	list := t.shown()
	nameWidth := 8
	for _, p := range list {
		nameWidth = max(nameWidth, table.Width(printable(p.Name)))
	}
	nameWidth = min(nameWidth, max(8, v.width-56), 32)
	head := fmt.Sprintf("  %-*s %-9s %6s %7s %4s %6s", nameWidth, "NAME", "STATE", "CPU", "MEMORY", "RST", "FOR")
	spark := v.width >= 70
	if spark {
		head += fmt.Sprintf(" %-*s INFO", shareCount, "CPU")
	}
	top := 1
	if v.height > 6 {
		v.put(0, 1, head, v.ink(dim))
		top = 2
	}
	rows := max(1, v.height-1-top)
	at := t.at(list)
	first := min(max(0, at-rows/2), max(0, len(list)-rows))
	for i := first; i < min(len(list), first+rows); i++ {
		t.drawProgram(v, top+i-first, nameWidth, list[i], i == at, spark)
	}
	if len(list) == 0 {
		v.put(2, top, "no program has this name or state; Esc shows all", tcell.StyleDefault)
	}
}

func (t *topState) drawProgram(v canvas, y, nameWidth int, p listing.Program, selected, spark bool) {
	state, colour := listing.State(p.Program)
	plain, ink := tcell.StyleDefault, v.ink(colour)
	mark := "  "
	if selected {
		mark, plain = "> ", plain.Bold(true)
	}
	name := cut(printable(p.Name), nameWidth)
	v.put(0, y, mark+name, plain)
	x := 2 + nameWidth + 1
	v.put(x, y, state, ink)
	x += 10
	cpu := "-"
	if p.Share >= 0 {
		cpu = fmt.Sprintf("%.1f%%", 100*p.Share)
	}
	x = v.put(x, y, fmt.Sprintf("%6s %7s %4d %6s ", cpu, listing.MemoryText(p), p.Restarts, api.Duration(t.now.Sub(p.Since))), plain)
	if spark {
		v.put(x, y, sparkline(t.shares[p.Name], t.blocks), v.ink(cyan))
		v.put(x+shareCount+1, y, listing.Info(p.Program, t.now), plain)
	}
}

// sparkline draws shares of a processor; a whole processor has full height.
func sparkline(shares []float64, blocks bool) string {
	levels := []rune("_.,-=+*#")
	if blocks {
		levels = []rune("▁▂▃▄▅▆▇█")
	}
	out := []rune(strings.Repeat(" ", shareCount-len(shares)))
	for _, s := range shares {
		out = append(out, levels[min(max(0, int(s*float64(len(levels)))), len(levels)-1)])
	}
	return string(out)
}

func (t *topState) drawLogs(v canvas) {
	lines := t.shownLines()
	end := max(0, len(lines)-t.back)
	begin := max(0, end-t.rows())
	for i, l := range lines[begin:end] {
		prefix := l.Time.UTC().Format(time.TimeOnly) + " "
		if len(t.logsOf) != 1 {
			prefix += l.Program + " | "
		}
		x := v.put(0, 1+i, prefix, v.ink(dim))
		style := tcell.StyleDefault
		if l.Stream == "stderr" {
			style = v.ink(yellow)
		}
		if t.search != "" && contains(l, t.search) {
			style = style.Bold(true).Underline(true)
		}
		v.put(x, 1+i, string(l.Bytes()), style)
	}
	if len(lines) == 0 {
		v.put(0, 1, "no output yet", v.ink(dim))
	}
}

// drawText draws lines from the offset on; the offset is limited to the last page.
func (t *topState) drawText(v canvas, lines []string) {
	t.offset = min(t.offset, max(0, len(lines)-t.rows()))
	for i, text := range lines[t.offset:min(len(lines), t.offset+t.rows())] {
		v.put(0, 1+i, text, tcell.StyleDefault)
	}
}

// bootLines is the waterfall of the boot: dots from the start to RUNNING, a bar until ready.
func bootLines(b *api.Boot, width int, blocks bool) []string {
	if b == nil {
		return []string{"…"}
	}
	end := b.StartedAt.Add(time.Millisecond)
	latest := func(at *time.Time) {
		if at != nil && at.After(end) {
			end = *at
		}
	}
	latest(b.SealedAt)
	nameWidth := 8
	for _, p := range b.Programs {
		latest(p.StartedAt)
		latest(p.ReadyAt)
		nameWidth = max(nameWidth, min(24, table.Width(printable(p.Name))))
	}
	span := max(10, width-nameWidth-10)
	column := func(at time.Time) int {
		return min(max(0, int(float64(at.Sub(b.StartedAt))/float64(end.Sub(b.StartedAt))*float64(span))), span-1)
	}
	bar := "#"
	if blocks {
		bar = "█"
	}
	out := []string{fmt.Sprintf("%s, %s from the first step to the last", b.Outcome, picture.Milliseconds(float64(end.Sub(b.StartedAt))/1e6))}
	for _, p := range b.Programs {
		row := slices.Repeat([]string{" "}, span)
		took := "-"
		if p.StartedAt != nil {
			last := end
			if p.ReadyAt != nil {
				last, took = *p.ReadyAt, picture.Milliseconds(float64(p.ReadyAt.Sub(*p.StartedAt))/1e6)
			}
			for i := column(*p.StartedAt); i <= column(last); i++ {
				row[i] = "."
				if p.ReadyAt != nil {
					row[i] = bar
				}
			}
		}
		out = append(out, fmt.Sprintf("%-*s %8s %s", nameWidth, cut(printable(p.Name), nameWidth), took, strings.Join(row, "")))
	}
	if len(b.CriticalChain) > 0 {
		out = append(out, "critical chain: "+strings.Join(b.CriticalChain, " > "))
	}
	return out
}

// graphLines lists the programs below those that they need. A program is drawn below each of its
// needs, but the programs below it only once.
func graphLines(b *api.Boot) []string {
	if b == nil {
		return []string{"…"}
	}
	below := map[string][]string{}
	var roots []string
	for _, p := range b.Programs {
		if len(p.Needs) == 0 {
			roots = append(roots, p.Name)
		}
		for _, n := range p.Needs {
			below[n] = append(below[n], p.Name)
		}
	}
	out := []string{"a program starts after the one above it:"}
	drawn := map[string]bool{}
	var draw func(name string, depth int)
	draw = func(name string, depth int) {
		text := strings.Repeat("   ", depth) + name
		if drawn[name] && len(below[name]) > 0 {
			out = append(out, text+" (see above)")
			return
		}
		drawn[name] = true
		out = append(out, text)
		for _, next := range below[name] {
			draw(next, depth+1)
		}
	}
	for _, name := range roots {
		draw(name, 0)
	}
	return out
}
