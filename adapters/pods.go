package adapters

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Pods holds linked-data documents: resources and containers under paths, as
// the Solid protocol knows them.
type Pods interface {
	Adapter

	// Write creates or replaces a resource, atomically. It creates missing parent containers. The
	// body is read to its end or to the first error.
	Write(ctx context.Context, path string, body Body, cond Cond) (Written, error)
	// Read opens a resource; the caller closes Resource.Body.
	Read(ctx context.Context, path string, opt ReadOpt) (Resource, error)
	Patch(ctx context.Context, path string, patch PodPatch, cond Cond) (Written, error)
	// Del returns false, not an error, if the resource did not exist.
	Del(ctx context.Context, path string, cond Cond) (bool, error)
	// List returns the members of a container sorted by path, without the container itself.
	List(ctx context.Context, container string, page PageOpt) (Page[PodEntry], error)

	// The methods below are contract 1.1.

	// Head is Read without the body.
	Head(ctx context.Context, path string, opt ReadOpt) (Resource, error)
	CreateContainer(ctx context.Context, path string) (Written, error)
	// Subscribe follows changes of a resource or of a container's members.
	Subscribe(ctx context.Context, topic string) (PodSubscription, error)
}

// Limits of pods, in bytes.
const (
	MaxPodBody    = 64 << 20
	MaxPodPatch   = 1 << 20
	MaxPodPath    = 1024
	MaxPodSegment = 255
)

// DefaultPodType is used if a Go caller gives no content type.
const DefaultPodType = "application/ld+json"

// Public, in a Body, ReadOpt or PodPatch, is the caller's address of the pod's root: an absolute
// URL that ends with "/". Addresses below it in RDF are then changed to the server's own on the way
// in, and back on the way out. That turns a JSON-LD document into its expanded form. RDF whose IRIs
// cannot be read is UNSUPPORTED. nil means that the caller uses the server's addresses.

// Body is a document that is sent.
type Body struct {
	ContentType string // "" = DefaultPodType
	Reader      io.Reader
	Size        int64 // bytes; < 0 when unknown
	Public      *url.URL
}

// Cond are the conditions of a write. ETags are sent unchanged, including their quotes. ETags of
// different representations must not be compared.
type Cond struct {
	IfMatch     string // "" = none
	IfNoneMatch string // "" or "*"
}

// ReadOpt adjusts a read. Empty fields have no effect.
type ReadOpt struct {
	Accept      string
	Range       string // as in the Range header, such as "bytes=0-99"
	IfNoneMatch string
	Public      *url.URL
}

// Resource is a document that was read.
type Resource struct {
	Path         string
	ContentType  string
	ETag         string
	Modified     Time
	Size         int64  // of the whole resource, < 0 when unknown
	ContentRange string // set when Body is only a part (206)
	NotModified  bool   // IfNoneMatch matched (304): Body is empty
	WACAllow     string // the WAC-Allow header, "" if absent
	Links        []Link
	AcceptPatch  string        // the Accept-Patch header (RFC 5789, 3.1), "" if absent
	AcceptPost   string        // the Accept-Post header (LDP 1.0, 7.1), "" if absent
	Body         io.ReadCloser // never nil after Read
}

// Link is one web link (RFC 8288) of a resource.
type Link struct{ Rel, Target string }

// Written is the receipt of a write.
type Written struct {
	Created  bool   `json:"created"`
	ETag     string `json:"etag,omitempty"`
	Location string `json:"location,omitempty"` // path, if the server returned one
}

// The patch dialects.
const (
	DialectJSONPatch    = "json-patch"    // RFC 6902
	DialectN3           = "n3"            // solid:InsertDeletePatch
	DialectSPARQLUpdate = "sparql-update" // SPARQL 1.1 Update
)

// PodPatch is a change of a document.
type PodPatch struct {
	Dialect string
	Body    []byte // at most MaxPodPatch
	Public  *url.URL
}

// PodEntry is one member of a container.
type PodEntry struct {
	Path        string     `json:"path"`
	Container   bool       `json:"container"`
	Size        int64      `json:"size"`
	Modified    Time       `json:"modified"`
	ContentType string     `json:"content_type"`
	ETag        NullString `json:"etag"`
}

// PodNotice reports a change.
type PodNotice struct {
	Type  string `json:"type"` // Create, Update, Delete, Add, Remove
	Path  string `json:"path"`
	State string `json:"state,omitempty"` // the new ETag
	TS    Time   `json:"ts"`
}

// PodSubscription yields notices until it is closed. Only one goroutine at a time may call Next.
// Any goroutine may call Close, also repeatedly.
type PodSubscription interface {
	Next(ctx context.Context) (PodNotice, error)
	Close() error
}

