package plan

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// maxExpansion bounds the length of one expanded text. Values are not expanded again, so variables
// cannot multiply, but a text may use many large variables.
const maxExpansion = 1 << 20

// maxDepth bounds nested defaults: ${A:-${B:-${C}}}.
const maxDepth = 16

// lookup returns the value of a variable.
type lookup func(name string) (string, bool)

// missing is one variable that has neither a value nor a default.
type missing struct {
	Name    string
	Message string // the message of ${X:?message}
	Path    string // the key that uses the variable
	Keys    []string
}

// expander replaces ${X}, ${X:-default}, ${X:?message} and $$ in texts. It collects all missing
// variables and does not stop at the first one.
type expander struct {
	get     lookup
	where   []string // the keys of the current text
	missing []missing
	asked   []string // every variable that a text names
	bad     []badText
}

// badText is a text that cannot be expanded.
type badText struct {
	Path string
	Err  error
}

// expand returns text with its variables replaced. A dollar that is not part of "${" or "$$" stays
// unchanged, so that regular expressions keep their meaning.
func (x *expander) expand(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	if err := x.expandTo(&b, text, 0); err != nil {
		x.bad = append(x.bad, badText{Path: x.path(), Err: err})
		return text
	}
	return b.String()
}

func (x *expander) expandTo(b *strings.Builder, text string, depth int) error {
	if depth > maxDepth {
		return errors.New("its defaults are nested too deeply")
	}
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			b.WriteString(text)
			return nil
		}
		b.WriteString(text[:i])
		switch text[i+1] {
		case '$':
			b.WriteByte('$')
			text = text[i+2:]
		case '{':
			n, err := closing(text[i+2:])
			if err != nil {
				return err
			}
			if err := x.variable(b, text[i+2:i+2+n], depth); err != nil {
				return err
			}
			text = text[i+2+n+1:]
		default:
			b.WriteByte('$')
			text = text[i+1:]
		}
		if b.Len() > maxExpansion {
			return fmt.Errorf("it expands to more than %d bytes", maxExpansion)
		}
	}
}

// closing returns the index of the closing brace that belongs to an opening brace before s.
func closing(s string) (int, error) {
	depth := 1
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "$$"):
			i++
		case strings.HasPrefix(s[i:], "${"):
			depth++
			i++
		case s[i] == '}':
			if depth--; depth == 0 {
				return i, nil
			}
		}
	}
	return 0, errors.New(`a "${" is not closed; a literal dollar is written "$$"`)
}

// variable writes the value of the expression between the braces.
func (x *expander) variable(b *strings.Builder, inner string, depth int) error {
	end := nameEnd(inner)
	name, rest := inner[:end], inner[end:]
	if name == "" {
		return fmt.Errorf(`%q is not the name of a variable; a literal "${" is written "$${"`, inner)
	}
	x.asked = append(x.asked, name)
	value, set := x.get(name)
	switch {
	case rest == "":
		if !set {
			x.lacks(name, "")
		}
	case strings.HasPrefix(rest, ":-"):
		if value == "" {
			return x.expandTo(b, rest[2:], depth+1)
		}
	case strings.HasPrefix(rest, ":?"):
		if value == "" {
			x.lacks(name, rest[2:])
		}
	default:
		return fmt.Errorf("${%s} is not understood: write ${X}, ${X:-default} or ${X:?message}", inner)
	}
	b.WriteString(value)
	return nil
}

// lacks records that a variable has no value.
func (x *expander) lacks(name, message string) {
	x.missing = append(x.missing, missing{Name: name, Message: message, Path: x.path(), Keys: slices.Clone(x.where)})
}

// nameEnd returns the length of the variable name at the start of s: letters, digits and
// underscores, not beginning with a digit (POSIX XBD 8.1).
func nameEnd(s string) int {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(s)
}

// at sets the keys of the next text, for messages.
func (x *expander) at(keys ...string) { x.where = keys }

// path is the key of the current text as a dotted path.
func (x *expander) path() string { return schema.Path(x.where...) }

// expandAll expands every text below v, which must be settable. It records the keys of each text.
func (x *expander) expandAll(v reflect.Value) {
	x.where = nil
	x.walk(v)
}

func (x *expander) walk(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); strings.Contains(s, "$") {
			v.SetString(x.expand(s))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			x.walk(v.Elem())
		}
	case reflect.Struct:
		if probe, ok := v.Addr().Interface().(*schema.Probe); ok {
			// In the manifest, the key of this text is the name of the dialect.
			x.step(probe.Dialect, reflect.ValueOf(&probe.Target).Elem())
			x.step(probe.Dialect, reflect.ValueOf(&probe.Argv).Elem())
			return
		}
		for i := range v.NumField() {
			x.step(v.Type().Field(i).Tag.Get("toml"), v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			x.step("["+strconv.Itoa(i)+"]", v.Index(i))
		}
	}
}

// step expands the value of a key. If a type combines several keys, there is no single name, and
// key is "".
func (x *expander) step(key string, v reflect.Value) {
	if key == "" {
		x.walk(v)
		return
	}
	x.where = append(x.where, key)
	x.walk(v)
	x.where = x.where[:len(x.where)-1]
}
