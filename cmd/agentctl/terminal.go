package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/rivo/uniseg"

	"github.com/dreamlab-ai/agentinit/cmd/agentctl/picture"
	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// terminal tells whether w is a terminal, and its width. Otherwise output is neither cut nor
// coloured.
func terminal(w io.Writer) (width int, ok bool) {
	if o, ok := w.(*output); ok {
		w = o.Writer
	}
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width < 40 {
		width = 80 // the width is unknown; a narrower terminal wraps the lines
	}
	return width, true
}

// colours reports whether to colour stdout (https://no-color.org).
func (c *cli) colours() bool {
	if v, ok := c.lookupEnv("NO_COLOR"); ok && v != "" {
		return false
	}
	if v, _ := c.lookupEnv("TERM"); v == "" || v == "dumb" {
		return false
	}
	_, ok := terminal(c.stdout)
	return ok
}

// SGR codes (ECMA-48).
const (
	red     = "31"
	green   = "32"
	yellow  = "33"
	cyan    = "36"
	dim     = "2"
	noStyle = ""
)

func style(code, text string, on bool) string {
	if !on || code == noStyle {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// printable makes a program's text harmless on a terminal. It writes two kinds of characters as
// escapes: control characters, which could move the cursor, change the window's title or fake
// output, and characters that reorder text. A tab stays.
func printable(s string) string {
	if !strings.ContainsFunc(s, unprintable) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && isInvalid(s[i:]):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !unprintable(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func isInvalid(s string) bool {
	r, size := utf8.DecodeRuneInString(s)
	return r == utf8.RuneError && size == 1
}

func unprintable(r rune) bool {
	return r < ' ' && r != '\t' || r == 0x7f || escape.Obeyed(r)
}

// cut shortens a text to a number of columns of a terminal; 0 means no limit. A wide character
// (East Asian Width, UAX #11) takes two columns, a combining one none.
func cut(s string, width int) string {
	if width <= 0 {
		return s
	}
	return picture.Shorten(s, width)
}

// column is one column of a table.
type column struct {
	title string
	right bool // aligned to the right
	max   int  // on a terminal; 0 means no limit
}

// cell is one field: its text, and its colour.
type cell struct{ text, style string }

// table prints rows under their titles. On a terminal the last column is cut at the right edge.
func (c *cli) table(columns []column, rows [][]cell) {
	width, tty := terminal(c.stdout)
	colours := c.colours()
	widths := make([]int, len(columns))
	for i, col := range columns {
		widths[i] = uniseg.StringWidth(col.title)
		for _, row := range rows {
			widths[i] = max(widths[i], uniseg.StringWidth(row[i].text))
		}
		if tty && col.max > 0 {
			widths[i] = min(widths[i], max(col.max, len(col.title)))
		}
	}
	titles := make([]cell, len(columns))
	for i, col := range columns {
		titles[i] = cell{col.title, dim}
	}
	var all strings.Builder // written with one call: a write takes longer than a row
	for _, row := range append([][]cell{titles}, rows...) {
		all.WriteString(formatRow(columns, widths, row, width, colours))
		all.WriteByte('\n')
	}
	fmt.Fprint(c.stdout, all.String())
}

func formatRow(columns []column, widths []int, row []cell, width int, colours bool) string {
	var b strings.Builder
	used := 0
	last := len(row) - 1
	for i, f := range row {
		if i == last {
			text := f.text
			if width > 0 {
				text = cut(text, max(1, width-used))
			}
			b.WriteString(style(f.style, text, colours))
			break
		}
		text := f.text
		if width > 0 {
			text = cut(text, widths[i])
		}
		pad := strings.Repeat(" ", max(0, widths[i]-uniseg.StringWidth(text)))
		if columns[i].right {
			b.WriteString(pad + style(f.style, text, colours) + "  ")
		} else {
			b.WriteString(style(f.style, text, colours) + pad + "  ")
		}
		used += widths[i] + 2
	}
	return strings.TrimRight(b.String(), " ")
}
