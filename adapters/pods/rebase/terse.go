package rebase

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
)

// terse moves the documents of the Turtle family: Turtle, TriG, N-Triples,
// N-Quads, N3 and SPARQL 1.1 share how they write IRIs, strings, comments,
// prefixed names and the base.
func terse(m Move, path string, doc []byte) ([]byte, error) {
	f, err := m.frame(path)
	if err != nil {
		return nil, err
	}
	s := scanner{move: m, frame: f, doc: doc, short: make(map[string]string)}
	s.out.Grow(len(doc) + len(doc)/8)
	s.scan()
	return s.out.Bytes(), nil
}

// scanner copies a document and rewrites its IRIs on the way.
type scanner struct {
	move  Move
	frame frame
	doc   []byte
	at    int
	out   bytes.Buffer
	// short has the namespaces that are only the beginning of the root: what is
	// named with them is written out as an IRI.
	short map[string]string

	// declares is what the next IRI is declared to be: "" nothing.
	declares string
	prefix   string // the one that is being declared
}

// What an IRI may declare.
const (
	declaresBase   = "base"
	declaresPrefix = "prefix"
)

func (s *scanner) scan() {
	for s.at < len(s.doc) {
		switch c := s.doc[s.at]; {
		case c == '#':
			s.copyUntil("\n")
		case c == '"' || c == '\'':
			s.copyString(c)
		case c == '<':
			s.iri()
		case c == '\\':
			s.copy(2)
		case c == '@' || c == ':' || c == '_' || c == '%' || isLetter(c):
			s.word()
		default:
			s.copy(1)
		}
	}
}

// copy takes n bytes over as they are.
func (s *scanner) copy(n int) {
	n = min(n, len(s.doc)-s.at)
	s.out.Write(s.doc[s.at : s.at+n])
	s.at += n
}

func (s *scanner) copyUntil(end string) {
	n := bytes.Index(s.doc[s.at:], []byte(end))
	if n < 0 {
		n = len(s.doc)
	}
	s.copy(n + len(end))
}

// copyString takes over a string in short or long quotes (Turtle, 6.5).
func (s *scanner) copyString(quote byte) {
	long := bytes.Repeat([]byte{quote}, 3)
	end := long[:1]
	if bytes.HasPrefix(s.doc[s.at:], long) {
		end = long
	}
	s.copy(len(end))
	for s.at < len(s.doc) {
		switch {
		case s.doc[s.at] == '\\':
			s.copy(2)
		case bytes.HasPrefix(s.doc[s.at:], end):
			s.copy(len(end))
			return
		case len(end) == 1 && s.doc[s.at] == '\n':
			return // no string after all: its end is where the line's is
		default:
			s.copy(1)
		}
	}
}

// iri moves what stands between < and >. A < that begins no IRI is an operator.
func (s *scanner) iri() {
	end := s.at + 1
	for end < len(s.doc) && s.doc[end] != '>' {
		if c := s.doc[end]; c <= ' ' || strings.IndexByte("<\"{}|^`", c) >= 0 {
			s.copy(1)
			return
		}
		end++
	}
	if end >= len(s.doc) {
		s.copy(1)
		return
	}
	ref, ok := unescaped(string(s.doc[s.at+1 : end]))
	if !ok {
		s.copy(end + 1 - s.at)
		return
	}
	moved := s.move.moved(s.frame, ref)
	if moved == ref {
		s.copy(end + 1 - s.at)
	} else {
		s.out.WriteString("<" + moved + ">")
		s.at = end + 1
	}
	s.declared(ref, moved)
}

// declared ends a declaration with its IRI.
func (s *scanner) declared(ref, moved string) {
	switch s.declares {
	case declaresBase:
		if from, err := s.frame.from.Parse(ref); err == nil {
			if to, err := s.frame.to.Parse(moved); err == nil {
				s.frame = frame{from, to}
			}
		}
	case declaresPrefix:
		delete(s.short, s.prefix)
		if from, err := s.frame.from.Parse(ref); err == nil {
			if namespace := absoluteOf(ref, from.String()); s.move.shortens(namespace) {
				s.short[s.prefix] = namespace
			}
		}
	}
	s.declares, s.prefix = "", ""
}

// absoluteOf is ref where it is absolute: a parsed URL may be written another way.
func absoluteOf(ref, resolved string) string {
	if rdf.HasScheme(ref) {
		return ref
	}
	return resolved
}

// word takes over a keyword, a prefixed name or a number's letters.
func (s *scanner) word() {
	end := s.at + 1
	for end < len(s.doc) && isName(s.doc[end]) {
		if s.doc[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(s.doc))
	for end > s.at+1 && s.doc[end-1] == '.' && s.doc[end-2] != '\\' {
		end-- // the end of the statement
	}
	text := string(s.doc[s.at:end])
	prefix, local, named := strings.Cut(text, ":")
	switch {
	case s.declares == declaresPrefix && named:
		s.prefix = prefix
	case named && s.declares == "":
		if namespace, ok := s.short[prefix]; ok {
			s.out.WriteString("<" + s.move.IRI(namespace+localName(local)) + ">")
			s.at = end
			return
		}
	default:
		switch strings.ToLower(strings.TrimPrefix(text, "@")) {
		case declaresBase, declaresPrefix:
			s.declares = strings.ToLower(strings.TrimPrefix(text, "@"))
		}
	}
	s.copy(end - s.at)
}

// localName takes the backslashes out of the local part of a name (Turtle,
// PN_LOCAL_ESC).
func localName(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
}

// isName tells the bytes that a name may go on with.
func isName(c byte) bool { return isLetter(c) || strings.IndexByte("_-.:%\\", c) >= 0 }

// unescaped decodes \uXXXX and \UXXXXXXXX of an IRI (Turtle, 6.4); false where one
// is broken.
func unescaped(s string) (string, bool) {
	if !strings.Contains(s, `\`) {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			i++
			continue
		}
		n := map[string]int{`\u`: 4, `\U`: 8}[s[i:min(i+2, len(s))]]
		if n == 0 || i+2+n > len(s) {
			return "", false
		}
		r, err := strconv.ParseUint(s[i+2:i+2+n], 16, 32)
		if err != nil || !utf8.ValidRune(rune(r)) || r <= ' ' {
			return "", false
		}
		b.WriteRune(rune(r))
		i += 2 + n
	}
	return b.String(), true
}
