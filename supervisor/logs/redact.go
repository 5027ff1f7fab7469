package logs

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Secrets are masked in every line before it reaches the ring, the console or a file. Each byte
// becomes an asterisk, so the text keeps its length and is not copied. Blocks end at line ends, so
// the end of a read never splits a secret. If a line itself is cut, bytes at its end that may begin
// a secret wait for the rest.

// minSecret is the shortest secret that is masked. Shorter ones occur by chance as words, and
// masking them would make the output useless.
const minSecret = 8

// maxSecret is the longest secret that is masked, because a line may have to wait for its end. The
// kernel passes no longer variable to a program (MAX_ARG_STRLEN in execve(2)).
const maxSecret = 128 << 10

// longSecret divides short from long secrets: a search for long ones alone is much faster.
const longSecret = 24

// redactor searches for a set of secrets. It is immutable.
type redactor struct {
	values   []string // as the caller gave them
	patterns [][]byte
	longest  int
	groups   []*matcher
}

// Redact adds secrets that are masked from now on, also in the forms that JSON, URLs and base64
// give them. Of a secret with several lines, each line is masked. Values shorter than 8 bytes or
// longer than 128 KiB are ignored. What was masked cannot be recovered.
func (p *Plane) Redact(values ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var known []string
	if old := p.secrets.Load(); old != nil {
		known = old.values
	}
	all := slices.Concat(known, values)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > len(known) {
		p.secrets.Store(newRedactor(all))
	}
}

// Mask returns text with every byte of the known secrets replaced by an asterisk. It is for text
// that leaves the box but is not program output, such as events.
func (p *Plane) Mask(text string) string {
	r := p.secrets.Load()
	if r == nil || len(text) < minSecret {
		return text
	}
	masked := []byte(text)
	r.mask(masked)
	return string(masked)
}

// MaskCut is Mask for text that was cut. The start of a secret at its end is removed.
func (p *Plane) MaskCut(text string) string {
	return p.Mask(text[:len(text)-p.secrets.Load().held([]byte(text))])
}

func newRedactor(values []string) *redactor {
	r := &redactor{values: values}
	seen := map[string]bool{}
	for _, value := range values {
		if len(value) > maxSecret {
			continue
		}
		for _, form := range forms(value) {
			if len(form) >= minSecret && !seen[form] {
				seen[form] = true
				r.patterns = append(r.patterns, []byte(form))
				r.longest = max(r.longest, len(form))
			}
		}
	}
	var short, long [][]byte
	for _, p := range r.patterns {
		if len(p) < longSecret {
			short = append(short, p)
		} else {
			long = append(long, p)
		}
	}
	for _, group := range [][][]byte{long, short} {
		if len(group) > 0 {
			r.groups = append(r.groups, newMatcher(group))
		}
	}
	return r
}

// forms lists the ways in which a secret may appear in output.
func forms(value string) []string {
	out := base64Forms(value)
	for line := range strings.Lines(value) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "-----") {
			continue // the BEGIN and END lines of a PEM block are not secret
		}
		out = append(out, line)
		out = append(out, urlForms(line)...)
		out = append(out, base64Forms(line)...)
		out = append(out, jsonForms(line)...)
	}
	return out
}

// inURL are the sets of characters that usual encoders of URLs leave as they are, in addition to
// letters and digits: the unreserved ones of RFC 3986 (Go's QueryEscape), these and the slash (Python's
// quote), those of JavaScript's encodeURIComponent and encodeURI, those of Go's PathEscape, those of
// forms (application/x-www-form-urlencoded in the URL Standard of the WHATWG: JavaScript's
// URLSearchParams, Java, Rust), and those of PHP's urlencode.
var inURL = []string{"-._~", "-._~/", "-._~!'()*", "-._~!'()*;,/?:@&=+$#", "-._~$&+=:@", "-._*", "-._"}

// urlForms returns a text as usual encoders of URLs write it: with hexadecimal digits in upper or
// lower case, and a space as %20 or, in a query, as a plus sign.
func urlForms(text string) []string {
	var out []string
	for _, plain := range inURL {
		for _, digits := range []string{"0123456789ABCDEF", "0123456789abcdef"} {
			escaped := percentEncoded(text, plain, digits)
			out = append(out, escaped, strings.ReplaceAll(escaped, "%20", "+"))
		}
	}
	return out
}

// percentEncoded escapes every byte of a text that is neither a letter nor a digit nor in plain.
func percentEncoded(text, plain, digits string) string {
	var out []byte
	for i := range len(text) {
		c := text[i]
		if '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || strings.IndexByte(plain, c) >= 0 {
			out = append(out, c)
		} else {
			out = append(out, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(out)
}

// jsonForms returns a text as the usual encoders of JSON write it. All escape quotes, backslashes and
// control characters. Go also escapes <, > and &, Gson (Java) these, the equals sign and the
// apostrophe, Python what is not ASCII, PHP that and the slash, and System.Text.Json (.NET) most of
// these and the plus sign, with digits in upper case.
func jsonForms(text string) []string {
	const lower, upper = `\u%04x`, `\u%04X`
	quoted := quotedJSON(text, false)
	slashed := strings.ReplaceAll(quoted, "/", `\/`)
	return []string{
		quotedJSON(text, true), quoted, slashed,
		escapedJSON(quoted, "<>&='", unicode.MaxRune, lower),
		escapedJSON(quoted, "", '~', lower), escapedJSON(slashed, "", '~', lower),
		escapedJSON(strings.ReplaceAll(quoted, `\"`, `\u0022`), "<>&'+`", '~', upper),
	}
}

// quotedJSON returns a text as a string of JSON, without the quotes around it.
func quotedJSON(text string, escapeHTML bool) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(escapeHTML)
	if encoder.Encode(text) != nil {
		return "" // a string can always be encoded
	}
	return out.String()[1 : out.Len()-len("\"\n")]
}

// escapedJSON escapes the characters of a JSON text that are in special or above last.
func escapedJSON(text, special string, last rune, format string) string {
	var out []byte
	for _, r := range text {
		if r <= last && !strings.ContainsRune(special, r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, format, unit)
		}
	}
	return string(out)
}

