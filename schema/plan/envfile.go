package plan

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxEnvFile bounds one env_file, in bytes.
const MaxEnvFile = 1 << 20

// parseEnvFile reads the lines of an env_file: NAME=value, with an optional "export" before it. A
// value in single quotes is literal. A value in double quotes has the escapes \n, \t, \", \\ and
// \$, and may span lines. A value without quotes ends at the end of the line, or before a blank and
// "#". Variables in values are not expanded. If a name is repeated, the last line is used.
func parseEnvFile(text []byte) ([]variable, error) {
	if len(text) > MaxEnvFile {
		return nil, fmt.Errorf("it is larger than %d bytes", MaxEnvFile)
	}
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return nil, errors.New("it is not UTF-8 text")
	}
	rest := strings.TrimPrefix(strings.ReplaceAll(string(text), "\r\n", "\n"), "\ufeff")
	var out []variable
	for line := 1; rest != ""; {
		entry, n, err := envLine(rest)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if entry != nil {
			out = append(out, *entry)
		}
		line += strings.Count(rest[:n], "\n")
		rest = rest[n:]
	}
	return out, nil
}

// variable is one entry of an environment.
type variable struct{ Name, Value string }

// errNoName is the error for a line that is no variable, such as a file that holds a secret alone.
var errNoName = errors.New("NAME=value is wanted")

// envLine reads one entry and returns its length in bytes. For an empty line or a comment, the
// entry is nil.
func envLine(s string) (*variable, int, error) {
	line, _, _ := strings.Cut(s, "\n")
	next := min(len(line)+1, len(s))
	trimmed := strings.TrimLeft(line, " \t")
	if trimmed == "" || trimmed[0] == '#' {
		return nil, next, nil
	}
	indent := len(line) - len(trimmed)
	if after, ok := strings.CutPrefix(trimmed, "export "); ok {
		indent += len("export ") + len(after) - len(strings.TrimLeft(after, " \t"))
	}
	start := s[indent:]
	end := nameEnd(start)
	name := start[:end]
	if name == "" || end == len(start) || start[end] != '=' {
		return nil, 0, errNoName
	}
	value, n, err := envValue(start[end+1:])
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", name, err)
	}
	return &variable{name, value}, min(indent+end+1+n, len(s)), nil
}

// envValue reads a value and returns its length in bytes, including the line break.
func envValue(s string) (string, int, error) {
	if s == "" || s[0] != '"' && s[0] != '\'' {
		line, _, _ := strings.Cut(s, "\n")
		value := line
		for i := 1; i < len(line); i++ {
			if line[i] == '#' && (line[i-1] == ' ' || line[i-1] == '\t') {
				value = line[:i]
				break
			}
		}
		return strings.Trim(value, " \t\r"), len(line) + 1, nil
	}
	value, n, err := quoted(s)
	if err != nil {
		return "", 0, err
	}
	tail, _, _ := strings.Cut(s[n:], "\n")
	if t := strings.TrimSpace(tail); t != "" && t[0] != '#' {
		return "", 0, errors.New("something follows the closing quote")
	}
	return value, n + len(tail) + 1, nil
}

var envEscapes = map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', '"': '"', '\\': '\\', '$': '$'}

// quoted reads a quoted value and returns its length in bytes.
func quoted(s string) (string, int, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == s[0]:
			return b.String(), i + 1, nil
		case s[0] == '"' && s[i] == '\\' && i+1 < len(s):
			i++
			if c, ok := envEscapes[s[i]]; ok {
				b.WriteByte(c)
			} else {
				b.WriteString(s[i-1 : i+1])
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return "", 0, errors.New("the quotes are not closed")
}
