package solid

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/pods/wac"
)

// conditions checks If-Match, If-None-Match and If-Unmodified-Since of a write (RFC 9110, 13). old is nil if there is no
// such resource. An ETag of any form of the resource stands for its present state.
func (q *request) conditions(old *document) error {
	h := q.r.Header
	failed := func(format string, args ...any) error {
		if old != nil && old.etag != "" && q.reads {
			q.w.Header().Set("ETag", quoted(old.etag, ""))
		}
		return faulty(adapters.CodePreconditionFailed, format, args...)
	}
	if match := h.Values("If-Match"); len(match) > 0 {
		if old == nil || !q.tagged(match, *old) {
			return failed("the resource is not the one that If-Match names")
		}
	} else if since, err := http.ParseTime(h.Get("If-Unmodified-Since")); err == nil && old != nil && old.modified.Truncate(time.Second).After(since) {
		return failed("the resource has changed since the time in If-Unmodified-Since")
	}
	if none := h.Values("If-None-Match"); len(none) > 0 && old != nil && q.tagged(none, *old) {
		return failed("the resource exists, or has an ETag that If-None-Match excludes")
	}
	return nil
}

// tagged tells whether a list of ETags names the present state. Weak ones never match (RFC 9110, 13.1.1). Of a container, only
// that of an empty one is found out: no write to another one succeeds.
func (q *request) tagged(list []string, old document) bool {
	var ofContainer []string
	if q.at.container {
		ofContainer = q.s.tagsOfEmpty(q.at)
	}
	for tag := range strings.SplitSeq(strings.Join(list, ","), ",") {
		switch tag = strings.TrimSpace(tag); {
		case tag == "*":
			return true
		case len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"':
		case q.at.container:
			if slices.Contains(ofContainer, tag) {
				return true
			}
		default:
			if tag == quoted(old.etag, "") || slices.ContainsFunc(rdfTypes, func(as string) bool { return tag == quoted(old.etag, as) }) {
				return true
			}
		}
	}
	return false
}

// tagsOfEmpty are the ETags of a container without members, one for each form.
func (s *Server) tagsOfEmpty(r resource) []string {
	var out []string
	for _, as := range rdfTypes {
		var body bytes.Buffer
		if rdf.WriteParts(&body, as, s.listing(r, nil)) == nil {
			out = append(out, tagOf(body.Bytes()))
		}
	}
	return out
}

func tagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}

// contentType is the media type of the body, which a client must send.
func (q *request) contentType() (string, error) {
	t := strings.TrimSpace(q.r.Header.Get("Content-Type"))
	if t == "" {
		return "", faulty(adapters.CodeValidation, "the request has no Content-Type")
	}
	if _, _, err := mime.ParseMediaType(t); err != nil || len(t) > maxType || !printable(t) || !strings.Contains(t, "/") {
		return "", faulty(adapters.CodeValidation, "the Content-Type is no media type of at most %d bytes", maxType)
	}
	return t, nil
}

// put makes or replaces a document, or makes a container.
func (q *request) put() error {
	if q.at.container {
		return q.putContainer()
	}
	if adapters.WantsContainer(q.r.Header) {
		return faulty(adapters.CodeValidation, "the path of a container ends with /")
	}
	contentType, err := q.contentType()
	if err != nil {
		return err
	}
	old, err := q.present()
	if err != nil {
		return err
	}
	needs := func(old *document) []need {
		if old == nil {
			return q.creating(q.at, wac.Write)
		}
		return []need{{q.at, wac.Write}}
	}
	if err := q.allow(needs(old)...); err != nil {
		return err
	}
	if err := q.conditions(old); err != nil {
		return err
	}
	u, err := q.receive(q.at, contentType, old)
	if err != nil {
		return err
	}
	defer u.drop()
	doc, made, created, err := q.store(q.at, u, contentType, old, func(old *document) error {
		if err := q.allow(needs(old)...); err != nil {
			return err
		}
		return q.conditions(old)
	})
	if err != nil {
		return err
	}
	return q.written(q.at, doc, made, created)
}

