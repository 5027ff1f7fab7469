package logs

import (
	"bytes"
	"unicode/utf8"
)

// rawLine is a piece of output that goes through the box as one line.
type rawLine struct {
	text []byte // without the newline; valid until the splitter's next call
	nl   bool   // a newline ended it
	cut  bool   // MaxLine ended it; the rest of the line follows
}

// splitter cuts a byte stream into lines of at most max bytes. It copies only
// what crosses the border of a read. The concatenation of all lines, with a
// newline after each that has nl, is exactly what went in.
type splitter struct {
	max     int
	partial []byte
}

// keepPartial is the size of carry-over buffer worth keeping between reads.
const keepPartial = 4096

// next takes one line from data. With ok false all of data is in the splitter
// and more is needed.
func (s *splitter) next(data []byte) (ln rawLine, rest []byte, ok bool) {
	room := s.max - len(s.partial)
	i := bytes.IndexByte(data[:min(len(data), room+1)], '\n')
	switch {
	case i >= 0:
		return rawLine{text: s.join(data[:i]), nl: true}, data[i+1:], true
	case len(data) <= room:
		s.partial = append(s.partial, data...)
		return rawLine{}, nil, false
	}
	take := runeBorder(data[:room])
	return rawLine{text: s.join(data[:take]), cut: true}, data[take:], true
}

// last returns what is left when the stream ends.
func (s *splitter) last() (rawLine, bool) {
	if len(s.partial) == 0 {
		return rawLine{}, false
	}
	return rawLine{text: s.join(nil)}, true
}

func (s *splitter) join(tail []byte) []byte {
	if len(s.partial) == 0 {
		return tail
	}
	text := append(s.partial, tail...)
	// The caller reads text before it calls again, so the array can be reused.
	s.partial = text[:0]
	return text
}

// trim gives a large carry-over buffer back once it is empty.
func (s *splitter) trim() {
	if len(s.partial) == 0 && cap(s.partial) > keepPartial {
		s.partial = nil
	}
}

// runeBorder returns the length of b without a UTF-8 sequence that is cut off at
// its end, so that a cut line stays readable on both sides.
func runeBorder(b []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		c := b[len(b)-back]
		if c < utf8.RuneSelf {
			break
		}
		if utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-back:]) {
				return len(b) - back
			}
			break
		}
	}
	return len(b)
}

// display returns the text of a line as people mean it: the carriage return of a
// "\r\n" belongs to the line's end.
func (l rawLine) display() []byte {
	if n := len(l.text); l.nl && n > 0 && l.text[n-1] == '\r' {
		return l.text[:n-1]
	}
	return l.text
}

// size is the number of bytes the program wrote for this line.
func (l rawLine) size() int {
	if l.nl {
		return len(l.text) + 1
	}
	return len(l.text)
}