// base64Forms returns the base64 characters (RFC 4648, sections 4 and 5) that depend on the value
// alone. It covers each position at which the value can begin in the encoded text: HTTP's Basic
// authentication puts a user name before it.
func base64Forms(value string) (out []string) {
	for before := range 3 {
		padded := append(make([]byte, before), value...)
		begin, end := (before*8+5)/6, len(padded)*8/6 // the characters whose bits all come from the value
		if end-begin < minSecret {
			continue
		}
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			out = append(out, encoding.EncodeToString(padded)[begin:end])
		}
	}
	return out
}

// mask masks all secrets in text.
func (r *redactor) mask(text []byte) {
	if r == nil {
		return
	}
	// All are found before the first is masked, because the end of one may be the start of another.
	var found []place
	for _, m := range r.groups {
		found = m.find(text, found)
	}
	for _, at := range found {
		for i := at.from; i < at.to; i++ {
			text[i] = '*'
		}
	}
}

// place is where a text has secrets that touch each other.
type place struct{ from, to int }

// maskBegun masks the start of a secret at the end of text. A program may die while it prints a
// secret.
func (r *redactor) maskBegun(text []byte) {
	if n := r.held(text); n >= minSecret {
		copy(text[len(text)-n:], bytes.Repeat([]byte{'*'}, n))
	}
}

// held is how many bytes at the end of text may be the start of a secret. What ends a whole secret
// does not count, even if another one may begin so: a cut there would tear the whole one apart, and
// mask would find neither half.
func (r *redactor) held(text []byte) int {
	if r == nil {
		return 0
	}
	for n := min(r.longest-1, len(text)); n > 0; n-- {
		tail := text[len(text)-n:]
		begins := func(p []byte) bool { return len(p) > n && bytes.HasPrefix(p, tail) }
		if slices.ContainsFunc(r.patterns, begins) && !r.tears(text, len(text)-n) {
			return n
		}
	}
	return 0
}

// tears tells whether a cut at this place is within a secret.
func (r *redactor) tears(text []byte, at int) bool {
	return slices.ContainsFunc(r.patterns, func(p []byte) bool {
		return bytes.Contains(text[max(at-len(p)+1, 0):min(at+len(p)-1, len(text))], p)
	})
}

// matcher finds any of its patterns with the algorithm of Wu and Manber ("A fast algorithm for
// multi-pattern searching", 1994), with blocks of three bytes. If the block at the end of a window
// occurs in no pattern, nearly the whole window is skipped.
type matcher struct {
	size   int // length of the window: that of the shortest pattern
	shift  [blockTable]uint8
	bucket map[uint16][][]byte // patterns by the last block of their window, longest first
}

const blockTable = 1 << 12

func blockAt(text []byte, end int) uint16 {
	h := uint32(text[end])<<16 | uint32(text[end-1])<<8 | uint32(text[end-2])
	return uint16(h * 2654435761 >> 20)
}

func newMatcher(patterns [][]byte) *matcher {
	m := &matcher{size: 255, bucket: map[uint16][][]byte{}}
	for _, p := range patterns {
		m.size = min(m.size, len(p))
	}
	for i := range m.shift {
		m.shift[i] = uint8(m.size - 2)
	}
	for _, p := range patterns {
		for end := 2; end < m.size; end++ {
			h := blockAt(p, end)
			m.shift[h] = min(m.shift[h], uint8(m.size-1-end))
		}
		h := blockAt(p, m.size-1)
		m.bucket[h] = append(m.bucket[h], p)
	}
	for _, b := range m.bucket {
		slices.SortFunc(b, func(a, b []byte) int { return len(b) - len(a) })
	}
	return m
}

// find appends the places of the patterns in text.
func (m *matcher) find(text []byte, found []place) []place {
	for end := m.size - 1; end < len(text); {
		h := blockAt(text, end)
		if skip := m.shift[h]; skip > 0 {
			end += int(skip)
			continue
		}
		begin := end - m.size + 1
		end++
		for _, p := range m.bucket[h] {
			if !bytes.HasPrefix(text[begin:], p) {
				continue
			}
			if last := len(found) - 1; last >= 0 && found[last].from <= begin && begin <= found[last].to {
				found[last].to = max(found[last].to, begin+len(p))
			} else {
				found = append(found, place{begin, begin + len(p)})
			}
			break
		}
	}
	return found
}
