// Package supervisord owns the conversion of a supervisord.conf into a manifest. It reads included
// files only through the functions that it is given. It must never print a value of environment or
// command in an error, because these can hold secrets.
package supervisord

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/schema"
)

// Error is why a file cannot be converted.
type Error struct {
	File         string
	Line         int
	Section, Key string // empty: the error is not about a section or key
	Value        string // empty if it may be a secret
	Message      string
	Hint         string // what to do
}

// Error is always one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	if e.Section != "" {
		fmt.Fprintf(&b, "[%s] ", e.Section)
	}
	if e.Key != "" {
		b.WriteString(e.Key)
		if e.Value != "" {
			b.WriteString(" = " + schema.Quote(e.Value))
		}
		b.WriteString(": ")
	}
	return escape.Line(b.String()+e.Message+"; "+e.Hint, 1000)
}

// entry is a key with its value. The lines of a value are separated by "\n".
type entry struct {
	file, dir  string // dir is what %(here)s means
	line       int
	key, value string
	more       []string // lines that parse has still to add to the value
}

// section is all tables of one name together, as supervisord merges them.
type section struct {
	file    string
	line    int
	name    string
	entries []*entry
	byKey   map[string]*entry
}

// set adds a key or replaces it, because the last value wins. It returns the entry of the key.
func (s *section) set(e entry) *entry {
	old := s.byKey[e.key]
	if old == nil {
		old = &entry{}
		s.entries = append(s.entries, old)
		s.byKey[e.key] = old
	}
	*old = e
	return old
}

// ini is a file with the files that it includes.
type ini struct {
	sections []*section
	byName   map[string]*section
}

var header = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\[([^\]]+)\]`) })

// indented matches a section that is lost if its line continues a value.
var indented = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\[((program|fcgi-program|eventlistener|group):.+|include)\]$`)
})

// parse adds the text of a file, by the rules of Python's configparser as supervisord sets it up.
func (f *ini) parse(file, dir string, data []byte) error {
	refuse := func(offset int, message, hint string) error {
		return &Error{File: file, Line: 1 + bytes.Count(data[:offset], []byte("\n")), Message: message, Hint: hint}
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return refuse(i, "the file has a NUL byte", "name a text file")
	}
	if !utf8.Valid(data) {
		i := 0
		for r, n := utf8.DecodeRune(data); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(data[i:]) {
			i += n
		}
		return refuse(i, "the file is not UTF-8", "convert it first, for example with iconv")
	}
	var in *section
	var last *entry
	depth := 0 // the indentation of last
	for i, line := range strings.Split(string(data), "\n") {
		text, comment := withoutComment(line)
		deeper := len(line)-len(strings.TrimLeftFunc(line, unicode.IsSpace)) > depth
		switch {
		case text == "" && (comment || last == nil):
			continue
		case last != nil && deeper && indented().MatchString(text):
			return &Error{File: file, Line: i + 1, Section: in.name, Key: last.key, Message: "an indented line continues the value, and this one looks like a section", Hint: "remove the blanks before it"}
		case text == "" || last != nil && deeper:
			last.more = append(last.more, text)
			continue
		}
		depth, last = len(line)-len(strings.TrimLeftFunc(line, unicode.IsSpace)), nil
		at := Error{File: file, Line: i + 1}
		if m := header().FindStringSubmatch(text); m != nil {
			if in = f.byName[m[1]]; in == nil {
				in = &section{file: file, line: at.Line, name: m[1], byKey: map[string]*entry{}}
				f.byName[in.name] = in
				f.sections = append(f.sections, in)
			}
			continue
		}
		if in == nil {
			at.Message, at.Hint = "a line comes before the first [section]", "name a supervisord.conf, which is an INI file"
			return &at
		}
		at.Section = in.name
		cut := strings.IndexAny(text, "=:")
		if cut < 1 {
			at.Message, at.Hint = "a line is no key with a value", "write KEY=VALUE, or indent a line that continues a value"
			return &at
		}
		last = in.set(entry{file: file, dir: dir, line: at.Line,
			key: strings.ToLower(strings.TrimSpace(text[:cut])), value: strings.TrimSpace(text[cut+1:])})
	}
	for _, s := range f.sections {
		for _, e := range s.entries {
			e.value = strings.TrimRightFunc(strings.Join(append([]string{e.value}, e.more...), "\n"), unicode.IsSpace)
			e.more = nil
		}
	}
	return nil
}

// withoutComment cuts a comment, which begins at the start of the line or behind a blank.
func withoutComment(line string) (text string, comment bool) {
	blank := true
	for i, r := range line {
		if blank && (r == ';' || r == '#') {
			return strings.TrimSpace(line[:i]), true
		}
		blank = unicode.IsSpace(r)
	}
	return strings.TrimSpace(line), false
}

// Files reads the files that [include] names.
type Files struct {
	Read func(name string) ([]byte, error)
	Glob func(pattern string) ([]string, error)
}

// include adds the files of [include]. An [include] of such a file has no effect, as in supervisord.
// It returns the patterns that no file matches.
func (c *converter) include(files Files) (unmatched []string, err error) {
	s := c.ini.byName["include"]
	if s == nil || s.byKey["files"] == nil {
		return nil, nil
	}
	e := *s.byKey["files"]
	t := c.table(s)
	text, ok := t.plain("files")
	if !ok {
		for pattern := range strings.FieldsSeq(e.value) {
			if strings.Contains(strings.ReplaceAll(pattern, "%(here)s", ""), "%(") {
				e.value = pattern
				break
			}
		}
		return nil, cmp.Or[error](t.err, c.refusal(s, &e, "the path depends on the environment", "write the path itself"))
	}
	for pattern := range strings.FieldsSeq(text) {
		if !filepath.IsAbs(pattern) {
			pattern = e.dir + "/" + pattern
		}
		pattern = filepath.Clean(pattern)
		names, err := files.Glob(strings.ReplaceAll(pattern, "[!", "[^")) // Python negates a set with "!"
		if err != nil {
			return nil, c.refusal(s, &e, "the pattern cannot be read: "+err.Error(), "close its brackets")
		}
		names = slices.DeleteFunc(names, func(name string) bool { // Python's * matches no hidden file
			return strings.HasPrefix(filepath.Base(name), ".") && !strings.HasPrefix(filepath.Base(pattern), ".")
		})
		if len(names) == 0 {
			unmatched = append(unmatched, pattern)
		}
		slices.Sort(names)
		for _, name := range names {
			text, err := files.Read(name)
			if err != nil {
				return nil, c.refusal(s, &e, fmt.Sprintf("cannot read %s: %v", name, err), "make it readable, or take it out of files")
			}
			if err := c.ini.parse(name, filepath.Dir(name), text); err != nil {
				return nil, err
			}
		}
	}
	return unmatched, nil
}
