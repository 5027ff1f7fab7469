package pods

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rebase"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	jsonpatch "github.com/evanphx/json-patch/v5"
)

const (
	patchRounds  = 3
	maxPatchDoc  = 16 << 20 // bytes of a document that is patched here
	maxPatchCopy = 16 << 20 // bytes that copy operations may add
)

// Patch changes a resource. N3 Patch and SPARQL Update go to the server as they
// are; a JSON Patch goes there where the server takes one, and is otherwise
// applied here: read, apply, PUT with If-Match, at most three rounds. That needs
// a JSON document with an ETag.
func (s *Solid) Patch(ctx context.Context, path string, patch adapters.PodPatch, cond adapters.Cond) (adapters.Written, error) {
	target, err := s.target(path)
	if err != nil {
		return adapters.Written{}, err
	}
	if patch.Dialect == adapters.DialectJSONPatch {
		return s.jsonPatch(ctx, path, target, patch, cond)
	}
	if patch.Public != nil {
		patch.Body, err = s.moveFrom(patch.Public).Document(adapters.PatchType(patch.Dialect), strings.TrimPrefix(target, "/"), patch.Body)
		if err != nil {
			return adapters.Written{}, unmovable(err)
		}
	}
	return s.sendPatch(ctx, path, target, patch, cond)
}

func (s *Solid) sendPatch(ctx context.Context, path, target string, patch adapters.PodPatch, cond adapters.Cond) (adapters.Written, error) {
	mt := adapters.PatchType(patch.Dialect)
	out, err := s.write(ctx, path, wire.Request{
		Method: http.MethodPatch, Path: target, ContentType: mt, Body: patch.Body, Header: conditions(cond),
		Accept: "*/*", Expect: done, Keep: kept,
	})
	switch {
	case err == nil:
		s.dialect.seen(mt)
	case errors.Is(err, adapters.ErrUnsupported):
		s.dialect.forget(target)
	}
	return out, err
}

func (s *Solid) jsonPatch(ctx context.Context, path, target string, patch adapters.PodPatch, cond adapters.Cond) (adapters.Written, error) {
	ops, err := decodePatch(patch.Body)
	if err != nil {
		return adapters.Written{}, err
	}
	takes, err := s.takesJSONPatch(ctx, path, target)
	if err != nil {
		return adapters.Written{}, err
	}
	// Only the document shows whether texts of the patch are IRIs. So a patch whose addresses must
	// be changed is applied here, and for RDF it is refused.
	if takes && patch.Public == nil {
		out, err := s.sendPatch(ctx, path, target, patch, cond)
		if !errors.Is(err, adapters.ErrUnsupported) {
			return out, err
		}
	}
	last := ""
	for round := 1; ; round++ {
		out, etag, err := s.patchRound(ctx, path, target, ops, cond, patch.Public != nil)
		switch {
		case !errors.Is(err, adapters.ErrPreconditionFailed) || cond != (adapters.Cond{}):
			return out, err
		case etag != "" && etag == last: // a weak one, which matches no If-Match (RFC 9110, 13.1.1), or one of a compressed form
			return out, adapters.Unsupported(adapters.DialectJSONPatch, "the server does not accept the ETag that it gives")
		case round == patchRounds:
			return out, adapters.Errorf(adapters.CodeConflict, "the resource changed during each of %d attempts", patchRounds).Wrap(err)
		}
		last = etag
	}
}

func decodePatch(raw []byte) (jsonpatch.Patch, error) {
	if err := adapters.CheckUnicode("patch", raw); err != nil {
		return nil, err
	}
	ops, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, adapters.Undecodable("patch", err)
	}
	for i, op := range ops {
		if _, err := op.Path(); err != nil {
			return nil, adapters.Invalid("patch", "operation %d has no path", i)
		}
		switch op.Kind() {
		case "add", "remove", "replace", "move", "copy", "test":
		default:
			return nil, adapters.Invalid("patch", "operation %d is none of RFC 6902", i)
		}
	}
	return ops, nil
}

// patchRound is one read, apply, write; plain refuses a document that is RDF. A lost race is PRECONDITION_FAILED;
// etag is what the resource had before.
func (s *Solid) patchRound(ctx context.Context, path, target string, ops jsonpatch.Patch, cond adapters.Cond, plain bool) (out adapters.Written, etag string, err error) {
	doc, contentType, etag, err := s.fetchJSON(ctx, path, target, cond)
	if err != nil {
		return out, "", err
	}
	if mt, _, _ := mime.ParseMediaType(contentType); plain && rebase.Concerns(mt) {
		return out, etag, adapters.Unsupported(adapters.DialectJSONPatch, "a JSON Patch cannot change RDF under another address; send text/n3 or application/sparql-update")
	}
	opts := jsonpatch.NewApplyOptions()
	opts.AccumulatedCopySizeLimit = maxPatchCopy
	opts.SupportNegativeIndices = false
	opts.EscapeHTML = false
	changed, err := ops.ApplyWithOptions(doc, opts)
	if err != nil {
		return out, etag, adapters.Errorf(adapters.CodeConflict, "the patch does not fit the resource: %w", err).Final()
	}
	out, err = s.write(ctx, path, wire.Request{
		Method: http.MethodPut, Path: target, ContentType: contentType, Body: changed,
		Header: conditions(adapters.Cond{IfMatch: etag}), Accept: "*/*", Expect: done, Keep: kept,
	})
	return out, etag, err
}

// fetchJSON reads the document in the form in which the server stores it. A request for JSON could
// turn a Turtle document into JSON-LD permanently.
func (s *Solid) fetchJSON(ctx context.Context, path, target string, cond adapters.Cond) (doc []byte, contentType, etag string, err error) {
	req := readRequest(http.MethodGet, target, adapters.ReadOpt{})
	if cond.IfMatch != "" {
		req.Header.Set("If-Match", cond.IfMatch)
	}
	res, err := s.client.Open(ctx, req)
	if err != nil {
		return nil, "", "", about(err, path)
	}
	r, err := s.resource(path, target, res.StatusCode, res.Header)
	b := newBody(res.Request.Context(), res.Body)
	defer b.Close()
	switch {
	case err != nil:
		return nil, "", "", err
	case r.NotModified || cond.IfNoneMatch != "":
		// The reference server answers 304 if If-Match does not hold.
		e := adapters.Errorf(adapters.CodePreconditionFailed, "the resource is not what the condition says")
		return nil, "", "", e.With("current", r.ETag)
	case !adapters.IsJSON(mediaType(res.Header)):
		e := adapters.Errorf(adapters.CodeUnsupported, "a JSON Patch changes JSON, and this is %q", mediaType(res.Header))
		return nil, "", "", e.With("dialect", adapters.DialectJSONPatch)
	case r.ETag == "":
		return nil, "", "", adapters.Unsupported(adapters.DialectJSONPatch, "the server gives no ETag to patch safely with")
	case res.ContentLength > maxPatchDoc:
		return nil, "", "", adapters.TooLarge("the document to patch", maxPatchDoc, res.ContentLength)
	}
	doc, err = io.ReadAll(io.LimitReader(b, maxPatchDoc+1))
	if err != nil {
		return nil, "", "", err
	}
	if len(doc) > maxPatchDoc {
		return nil, "", "", adapters.TooLarge("the document to patch", maxPatchDoc, -1)
	}
	if !json.Valid(doc) {
		return nil, "", "", adapters.Errorf(adapters.CodeConflict, "the resource says it is JSON and is not").Final()
	}
	return doc, r.ContentType, r.ETag, nil
}
