package escape

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// cutMark ends a text of which the rest was left out.
const cutMark = "…"

// Line makes a text of a program or a peer fit for a message: valid UTF-8 on one line, without control
// and formatting characters, at most limit bytes. A longer text is cut and ends in "…". limit must be
// at least 3.
func Line(s string, limit int) string {
	var out strings.Builder
	room := 0 // how much of out leaves room for the mark
	for _, r := range strings.TrimSpace(s) {
		if r == utf8.RuneError || !unicode.IsGraphic(r) {
			r = ' '
		}
		if out.Len()+utf8.RuneLen(r) > limit {
			return strings.TrimSpace(out.String()[:room]) + cutMark
		}
		out.WriteRune(r)
		if out.Len() <= limit-len(cutMark) {
			room = out.Len()
		}
	}
	return strings.TrimSpace(out.String())
}

// LastLine is the last line of an output that is not blank, as Line: most commands say there what is
// wrong.
func LastLine(output string, limit int) string {
	output = strings.TrimSpace(output)
	return Line(output[strings.LastIndexByte(output, '\n')+1:], limit)
}
