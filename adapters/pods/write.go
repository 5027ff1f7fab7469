package pods

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// smallBody is how many bytes are read before the request is sent. So an error of the body causes
// no request, and small bodies can be signed.
const smallBody = 256 << 10

// done are the statuses of a write that was carried out. The reference server
// answers 205 to overwrite, patch and delete.
var done = []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent, http.StatusResetContent}

const basicContainer = "<" + rdf.LDP + `BasicContainer>; rel="type"`

// Write creates or replaces a resource. A larger body is streamed: the server gets it as it is
// read, and if the body fails half-way, the old resource stays. After Write has returned, no read
// of the body begins. If Write returned because ctx ended, a hanging read may still be under way.
func (s *Solid) Write(ctx context.Context, path string, in adapters.Body, cond adapters.Cond) (adapters.Written, error) {
	target, err := s.target(path)
	if err != nil {
		return adapters.Written{}, err
	}
	in.ContentType = cmp.Or(in.ContentType, adapters.DefaultPodType)
	r := wire.Request{
		Method: http.MethodPut, Path: target, ContentType: in.ContentType, Header: conditions(cond), Accept: "*/*",
		Expect: done, Keep: kept,
	}
	if in, err = s.inward(ctx, target, in); err != nil {
		return adapters.Written{}, err
	}
	if err := load(ctx, in, &r); err != nil {
		return adapters.Written{}, err
	}
	return s.write(ctx, path, r)
}

// load puts the body into the request: whole when it is small.
func load(ctx context.Context, in adapters.Body, r *wire.Request) error {
	head, err := readHead(ctx, in.Reader)
	if err != nil {
		return unreadable(err)
	}
	if len(head) > smallBody {
		r.Upload, r.UploadSize = io.MultiReader(bytes.NewReader(head), in.Reader), max(in.Size, -1)
		return nil
	}
	if in.Size >= 0 && in.Size != int64(len(head)) {
		return adapters.Invalid("body", "holds %d bytes, not the %d of its size", len(head), in.Size)
	}
	r.Body = head
	return nil
}

// readHead reads the first smallBody+1 bytes, or what there is. It returns when
// ctx ends, though a body may hang in a read: that one read goes on by itself.
func readHead(ctx context.Context, r io.Reader) ([]byte, error) {
	type result struct {
		head []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		head, err := io.ReadAll(io.LimitReader(adapters.UntilDone(ctx, r), smallBody+1))
		done <- result{head, err}
	}()
	select {
	case got := <-done:
		return got.head, got.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// unreadable makes an error of the body the caller's error, unless it has a code.
func unreadable(err error) error {
	if _, ok := errors.AsType[*adapters.Error](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return adapters.AsError(err)
	}
	return adapters.Invalid("body", "cannot be read").Wrap(err)
}

func (s *Solid) write(ctx context.Context, path string, r wire.Request) (adapters.Written, error) {
	res, err := s.client.Do(ctx, r)
	if err != nil {
		return adapters.Written{}, about(err, path)
	}
	out := adapters.Written{Created: res.Status == http.StatusCreated, ETag: res.Header.Get("ETag")}
	if p, ok := s.podRef(r.Path, res.Header.Get("Location")); ok {
		out.Location = p
	}
	return out, nil
}

func conditions(cond adapters.Cond) http.Header {
	h := http.Header{}
	if cond.IfMatch != "" {
		h.Set("If-Match", cond.IfMatch)
	}
	if cond.IfNoneMatch != "" {
		h.Set("If-None-Match", cond.IfNoneMatch)
	}
	return h
}

// CreateContainer creates a container and its missing parents. An existing container stays
// unchanged; Created is then false.
func (s *Solid) CreateContainer(ctx context.Context, path string) (adapters.Written, error) {
	target, err := s.target(path)
	if err != nil {
		return adapters.Written{}, err
	}
	if there, err := s.exists(ctx, target); err != nil || there {
		return adapters.Written{}, err
	}
	out, err := s.write(ctx, path, wire.Request{
		Method: http.MethodPut, Path: target, ContentType: "text/turtle", Body: []byte{}, Accept: "*/*",
		Header: http.Header{"Link": {basicContainer}}, Expect: done, Keep: kept,
	})
	// Another may have made it meanwhile; servers refuse to make it twice.
	if errors.Is(err, adapters.ErrConflict) {
		if there, herr := s.exists(ctx, target); herr == nil && there {
			return adapters.Written{}, nil
		}
	}
	return out, err
}

func (s *Solid) exists(ctx context.Context, target string) (bool, error) {
	_, err := s.client.Do(ctx, wire.Request{Method: http.MethodHead, Path: target, Accept: "*/*", Keep: kept})
	if errors.Is(err, adapters.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Del removes a resource or an empty container; a filled one is CONFLICT.
func (s *Solid) Del(ctx context.Context, path string, cond adapters.Cond) (bool, error) {
	target, err := s.target(path)
	if err != nil {
		return false, err
	}
	_, err = s.client.Do(ctx, wire.Request{
		Method: http.MethodDelete, Path: target, Header: conditions(cond), Accept: "*/*", Expect: done, Keep: kept,
	})
	if errors.Is(err, adapters.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
