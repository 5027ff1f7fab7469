package escape

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Text makes a program's text harmless on a terminal. It writes two kinds of characters as escapes:
// control characters, which could move the cursor, change the window's title or fake output, and
// characters that reorder text. A tab stays.
func Text(s string) string {
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
	return r < ' ' && r != '\t' || r == 0x7f || Obeyed(r)
}
