package pods

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rebase"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/internal/escape"
)

// bodyIdle is how long a server may pause within a body.
const bodyIdle = 30 * time.Second

// Read opens a resource. If a server ignores Range, the result is the whole resource with an empty
// ContentRange. In Resource.Links, targets in the pod are pod paths, and others are absolute URLs.
// A body over MaxPodBody, or one that breaks off, ends with an error.
func (s *Solid) Read(ctx context.Context, path string, opt adapters.ReadOpt) (adapters.Resource, error) {
	target, err := s.target(path)
	if err != nil {
		return adapters.Resource{}, err
	}
	res, err := s.client.Open(ctx, readRequest(http.MethodGet, target, opt))
	if err == nil && opt.Public != nil && opt.Range != "" && res.StatusCode == http.StatusPartialContent && rebase.Concerns(mediaType(res.Header)) {
		// A part of a document cannot be moved; Range may be ignored (RFC 9110, 14.2).
		res.Body.Close()
		opt.Range = ""
		res, err = s.client.Open(ctx, readRequest(http.MethodGet, target, opt))
	}
	if err != nil {
		return adapters.Resource{}, about(err, path)
	}
	out, err := s.resource(path, target, res.StatusCode, res.Header)
	if err == nil {
		err = sized(res, &out)
	}
	if opt.Public != nil {
		out.Links = s.ofOthers(out.Links)
	}
	if err != nil {
		res.Body.Close()
		return adapters.Resource{}, err
	}
	out.Body = newBody(res.Request.Context(), res.Body)
	if opt.Public != nil && !out.NotModified && rebase.Concerns(mediaType(res.Header)) {
		return s.outward(opt.Public, target, mediaType(res.Header), out)
	}
	return out, nil
}

// Head is Read without the body.
func (s *Solid) Head(ctx context.Context, path string, opt adapters.ReadOpt) (adapters.Resource, error) {
	target, err := s.target(path)
	if err != nil {
		return adapters.Resource{}, err
	}
	res, err := s.client.Do(ctx, readRequest(http.MethodHead, target, opt))
	if err != nil {
		return adapters.Resource{}, about(err, path)
	}
	out, err := s.resource(path, target, res.Status, res.Header)
	if err != nil {
		return adapters.Resource{}, err
	}
	if opt.Public != nil {
		out.Links = s.ofOthers(out.Links)
	}
	out.Size = headerSize(res.Header)
	if opt.Public != nil && rebase.Concerns(mediaType(res.Header)) {
		out.Size = -1 // moved, it has another
	}
	out.Body = http.NoBody
	return out, nil
}

func readRequest(method, target string, opt adapters.ReadOpt) wire.Request {
	h := http.Header{
		// Bytes as they are: a coded body has another length, range and ETag.
		"Accept-Encoding": {"identity"},
	}
	for name, v := range map[string]string{"Range": opt.Range, "If-None-Match": opt.IfNoneMatch} {
		if v != "" {
			h.Set(name, v)
		}
	}
	accept := cmp.Or(opt.Accept, "*/*")
	return wire.Request{
		Method: method, Path: target, Accept: accept, Header: h, Keep: kept,
		Expect: []int{http.StatusOK, http.StatusPartialContent, http.StatusNotModified},
	}
}

// resource is the resource described by the headers of an answer.
func (s *Solid) resource(path, target string, status int, h http.Header) (adapters.Resource, error) {
	if c := h.Get("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return adapters.Resource{}, lied("body is coded as %q, which was not asked for", escape.Line(c, 40))
	}
	r := adapters.Resource{
		Path: path, ContentType: h.Get("Content-Type"), ETag: h.Get("ETag"), Size: -1,
		NotModified: status == http.StatusNotModified, WACAllow: h.Get("WAC-Allow"), Links: s.links(target, h),
		AcceptPatch: strings.Join(h.Values("Accept-Patch"), ", "), AcceptPost: strings.Join(h.Values("Accept-Post"), ", "),
	}
	if at, err := http.ParseTime(h.Get("Last-Modified")); err == nil {
		r.Modified = adapters.At(at)
	}
	if status == http.StatusPartialContent {
		r.ContentRange = h.Get("Content-Range")
		if r.ContentRange == "" {
			return r, lied("partial answer does not say which part it is")
		}
	}
	s.dialect.learn(target, h)
	return r, nil
}

// sized sets the size of the whole resource. It refuses one that is too large before it is read.
func sized(res *http.Response, r *adapters.Resource) error {
	if res.ContentLength > adapters.MaxPodBody {
		return adapters.TooLarge("resource", adapters.MaxPodBody, res.ContentLength)
	}
	switch {
	case r.ContentRange != "":
		_, total, _ := strings.Cut(r.ContentRange, "/")
		r.Size = parseSize(total)
	case r.NotModified:
		r.Size = headerSize(res.Header)
	default:
		r.Size = res.ContentLength
	}
	return nil
}

func headerSize(h http.Header) int64 { return parseSize(h.Get("Content-Length")) }

func parseSize(s string) int64 {
	if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil && n >= 0 {
		return n
	}
	return -1
}

// body is the body of a resource that is being read. It limits its size and the server's pauses,
// and hides details in its errors.
type body struct {
	ctx   context.Context
	inner io.ReadCloser
	left  int64 // until the limit
	once  sync.Once
	idle  *time.Timer
	slow  chan struct{} // closed when the server paused too long
}

func newBody(ctx context.Context, inner io.ReadCloser) *body {
	b := &body{ctx: ctx, inner: inner, left: adapters.MaxPodBody, slow: make(chan struct{})}
	b.idle = time.AfterFunc(bodyIdle, func() {
		close(b.slow)
		b.Close()
	})
	b.idle.Stop() // it runs only during a read
	return b
}

func (b *body) Read(buf []byte) (int, error) {
	if int64(len(buf)) > b.left+1 {
		buf = buf[:b.left+1]
	}
	b.idle.Reset(bodyIdle)
	n, err := b.inner.Read(buf)
	b.idle.Stop()
	if int64(n) > b.left {
		return int(b.left), adapters.TooLarge("resource", adapters.MaxPodBody, -1)
	}
	b.left -= int64(n)
	if err != nil && err != io.EOF {
		err = b.judge(err)
	}
	return n, err
}

func (b *body) judge(err error) error {
	select {
	case <-b.slow:
		return adapters.Errorf(adapters.CodeTimeout, "the server paused for more than %s within a body", bodyIdle).Wrap(err)
	default:
	}
	if cause := context.Cause(b.ctx); cause != nil {
		return adapters.AsError(cause)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return adapters.Unavailable(nil, "the server broke off within a body").Wrap(err)
	}
	return adapters.Unavailable(err, "cannot read on")
}

func (b *body) Close() error {
	var err error
	b.once.Do(func() { err = b.inner.Close() })
	return err
}
