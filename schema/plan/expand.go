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

// maxExpansion bounds what one text may grow to: variables that hold each other
// cannot multiply (values are not expanded again), but a list of many large ones
// could.
const maxExpansion = 1 << 20

// maxDepth bounds defaults within defaults: ${A:-${B:-${C}}}.
const maxDepth = 16

// lookup returns the value of a variable.
type lookup func(name string) (string, bool)

// missing is one variable that has neither a value nor a default.
type missing struct {
	Name    string
	Message string // of ${X:?message}
	Path    string // where it is asked for
	Keys    []string
}

// expander replaces ${X}, ${X:-default}, ${X:?message} and $$ in texts, and
// notes what is missing instead of stopping at the first.
type expander struct {
	get     lookup
	where   []string // the keys of the text being expanded
	missing []missing
	asked   []string // every variable named
	bad     []badText
}

// badText is a text that cannot be expanded.
type badText struct {
	Path string
	Err  error
}

// expand returns text with its variables replaced. A dollar that introduces
// neither "${" nor "$$" stands for itself, so regular expressions survive.
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

// closing returns where the brace that belongs to an opening one before s
// closes.
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

// variable writes the value of what stands between the braces.
func (x *expander) variable(b *strings.Builder, inner string, depth int) error {
	end := nameEnd(inner)
	name, rest := inner[:end], inner[end:]
	if name == "" {
		return fmt.Errorf("%q is not the name of a variable", inner)
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

// lacks notes that a variable has no value.
func (x *expander) lacks(name, message string) {
	x.missing = append(x.missing, missing{Name: name, Message: message, Path: x.path(), Keys: slices.Clone(x.where)})
}

// nameEnd returns the length of the variable name at the start of s: letters,
// digits and underscores, no digit first (POSIX XBD 8.1).
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

// at says where the next text stands, for what may be said of it.
func (x *expander) at(keys ...string) { x.where = keys }

// path is where the current text stands, written out.
func (x *expander) path() string { return schema.Path(x.where...) }

// expandAll expands every text below v, which must be settable, and names the
// places by their keys.
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
			// Its key in the manifest is the name of its dialect.
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

// step walks below a key. A type that has folded several keys into one has no
// name for them.
func (x *expander) step(key string, v reflect.Value) {
	if key == "" {
		x.walk(v)
		return
	}
	x.where = append(x.where, key)
	x.walk(v)
	x.where = x.where[:len(x.where)-1]
}
