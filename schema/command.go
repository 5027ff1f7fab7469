package schema

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// SplitCommand splits a command line into words like a POSIX shell (XCU 2.2 and 2.3). Blanks
// separate words. '…' quotes every character. "…" quotes every character except \ before " \ $ `
// and newline. Outside quotes, \ quotes the next character. No other character is special: there
// are no globs, pipes or redirections. ${X} stays as written. It is expanded later in each word
// separately, so that a value with blanks cannot become two arguments. Blanks between its braces do
// not separate words: ${X:-a b} is one word.
func SplitCommand(line string) ([]string, error) {
	if strings.IndexByte(line, 0) >= 0 {
		return nil, errors.New("a command without NUL bytes")
	}
	var words []string
	var w word
	started := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		if w.braces == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
			if started {
				words = append(words, w.text.String())
				w.text.Reset()
				started = false
			}
			continue
		}
		switch c {
		case '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				return nil, unclosed(line, i, "single")
			}
			w.text.WriteString(line[i+1 : i+1+end])
			i += 1 + end
		case '"':
			n, closed := w.doubleQuoted(line[i+1:])
			if !closed {
				return nil, unclosed(line, i, "double")
			}
			i += n
		case '\\':
			if i++; i == len(line) {
				return nil, errors.New("a command that does not end in a backslash")
			}
			if line[i] == '\n' {
				continue // line continuation: both characters are removed
			}
			w.text.WriteByte(line[i])
		default:
			i += w.plain(line[i:]) - 1
		}
		started = true
	}
	if started {
		words = append(words, w.text.String())
	}
	return words, nil
}

// unclosed is the error for the quote at that offset. A command line may hold a secret, so the error
// gives the place of the quote and not the text.
func unclosed(line string, at int, kind string) error {
	return fmt.Errorf("a command whose %s quotes are closed: close the %c at character %d, or write the command as an array",
		kind, line[at], utf8.RuneCountInString(line[:at])+1)
}

// word is the word that is being built.
type word struct {
	text   strings.Builder
	braces int // number of open "${", whether quoted or not
}

// plain adds the text without special meaning at the start of s, and returns its length. It counts
// braces in the same way as the later expansion of ${X}.
func (w *word) plain(s string) int {
	n := 1
	switch {
	case strings.HasPrefix(s, "$$"):
		n = 2
	case strings.HasPrefix(s, "${"):
		n = 2
		w.braces++
	case s[0] == '}' && w.braces > 0:
		w.braces--
	}
	w.text.WriteString(s[:n])
	return n
}

// doubleQuoted adds the text up to the closing quote. It returns the number of bytes, including the
// quote, and whether there is a closing quote.
func (w *word) doubleQuoted(s string) (n int, closed bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return i + 1, true
		case '\\':
			if i+1 == len(s) {
				continue
			}
			switch next := s[i+1]; next {
			case '"', '\\', '$', '`':
				w.text.WriteByte(next)
				i++
			case '\n':
				i++
			default:
				w.text.WriteByte('\\')
			}
		default:
			i += w.plain(s[i:]) - 1
		}
	}
	return 0, false
}
