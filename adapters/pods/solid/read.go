package solid

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/pods/wac"
)

// get answers GET, HEAD and OPTIONS.
func (q *request) get() error {
	if err := q.allow(need{q.at, wac.Read}); err != nil {
		return err
	}
	if q.at.container {
		return q.getContainer()
	}
	f, doc, err := q.s.store.open(q.at)
	if err != nil {
		q.methods("")
		return err
	}
	defer f.Close()
	q.methods(doc.contentType)
	q.links()
	if q.r.Method == http.MethodOptions {
		q.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	offers := []string{doc.contentType}
	if isRDF(doc.contentType) {
		offers = append(offers, without(rdfTypes, adapters.MediaType(doc.contentType))...)
	}
	as, err := q.negotiate(offers)
	if err != nil {
		return err
	}
	q.allowLonger()
	h := q.w.Header()
	h.Set("Content-Type", as)
	if as == doc.contentType {
		h.Set("ETag", quoted(doc.etag, ""))
		http.ServeContent(q.w, q.r, "", doc.modified, f)
		return nil
	}
	done, err := q.work()
	if err != nil {
		return err
	}
	body := q.s.store.spool("this form of the document")
	defer body.close()
	doc, err = q.s.convert(body, q.at, as)
	done()
	if err != nil {
		return err
	}
	h.Set("ETag", quoted(doc.etag, as))
	http.ServeContent(q.w, q.r, "", doc.modified, body.reader())
	return nil
}

func without(list []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == one })
}

// convert writes a document in another form of RDF.
func (s *Server) convert(w io.Writer, r resource, as string) (document, error) {
	raw, doc, err := s.store.read(r, maxRDF)
	if err != nil {
		return doc, err
	}
	triples, err := s.parse(doc.contentType, raw, r)
	if err != nil {
		return doc, faulty(adapters.CodeUnsupported, "the document has only the form %s: it %s", doc.contentType, err).with(http.StatusNotAcceptable)
	}
	return doc, write(w, as, slices.Values([][]rdf.Triple{triples}), "this form of the document")
}

// write writes RDF. Its errors are faults.
func write(w io.Writer, as string, parts iter.Seq[[]rdf.Triple], what string) error {
	err := rdf.WriteParts(w, as, parts)
	if _, ok := errors.AsType[*fault](err); err == nil || ok {
		return err
	}
	if errors.Is(err, rdf.ErrTooLarge) {
		return overLimit(what, maxAnswer)
	}
	return broken(what+" cannot be written", err)
}

// quoted is the ETag of a document in the form as; "" is the form in which it is stored.
func quoted(etag, as string) string {
	if as != "" {
		etag += "-" + as[strings.LastIndexByte(as, '/')+1:]
	}
	return `"` + etag + `"`
}

// negotiate chooses among media types by the Accept header.
func (q *request) negotiate(offers []string) (string, error) {
	types := make([]string, len(offers))
	for i, offer := range offers {
		types[i] = adapters.MediaType(offer)
	}
	if i := adapters.Accepted(q.r.Header, types...); i >= 0 {
		return offers[i], nil
	}
	return "", faulty(adapters.CodeUnsupported, "the resource has the media types %s, and the request accepts none of them", strings.Join(offers, ", ")).with(http.StatusNotAcceptable)
}

func methodsOf(r resource) string {
	switch {
	case r.isRoot():
		return "GET, HEAD, OPTIONS, POST"
	case r.container:
		return "GET, HEAD, OPTIONS, PUT, POST, DELETE"
	}
	return "GET, HEAD, OPTIONS, PUT, PATCH, DELETE"
}

// methods tells what the resource takes. contentType is "" for a document that does not exist.
func (q *request) methods(contentType string) {
	h := q.w.Header()
	h.Set("Allow", methodsOf(q.at))
	if q.at.container {
		h.Set("Accept-Post", "*/*")
		return
	}
	var patches []string
	if contentType == "" || isRDF(contentType) {
		patches = append(patches, n3Patch, sparqlUpdate)
	}
	if adapters.IsJSON(adapters.MediaType(contentType)) {
		patches = append(patches, jsonPatch)
	}
	if patches != nil {
		h.Set("Accept-Patch", strings.Join(patches, ", "))
	}
	h.Set("Accept-Put", "*/*")
}

// links are the web links of a resource (Solid Protocol, 4 and 5).
func (q *request) links() {
	h := q.w.Header()
	link := func(target, rel string) { h.Add("Link", "<"+target+`>; rel="`+rel+`"`) }
	subject, _ := q.at.subject()
	link(q.s.iri(subject.beside(".acl")), "acl")
	if subject.path() == q.at.path() {
		link(q.s.iri(subject.beside(".meta")), "describedby")
	}
	link(rdf.LDP+"Resource", "type")
	if q.at.container {
		link(rdf.LDP+"Container", "type")
		link(rdf.LDP+"BasicContainer", "type")
	}
	if q.at.isRoot() {
		link(rdf.PIM+"Storage", "type")
	}
	link(q.s.origin+wellKnown, rdf.Solid+"storageDescription")
}

