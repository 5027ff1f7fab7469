package schema

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
)

// Format rewrites a manifest in its canonical layout. Each expression is on one line without
// indentation, with one blank before and after "=". There is one blank line before a table. Arrays
// over several lines are indented by two blanks, and no line ends in blanks. Keys, values, comments
// and their order stay unchanged. Format checks that the result has the same meaning. Formatting
// the result again changes no byte.
func Format(name string, data []byte) ([]byte, *Finding) {
	before, bad := Parse(name, data)
	if bad != nil {
		return nil, bad
	}
	out := formatText(data)
	after, bad := Parse(name, out)
	if bad != nil || !sameTree(before.raw, after.raw) {
		return nil, unreadable(name, Position{}, "it cannot be formatted without changing its meaning")
	}
	return out, nil
}

// sameTree compares values. Here NaN equals itself.
func sameTree(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			w, there := b[k]
			if !there || !sameTree(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameTree)
	case float64:
		b, ok := b.(float64)
		return ok && (a == b || a != a && b != b)
	}
	return reflect.DeepEqual(a, b)
}

// textState is the syntactic state at the beginning of a line.
type textState struct {
	quote byte // quote of an open multi-line string, otherwise 0
	depth int  // number of open brackets
}

// lineShape is the result of scanLine for one line.
type lineShape struct {
	equals  int // index of the first = outside strings and brackets, or -1
	closing int // brackets that are closed at the beginning of the line
	end     textState
}

// scanLine scans one line that begins in state.
func scanLine(line string, state textState) lineShape {
	shape := lineShape{equals: -1}
	leading := state.quote == 0
	for i := 0; i < len(line); {
		if state.quote != 0 {
			i = skipMulti(line, i, &state)
			leading = false
			continue
		}
		c := line[i]
		switch {
		case c == '#':
			shape.end = state
			return shape
		case c == '"' || c == '\'':
			leading = false
			if strings.HasPrefix(line[i:], strings.Repeat(string(c), 3)) {
				state.quote = c
				i += 3
				continue
			}
			i = skipString(line, i)
			continue
		case c == '=' && state.depth == 0 && shape.equals < 0:
			shape.equals = i
		case c == '[' || c == '{':
			state.depth++
			leading = false
		case c == ']' || c == '}':
			state.depth--
			if leading {
				shape.closing++
			}
		case c != ' ' && c != '\t' && c != ',':
			leading = false
		}
		i++
	}
	shape.end = state
	return shape
}

// skipString returns the index after a single-line string.
func skipString(line string, i int) int {
	q := line[i]
	for i++; i < len(line); i++ {
		if line[i] == '\\' && q == '"' {
			i++
		} else if line[i] == q {
			return i + 1
		}
	}
	return len(line)
}

// skipMulti skips to the end of a multi-line string, or to the end of the line.
func skipMulti(line string, i int, state *textState) int {
	q := state.quote
	for i < len(line) {
		switch {
		case line[i] == '\\' && q == '"':
			i += 2
		case strings.HasPrefix(line[i:], strings.Repeat(string(q), 3)):
			for i += 3; i < len(line) && line[i] == q; i++ {
			}
			state.quote = 0
			return i
		default:
			i++
		}
	}
	return len(line)
}

type formatter struct {
	out     bytes.Buffer
	held    []string // comment lines that may belong to a following table header
	blank   bool     // the next line needs a blank line before it
	written bool
}

func formatText(data []byte) []byte {
	f := &formatter{}
	var state textState
	for line := range strings.SplitAfterSeq(string(data), "\n") {
		state = f.line(strings.TrimSuffix(line, "\n"), state)
	}
	f.flush()
	return f.out.Bytes()
}

// line writes one line and returns the state after it.
func (f *formatter) line(body string, state textState) textState {
	shape := scanLine(body, state)
	switch {
	case state.quote != 0:
		f.emit(f.tail(body, shape))
	case state.depth > 0:
		f.continued(body, state, shape)
	default:
		f.expression(body, shape)
	}
	return shape.end
}

// tail keeps the text of a multi-line string and trims blanks after its end.
func (f *formatter) tail(body string, shape lineShape) string {
	if shape.end.quote != 0 {
		return body
	}
	return strings.TrimRight(body, " \t\r")
}

// continued writes a line inside an array of several lines.
func (f *formatter) continued(body string, state textState, shape lineShape) {
	text := strings.TrimLeft(body, " \t")
	if shape.end.quote == 0 {
		text = strings.TrimRight(text, " \t\r")
	}
	if text == "" {
		f.emit("")
		return
	}
	f.emit(strings.Repeat("  ", max(state.depth-shape.closing, 0)) + text)
}

// expression writes a line outside arrays and strings: blank, comment, table header or key.
func (f *formatter) expression(body string, shape lineShape) {
	text := strings.TrimLeft(body, " \t")
	if shape.end.quote == 0 {
		text = strings.TrimRight(text, " \t\r")
	}
	switch {
	case text == "":
		f.flush()
		f.blank = f.written
	case text[0] == '#':
		f.held = append(f.held, text)
	case text[0] == '[':
		f.blank = f.written
		f.flush()
		f.emit(text)
	case shape.equals < 0:
		f.flush()
		f.emit(text)
	default:
		f.flush()
		key := strings.TrimSpace(body[:shape.equals])
		value := strings.TrimLeft(body[shape.equals+1:], " \t")
		if shape.end.quote == 0 {
			value = strings.TrimRight(value, " \t\r")
		}
		f.emit(key + " = " + value)
	}
}

// flush writes the held comment lines.
func (f *formatter) flush() {
	for _, c := range f.held {
		f.emit(c)
	}
	f.held = f.held[:0]
}

func (f *formatter) emit(line string) {
	if f.blank {
		f.out.WriteByte('\n')
		f.blank = false
	}
	f.out.WriteString(line)
	f.out.WriteByte('\n')
	f.written = true
}
