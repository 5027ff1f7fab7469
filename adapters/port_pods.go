package adapters

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"sync"
	"time"
)

// WrapPods wraps one implementation in mw (nil = guard and limits); see WrapBeads.
func WrapPods(a Pods, mw Middleware) Pods {
	return podsPort{wrapped(SlotPods, a, mw)}
}

type podsPort struct{ *port }

var _ Pods = podsPort{}

func (p podsPort) Write(ctx context.Context, path string, body Body, cond Cond) (Written, error) {
	body.ContentType = cmp.Or(body.ContentType, DefaultPodType)
	c := Call{
		Method: "write", Write: true, Limit: transferLimit,
		Check: func() error { return cmp.Or(body.check(path), cond.check()) },
		Text:  []Text{{Body: &body}},
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Pods) (Written, error) {
		body.Reader = &boundedReader{r: body.Reader, limit: MaxPodBody}
		return a.Write(ctx, path, body, cond)
	})
}

// transferLimit bounds calls that transfer one large body.
const transferLimit = 2 * time.Minute

// boundedReader returns an error if there is more data than the limit, so that a document is never
// truncated silently.
type boundedReader struct {
	r     io.Reader
	limit int64
	n     int64 // read so far
}

func (b *boundedReader) Read(buf []byte) (int, error) {
	if left := b.limit - b.n; int64(len(buf)) > left+1 {
		buf = buf[:left+1]
	}
	n, err := b.r.Read(buf)
	if b.n += int64(n); b.n > b.limit {
		b.n = b.limit
		return 0, TooLarge("body", b.limit, -1)
	}
	return n, err
}

func (p podsPort) Read(ctx context.Context, path string, opt ReadOpt) (Resource, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := Call{Method: "read", Cancel: cancel, Check: func() error { return opt.check(path) }}
	res, err := via(ctx, p.port, c, func(ctx context.Context, a Pods) (Resource, error) { return a.Read(ctx, path, opt) })
	if err != nil {
		cancel(nil)
		return Resource{}, err
	}
	if res.Body == nil {
		res.Body = io.NopCloser(bytes.NewReader(nil))
	}
	res.Body = CancelOnClose(res.Body, cancel)
	return res, nil
}

// CancelOnClose is body; its context ends when the reader closes it.
func CancelOnClose(body io.ReadCloser, cancel context.CancelCauseFunc) io.ReadCloser {
	return &cancelBody{ReadCloser: body, cancel: cancel}
}

type cancelBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *cancelBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

func (p podsPort) Patch(ctx context.Context, path string, patch PodPatch, cond Cond) (Written, error) {
	body := Body{ContentType: patchTypes[patch.Dialect], Reader: bytes.NewReader(patch.Body), Size: int64(len(patch.Body))}
	original := body.Reader
	c := Call{
		Method: "patch", Write: true,
		Check: func() error { return cmp.Or(patch.check(path), cond.check()) },
		Text:  []Text{{Body: &body}},
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Pods) (Written, error) {
		if body.Reader != original { // privacy rewrote it
			raw, err := io.ReadAll(&boundedReader{r: body.Reader, limit: MaxPodPatch})
			if err != nil {
				return Written{}, err
			}
			patch.Body = raw
		}
		return a.Patch(ctx, path, patch, cond)
	})
}

// patchTypes are the media types of the patch dialects.
var patchTypes = map[string]string{
	DialectJSONPatch: "application/json-patch+json", DialectN3: "text/n3", DialectSPARQLUpdate: "application/sparql-update",
}

// PatchType returns the media type of a patch dialect, "" if it is unknown.
func PatchType(dialect string) string { return patchTypes[dialect] }

func (p podsPort) Del(ctx context.Context, path string, cond Cond) (bool, error) {
	return via(ctx, p.port, Call{Method: "del", Write: true, Check: func() error { return cmp.Or(CheckPodPath(path), cond.check()) }},
		func(ctx context.Context, a Pods) (bool, error) { return a.Del(ctx, path, cond) })
}

func (p podsPort) List(ctx context.Context, container string, page PageOpt) (Page[PodEntry], error) {
	return via(ctx, p.port, Call{Method: "list", Check: func() error { return cmp.Or(checkContainer(container), page.Check()) }},
		func(ctx context.Context, a Pods) (Page[PodEntry], error) { return a.List(ctx, container, page) })
}

func (p podsPort) Head(ctx context.Context, path string, opt ReadOpt) (Resource, error) {
	return via(ctx, p.port, Call{Method: "head", Check: func() error { return opt.check(path) }},
		func(ctx context.Context, a Pods) (Resource, error) { return a.Head(ctx, path, opt) })
}

func (p podsPort) CreateContainer(ctx context.Context, path string) (Written, error) {
	return via(ctx, p.port, Call{Method: "createContainer", Write: true, Check: func() error { return checkContainer(path) }},
		func(ctx context.Context, a Pods) (Written, error) { return a.CreateContainer(ctx, path) })
}

func (p podsPort) Subscribe(ctx context.Context, topic string) (PodSubscription, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := Call{Method: "subscribe", Cancel: cancel, Check: func() error { return CheckPodPath(topic) }}
	s, err := via(ctx, p.port, c, func(ctx context.Context, a Pods) (PodSubscription, error) { return a.Subscribe(ctx, topic) })
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &podStream{PodSubscription: s, once: onceCancel(cancel, s.Close)}, nil
}

type podStream struct {
	PodSubscription
	once func() error
}

func (s *podStream) Close() error { return s.once() }

// onceCancel closes a stream and ends its context, only once for all callers.
func onceCancel(cancel context.CancelCauseFunc, closeStream func() error) func() error {
	return sync.OnceValue(func() error {
		err := closeStream()
		cancel(nil)
		return err
	})
}
