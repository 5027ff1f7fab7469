package schema

import (
	"errors"
	"strings"
)

// SplitCommand splits a command line into words as POSIX shells do (XCU 2.2 and
// 2.3): blanks separate, '…' quotes all, "…" quotes all but \ before " \ $ ` and
// newline, \ outside quotes takes the next character as it is. Nothing else is
// special: no variables, globs, pipes or redirections; ${X} stays as written
// and is expanded later, in each word on its own, so that a value with blanks
// cannot become two arguments.
func SplitCommand(line string) ([]string, error) {
	if strings.IndexByte(line, 0) >= 0 {
		return nil, errors.New("a command without NUL bytes")
	}
	var words []string
	var word strings.Builder
	started := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t', '\n', '\r':
			if started {
				words = append(words, word.String())
				word.Reset()
				started = false
			}
		case '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				return nil, errors.New("a command whose single quotes are closed")
			}
			word.WriteString(line[i+1 : i+1+end])
			i += 1 + end
			started = true
		case '"':
			n, err := doubleQuoted(line[i+1:], &word)
			if err != nil {
				return nil, err
			}
			i += n
			started = true
		case '\\':
			if i++; i == len(line) {
				return nil, errors.New("a command that does not end in a backslash")
			}
			if line[i] == '\n' {
				continue // line continuation: both characters vanish
			}
			word.WriteByte(line[i])
			started = true
		default:
			word.WriteByte(c)
			started = true
		}
	}
	if started {
		words = append(words, word.String())
	}
	return words, nil
}

// doubleQuoted appends the text up to the closing quote to word and returns how
// many bytes it took, the quote included.
func doubleQuoted(s string, word *strings.Builder) (int, error) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return i + 1, nil
		case '\\':
			if i+1 == len(s) {
				continue
			}
			switch next := s[i+1]; next {
			case '"', '\\', '$', '`':
				word.WriteByte(next)
				i++
			case '\n':
				i++
			default:
				word.WriteByte('\\')
			}
		default:
			word.WriteByte(s[i])
		}
	}
	return 0, errors.New("a command whose double quotes are closed")
}