func (q *request) getContainer() error {
	if _, err := q.s.store.stat(q.at); err != nil {
		return err
	}
	q.methods("")
	q.links()
	if q.r.Method == http.MethodOptions {
		q.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	as, err := q.negotiate(rdfTypes)
	if err != nil {
		return err
	}
	done, err := q.work()
	if err != nil {
		return err
	}
	body := q.s.store.spool("the listing")
	defer body.close()
	modified, err := q.s.list(body, q.at, as)
	done()
	if err != nil {
		return err
	}
	q.allowLonger()
	q.w.Header().Set("Content-Type", as)
	q.w.Header().Set("ETag", body.tag())
	http.ServeContent(q.w, q.r, "", modified, body.reader())
	return nil
}

// list writes the listing of a container.
func (s *Server) list(w io.Writer, r resource, as string) (modified time.Time, err error) {
	members, modified, err := s.store.list(r)
	if err != nil {
		return modified, err
	}
	least := 0
	for _, m := range members {
		least += 2*len(s.iri(m.resource)) + 120 // each form has the IRI twice, and the time
	}
	if least > maxAnswer {
		return modified, overLimit("the listing", maxAnswer)
	}
	return modified, write(w, as, s.listing(r, members), "the listing")
}

// listing describes a container and its members (LDP 1.0, 5.2). There may be maxMembers, so the description of each member is a
// part of its own.
func (s *Server) listing(r resource, members []member) iter.Seq[[]rdf.Triple] {
	return func(yield func([]rdf.Triple) bool) {
		here := s.iri(r)
		out := slices.Grow(typesAre(here, rdf.LDP+"Resource", rdf.LDP+"Container", rdf.LDP+"BasicContainer"), len(members))
		for _, m := range members {
			out = append(out, statement(here, rdf.Contains, iri(s.iri(m.resource))))
		}
		if !yield(out) {
			return
		}
		for _, m := range members {
			if !yield(s.about(m)) {
				return
			}
		}
	}
}

// about describes a member of a container.
func (s *Server) about(m member) []rdf.Triple {
	at := s.iri(m.resource)
	types := []string{rdf.LDP + "Resource"}
	if m.container {
		types = append(types, rdf.LDP+"Container", rdf.LDP+"BasicContainer")
	} else if mt := adapters.MediaType(m.contentType); mt != "" {
		types = append(types, rdf.MediaTypes+(&url.URL{Path: mt}).EscapedPath()+"#Resource")
	}
	out := append(typesAre(at, types...),
		statement(at, rdf.Modified, literal(m.modified.UTC().Format("2006-01-02T15:04:05.000Z"), "dateTime")),
		statement(at, rdf.Mtime, literal(fmt.Sprint(m.modified.Unix()), "integer")))
	if !m.container {
		out = append(out, statement(at, rdf.Size, literal(fmt.Sprint(m.size), "integer")))
	}
	return out
}

func iri(value string) rdf.Term { return rdf.Term{Kind: rdf.IRI, Value: value} }

func literal(value, datatype string) rdf.Term {
	return rdf.Term{Kind: rdf.Literal, Value: value, Datatype: rdf.XSD + datatype}
}

func statement(subject, predicate string, object rdf.Term) rdf.Triple {
	return rdf.Triple{Subject: iri(subject), Predicate: predicate, Object: object}
}

func typesAre(subject string, types ...string) []rdf.Triple {
	var out []rdf.Triple
	for _, t := range types {
		out = append(out, statement(subject, rdf.Type, iri(t)))
	}
	return out
}

const (
	wellKnown = "/.well-known/solid"
	health    = "/health"
)

// own returns the answer to a request for something of the server itself; nil if the path names a resource.
func (q *request) own() func() error {
	p := q.r.URL.Path
	did, isDID := strings.CutPrefix(p, "/did:nostr:")
	var answer func() error
	switch {
	case p == health:
		answer = func() error { return q.plain("application/json", []byte(`{"status":"ok"}`+"\n")) }
	case p == wellKnown:
		answer = q.description
	case isDID && q.s.cfg.Document != nil:
		answer = func() error { return q.did(did) }
	case p == channelPath && q.s.hub != nil:
		return func() error { return q.s.hub.subscribe(q) }
	default:
		return nil
	}
	return func() error {
		if q.r.Method != http.MethodGet && q.r.Method != http.MethodHead {
			return q.noMethod("GET, HEAD")
		}
		return answer()
	}
}

func (q *request) plain(contentType string, body []byte) error {
	q.w.Header().Set("Content-Type", contentType)
	http.ServeContent(q.w, q.r, "", time.Time{}, bytes.NewReader(body))
	return nil
}

// description tells clients what the server has (Solid Protocol, 4.1; Solid Notifications Protocol, 3).
func (q *request) description() error {
	as, err := q.negotiate(rdfTypes)
	if err != nil {
		return err
	}
	storage := q.s.iri(root())
	triples := typesAre(storage, rdf.PIM+"Storage")
	if q.s.hub != nil {
		channel := q.s.origin + channelPath
		triples = append(triples,
			statement(storage, rdf.Notify+"subscription", iri(channel)),
			statement(channel, rdf.Notify+"channelType", iri(rdf.Notify+"WebSocketChannel2023")),
			statement(channel, rdf.Notify+"feature", iri(rdf.Notify+"state")))
	}
	var body bytes.Buffer
	if err := rdf.Write(&body, as, triples); err != nil {
		return err
	}
	return q.plain(as, body.Bytes())
}

// did answers with a DID document (DID Core 1.0). The name contains its own key, so every valid name has one; that of a pod
// here is the one in the pod, if everyone may read it.
func (q *request) did(name string) error {
	body, pod, ok := q.s.cfg.Document("did:nostr:" + name)
	if !ok {
		return faulty(adapters.CodeValidation, "the name is not did:nostr: with 64 lower-case hexadecimal digits or an npub")
	}
	at := resource{names: []string{"pods", pod, "did-nostr.json"}}
	own, _, err := q.s.store.read(at, maxRDF)
	var doc, generated struct{ ID string }
	if err == nil && q.public(at) && json.Unmarshal(own, &doc) == nil && json.Unmarshal(body, &generated) == nil && doc.ID == generated.ID {
		body = own
	}
	return q.plain("application/did+ld+json", body)
}
