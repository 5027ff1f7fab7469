package supervisord

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/dreamlab-ai/agentinit/schema"
)

// dollar stands for a "$" of the file until all texts are expanded. A "$" is then the start of one of
// our variables. A file has no NUL bytes.
const dollar = "\x00"

func marked(text string) string { return strings.ReplaceAll(text, "$", dollar) }

// written is a marked text in a manifest: agentinit makes one "$" of "$$", and expands "${". A lone
// "$" before any other character stays one, so that "$HOME" is written as it was.
func written(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch {
		case text[i] != dollar[0]:
			b.WriteByte(text[i])
		case i > 0 && text[i-1] == dollar[0], i+1 < len(text) && strings.ContainsRune(dollar+"${", rune(text[i+1])):
			b.WriteString("$$")
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// scope is what the names between %( and ) mean.
type scope struct {
	program, group, here string
	numprocs, first      int64
	environment          map[string]string // marked values that stand for themselves

	variables bool            // a value of the environment was used
	used      map[string]bool // names that mean something else here
}

// format matches one conversion of Python's % operator.
var format = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^%\(([^)]*)\)([-0 +#]*)([0-9]{0,3})(?:\.[0-9]+)?([sdi])`)
})

// expand replaces the conversions of a marked text.
func (x *scope) expand(text string) (string, error) {
	var b strings.Builder
	for {
		i := strings.IndexByte(text, '%')
		if i < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		b.WriteString(text[:i])
		if text = text[i:]; strings.HasPrefix(text, "%%") {
			b.WriteByte('%')
			text = text[2:]
			continue
		}
		m := format().FindStringSubmatch(text)
		if m == nil {
			return "", errors.New("a % begins no name such as %(here)s")
		}
		value, err := x.value(m[1], m[3])
		if err != nil {
			return "", err
		}
		width, _ := strconv.Atoi(m[3]) // no digits are 0
		switch left, zero := strings.Contains(m[2], "-"), strings.Contains(m[2], "0") && m[4] != "s"; {
		case strings.HasPrefix(value, "${"):
		case left:
			value = fmt.Sprintf("%-*s", width, value)
		case zero:
			value = strings.Repeat("0", max(0, width-len(value))) + value
		default:
			value = fmt.Sprintf("%*s", width, value)
		}
		b.WriteString(value)
		text = text[len(m[0]):]
	}
}

var variableName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

func (x *scope) value(name, width string) (string, error) {
	switch name {
	case "here":
		x.used["here"] = true
		return marked(x.here), nil
	case "host_node_name":
		x.used["host_node_name"] = true
		x.variables = true
		return "${HOSTNAME}", nil
	}
	if env, ok := strings.CutPrefix(name, "ENV_"); ok && variableName().MatchString(env) {
		if value, ok := x.environment[env]; ok {
			return value, nil
		}
		x.variables = true
		return "${" + env + "}", nil
	}
	switch {
	case x.program == "":
	case name == "program_name":
		return x.program, nil
	case name == "group_name":
		return x.group, nil
	case name == "numprocs":
		return strconv.FormatInt(x.numprocs, 10), nil
	case name == "process_num" && x.numprocs == 1:
		return strconv.FormatInt(x.first, 10), nil
	case name == "process_num":
		if x.first != 0 || width != "" {
			x.used["process_num"] = true
		}
		x.variables = true
		return "${INSTANCE}", nil
	}
	return "", fmt.Errorf("supervisord has no value for %s", schema.Quote("%("+name+")s"))
}

// splitWords splits a command as Python's shlex.split does. Unlike in a shell, a backslash between
// double quotes quotes only itself and the double quote.
func splitWords(line string) (words []string, err error) {
	var word strings.Builder
	started, quote := false, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote != 0 && c == quote: // without the first condition, a marked "$" is taken for the end of a quote
			quote = 0
			continue
		case quote == 0 && strings.IndexByte(" \t\r\n", c) >= 0:
			if started {
				words = append(words, word.String())
			}
			word.Reset()
			started = false
			continue
		case quote == 0 && (c == '\'' || c == '"'):
			quote, started = c, true
			continue
		case c == '\\' && quote == 0 || c == '\\' && quote == '"' && i+1 < len(line) && (line[i+1] == '"' || line[i+1] == '\\'):
			if i++; i == len(line) {
				return nil, errors.New("the command ends in a backslash")
			}
			c = line[i]
		}
		word.WriteByte(c)
		started = true
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if started {
		words = append(words, word.String())
	}
	return words, nil
}

// variable is one pair of an environment.
type variable struct{ name, value string }

// wordsError is about a value of several words. supervisord takes the first word, takes the second for
// the comma, and goes on behind it.
type wordsError struct{ name string }

func (e *wordsError) Error() string { return "the value of " + e.name + " is not one word" }

// environmentName matches what supervisord takes for a name.
var environmentName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_/.+():-]+$`) })

// splitEnvironment reads KEY=VALUE pairs with commas between them, as supervisord does up to 4.3 with the
// shlex of Python that is not POSIX's: a value that begins with a quote ends with the same quote, a
// backslash is an ordinary character, and quotes at both ends are dropped. What is wrong then, but right
// with the quotes that 4.4 has, is read as there.
func splitEnvironment(text string) ([]variable, error) {
	pairs, err := splitPairs(text, false)
	if err != nil {
		if posix, other := splitPairs(text, true); other == nil {
			return posix, nil
		}
	}
	return pairs, err
}

// splitPairs is splitEnvironment for one kind of quotes. With escapes, a backslash between double quotes
// quotes itself and the double quote.
func splitPairs(text string, escapes bool) (pairs []variable, err error) {
	for text = strings.TrimSpace(text); text != ""; {
		name, rest, ok := strings.Cut(text, "=")
		if name = strings.TrimSpace(name); !ok || !environmentName().MatchString(name) {
			return nil, fmt.Errorf("pair %d is no NAME=VALUE", len(pairs)+1)
		}
		rest = strings.TrimSpace(rest)
		value, after := rest, ""
		quoted := rest != "" && strings.Contains(`'"`, rest[:1])
		switch end := strings.IndexByte(rest, ','); {
		case quoted:
			if value, after, ok = cutQuoted(rest, escapes); !ok {
				return nil, fmt.Errorf("the quote of the value of %s is not closed", name)
			}
		case end >= 0:
			value, after = strings.TrimSpace(rest[:end]), rest[end:]
		}
		after = strings.TrimSpace(after)
		if after != "" && after[0] != ',' || !quoted && strings.ContainsFunc(value, unicode.IsSpace) {
			return nil, &wordsError{name}
		}
		if !escapes {
			value = strings.Trim(value, `'"`)
		}
		pairs = append(pairs, variable{name, value})
		text = strings.TrimSpace(strings.TrimPrefix(after, ","))
	}
	return pairs, nil
}

// cutQuoted cuts text, which begins with a quote, behind the next quote of the same kind.
func cutQuoted(text string, escapes bool) (value, after string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == text[0]:
			return b.String(), text[i+1:], true
		case escapes && text[0] == '"' && c == '\\' && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
		}
		b.WriteByte(text[i])
	}
	return "", "", false
}