// present is the document that is there now, nil if there is none.
func (q *request) present() (*document, error) {
	doc, err := q.s.store.stat(q.at)
	switch {
	case errors.Is(err, absent), errors.Is(err, strange): // whether the name is free is known once it is to be used
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &doc, nil
}

// receive reads the body for a document and checks everything that can be checked before it gets its name.
func (q *request) receive(at resource, contentType string, old *document) (*upload, error) {
	limit, quota := int64(adapters.MaxPodBody), false
	_, control := at.subject()
	if control {
		limit = maxACL
	}
	left, err := q.s.quotas.left(at, old)
	if err != nil {
		return nil, err
	}
	if left < limit {
		limit, quota = left, true
	}
	tooLarge := func(err error) error {
		if f, ok := errors.AsType[*fault](err); ok && f.code == adapters.CodePayloadTooLarge && f.status == 0 && quota {
			return faulty(adapters.CodePayloadTooLarge, "the pod has room for %d bytes more (its quota)", limit)
		}
		return err
	}
	if q.r.ContentLength > limit {
		return nil, tooLarge(overLimit("the body", limit))
	}
	q.allowLonger()
	var body io.Reader = q.r.Body
	if control {
		raw, err := readAll(body, limit)
		if err == nil {
			_, err = q.s.parse(contentType, raw, at)
			if err != nil {
				err = faulty(adapters.CodeValidation, "the access list is not RDF that this server reads: %s", err)
			}
		}
		if err != nil {
			return nil, tooLarge(err)
		}
		body = bytes.NewReader(raw)
	}
	u, err := q.s.store.receive(q.metered(body), limit)
	if err != nil {
		return nil, tooLarge(err)
	}
	if err := q.signed(u.sum); err != nil {
		u.drop()
		return nil, err
	}
	return u, nil
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, unread(err)
	}
	if int64(len(raw)) > limit {
		return nil, overLimit("the body", limit)
	}
	return raw, nil
}

// signed compares the body with the one that was signed.
func (q *request) signed(sum [sha256.Size]byte) error {
	if q.who == nil {
		return nil
	}
	if err := q.who.Body(sum, q.standing); err != nil {
		return badSignature(err)
	}
	return nil
}

// store gives an upload its name. again checks access and conditions at that moment.
func (q *request) store(at resource, u *upload, contentType string, seen *document, again func(old *document) error) (document, []resource, bool, error) {
	var counted int64
	doc, made, created, err := q.s.store.put(at, u, contentType, func(old *document, making []resource) error {
		by := costOf(u.size) - costOfDocument(old) + costOfMaking(at, making)
		if !q.s.quotas.take(at, by-counted) {
			return faulty(adapters.CodePayloadTooLarge, "the pod has no room for the document (its quota)")
		}
		counted = by
		if old == nil && seen != nil { // to make one needs more rights
			f := faulty(adapters.CodeConflict, "another request has deleted the document meanwhile")
			f.retry = 1
			return f
		}
		return again(old)
	})
	q.s.quotas.elsewhere(at, made)
	if err != nil {
		q.s.quotas.back(at, counted-costOfMaking(at, made)) // the containers stay
	}
	return doc, made, created, err
}

// written answers a write, and tells subscribers.
func (q *request) written(at resource, doc document, made []resource, created bool) error {
	q.s.tellMade(made)
	h := q.w.Header()
	h.Set("ETag", quoted(doc.etag, ""))
	status := http.StatusNoContent
	if created {
		status = http.StatusCreated
		h.Set("Location", q.s.iri(at))
		q.linksOf(at)
	}
	q.s.tell(at, quoted(doc.etag, ""))
	q.w.WriteHeader(status)
	return nil
}

func (q *request) linksOf(at resource) {
	q.at = at
	q.links()
}

// putContainer makes a container.
func (q *request) putContainer() error {
	if q.at.isRoot() {
		return q.noMethod(methodsOf(q.at))
	}
	if err := q.allow(q.creating(q.at, wac.Write)...); err != nil {
		return err
	}
	if err := q.noBody(); err != nil {
		return err
	}
	return q.create(q.at, func(old *document) error {
		if err := q.allow(q.creating(q.at, wac.Write)...); err != nil {
			return err
		}
		return q.conditions(old)
	})
}

