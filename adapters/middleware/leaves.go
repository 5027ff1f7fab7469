package middleware

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// piece is one distinct text with its redacted form.
type piece struct {
	text, redacted string
	hits           int
}

// span is a part of a document that is text. The redactor gets the unescaped piece; the result is
// escaped by the document's rules.
type span struct {
	start, end int // in the document
	piece      *piece
	escape     func(string) string
}

// document is one input with its texts.
type document struct {
	raw   []byte
	spans []span
	set   func([]byte) // replaces the document by the rewritten one
	undo  func()
}

// pieces are all documents of a call. Equal texts are sent only once.
type pieces struct {
	docs   []*document
	byText map[string]*piece
	order  []*piece
}

func (p *pieces) all() []*piece { return p.order }

func (p *pieces) sums() (hits, size int) {
	for _, x := range p.order {
		hits += x.hits
		if x.redacted != x.text {
			size += len(x.text)
		}
	}
	return hits, size
}

func (p *pieces) piece(text string) *piece {
	if x, ok := p.byText[text]; ok {
		return x
	}
	x := &piece{text: text, redacted: text}
	p.byText[text] = x
	p.order = append(p.order, x)
	return x
}

// apply writes the redacted texts into the documents. The returned function undoes that.
func (p *pieces) apply() (restore func()) {
	var undo []func()
	for _, d := range p.docs {
		if out, changed := d.rewrite(); changed {
			d.set(out)
			undo = append(undo, d.undo)
		}
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

func (d *document) rewrite() (out []byte, changed bool) {
	at := 0
	for _, s := range d.spans {
		if s.piece.redacted == s.piece.text {
			continue
		}
		out = append(append(out, d.raw[at:s.start]...), s.escape(s.piece.redacted)...)
		at, changed = s.end, true
	}
	return append(out, d.raw[at:]...), changed
}

var errNotText = errors.New("a body is binary or larger than can be checked")

// gather finds the texts of a call. If a body cannot be checked, gather returns an error, and the
// text is still complete for a policy that lets it pass.
func gather(texts []adapters.Text) (*pieces, error) {
	p := &pieces{byText: make(map[string]*piece)}
	for _, t := range texts {
		var err error
		switch {
		case t.String != nil:
			err = p.plain(t.String)
		case t.JSON != nil:
			p.json(t.JSON)
		case t.Body != nil:
			err = p.body(t.Body)
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *pieces) add(d *document) {
	if len(d.spans) > 0 {
		p.docs = append(p.docs, d)
	}
}

func (p *pieces) whole(raw []byte) []span {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	return []span{{0, len(raw), p.piece(string(raw)), func(s string) string { return s }}}
}

func (p *pieces) plain(s *string) error {
	if len(*s) > maxRedactText {
		return errNotText
	}
	old := *s
	p.add(&document{
		raw: []byte(old), spans: p.whole([]byte(old)),
		set: func(b []byte) { *s = string(b) }, undo: func() { *s = old },
	})
	return nil
}

func (p *pieces) json(raw *json.RawMessage) {
	old := *raw
	p.add(&document{raw: old, spans: p.jsonSpans(old), set: func(b []byte) { *raw = b }, undo: func() { *raw = old }})
}

// body reads a document that is text. In any case it leaves a reader that yields the document
// again.
func (p *pieces) body(b *adapters.Body) error {
	kind := textKind(b.ContentType)
	if kind == notText || b.Size > maxRedactText {
		return errNotText
	}
	source := b.Reader
	raw, err := io.ReadAll(io.LimitReader(source, maxRedactText+1))
	put := func(content []byte) { b.Reader, b.Size = bytes.NewReader(content), int64(len(content)) }
	if err != nil {
		b.Reader = io.MultiReader(bytes.NewReader(raw), failed{err})
		return err
	}
	if len(raw) > maxRedactText {
		b.Reader = io.MultiReader(bytes.NewReader(raw), source)
		return errNotText
	}
	put(raw)
	if !utf8.Valid(raw) {
		return errNotText
	}
	d := &document{raw: raw, set: put, undo: func() { put(raw) }}
	switch {
	case kind == jsonText && json.Valid(raw):
		d.spans = p.jsonSpans(raw)
	case kind == rdfText:
		d.spans = p.rdfSpans(raw)
	default:
		d.spans = p.whole(raw)
	}
	p.add(d)
	return nil
}

// failed is the reader for the rest of a body whose read failed.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

type kind int

const (
	notText kind = iota
	plainText
	jsonText
	rdfText
)

func textKind(contentType string) kind {
	mt, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return notText
	}
	switch mt {
	case "text/turtle", "text/n3", "application/n-triples", "application/n-quads", "application/trig", "application/sparql-update":
		return rdfText
	case "application/json":
		return jsonText
	case "application/xml", "application/xhtml+xml", "application/javascript", "application/yaml", "application/toml":
		return plainText
	}
	switch {
	case strings.HasSuffix(mt, "+json"):
		return jsonText
	case strings.HasPrefix(mt, "text/"), strings.HasSuffix(mt, "+xml"):
		return plainText
	}
	return notText
}

// jsonSpans finds the string values of valid JSON, but not keys and names.
func (p *pieces) jsonSpans(raw []byte) []span {
	var spans []span
	key := ""
	for i := 0; i < len(raw); i++ {
		if raw[i] == '}' {
			key = "" // the next values in an array have no key of their own
		}
		if raw[i] != '"' {
			continue
		}
		end := stringEnd(raw, i)
		var text string
		if json.Unmarshal(raw[i:end], &text) != nil {
			return spans
		}
		if after := bytes.TrimLeft(raw[end:], " \t\r\n"); len(after) > 0 && after[0] == ':' {
			key = text
		} else if strings.TrimSpace(text) != "" && !isName(key, text) {
			spans = append(spans, span{i, end, p.piece(text), jsonString})
		}
		i = end - 1
	}
	return spans
}

// stringEnd is the index after the closing quote of the string at i.
func stringEnd(raw []byte, i int) int {
	for j := i + 1; j < len(raw); j++ {
		switch raw[j] {
		case '\\':
			j++
		case '"':
			return j + 1
		}
	}
	return len(raw)
}

func jsonString(s string) string {
	out, _ := json.Marshal(s) // strings always marshal
	return string(out)
}

// isName tells whether a value is an identifier or a hash, which must stay unchanged. Both its key
// and its form must match, so that a name in a text field is not skipped.
func isName(key, text string) bool {
	if strings.HasPrefix(text, "did:nostr:") || strings.HasPrefix(text, "urn:") {
		return adapters.CheckID("", text) == nil
	}
	if key != "@value" && strings.HasPrefix(key, "@") {
		return true
	}
	k := strings.ToLower(key)
	for _, suffix := range []string{"id", "hash", "sha256", "digest", "etag", "pubkey", "sig", "npub", "version"} {
		if k == suffix || strings.HasSuffix(k, "_"+suffix) || strings.HasSuffix(key, strings.ToUpper(suffix[:1])+suffix[1:]) {
			return adapters.CheckID("", text) == nil
		}
	}
	return false
}

// rdfSpans finds the string literals of Turtle, N3, N-Triples and SPARQL
// Update (Turtle 1.1, section 6.4), skipping IRIs and comments. Where a literal does not end,
// nothing tells text from structure, and the whole document is one span.
func (p *pieces) rdfSpans(raw []byte) []span {
	var spans []span
	for i := 0; i < len(raw); {
		switch c := raw[i]; c {
		case '#':
			n := bytes.IndexByte(raw[i:], '\n')
			if n < 0 {
				return spans
			}
			i += n
		case '<':
			i += iriLen(raw[i:])
		case '"', '\'':
			quote := 1
			if len(raw) > i+2 && raw[i+1] == c && raw[i+2] == c {
				quote = 3
			}
			end := literalEnd(raw, i+quote, c, quote)
			if end < 0 {
				return p.whole(raw)
			}
			if text := unescapeRDF(string(raw[i+quote : end])); strings.TrimSpace(text) != "" {
				spans = append(spans, span{i + quote, end, p.piece(text), escapeRDF})
			}
			i = end + quote
		case '\\': // a local name may have \' and \#
			i += 2
		default:
			i++
		}
	}
	return spans
}

// iriLen is the length of the IRI at the start of b, or 1 if the character is a comparison instead.
func iriLen(b []byte) int {
	for j := 1; j < len(b); j++ {
		switch c := b[j]; {
		case c == '>':
			return j + 1
		case c <= ' ' || c == '<' || c == '"' || c == '{' || c == '}' || c == '|' || c == '^' || c == '`':
			return 1
		}
	}
	return 1
}

// literalEnd is the index of the closing quotes, or -1 if there are none. Only a literal in three
// quotes has more than one line.
func literalEnd(raw []byte, i int, c byte, quote int) int {
	for ; i+quote <= len(raw); i++ {
		if quote == 1 && (raw[i] == '\n' || raw[i] == '\r') {
			return -1
		}
		if raw[i] == '\\' {
			i++
			continue
		}
		if raw[i] == c && (quote == 1 || raw[i+1] == c && raw[i+2] == c) {
			return i
		}
	}
	return -1
}

var rdfEscapes = strings.NewReplacer(`\t`, "\t", `\b`, "\b", `\n`, "\n", `\r`, "\r", `\f`, "\f", `\"`, `"`, `\'`, `'`, `\\`, `\`)

// unescapeRDF resolves ECHAR and UCHAR escapes.
func unescapeRDF(s string) string {
	if !strings.Contains(s, `\u`) && !strings.Contains(s, `\U`) {
		return rdfEscapes.Replace(s)
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		n := 0
		if s[i] == '\\' && i+1 < len(s) {
			switch s[i+1] {
			case 'u':
				n = 4
			case 'U':
				n = 8
			}
		}
		if n > 0 && i+2+n <= len(s) {
			if r, ok := hexRune(s[i+2 : i+2+n]); ok {
				out.WriteRune(r)
				i += 1 + n
				continue
			}
		}
		if s[i] == '\\' && i+1 < len(s) {
			out.WriteString(rdfEscapes.Replace(s[i : i+2]))
			i++
			continue
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

func hexRune(s string) (rune, bool) {
	var r rune
	for i := range len(s) {
		d := strings.IndexByte("0123456789abcdef", s[i]|0x20)
		if s[i] <= '9' {
			d = strings.IndexByte("0123456789", s[i])
		}
		if d < 0 {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, utf8.ValidRune(r)
}

var rdfEscaper = strings.NewReplacer("\t", `\t`, "\b", `\b`, "\n", `\n`, "\r", `\r`, "\f", `\f`, `"`, `\"`, `'`, `\'`, `\`, `\\`)

func escapeRDF(s string) string { return rdfEscaper.Replace(s) }
