package rdf

import (
	"net/url"
	"strings"
)

// hasScheme tells whether ref begins with a scheme and ":", as an absolute IRI does (RFC 3986, 3.1).
func hasScheme(ref string) bool { return schemeEnd(ref) > 0 }

// schemeEnd is the position of the colon behind a scheme, or 0.
func schemeEnd(ref string) int {
	for i := range len(ref) {
		switch c := ref[i]; {
		case c == ':':
			return i
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return 0
		}
	}
	return 0
}

// validIRI tells whether s is absolute and has none of the characters that end an IRI in Turtle or
// would need an escape there (Turtle, IRIREF). Without this test, an IRI could bring triples of its own into
// a document that is written.
func validIRI(s string) bool { return hasScheme(s) && cleanIRI(s) }

// Reference is what stands between < and > in Turtle, N3 and SPARQL, without its escapes. An escape must
// not bring in what may not be there without it.
func Reference(raw string) (string, error) {
	ref, err := unescape(raw, false)
	if err == nil && !cleanIRI(ref) {
		err = syntaxError("an IRI without spaces or quotes")
	}
	return ref, err
}

func cleanIRI(s string) bool {
	for i := range len(s) {
		switch c := s[i]; c {
		case '<', '>', '"', '{', '}', '|', '^', '`', '\\':
			return false
		default:
			if c <= ' ' {
				return false
			}
		}
	}
	return true
}

// reference is a parsed IRI or relative reference (RFC 3986, appendix B). Package net/url would
// change the escapes of what it resolves, and IRIs are equal only byte by byte (RDF 1.1 Concepts, 3.2).
type reference struct {
	scheme, authority, path, query, fragment string // query and the others with their mark
}

func parseReference(s string) (r reference) {
	if i := strings.IndexByte(s, '#'); i >= 0 {
		s, r.fragment = s[:i], s[i:]
	}
	if i := strings.IndexByte(s, '?'); i >= 0 {
		s, r.query = s[:i], s[i:]
	}
	if i := schemeEnd(s); i > 0 {
		r.scheme, s = s[:i+1], s[i+1:]
	}
	if strings.HasPrefix(s, "//") {
		end := strings.IndexByte(s[2:], '/')
		if end < 0 {
			end = len(s) - 2
		}
		r.authority, s = s[:end+2], s[end+2:]
	}
	r.path = s
	return r
}

// Resolver resolves references against one base; the zero value has none.
type Resolver struct {
	base reference
	set  bool
}

// NewResolver is for the base of a document; nil is none.
func NewResolver(base *url.URL) Resolver {
	if base == nil {
		return Resolver{}
	}
	return Resolver{parseReference(base.String()), true}
}

// Below is for a base that a document declares.
func (r Resolver) Below(ref string) (Resolver, error) {
	abs, err := r.Resolve(ref)
	if err != nil {
		return Resolver{}, err
	}
	if len(abs) > maxIRI {
		return Resolver{}, errLongIRI
	}
	return Resolver{parseReference(abs), true}, nil
}

// Resolve makes a reference absolute (RFC 3986, 5.2). An absolute reference stays unchanged; without
// a base, a relative one is an error.
func (r Resolver) Resolve(ref string) (string, error) {
	if hasScheme(ref) {
		return ref, nil
	}
	if !r.set || r.base.scheme == "" {
		return "", errBrokenIRI
	}
	in, out := parseReference(ref), reference{scheme: r.base.scheme}
	out.query, out.fragment = in.query, in.fragment
	switch {
	case in.authority != "":
		out.authority, out.path = in.authority, removeDots(in.path)
	case in.path == "":
		out.authority, out.path = r.base.authority, r.base.path
		if in.query == "" {
			out.query = r.base.query
		}
	case in.path[0] == '/':
		out.authority, out.path = r.base.authority, removeDots(in.path)
	case strings.Contains(in.path[:strings.IndexByte(in.path+"/", '/')], ":"):
		return "", errBrokenIRI // a broken scheme (RFC 3986, 4.2)
	default:
		out.authority = r.base.authority
		dir := r.base.path[:strings.LastIndexByte(r.base.path, '/')+1]
		if dir == "" && out.authority != "" {
			dir = "/"
		}
		out.path = removeDots(dir + in.path)
	}
	if out.authority == "" && strings.HasPrefix(out.path, "//") {
		return "", errBrokenIRI // it would be read as an authority
	}
	return out.scheme + out.authority + out.path + out.query + out.fragment, nil
}

// removeDots takes the segments . and .. out of a path (RFC 3986, 5.2.4).
func removeDots(path string) string {
	if !strings.Contains(path, ".") {
		return path
	}
	segments := strings.Split(path, "/")
	kept := segments[:0]
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".":
		case "..":
			if n := len(kept); n > 1 {
				kept = kept[:n-1]
			} else if n == 1 {
				kept[0] = "" // RFC 3986 makes a/../b into /b
			}
		default:
			kept = append(kept, s)
			continue
		}
		if last {
			kept = append(kept, "") // what is left is a directory
		}
	}
	return strings.Join(kept, "/")
}