// CheckPodPath refuses a path that must not name a resource. It must start with "/" and have at
// most 1024 bytes, with segments of at most 255. After percent-decoding it must not contain an
// empty, "." or ".." segment, NUL, a control character or a backslash. Names that start with a dot
// are refused, except those ending in .acl or .meta (auxiliary resources). A trailing "/" names a
// container.
func CheckPodPath(path string) error {
	if !strings.HasPrefix(path, "/") {
		return Invalid("path", "must start with /")
	}
	if len(path) > MaxPodPath {
		return OverLimit("path (bytes)", MaxPodPath).With("field", "path")
	}
	if path == "/" {
		return nil
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(path[1:], "/"), "/") {
		if err := checkPodSegment(segment); err != nil {
			return err
		}
	}
	return nil
}

func checkPodSegment(segment string) error {
	name, err := url.PathUnescape(segment)
	if err != nil {
		return Invalid("path", "has a broken percent escape")
	}
	switch {
	case name == "":
		return Invalid("path", "has an empty segment")
	case len(name) > MaxPodSegment:
		return OverLimit("path segment (bytes)", MaxPodSegment).With("field", "path")
	case name == "." || name == "..":
		return Invalid("path", "has a segment %q", name)
	case !utf8.ValidString(name):
		return Invalid("path", "is not valid UTF-8")
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' || r == '/' || r >= 0x80 && r < 0xa0 }):
		return Invalid("path", "has a control character, a backslash or an escaped slash")
	case name[0] == '.' && !PodAuxiliary(name):
		return Invalid("path", "names a dot file")
	}
	return nil
}

// PodAuxiliary tells whether a name is that of an auxiliary resource.
func PodAuxiliary(name string) bool {
	return strings.HasSuffix(name, ".acl") || strings.HasSuffix(name, ".meta")
}

// PodSlug is the name in a Slug header (RFC 5023, 9.7) without the characters that a name must not contain; "" if that leaves
// none, or the name of an auxiliary resource.
func PodSlug(header string) string {
	name, err := url.PathUnescape(header)
	if err != nil {
		name = header
	}
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '/' || r == '\\' || r == utf8.RuneError {
			return -1
		}
		return r
	}, name)
	name = strings.Trim(name, " .")
	if PodAuxiliary(name) {
		return ""
	}
	return name
}

// WantsContainer tells whether a Link header asks for a container (LDP 1.0, 5.2.3.4).
func WantsContainer(h http.Header) bool {
	const ldp = "http://www.w3.org/ns/ldp#"
	return slices.ContainsFunc(ParseLinks(h), func(l Link) bool {
		return l.Rel == "type" && (l.Target == ldp+"BasicContainer" || l.Target == ldp+"Container")
	})
}

// IsContainer tells whether a path names a container.
func IsContainer(path string) bool { return strings.HasSuffix(path, "/") }

func (b Body) check(path string) error {
	if err := CheckPodPath(path); err != nil {
		return err
	}
	if IsContainer(path) {
		return Invalid("path", "names a container: use CreateContainer")
	}
	if b.Reader == nil {
		return Invalid("body", "is required")
	}
	if b.Size > MaxPodBody {
		return TooLarge("body", MaxPodBody, b.Size)
	}
	return CheckText("content_type", b.ContentType, 255)
}

func (c Cond) check() error {
	if c.IfNoneMatch != "" && c.IfNoneMatch != "*" {
		return Invalid("if_none_match", "a write understands only *")
	}
	return checkHeader("if_match", c.IfMatch)
}

func (o ReadOpt) check(path string) error {
	if err := CheckPodPath(path); err != nil {
		return err
	}
	for _, h := range [][2]string{{"accept", o.Accept}, {"range", o.Range}, {"if_none_match", o.IfNoneMatch}} {
		if err := checkHeader(h[0], h[1]); err != nil {
			return err
		}
	}
	return nil
}

// checkHeader refuses characters that could end a header line.
func checkHeader(field, v string) error {
	if len(v) > 1024 {
		return OverLimit(field+" (bytes)", 1024).With("field", field)
	}
	if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return Invalid(field, "contains a control character")
	}
	return nil
}

func (p PodPatch) check(path string) error {
	if err := CheckPodPath(path); err != nil {
		return err
	}
	if len(p.Body) > MaxPodPatch {
		return TooLarge("patch", MaxPodPatch, int64(len(p.Body)))
	}
	switch p.Dialect {
	case DialectJSONPatch:
		if !json.Valid(p.Body) {
			return Invalid("patch", "is not JSON")
		}
		return nil
	case DialectN3, DialectSPARQLUpdate:
		if !utf8.Valid(p.Body) {
			return Invalid("patch", "is not valid UTF-8")
		}
		return nil
	}
	return Errorf(CodeUnsupported, "no patch dialect %q", p.Dialect).With("dialect", p.Dialect)
}

func checkContainer(path string) error {
	if err := CheckPodPath(path); err != nil {
		return err
	}
	if !IsContainer(path) {
		return Invalid("path", "a container's path ends with /")
	}
	return nil
}
