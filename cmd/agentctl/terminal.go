package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/table"
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

// The colours of output, as in tables.
const (
	red    = table.Red
	green  = table.Green
	yellow = table.Yellow
	cyan   = table.Cyan
	dim    = table.Dim
)

func style(code, text string, on bool) string { return table.Style(code, text, on) }

// printable makes a program's text harmless on a terminal.
func printable(s string) string { return escape.Text(s) }

// cut shortens a text to a number of columns of a terminal; 0 means no limit.
func cut(s string, width int) string {
	if width <= 0 {
		return s
	}
	return table.Shorten(s, width)
}

type (
	column = table.Column
	cell   = table.Cell
)

// titled are columns that are aligned to the left and not limited.
func titled(titles ...string) []column {
	columns := make([]column, len(titles))
	for i, title := range titles {
		columns[i].Title = title
	}
	return columns
}

// texts are the cells of a row, without colour.
func texts(texts ...string) []cell {
	row := make([]cell, len(texts))
	for i, text := range texts {
		row[i].Text = text
	}
	return row
}

// table prints rows under their titles. Programs and peers choose parts of the texts, so it makes each
// text printable.
func (c *cli) table(columns []column, rows [][]cell) {
	for _, row := range rows {
		for i := range row {
			row[i].Text = printable(row[i].Text)
		}
	}
	// One call: a write takes longer than a row.
	fmt.Fprint(c.stdout, table.Layout(columns, rows, c.layout()))
}

// layout tells how a table is laid out for stdout.
func (c *cli) layout() table.Terminal {
	width, _ := terminal(c.stdout)
	return table.Terminal{Width: width, Colours: c.colours()}
}
