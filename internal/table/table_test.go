package table

import (
	"strings"
	"testing"

	"github.com/rivo/uniseg"
)

// Columns are aligned for characters of every width.
func TestWideCharactersAreAligned(t *testing.T) {
	columns := []Column{{Title: "NAME", Max: 12}, {Title: "CPU", Right: true}, {Title: "INFO"}}
	for _, width := range []int{0, 60} {
		for _, name := range []string{"web", "数据库", "e\u0301te\u0301", "👩‍👩‍👧 x"} {
			text := Layout(columns, [][]Cell{{{Text: name}, {Text: "値"}, {Text: "#"}}, {{Text: "twelve chars"}, {Text: "eight ch"}, {}}}, Terminal{Width: width})
			row := strings.Split(text, "\n")[1]
			if at := uniseg.StringWidth(row[:strings.Index(row, "#")]); at != 24 {
				t.Errorf("%q: the last column begins at %d: %q", name, at, row)
			}
		}
	}
	for text, want := range map[string]string{"数据库": "数…", "abcd": "abcd", "abcde": "abc…", "e\u0301e\u0301e\u0301e\u0301": "e\u0301e\u0301e\u0301e\u0301"} {
		if got := Shorten(text, 4); got != want {
			t.Errorf("Shorten(%q, 4) = %q, want %q", text, got, want)
		}
	}
}

// TestTerminalCutsAndColours: only a terminal with a width cuts, and only one with colours gets them.
func TestTerminalCutsAndColours(t *testing.T) {
	columns := []Column{{Title: "NAME", Max: 6}, {Title: "INFO"}}
	rows := [][]Cell{{{Text: "long-name", Style: Red}, {Text: "a text that goes on"}}}
	for want, at := range map[string]Terminal{
		"NAME       INFO\nlong-name  a text that goes on\n":                          {},
		"NAME    INFO\nlong-…  a text…\n":                                            {Width: 15},
		"\x1b[2mNAME\x1b[0m    \x1b[2mINFO\x1b[0m\n\x1b[31mlong-…\x1b[0m  a text…\n": {Width: 15, Colours: true},
	} {
		if got := Layout(columns, rows, at); got != want {
			t.Errorf("%+v: got %q, want %q", at, got, want)
		}
	}
}

func FuzzWidth(f *testing.F) {
	f.Add("plain #1*")
	f.Add("1\ufe0f\u20e3 \t値")
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := Width(s), uniseg.StringWidth(s); got != want {
			t.Fatalf("%q: %d columns, uniseg says %d", s, got, want)
		}
	})
}
