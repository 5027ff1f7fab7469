package solid

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/pods/wac"
)

const (
	// patchRounds is how often a patch is applied because another request, which is no patch, has changed the document meanwhile.
	patchRounds = 5
	// maxOperations bounds a JSON Patch, and maxPatchWork the sum of the bytes that each step of its paths may look at.
	maxOperations = 1000
	maxPatchWork  = 64 << 20
)

// change is a patch that has been read: what it makes of a document, and the modes that it needs.
type change struct {
	modes   wac.Mode
	creates bool // it may be applied to a document that does not exist
	apply   func(doc []byte, contentType string) ([]byte, error)
}

// patch changes a document: RDF by an N3 Patch (Solid Protocol, 5.3.1) or an update of SPARQL 1.1, JSON by a JSON Patch
// (RFC 6902).
func (q *request) patch() error {
	if q.at.container {
		return q.noMethod(methodsOf(q.at))
	}
	contentType, err := q.contentType()
	if err != nil {
		return err
	}
	old, err := q.present()
	if err != nil {
		return err
	}
	// A patch that changes anything needs at least Append. What this one needs is known when it has been read.
	needs := []need{{q.at, wac.Append}}
	if old == nil {
		needs = q.creating(q.at, wac.Append)
	}
	if err := q.judge(needs); err != nil {
		return err
	}
	if q.reads { // Accept-Patch tells of which kind the document is
		q.methods(contentTypeOf(old))
	}
	raw, err := readAll(q.r.Body, adapters.MaxPodPatch)
	if err != nil {
		return err
	}
	if err := q.signed(sha256.Sum256(raw)); err != nil {
		return err
	}
	done, err := q.work()
	if err != nil {
		return err
	}
	defer done()
	c, err := q.change(adapters.MediaType(contentType), raw)
	if err != nil {
		return err
	}
	needs[0].modes = c.modes
	if err := q.allow(needs...); err != nil {
		return err
	}
	defer q.s.patching.enter(q.at.path())()
	for round := 1; ; round++ {
		err := q.patchRound(c)
		if !errors.Is(err, errMoved) || round == patchRounds || q.r.Context().Err() != nil {
			return err
		}
	}
}

// turns let one patch at a time change a document: otherwise each would make the others begin again, and after patchRounds they would fail.
type turns struct {
	mu sync.Mutex
	of map[string]*turn // by path
}

type turn struct {
	sync.Mutex
	waiting int // and at work; under turns.mu
}

// enter waits for a turn. At most maxHeavy of each kind wait, so it is short.
func (t *turns) enter(path string) (leave func()) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]*turn{}
	}
	one := t.of[path]
	if one == nil {
		one = &turn{}
		t.of[path] = one
	}
	one.waiting++
	t.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.waiting--; one.waiting == 0 {
			delete(t.of, path)
		}
	}
}

func contentTypeOf(d *document) string {
	if d == nil {
		return ""
	}
	return d.contentType
}

var errMoved = faulty(adapters.CodeConflict, "the document changed during each of %d attempts", patchRounds)

// patchRound reads, applies and writes. If the document has changed meanwhile, it returns errMoved.
func (q *request) patchRound(c change) error {
	raw, doc, err := q.s.store.read(q.at, maxRDF)
	seen, contentType := &doc, doc.contentType
	if errors.Is(err, absent) && c.creates {
		seen, contentType, err = nil, typeOfName(q.at.name()), nil
		if !isRDF(contentType) {
			if path.Ext(q.at.name()) != "" && contentType != "application/octet-stream" {
				return faulty(adapters.CodeUnsupported, "the name of the document is not that of RDF")
			}
			contentType = rdf.MediaTurtle
		}
	}
	if err != nil {
		return q.unseen(err)
	}
	if err := q.conditions(seen); err != nil {
		return err
	}
	changed, err := c.apply(raw, contentType)
	if err != nil {
		return q.unseen(err)
	}
	if _, control := q.at.subject(); control && len(changed) > maxACL {
		return overLimit("the access list", maxACL)
	}
	if _, err := q.s.quotas.left(q.at, nil); err != nil {
		return err
	}
	u, err := q.s.store.receive(bytes.NewReader(changed), maxRDF)
	if err != nil {
		return err
	}
	defer u.drop()
	doc, made, created, err := q.store(q.at, u, contentType, seen, func(now *document) error {
		if (now == nil) != (seen == nil) || now != nil && now.etag != seen.etag {
			return errMoved
		}
		if now == nil {
			return q.allow(q.creating(q.at, c.modes)...)
		}
		return q.allow(need{q.at, c.modes})
	})
	if err != nil {
		return err
	}
	return q.written(q.at, doc, made, created)
}

// unseen is the answer if a patch does not fit the document: who may not read it does not learn why.
func (q *request) unseen(err error) error {
	if f, ok := errors.AsType[*fault](err); q.reads || ok && f.code == adapters.CodeInternal {
		return err
	}
	return faulty(adapters.CodeConflict, "the patch does not fit the document")
}

// change reads a patch.
func (q *request) change(mediaType string, raw []byte) (change, error) {
	switch mediaType {
	case jsonPatch:
		return q.jsonChange(raw)
	case n3Patch, sparqlUpdate:
		return q.rdfChange(mediaType, raw)
	}
	return change{}, faulty(adapters.CodeUnsupported, "a patch has the media type %s, %s or %s", n3Patch, sparqlUpdate, jsonPatch)
}

