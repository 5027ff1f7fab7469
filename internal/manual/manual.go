// Package manual owns how the Markdown of the reference is formatted for a terminal. It supports
// only the Markdown of these documents (headings, paragraphs, lists, tables, code). It must never
// be given other Markdown: it is not a general renderer.
package manual

import (
	"html"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/rivo/uniseg"
)

var (
	comment = onUse(`(?s)<!--.*?-->\n*`)
	anchor  = onUse(`<a [^>]*></a>`)
	link    = onUse(`!?\[([^\]]*)\]\([^)]*\)`)
	heading = onUse(`^#{1,6} +`)
	rule    = onUse(`^\|[ :|-]+\|$`)
	strong  = onUse(`^\*([A-Za-z ]+:)\*`)
	item    = onUse(`^( *)([-*]|[0-9]+\.) +`)
)

// onUse compiles pattern when it is first needed: every command of agentctl links this package, but
// few commands print a manual.
func onUse(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// Section returns the part of a document below the first heading that names what, or the entries of
// tables that have this name: a key with its table (programs.logs.path) or without it (path), an exit
// status, a signal. If there is none, headings lists the headings of the document, for an error
// message. A heading without its <name>, and an entry, take precedence: programs.ready and
// programs.user do not mean programs called "ready" and "user".
func Section(markdown, what string) (text string, headings []string, found bool) {
	lines := slices.Collect(strings.Lines(comment().ReplaceAllString(markdown, "")))
	if text, headings, found = section(lines, what, false); found {
		return text, headings, true
	}
	if text = entries(lines, what); text != "" {
		return text, headings, true
	}
	text, headings, found = section(lines, what, true)
	return text, headings, found
}

// section implements Section. If named is true, a <name> in a heading matches a part of what;
// otherwise it is left out.
func section(lines []string, what string, named bool) (text string, headings []string, found bool) {
	var out []string
	depth, code := 0, false
	for _, line := range lines {
		code = code != strings.HasPrefix(line, "```")
		if h := heading().FindString(line); h != "" && !code {
			title := strings.TrimSpace(plain(line[len(h):]))
			level := len(strings.TrimSpace(h))
			if level > 1 {
				headings = append(headings, title)
			}
			switch {
			case depth == 0 && level > 1 && names(title, what, named):
				depth = level
			case depth > 0 && level <= depth && !names(title, what, named):
				return strings.Join(out, ""), headings, true
			}
		}
		if depth > 0 {
			out = append(out, line)
		}
	}
	return strings.Join(out, ""), headings, depth > 0
}

// names reports whether a heading is about what. "[programs.<name>.ready]" is about programs,
// programs.ready and programs.web.ready. A code such as E016 must be at the beginning of its
// heading.
func names(title, what string, named bool) bool {
	title = strings.ToLower(strings.Trim(title, "[]"))
	what = strings.ToLower(strings.Trim(what, "[]"))
	return what != "" && begins(strings.Split(title, "."), strings.Split(what, "."), named)
}

// begins reports whether the parts of a heading begin with the parts of what.
func begins(title, what []string, named bool) bool {
	if len(what) == 0 || len(title) == 0 {
		return len(what) == 0
	}
	rest, ok := strings.CutPrefix(title[0], what[0])
	switch {
	case ok && (rest == "" || len(what) == 1 && !isWord(rest[0])):
		return begins(title[1:], what[1:], named)
	case !strings.HasPrefix(title[0], "<"):
		return false
	case named:
		return begins(title[1:], what[1:], named)
	}
	return begins(title[1:], what, named)
}

func isWord(b byte) bool {
	return b == '_' || b == '-' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z'
}

// entries returns the rows of tables whose first cell names what. Each comes with the heading above
// its table and with the header of the table.
func entries(lines []string, what string) string {
	var out []string
	var title, header string // of the table; both are empty once they are in out
	inTable, code := false, false
	for _, line := range lines {
		code = code != strings.HasPrefix(line, "```")
		row := !code && strings.HasPrefix(line, "|")
		switch {
		case !code && heading().MatchString(line):
			title = line
		case row && !inTable:
			header = line
		case row && hasTerm(line, what):
			if header != "" {
				out = append(out, title, "\n", header)
			}
			out = append(out, line)
			title, header = "", ""
		}
		inTable = row
	}
	if dot := strings.LastIndexByte(what, '.'); len(out) == 0 && dot >= 0 {
		table, _, ok := section(lines, what[:dot], false)
		if !ok {
			table, _, _ = section(lines, what[:dot], true)
		}
		return entries(slices.Collect(strings.Lines(table)), what[dot+1:])
	}
	return strings.Join(out, "")
}

// hasTerm reports whether the first cell of a row has the name what: "TERM, INT" has two names. Words
// behind a name are no part of it.
func hasTerm(row, what string) bool {
	for name := range strings.SplitSeq(splitRow(strings.TrimSpace(row))[0], ",") {
		if name, _, _ = strings.Cut(strings.TrimSpace(name), " "); name != "" && strings.EqualFold(name, what) {
			return true
		}
	}
	return false
}

// plain is a line of Markdown without its markup.
func plain(s string) string {
	s = strong().ReplaceAllString(s, "$1")
	s = link().ReplaceAllString(anchor().ReplaceAllString(s, ""), "$1")
	s = strings.NewReplacer("`", "", "**", "", `\|`, "|", `\`, "").Replace(s)
	return html.UnescapeString(s)
}

// Terminal formats a document with lines of at most columns characters. Lines of code are not
// wrapped.
func Terminal(markdown string, columns int) string {
	p := &page{columns: max(columns, 20)}
	code := false
	for line := range strings.Lines(comment().ReplaceAllString(markdown, "")) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			p.flush()
			code = !code
		case code:
			p.raw("    " + line)
		default:
			p.line(line)
		}
	}
	p.flush()
	return strings.TrimLeft(p.b.String(), "\n")
}

// page is a document during formatting.
type page struct {
	b       strings.Builder
	columns int
	words   []string // of the current paragraph or list item
	first   string   // prefix of its first line
	indent  string   // prefix of its other lines
	header  []string // of the current table
}

func (p *page) line(line string) {
	switch {
	case strings.HasPrefix(line, "|"):
		p.flush()
		p.row(line)
		return
	case strings.TrimSpace(line) == "":
		p.flush()
		p.header = nil
		p.blank()
		return
	}
	p.header = nil
	if h := heading().FindString(line); h != "" {
		p.flush()
		p.blank()
		title := plain(line[len(h):])
		if strings.TrimSpace(h) == "#" {
			title = strings.ToUpper(title)
		}
		p.raw(title)
		p.blank()
		return
	}
	if m := item().FindStringSubmatch(line); m != nil {
		p.flush()
		p.first = m[1] + m[2] + " "
		p.indent = strings.Repeat(" ", len(p.first))
		line = line[len(m[0]):]
	} else if strings.HasPrefix(line, "    ") && len(p.words) == 0 {
		p.raw(line)
		return
	}
	p.words = append(p.words, strings.Fields(plain(line))...)
}

// row writes a row of a table as an entry: the first cell, and below it the other cells. Each of
// them has the title of its column, except in the last column.
func (p *page) row(line string) {
	if rule().MatchString(line) {
		return
	}
	cells := splitRow(line)
	if p.header == nil {
		p.header = cells
		return
	}
	p.raw("  " + cells[0])
	for n, cell := range cells[1:] {
		if cell == "" || cell == "–" {
			continue
		}
		if last := n == len(cells)-2; !last && n+1 < len(p.header) {
			cell = p.header[n+1] + ": " + cell
		}
		p.first, p.indent, p.words = "      ", "      ", strings.Fields(cell)
		p.flush()
	}
}

// splitRow returns the cells of a row. An escaped \| does not separate cells.
func splitRow(line string) []string {
	line = strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00")
	cells := strings.Split(line, "|")
	for n, cell := range cells {
		cells[n] = strings.TrimSpace(plain(strings.ReplaceAll(cell, "\x00", "|")))
	}
	return cells
}

func (p *page) raw(line string) { p.b.WriteString(line + "\n") }

// blank writes one empty line, unless the last line is empty.
func (p *page) blank() {
	if text := p.b.String(); text != "" && !strings.HasSuffix(text, "\n\n") {
		p.raw("")
	}
}

// flush writes the collected words as a wrapped paragraph.
func (p *page) flush() {
	line, width := p.first, uniseg.StringWidth(p.first)
	begun := false
	for _, word := range p.words {
		w := uniseg.StringWidth(word)
		if begun && width+1+w > p.columns {
			p.raw(line)
			line, width, begun = p.indent, len(p.indent), false
		}
		if begun {
			line, width = line+" ", width+1
		}
		line, width, begun = line+word, width+w, true
	}
	if len(p.words) > 0 {
		p.raw(line)
	}
	p.words, p.first, p.indent = nil, "", ""
}
