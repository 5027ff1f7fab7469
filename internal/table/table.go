// Package table is pure: it lays out tables of text, counts the columns that a text takes on a
// terminal, and cuts texts to a number of columns.
//
// It must not read, write or escape anything: the caller makes texts of programs harmless first
// (internal/escape).
package table

import (
	"bytes"
	"strings"

	"github.com/rivo/uniseg"
)

// Terminal is where a table is shown. Without a width, the table is for a file or a pipe: texts are
// not cut.
type Terminal struct {
	Width   int
	Colours bool
}

// Column is one column of a table.
type Column struct {
	Title string
	Right bool // aligned to the right
	Max   int  // on a terminal; 0 means no limit
}

// Cell is one field: its text, and its colour.
type Cell struct{ Text, Style string }

// SGR codes (ECMA-48).
const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Cyan   = "36"
	Dim    = "2"
)

// Style puts a text between the SGR codes that turn a style on and off.
func Style(code, text string, on bool) string {
	if !on || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Layout returns rows under their titles, each line with its newline. On a terminal the last column
// is cut at the right edge.
func Layout(columns []Column, rows [][]Cell, t Terminal) string {
	widths := make([]int, len(columns)-1) // nothing is aligned to the last column
	titles := make([]Cell, len(columns))
	for i, col := range columns {
		titles[i] = Cell{col.Title, Dim}
		if i == len(widths) {
			break
		}
		widths[i] = Width(col.Title)
		for _, row := range rows {
			widths[i] = max(widths[i], Width(row[i].Text))
		}
		if t.Width > 0 && col.Max > 0 {
			widths[i] = min(widths[i], max(col.Max, len(col.Title)))
		}
	}
	var out []byte
	for _, row := range append([][]Cell{titles}, rows...) {
		out = append(appendRow(out, columns, widths, row, t), '\n')
	}
	return string(out)
}

// appendRow appends a row without the spaces at its end.
func appendRow(out []byte, columns []Column, widths []int, row []Cell, t Terminal) []byte {
	used := 0
	last := len(row) - 1
	for i, f := range row[:last] {
		text := f.Text
		if t.Width > 0 {
			text = Shorten(text, widths[i])
		}
		pad := widths[i] - Width(text)
		if columns[i].Right {
			out = appendSpaces(out, pad)
		}
		out = append(out, Style(f.Style, text, t.Colours)...)
		if !columns[i].Right {
			out = appendSpaces(out, pad)
		}
		out = append(out, "  "...)
		used += widths[i] + 2
	}
	text := row[last].Text
	if t.Width > 0 {
		text = Shorten(text, max(1, t.Width-used))
	}
	return bytes.TrimRight(append(out, Style(row[last].Style, text, t.Colours)...), " ")
}

func appendSpaces(out []byte, n int) []byte {
	for range n {
		out = append(out, ' ')
	}
	return out
}

// Width is the number of columns that a text takes on a terminal. A wide character (East Asian
// Width, UAX #11) takes two columns, a combining one none.
func Width(s string) int {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return uniseg.StringWidth(s)
		}
	}
	return len(s) // uniseg takes a hundred times as long to say the same
}

// Shorten cuts a text to a number of columns and marks the cut.
func Shorten(s string, columns int) string {
	if Width(s) <= columns {
		return s
	}
	var b strings.Builder
	left := columns - 1
	for g := uniseg.NewGraphemes(s); g.Next() && g.Width() <= left; {
		left -= g.Width()
		b.WriteString(g.Str())
	}
	return b.String() + "…"
}
