package escape

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain, ümläut 漢 \t tab": "plain, ümläut 漢 \t tab",
		"\x1b[2J\x07":            `\x1b[2J\x07`,
		"a\nb\rc":                `a\nb\rc`,
		"\x7f\u009b31m":          `\x7f\x9b31m`,
		"bad \xff byte":          `bad \xff byte`,
		"a\u202eb\u2066c\u2028":  `a\u202eb\u2066c\u2028`,
		"\ufffd is itself":       "\ufffd is itself",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b]0;x\x07\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, unprintable) {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