func (q *request) rdfChange(mediaType string, raw []byte) (change, error) {
	base, err := url.Parse(q.s.iri(q.at))
	if err != nil {
		return change{}, err
	}
	p, err := rdf.ParsePatch(mediaType, raw, base)
	if errors.Is(err, rdf.ErrUnsupported) {
		return change{}, faulty(adapters.CodeUnsupported, "the patch %s", err).with(http.StatusNotImplemented)
	}
	if errors.Is(err, rdf.ErrNotPatch) { // RFC 5789, 2.2: 400 is for what is not even N3
		return change{}, faulty(adapters.CodeValidation, "the patch %s", err).with(http.StatusUnprocessableEntity)
	}
	if err != nil {
		return change{}, unfit(err, adapters.CodeValidation, "the patch %s")
	}
	var c change
	reads, appends, writes := p.Needs()
	for _, one := range []struct {
		needed bool
		mode   wac.Mode
	}{{reads, wac.Read}, {appends, wac.Append}, {writes, wac.Write}} {
		if one.needed {
			c.modes |= one.mode
		}
	}
	c.creates = true
	c.apply = func(doc []byte, contentType string) ([]byte, error) {
		if !isRDF(contentType) {
			return nil, faulty(adapters.CodeUnsupported, "%s changes RDF, and the document is %s", mediaType, contentType)
		}
		triples, err := q.s.parse(contentType, doc, q.at)
		if err != nil && len(doc) > 0 {
			return nil, unfit(err, adapters.CodeConflict, "the document cannot be read as RDF: %s")
		}
		g := rdf.NewGraph()
		for _, t := range triples {
			g.Add(t)
		}
		err = p.Apply(g)
		if errors.Is(err, rdf.ErrNoMatch) {
			return nil, faulty(adapters.CodeConflict, "%s", err)
		}
		if err != nil {
			return nil, unfit(err, adapters.CodeValidation, "the patch cannot be applied: %s")
		}
		var out bytes.Buffer
		if err := rdf.Write(&out, adapters.MediaType(contentType), g.Triples()); err != nil {
			return nil, broken("the document cannot be written", err)
		}
		if out.Len() > maxRDF {
			return nil, overLimit("the changed document", maxRDF)
		}
		return out.Bytes(), nil
	}
	return c, nil
}

// unfit is the answer for an error of package rdf.
func unfit(err error, otherwise adapters.Code, format string) error {
	if errors.Is(err, rdf.ErrTooLarge) || errors.Is(err, rdf.ErrTooComplex) {
		otherwise = adapters.CodePayloadTooLarge
	}
	return faulty(otherwise, format, err)
}

func (q *request) jsonChange(raw []byte) (change, error) {
	if err := adapters.CheckUnicode("patch", raw); err != nil {
		return change{}, faulty(adapters.CodeValidation, "the patch is not valid Unicode")
	}
	ops, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return change{}, faulty(adapters.CodeValidation, "the patch is no array of operations (RFC 6902)")
	}
	if len(ops) > maxOperations {
		return change{}, faulty(adapters.CodePayloadTooLarge, "the patch has more than %d operations, the limit", maxOperations)
	}
	for i, op := range ops {
		_, err := op.Path()
		switch op.Kind() {
		case "add", "remove", "replace", "move", "copy", "test":
		default:
			err = errors.New("none of RFC 6902")
		}
		if err != nil {
			return change{}, faulty(adapters.CodeValidation, "operation %d of the patch is none of RFC 6902", i)
		}
	}
	// Operations such as test and copy tell what the document holds.
	return change{modes: wac.Read | wac.Write, apply: func(doc []byte, contentType string) ([]byte, error) {
		if !adapters.IsJSON(adapters.MediaType(contentType)) {
			return nil, faulty(adapters.CodeUnsupported, "a JSON Patch changes JSON, and the document is %s", contentType)
		}
		if patchWork(ops, len(doc)) > maxPatchWork {
			return nil, faulty(adapters.CodePayloadTooLarge, "the patch has too many operations, or too long paths, for a document of this size")
		}
		if !json.Valid(doc) {
			return nil, faulty(adapters.CodeConflict, "the document is not JSON, as its media type says")
		}
		opts := jsonpatch.NewApplyOptions()
		opts.AccumulatedCopySizeLimit = maxRDF
		opts.SupportNegativeIndices = false
		opts.EscapeHTML = false
		changed, err := ops.ApplyWithOptions(doc, opts)
		if err != nil {
			return nil, faulty(adapters.CodeConflict, "the patch does not fit the document")
		}
		if len(changed) > maxRDF {
			return nil, overLimit("the changed document", maxRDF)
		}
		return changed, nil
	}}, nil
}

// patchWork is the most bytes that the steps of all paths look at, in a document of size bytes at first.
func patchWork(ops jsonpatch.Patch, size int) (work int) {
	most := size + adapters.MaxPodPatch + maxRDF // what the patch can add, and what it can copy
	for _, op := range ops {
		at, _ := op.Path()
		from, _ := op.From()
		work += (1 + strings.Count(at, "/") + strings.Count(from, "/")) * size
		if value := op["value"]; value != nil {
			size += len(*value)
		}
		if op.Kind() == "copy" {
			size *= 2
		}
		size = min(size, most)
	}
	return work
}