// create makes a container and answers.
func (q *request) create(at resource, check func(old *document) error) error {
	if _, err := q.s.quotas.left(at, nil); err != nil {
		return err
	}
	var counted int64
	made, err := q.s.store.create(at, func(old *document, making []resource) error {
		by := costOfMaking(at, making)
		if !q.s.quotas.take(at, by) {
			return faulty(adapters.CodePayloadTooLarge, "the pod has no room for the container (its quota)")
		}
		counted = by
		return check(old)
	})
	q.s.quotas.elsewhere(at, made)
	q.s.tellMade(made)
	if err != nil {
		q.s.quotas.back(at, counted-costOfMaking(at, made)) // these containers stay
		return err
	}
	q.w.Header().Set("Location", q.s.iri(at))
	q.linksOf(at)
	q.w.WriteHeader(http.StatusCreated)
	return nil
}

// noBody refuses a description of a container: it would be lost.
func (q *request) noBody() error {
	raw, err := readAll(q.r.Body, 4096)
	if err == nil {
		err = q.signed(sha256.Sum256(raw))
	}
	if err == nil && len(bytes.TrimSpace(raw)) > 0 {
		err = faulty(adapters.CodeUnsupported, "a container is made without a body; write its description to .meta in it")
	}
	return err
}

// post makes a member of a container (Solid Protocol, 5.3), with the name in the Slug header (RFC 5023, 9.7) if it is free.
func (q *request) post() error {
	container := q.at
	if !container.container {
		return q.noMethod(methodsOf(container))
	}
	if err := q.allow(need{container, wac.Append}); err != nil {
		return err
	}
	if _, err := q.s.store.stat(container); err != nil {
		return err
	}
	free := func(old *document) error {
		if err := q.allow(need{container, wac.Append}); err != nil {
			return err
		}
		if _, err := q.s.store.stat(container); err != nil { // it was deleted meanwhile
			return err
		}
		if old != nil {
			return errTaken
		}
		return nil
	}
	isContainer := adapters.WantsContainer(q.r.Header)
	id := adapters.NewID()
	name := adapters.PodSlug(q.r.Header.Get("Slug"))
	names := []string{name, id + "-" + name, id}
	if name == "" {
		names = names[2:]
	}
	if isContainer {
		if err := q.noBody(); err != nil {
			return err
		}
		return q.named(container, true, names, func(at resource) error {
			return q.create(at, free)
		})
	}
	contentType, err := q.contentType()
	if err != nil {
		return err
	}
	u, err := q.receive(container.in(id, false), contentType, nil)
	if err != nil {
		return err
	}
	defer u.drop()
	return q.named(container, false, names, func(at resource) error {
		doc, made, created, err := q.store(at, u, contentType, nil, free)
		if err != nil {
			return err
		}
		return q.written(at, doc, made, created)
	})
}

var errTaken = faulty(adapters.CodeConflict, "the name is taken")

// named makes a member with the first name that is free and that a path can have.
func (q *request) named(container resource, isContainer bool, names []string, make func(at resource) error) error {
	err := error(errTaken)
	for _, name := range names {
		at := container.in(name, isContainer)
		if adapters.CheckPodPath(at.path()) != nil || !at.nameable() || q.reserved(at) {
			continue
		}
		if err = make(at); err == nil {
			return nil
		}
		if f, ok := errors.AsType[*fault](err); !ok || f.code != adapters.CodeConflict {
			return err
		}
	}
	return err
}

// reserved tells whether a path is one of the server's own.
func (q *request) reserved(at resource) bool {
	return len(at.names) == 1 && (at.path() == health || strings.HasPrefix(at.names[0], "did:nostr:"))
}

// delete deletes a document or an empty container.
func (q *request) delete() error {
	subject, control := q.at.subject()
	if q.at.isRoot() || control && subject.isRoot() {
		return q.noMethod("GET, HEAD, OPTIONS, PUT")
	}
	needs := []need{{q.at, wac.Write}}
	if !control {
		needs = append(needs, need{q.at.parent(), wac.Write})
	}
	if err := q.allow(needs...); err != nil {
		return err
	}
	if err := q.signed(sha256.Sum256(nil)); err != nil {
		return err
	}
	err := q.s.store.remove(q.at, func(old *document) error {
		if err := q.allow(needs...); err != nil {
			return err
		}
		return q.conditions(old)
	}, func(r resource, size int64) { q.s.quotas.take(r, -costOf(size)) })
	if err != nil {
		return err
	}
	q.s.tell(q.at, "")
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}
