package pods

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

const (
	maxMembers = 100_000 // of one container
	maxPages   = 1000    // of one listing, as the server cuts it
)

// acceptRDF asks for what rdf.ParseLenient reads, the cheapest first.
const acceptRDF = "text/turtle, application/ld+json;q=0.9, application/n-triples;q=0.8"

// List returns the members of a container sorted by path. Solid defines no order, and almost no
// server has pages. So every call reads the whole container, all pages of the server, and returns
// the requested part. If members are added or removed between two calls, no other member is
// repeated or missed.
//
// A member's path has the escapes that a URL needs. Size is -1 if the server does not give it.
// Entries of the server that are not direct members, or that no pod path may name, are left out.
func (s *Solid) List(ctx context.Context, container string, opt adapters.PageOpt) (adapters.Page[adapters.PodEntry], error) {
	var page adapters.Page[adapters.PodEntry]
	target, err := s.target(container)
	if err != nil {
		return page, err
	}
	scope := "pods" + target
	at, err := s.cursors.Open(scope, opt.Cursor, 1)
	if err != nil {
		return page, err
	}
	all, err := s.members(ctx, container, target)
	if err != nil {
		return page, err
	}
	start := 0
	if at != nil {
		if start, err = after(all, target, at[0]); err != nil {
			return page, err
		}
	}
	end := min(start+opt.Rows(), len(all))
	page.Items = all[start:end:end]
	if end < len(all) {
		page.NextCursor = s.cursors.Seal(scope, position(all[end-1].Path, target))
	}
	return page, nil
}

// position is the name of the last member given out, as a cursor holds it:
// decoded, of at most 256 bytes, and in letters that JSON does not lengthen.
func position(path, container string) string {
	name, err := url.PathUnescape(strings.TrimPrefix(path, container))
	if err != nil {
		name = "" // the path of an entry must have been escaped here
	}
	return base64.RawURLEncoding.EncodeToString([]byte(name))
}

// after is the index of the first member beyond a position.
func after(all []adapters.PodEntry, container, pos string) (int, error) {
	name, err := base64.RawURLEncoding.DecodeString(pos)
	if err != nil {
		return 0, adapters.Invalid("cursor", "is not one of ours")
	}
	last := container + escapeName(string(name))
	i, found := slices.BinarySearchFunc(all, last, func(e adapters.PodEntry, last string) int { return strings.Compare(e.Path, last) })
	if found {
		i++
	}
	return i, nil
}

// escapeName escapes a decoded member name. A trailing slash is not part of the segment.
func escapeName(name string) string {
	segment, container := strings.CutSuffix(name, "/")
	if container {
		return url.PathEscape(segment) + "/"
	}
	return url.PathEscape(segment)
}

// members reads a container, sorted.
func (s *Solid) members(ctx context.Context, container, target string) ([]adapters.PodEntry, error) {
	l := newListing(target)
	next := wire.Request{Method: http.MethodGet, Path: target, Accept: acceptRDF, Keep: kept}
	asked := map[string]bool{}
	for range maxPages {
		res, err := s.client.Do(ctx, next)
		if err != nil {
			return nil, about(err, container)
		}
		s.dialect.learn(target, res.Header)
		if err := l.read(res, s.url(target)); err != nil {
			return nil, err
		}
		query, more, err := s.nextPage(target, res)
		if err != nil {
			return nil, err
		}
		if !more {
			return l.entries(), nil
		}
		key := query.Encode()
		if asked[key] {
			return nil, lied("list of a container goes in a circle")
		}
		asked[key] = true
		next.Query = query
	}
	return nil, lied("list of a container has more than %d pages", maxPages)
}

// nextPage is the query of the page that follows: Link rel="next" within the
// same container, else the member _cursor of a JSON answer.
func (s *Solid) nextPage(target string, res *wire.Response) (url.Values, bool, error) {
	for _, l := range adapters.ParseLinks(res.Header) {
		if !strings.EqualFold(l.Rel, "next") {
			continue
		}
		u, err := s.url(target).Parse(l.Target)
		if err != nil || !sameOrigin(u, s.base) || escapePath(u.EscapedPath()) != escapePath(s.url(target).EscapedPath()) {
			return nil, false, lied("next page lies outside of the container")
		}
		return u.Query(), true, nil
	}
	var doc struct {
		Cursor string `json:"_cursor"`
	}
	if mt := mediaType(res.Header); adapters.IsJSON(mt) && json.Unmarshal(res.Body, &doc) == nil && doc.Cursor != "" {
		return url.Values{"cursor": {doc.Cursor}}, true, nil
	}
	return nil, false, nil
}

// listing gathers what documents contain about a container's members.
type listing struct {
	target  string
	nodes   map[string]*adapters.PodEntry // by canonical path
	members map[string]bool
}

func newListing(target string) *listing {
	return &listing{target: target, nodes: map[string]*adapters.PodEntry{}, members: map[string]bool{}}
}

