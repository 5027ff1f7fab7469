package escape

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain, ümläut 漢":                 "plain, ümläut 漢",
		" a\nb\x1b[2J\x00\n":              "a b [2J",
		"bad \xff\ufffd byte":             "bad    byte",
		"a\u009b\u202eb":                  "a  b",
		strings.Repeat("x", 20):           strings.Repeat("x", 20),
		strings.Repeat("x", 20) + "\n":    strings.Repeat("x", 20),
		strings.Repeat("x", 21):           strings.Repeat("x", 17) + "…",
		strings.Repeat("é", 11):           strings.Repeat("é", 8) + "…",
		strings.Repeat("x", 16) + " yyyy": strings.Repeat("x", 16) + "…",
		"":                                "",
	} {
		if got := Line(in, 20); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestLastLine(t *testing.T) {
	for output, want := range map[string]string{
		"": "", " \n\r\n": "", "one": "one", "one\ntwo": "two", "one\n  two \r\n\n": "two", "one\n\x1b[2Jtwo\n": "[2Jtwo", "a\nabcdefghijk": "abcdefg…",
	} {
		if got := LastLine(output, 10); got != want {
			t.Errorf("%q: got %q, want %q", output, got, want)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add("\x1b]0;x\x07\xff\u202e", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = max(limit, 3)
		got := Line(s, limit)
		if !utf8.ValidString(got) || len(got) > limit || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
