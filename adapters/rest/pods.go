package rest

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// podPath is the path below /pods, still escaped: that is how the slot wants it.
func (q *request) podPath() string {
	return strings.TrimPrefix(q.URL.EscapedPath(), "/pods")
}

// listPods lists the root when no container is named.
func listPods(q *request) error {
	page, err := q.page()
	if err != nil {
		return err
	}
	container := q.URL.Query().Get("container")
	if container == "" {
		container = "/"
	}
	out, err := q.s.cfg.Slots.Pods().List(q.Context(), container, page)
	if err != nil {
		return err
	}
	return list(q, out)
}

func (q *request) readOpt() adapters.ReadOpt {
	return adapters.ReadOpt{Accept: q.Header.Get("Accept"), Range: q.Header.Get("Range"), IfNoneMatch: q.Header.Get("If-None-Match")}
}

func readPod(q *request) error {
	res, err := q.s.cfg.Slots.Pods().Read(q.Context(), q.podPath(), q.readOpt())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	status := q.describe(res)
	q.writeDeadline(transferLimit)
	q.w.WriteHeader(status)
	if status == http.StatusNotModified {
		return nil
	}
	if _, err := io.Copy(q.w, res.Body); err != nil {
		// The status is out; only a cut connection says that this is not the whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}

func headPod(q *request) error {
	res, err := q.s.cfg.Slots.Pods().Head(q.Context(), q.podPath(), q.readOpt())
	if err != nil {
		return err
	}
	if res.Body != nil {
		defer res.Body.Close()
	}
	q.w.WriteHeader(q.describe(res))
	return nil
}

// describe writes the headers of a resource and returns the status. A document
// of a pod is anybody's: a browser must not take it for a page of the box.
func (q *request) describe(res adapters.Resource) int {
	h := q.begin(res.ContentType)
	h.Set("Content-Security-Policy", "sandbox")
	for _, p := range [][2]string{{"ETag", res.ETag}, {"WAC-Allow", res.WACAllow}, {"Content-Range", res.ContentRange}} {
		if p[1] != "" {
			h.Set(p[0], p[1])
		}
	}
	if !res.Modified.IsZero() {
		h.Set("Last-Modified", res.Modified.UTC().Format(http.TimeFormat))
	}
	for _, l := range res.Links {
		h.Add("Link", "<"+l.Target+`>; rel="`+l.Rel+`"`)
	}
	switch {
	case res.NotModified:
		return http.StatusNotModified
	case res.ContentRange != "":
		return http.StatusPartialContent
	case res.Size >= 0:
		h.Set("Content-Length", strconv.FormatInt(res.Size, 10))
	}
	return http.StatusOK
}

func (q *request) cond() adapters.Cond {
	return adapters.Cond{IfMatch: q.Header.Get("If-Match"), IfNoneMatch: q.Header.Get("If-None-Match")}
}

func writePod(q *request) error {
	path := q.podPath()
	pods := q.s.cfg.Slots.Pods()
	if adapters.IsContainer(path) {
		out, err := pods.CreateContainer(q.Context(), path)
		return q.written(out, err)
	}
	// The slot assumes a type for Go callers; on the wire it must be said.
	contentType := q.Header.Get("Content-Type")
	if contentType == "" {
		return adapters.Invalid("Content-Type", "is required")
	}
	q.readDeadline(transferLimit)
	q.writeDeadline(transferLimit + answerLimit)
	// The slot bounds the body and says what was too large.
	out, err := pods.Write(q.Context(), path, adapters.Body{ContentType: contentType, Reader: q.Body, Size: q.ContentLength}, q.cond())
	return q.written(out, err)
}

func (q *request) written(out adapters.Written, err error) error {
	if err != nil {
		return err
	}
	if out.ETag != "" {
		q.w.Header().Set("ETag", out.ETag)
	}
	if out.Location != "" {
		q.w.Header().Set("Location", "/pods"+out.Location)
	}
	if out.Created {
		return q.reply(http.StatusCreated, out)
	}
	return q.reply(http.StatusOK, out)
}

func patchPod(q *request) error {
	mt, err := q.mediaType()
	if err != nil {
		return err
	}
	for _, dialect := range []string{adapters.DialectN3, adapters.DialectSPARQLUpdate, adapters.DialectJSONPatch} {
		if adapters.PatchType(dialect) != mt {
			continue
		}
		raw, err := q.body()
		if err != nil {
			return err
		}
		out, err := q.s.cfg.Slots.Pods().Patch(q.Context(), q.podPath(), adapters.PodPatch{Dialect: dialect, Body: raw}, q.cond())
		return q.written(out, err)
	}
	return adapters.Errorf(adapters.CodeUnsupported, "no patch dialect %q", cut(mt, 100)).With("dialect", cut(mt, 100))
}

func deletePod(q *request) error {
	deleted, err := q.s.cfg.Slots.Pods().Del(q.Context(), q.podPath(), q.cond())
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, Deleted{deleted})
}