var errTooMany = errors.New("too many members")

// read takes one document. The container's node is the one with the address
// that was asked for; a server that is reached by another name than it gives
// itself may use that name, as long as the path is the same.
func (l *listing) read(res *wire.Response, asked *url.URL) error {
	var statements []rdf.Triple
	owners := map[string]bool{}
	err := rdf.ParseLenient(mediaType(res.Header), res.Body, res.URL, func(t rdf.Triple) {
		if t.Subject.Kind != rdf.IRI || !listed(t.Predicate) || len(statements) > 8*maxMembers {
			return
		}
		if t.Predicate == rdf.Contains {
			owners[t.Subject.Value] = true
		}
		statements = append(statements, t)
	})
	if err != nil {
		return lied("list of a container, %q, cannot be read: %v", mediaType(res.Header), err)
	}
	owner, err := ownerOf(owners, res.URL, asked)
	if err != nil {
		return err
	}
	for _, t := range statements {
		if err := l.take(owner, t); err != nil {
			return adapters.TooLarge("the container's number of members", maxMembers, -1).Wrap(err)
		}
	}
	return nil
}

// listed tells whether a listing uses the property.
func listed(predicate string) bool {
	switch predicate {
	case rdf.Contains, rdf.Type, rdf.Modified, rdf.Size, rdf.Mtime:
		return true
	}
	return false
}

// ownerOf picks the container's node among those that contain something.
func ownerOf(owners map[string]bool, addresses ...*url.URL) (*url.URL, error) {
	var alias *url.URL
	for iri := range owners {
		u, err := url.Parse(iri)
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if escapePath(u.EscapedPath()) != escapePath(a.EscapedPath()) {
				continue
			}
			if sameOrigin(u, a) {
				return u, nil
			}
			alias = u
		}
	}
	if alias == nil && len(owners) > 0 {
		return nil, lied("list of a container is of another one")
	}
	return alias, nil
}

func (l *listing) take(owner *url.URL, t rdf.Triple) error {
	if owner == nil {
		return nil
	}
	if t.Predicate == rdf.Contains {
		subject, err := url.Parse(t.Subject.Value)
		if err != nil || !sameOrigin(subject, owner) || escapePath(subject.EscapedPath()) != escapePath(owner.EscapedPath()) {
			return nil
		}
		if path, ok := l.child(owner, t.Object.Value); ok && t.Object.Kind == rdf.IRI {
			l.members[path] = true
			if _, err := l.node(path); err != nil {
				return err
			}
		}
		return nil
	}
	path, ok := l.child(owner, t.Subject.Value)
	if !ok {
		return nil
	}
	e, err := l.node(path)
	if err == nil {
		describe(e, t)
	}
	return err
}

// child is the pod path of a direct member.
func (l *listing) child(owner *url.URL, iri string) (string, bool) {
	u, err := url.Parse(iri)
	if err != nil || !sameOrigin(u, owner) || u.RawQuery != "" || u.Fragment != "" {
		return "", false
	}
	name, ok := strings.CutPrefix(escapePath(u.EscapedPath()), escapePath(owner.EscapedPath()))
	if !ok || name == "" || strings.Contains(strings.TrimSuffix(name, "/"), "/") {
		return "", false
	}
	path := l.target + name
	return path, adapters.CheckPodPath(path) == nil
}

func (l *listing) node(path string) (*adapters.PodEntry, error) {
	if e := l.nodes[path]; e != nil {
		return e, nil
	}
	if len(l.nodes) == maxMembers {
		return nil, errTooMany
	}
	e := &adapters.PodEntry{Path: path, Container: adapters.IsContainer(path), Size: -1}
	l.nodes[path] = e
	return e, nil
}

// describe adds one statement about a member. dcterms:modified is finer than
// the seconds of stat:mtime, so it wins.
func describe(e *adapters.PodEntry, t rdf.Triple) {
	switch t.Predicate {
	case rdf.Type:
		if mt, ok := strings.CutPrefix(t.Object.Value, rdf.MediaTypes); ok && strings.HasSuffix(mt, "#Resource") {
			e.ContentType = strings.TrimSuffix(mt, "#Resource")
		}
	case rdf.Modified:
		if at, err := adapters.ParseTime(t.Object.Value); err == nil {
			e.Modified = at
		}
	case rdf.Mtime:
		if sec, err := strconv.ParseInt(t.Object.Value, 10, 64); err == nil && e.Modified.IsZero() {
			e.Modified = adapters.At(time.Unix(sec, 0))
		}
	case rdf.Size:
		e.Size = parseSize(t.Object.Value)
	}
}

func (l *listing) entries() []adapters.PodEntry {
	all := make([]adapters.PodEntry, 0, len(l.members))
	for path := range l.members {
		all = append(all, *l.nodes[path])
	}
	slices.SortFunc(all, func(a, b adapters.PodEntry) int { return strings.Compare(a.Path, b.Path) })
	return all
}
