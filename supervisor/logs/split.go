package logs

import (
	"bytes"
	"sync/atomic"
	"unicode/utf8"
)

// block is a piece of output: whole lines, each with its newline, or one piece of a line. The text
// is valid only until the framer's next call.
type block struct {
	text  []byte
	lines int
	// cut: the text is a piece of a line that continues in the next block.
	cut bool
	// cont: the first line continues one that was cut in the block before.
	cont bool
}

// framer cuts a byte stream into blocks of lines of at most max bytes, or somewhat more than the
// longest secret; a carriage return before the newline does not count. It copies only text that two reads share. All blocks together are exactly the
// input.
type framer struct {
	max     int
	carry   []byte                    // an unfinished line
	cont    bool                      // the next block continues a line that was cut
	secrets *atomic.Pointer[redactor] // what a cut must not tear apart; nil means nothing

	unfinished *budget // of the unfinished lines of all streams; nil means no limit
	counted    int     // how much of it this framer has taken

	blocks uint64 // how many blocks were returned
}

// keepCarry is the largest carry-over buffer that is kept between reads.
const keepCarry = 4096

// next takes one block of at most piece bytes from data, or one line. If ok is false, the framer
// has put data into the carry and needs more.
func (f *framer) next(data []byte, piece int) (b block, rest []byte, ok bool) {
	if len(f.carry) > 0 {
		return f.finishLine(data)
	}
	secrets := f.redactor()
	limit := f.limit(secrets)
	window := data[:min(len(data), max(piece, 1), limit+1)]
	if i := bytes.LastIndexByte(window, '\n'); i >= 0 {
		return f.block(data[:i+1], false), data[i+1:], true
	}
	if len(window) > limit {
		switch endsWith(data[limit:]) {
		case isEnd:
			return f.block(data[:limit+2], false), data[limit+2:], true
		case mayBeEnd:
			f.hold(data)
			return block{}, nil, false
		}
		take := secrets.cutAt(window[:limit])
		return f.block(data[:take], true), data[take:], true
	}
	f.hold(window)
	return block{}, data[len(window):], false
}

// whole takes all whole lines of buf at once; its first held bytes are the carry. It refuses what
// only next can handle: long lines, and data without a newline.
func (f *framer) whole(buf []byte, held int) (block, bool) {
	i := bytes.LastIndexByte(buf[held:], '\n')
	if i < 0 || len(buf) > f.max {
		return block{}, false
	}
	text := buf[:held+i+1]
	f.carry = f.carry[:0]
	f.hold(buf[len(text):])
	return f.block(text, false), true
}

// finishLine continues the line in the carry.
func (f *framer) finishLine(data []byte) (b block, rest []byte, ok bool) {
	secrets := f.redactor()
	limit := f.limit(secrets)
	room := max(limit-len(f.carry), 0)
	i := bytes.IndexByte(data[:min(len(data), room+1)], '\n')
	switch {
	case i >= 0:
		return f.block(f.join(data[:i+1]), false), data[i+1:], true
	case len(data) <= room:
		f.hold(data)
		return block{}, nil, false
	}
	if len(f.carry) <= limit {
		switch endsWith(data[room:]) {
		case isEnd:
			return f.block(f.join(data[:room+2]), false), data[room+2:], true
		case mayBeEnd:
			f.hold(data)
			return block{}, nil, false
		}
	}
	text := f.join(data[:room])
	take := secrets.cutAt(text[:min(len(text), max(limit, f.max))])
	f.carry = nil
	f.hold(text[take:])
	return f.block(text[:take:take], true), data[room:], true
}

// hold puts text behind the unfinished line.
func (f *framer) hold(text []byte) {
	f.carry = append(f.carry, text...)
	f.count()
}

// count tells the plane how much memory the unfinished line takes.
func (f *framer) count() {
	if f.unfinished == nil {
		return
	}
	n := cap(f.carry)
	if n <= keepCarry {
		n = 0
	}
	if n != f.counted { // all streams write this number
		f.unfinished.add(n - f.counted)
		f.counted = n
	}
}

// lineEnd tells whether bytes end the line before them.
type lineEnd uint8

