// Package escape owns which characters a terminal obeys instead of showing them, and escapes them in
// texts and in JSON. It also quotes words for a shell. It must never change what a JSON reader gets.
package escape

import "unicode/utf8"

// Obeyed tells whether a terminal acts on r, a character beyond ASCII: C1 controls, line separators,
// and the characters that reorder text (Bidi_Control of Unicode's PropList.txt).
func Obeyed(r rune) bool {
	return r >= 0x80 && r <= 0x9f || r == 0x61c || r == 0x2028 || r == 0x2029 ||
		r >= 0x200e && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

const hexDigits = "0123456789abcdef"

// AppendRune appends the JSON escape of a rune that fits in four digits.
func AppendRune(out []byte, r rune) []byte {
	return append(out, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// JSON escapes DEL and the obeyed characters of valid JSON: JSON allows them in strings. A carriage return
// can only be white space there, and becomes a blank: a terminal would write what follows it over what is
// before it. JSON returns text itself if there are none of all these.
func JSON(text []byte) []byte {
	var out []byte
	start := 0
	for i := 0; i < len(text); {
		if c := text[i]; c < 0x7f {
			if c == '\r' {
				out = append(append(out, text[start:i]...), ' ')
				start = i + 1
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		if r == 0x7f || Obeyed(r) {
			out = AppendRune(append(out, text[start:i]...), r)
			start = i + size
		}
		i += size
	}
	if start == 0 {
		return text
	}
	return append(out, text[start:]...)
}
