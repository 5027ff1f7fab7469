package schema

import (
	"bytes"
	"unicode/utf8"
)

// Limits of a document. They are far above the size of any handwritten manifest. They are low
// enough that no document can exhaust the stack or the memory of PID 1.
const (
	// MaxBytes is the largest document that is read.
	MaxBytes = 16 << 20
	// maxNesting bounds arrays, inline tables and dotted keys.
	maxNesting = 100
	// maxKeys bounds the number of keys and table headers together. The TOML library's check for
	// duplicates takes time in the square of this number.
	maxKeys = 40_000
	// maxElements bounds the number of commas, and so of elements: each element can cause a finding
	// of some hundred bytes.
	maxElements = 100_000
)

// lexProblem is the place and the reason of a refusal before parsing.
type lexProblem struct {
	offset int
	cause  string
}

// lex refuses syntax of TOML 1.1 that the TOML library accepts: inline tables over several lines,
// \e and \x, times without seconds. It also checks the nesting before any recursive code runs. It
// tokenises only as far as necessary. The library finds all other mistakes.
func lex(data []byte) *lexProblem {
	if bytes.HasPrefix(data, []byte("\uFEFF")) {
		return &lexProblem{0, "the text begins with a byte order mark; save the file as UTF-8 without one"}
	}
	if !utf8.Valid(data) {
		return &lexProblem{invalidUTF8(data), "the text is not valid UTF-8; save the file as UTF-8"}
	}
	l := lexer{data: data}
	for l.pos < len(l.data) {
		if p := l.step(); p != nil {
			return p
		}
	}
	return nil
}

func invalidUTF8(data []byte) int {
	i := 0
	for i < len(data) {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return i
}

type lexer struct {
	data  []byte
	pos   int
	open  []byte // [ and { that are not closed yet
	dots  int    // dots since the last delimiter, to count the parts of a dotted key
	comma bool   // the last token was a comma
	value bool   // the position is behind the = of a line
	keys  int    // number of keys and table headers so far
	items int    // number of commas so far
}

func (l *lexer) step() *lexProblem {
	c := l.data[l.pos]
	if c == ' ' || c == '\t' || c == '\r' {
		l.pos++
		return nil
	}
	afterComma := l.comma
	l.comma = false
	switch c {
	case '#':
		if l.inline() {
			return &lexProblem{l.pos, "a comment inside an inline table"}
		}
		l.comma = afterComma
		l.toLineEnd()
		return nil
	case '\n':
		if l.inline() {
			return &lexProblem{l.pos, "an inline table does not end on its line; close each bracket in it, and write it on one line or as a [table]"}
		}
		l.comma = afterComma
		l.value = l.value && len(l.open) > 0
		l.dots = 0
	case '"', '\'':
		return l.quoted(c)
	case '[', '{':
		if len(l.open) >= maxNesting {
			return &lexProblem{l.pos, "arrays and inline tables are nested more than 100 deep"}
		}
		header := len(l.open) == 0 && !l.value
		l.open = append(l.open, c)
		l.dots = 0
		if header {
			return l.key()
		}
	case ']', '}':
		if c == '}' && afterComma {
			return &lexProblem{l.pos, "a comma before the end of an inline table"}
		}
		if len(l.open) > 0 {
			l.open = l.open[:len(l.open)-1]
		}
		l.dots = 0
	case ',':
		if l.items++; l.items >= maxElements {
			return &lexProblem{l.pos, "the manifest has more than 100,000 array elements"}
		}
		l.comma = true
		l.dots = 0
	case '=':
		l.value = true
		l.dots = 0
		return l.key()
	case '.':
		if l.dots++; l.dots >= maxNesting {
			return &lexProblem{l.pos, "a dotted key has more than 100 parts"}
		}
	default:
		return l.bare()
	}
	l.pos++
	return nil
}

// key counts one more key or header and skips the current character.
func (l *lexer) key() *lexProblem {
	if l.keys++; l.keys > maxKeys {
		return &lexProblem{l.pos, "the manifest has more than 40,000 keys"}
	}
	l.pos++
	return nil
}

func (l *lexer) inline() bool { return len(l.open) > 0 && l.open[len(l.open)-1] == '{' }

func (l *lexer) toLineEnd() {
	if n := bytes.IndexByte(l.data[l.pos:], '\n'); n >= 0 {
		l.pos += n
		return
	}
	l.pos = len(l.data)
}

// quoted skips a string of any of TOML's four kinds.
func (l *lexer) quoted(q byte) *lexProblem {
	rest := l.data[l.pos:]
	multi := bytes.HasPrefix(rest, []byte{q, q, q})
	i := 1
	if multi {
		i = 3
	}
	for i < len(rest) {
		switch {
		case rest[i] == '\\' && q == '"':
			if i+1 < len(rest) && (rest[i+1] == 'e' || rest[i+1] == 'x') {
				return &lexProblem{l.pos + i, "an escape sequence that TOML 1.0 does not have; " + backslashHint}
			}
			i += 2
		case rest[i] == '\n' && !multi:
			l.pos += i // not closed: the parser reports it
			return nil
		case rest[i] == q && !multi:
			l.pos += i + 1
			return nil
		case rest[i] == q && bytes.HasPrefix(rest[i:], []byte{q, q, q}):
			for i += 3; i < len(rest) && rest[i] == q; i++ {
			}
			l.pos += i
			return nil
		default:
			i++
		}
	}
	l.pos = len(l.data)
	return nil
}

// bare skips a run of ordinary characters: a bare key, a number, a keyword or a date.
func (l *lexer) bare() *lexProblem {
	start := l.pos
	for l.pos < len(l.data) && isBare(l.data[l.pos]) {
		l.pos++
	}
	if l.pos == start {
		l.pos++
		return nil
	}
	if at := timeWithoutSeconds(l.data[start:l.pos]); at >= 0 {
		return &lexProblem{start + at, "a time without seconds"}
	}
	return nil
}

func isBare(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '_' || c == '-' || c == '+' || c == ':' || c >= 0x80
}

// timeWithoutSeconds finds an hh:mm that has no :ss behind it. The offset of a date-time (behind +
// or -) does not count.
func timeWithoutSeconds(word []byte) int {
	i := bytes.IndexByte(word, ':')
	if i < 2 || i+2 >= len(word) {
		return -1
	}
	if !isDigits(string(word[i-2:i])) || !isDigits(string(word[i+1:i+3])) {
		return -1 // not a time, such as the key of "command: web"
	}
	if i >= 3 && (word[i-3] == '+' || word[i-3] == '-') {
		return -1
	}
	if i+3 < len(word) && word[i+3] == ':' {
		return -1
	}
	return i - 2
}