const (
	isNoEnd  lineEnd = iota
	mayBeEnd         // a carriage return, and nothing after it yet
	isEnd
)

// endsWith is asked when a line has as many bytes as it may have: the carriage return before its newline
// is no part of the line.
func endsWith(rest []byte) lineEnd {
	switch {
	case rest[0] != '\r':
		return isNoEnd
	case len(rest) == 1:
		return mayBeEnd
	case rest[1] == '\n':
		return isEnd
	}
	return isNoEnd
}

func (f *framer) block(text []byte, cut bool) block {
	b := block{text: text, cut: cut, cont: f.cont, lines: 1}
	if !cut {
		b.lines = bytes.Count(text, newline)
	}
	f.cont = cut
	f.blocks++
	return b
}

var newline = []byte{'\n'}

// join returns the carry with tail. The array can be reused, because the caller reads the text
// before its next call.
func (f *framer) join(tail []byte) []byte {
	text := append(f.carry, tail...)
	f.carry = text[:0]
	return text
}

func (f *framer) redactor() *redactor {
	if f.secrets == nil {
		return nil
	}
	return f.secrets.Load()
}

// limit is the length at which a line is cut. It is less if the unfinished lines of all streams take too
// much memory. It leaves room for the longest secret: if a secret were longer than a line, every cut
// would be within it.
func (f *framer) limit(secrets *redactor) int {
	limit := f.max
	if f.unfinished != nil && f.unfinished.exceeds(0) {
		limit = min(limit, crowdedLine)
	}
	if secrets == nil {
		return limit
	}
	return max(limit, secrets.longest+leastLine)
}

// cutAt tells where to cut text, a line without its end: not within a character, and not within a
// possible secret. If the text has the length of framer.limit, the result is never 0.
func (r *redactor) cutAt(text []byte) int {
	take := runeBorder(text)
	return take - r.held(text[:take])
}

// flush returns the unfinished line.
func (f *framer) flush() (block, bool) {
	n := f.redactor().cutAt(f.carry)
	if n <= 0 {
		return block{}, false
	}
	text := f.carry[:n:n]
	rest := f.carry[n:]
	f.carry = nil
	f.hold(rest)
	return f.block(text, true), true
}

// last returns the rest when the stream ends.
func (f *framer) last() (block, bool) {
	if len(f.carry) == 0 && f.counted == 0 {
		return block{}, false
	}
	b := block{text: f.carry, lines: 1, cont: f.cont}
	f.carry = nil
	f.count()
	if len(b.text) == 0 {
		return block{}, false
	}
	f.cont = false
	return b, true
}

// trim frees a large carry-over buffer once it is empty.
func (f *framer) trim() {
	if len(f.carry) == 0 && cap(f.carry) > keepCarry {
		f.carry = nil
	}
	f.count()
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

// rawLine is one line of a block.
type rawLine struct {
	text []byte // without the newline
	nl   bool   // a newline ended it
	cut  bool   // the rest of the line follows in another block
}

// eachLine calls f for every line of the block until f returns false.
func (b block) eachLine(f func(rawLine) bool) {
	for ln, ok := b.line(); ok && f(ln); ln, ok = b.line() {
	}
}

// line takes the next line from the block. A text that is only the newline of a line cut before is
// not a line.
func (b *block) line() (ln rawLine, ok bool) {
	for len(b.text) > 0 {
		var rest []byte // not an empty part of the text at its end: the array would stay in memory
		ln = rawLine{text: b.text, cut: b.cut}
		if i := bytes.IndexByte(b.text, '\n'); i >= 0 {
			ln = rawLine{text: b.text[:i], nl: true}
			if i+1 < len(b.text) {
				rest = b.text[i+1:]
			}
		}
		b.text = rest
		ends := b.cont && ln.nl && len(ln.display()) == 0
		if b.cont = false; !ends {
			return ln, true
		}
	}
	return rawLine{}, false
}

// display returns the text of a line as people expect it: without the carriage return before its
// newline.
func (l rawLine) display() []byte {
	if n := len(l.text); l.nl && n > 0 && l.text[n-1] == '\r' {
		return l.text[:n-1]
	}
	return l.text
}
