package pods

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/url"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rebase"
)

// maxMoved bounds, in bytes, a document whose IRIs are changed, because it is held in memory as a
// whole.
const maxMoved = 16 << 20

// moveFrom is the way from the addresses a caller knows to the server's.
func (s *Solid) moveFrom(public *url.URL) rebase.Move {
	root := *s.base
	root.Path += "/"
	if root.RawPath != "" {
		root.RawPath += "/"
	}
	return rebase.Move{From: public, To: &root}
}

// inward is a document as the server is to have it.
func (s *Solid) inward(ctx context.Context, target string, in adapters.Body) (adapters.Body, error) {
	mt, _, err := mime.ParseMediaType(in.ContentType)
	if in.Public == nil || err != nil || !rebase.Concerns(mt) {
		return in, nil
	}
	doc, err := io.ReadAll(io.LimitReader(adapters.UntilDone(ctx, in.Reader), maxMoved+1))
	if err != nil {
		return in, unreadable(err)
	}
	if len(doc) > maxMoved {
		return in, adapters.TooLarge("an RDF document", maxMoved, in.Size)
	}
	if in.Size >= 0 && in.Size != int64(len(doc)) {
		return in, adapters.Invalid("body", "holds %d bytes, not the %d of its size", len(doc), in.Size)
	}
	moved, err := s.moveFrom(in.Public).Document(mt, strings.TrimPrefix(target, "/"), doc)
	if err != nil {
		return in, unmovable(err)
	}
	in.Reader, in.Size = bytes.NewReader(moved), int64(len(moved))
	return in, nil
}

// outward is a resource as the caller is to have it; its body is used up.
func (s *Solid) outward(public *url.URL, target, mt string, r adapters.Resource) (adapters.Resource, error) {
	defer r.Body.Close()
	doc, err := io.ReadAll(io.LimitReader(r.Body, maxMoved+1))
	switch {
	case err != nil:
		return adapters.Resource{}, err
	case len(doc) > maxMoved:
		return adapters.Resource{}, adapters.TooLarge("an RDF document", maxMoved, r.Size)
	}
	moved, err := s.moveFrom(public).Back().Document(mt, strings.TrimPrefix(target, "/"), doc)
	if err != nil {
		return adapters.Resource{}, unmovable(err)
	}
	r.Body, r.Size = io.NopCloser(bytes.NewReader(moved)), int64(len(moved))
	return r, nil
}

// unmovable is the error for a document that would get another meaning under the other address.
func unmovable(err error) error {
	if !errors.Is(err, rebase.ErrUnsupported) {
		return adapters.Errorf(adapters.CodeInternal, "cannot translate the IRIs of a document").Wrap(err)
	}
	return adapters.Errorf(adapters.CodeUnsupported, "the IRIs of this document cannot be translated between the box's address and the pod server's; use Turtle, or JSON-LD whose context is in the document: %w", err)
}
