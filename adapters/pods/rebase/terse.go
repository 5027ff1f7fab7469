package rebase

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
)

// terse moves the documents of the Turtle family: Turtle, TriG, N-Triples,
// N-Quads, N3 and SPARQL 1.1 share how they write IRIs, strings, comments,
// prefixed names and the base.
func terse(m Move, path string, doc []byte) ([]byte, error) {
	from, to, err := m.bases(path)
	if err != nil {
		return nil, err
	}
	s := scanner{move: m, frame: frame{rdf.NewResolver(from), rdf.NewResolver(to)}, doc: doc, short: make(map[string]string), room: 1<<20 + maxResolved*len(doc)}
	s.out.Grow(len(doc) + len(doc)/8)
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return s.out.Bytes(), nil
}

// maxResolved bounds how much longer, on average, a document is with its IRIs as they are below its bases;
// a megabyte is free.
const maxResolved = 128

// scanner copies a document and rewrites its IRIs on the way.
type scanner struct {
	move  Move
	frame frame
	doc   []byte
	at    int
	out   bytes.Buffer
	room  int // bytes that IRIs may still take
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

func (s *scanner) scan() (err error) {
	for s.at < len(s.doc) {
		switch c := s.doc[s.at]; {
		case c == '#':
			s.copyUntil("\n")
		case c == '"' || c == '\'':
			s.copyString(c)
		case c == '<':
			err = s.iri()
		case c == '\\':
			s.copy(2)
		case c == '@' || c == ':' || c == '_' || c == '%' || isLetter(c):
			s.word()
		default:
			s.copy(1)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
func (s *scanner) iri() error {
	end := s.at + 1
	for end < len(s.doc) && s.doc[end] != '>' {
		if c := s.doc[end]; c <= ' ' || strings.IndexByte("<\"{}|^`", c) >= 0 {
			s.copy(1)
			return nil
		}
		end++
	}
	if end >= len(s.doc) {
		s.copy(1)
		return nil
	}
	ref, err := rdf.Reference(string(s.doc[s.at+1 : end]))
	if err != nil {
		s.copy(end + 1 - s.at) // the reader of the document refuses it
		return nil
	}
	moved, size := s.move.moved(s.frame, ref)
	if s.room -= size; s.room < 0 {
		return rdf.ErrTooLarge
	}
	if moved == ref {
		s.copy(end + 1 - s.at)
	} else {
		s.out.WriteString("<" + moved + ">")
		s.at = end + 1
	}
	return s.declared(ref, moved)
}

// declared ends a declaration with its IRI. A base without an end is an error: it could grow with each
// declaration.
func (s *scanner) declared(ref, moved string) (err error) {
	switch s.declares {
	case declaresBase:
		if s.frame.from, err = s.frame.from.Below(ref); err == nil {
			s.frame.to, err = s.frame.to.Below(moved)
		}
	case declaresPrefix:
		delete(s.short, s.prefix)
		if namespace, err := s.frame.from.Resolve(ref); err == nil && s.move.shortens(namespace) {
			s.short[s.prefix] = namespace
		}
	}
	s.declares, s.prefix = "", ""
	return err
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
	case s.at > 0 && strings.IndexByte("?$\"'", s.doc[s.at-1]) >= 0: // a variable or a language
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
