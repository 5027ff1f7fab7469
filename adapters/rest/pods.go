package rest

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// podPath returns the path below /pods. It stays percent-escaped, as the slot expects.
func (q *request) podPath() string {
	return strings.TrimPrefix(q.URL.EscapedPath(), "/pods")
}

// listPods lists the root when no container is named.
func listPods(q *request) error {
	page, err := q.page()
	if err != nil {
		return err
	}
	out, err := q.s.cfg.Slots.Pods().List(q.Context(), cmp.Or(q.URL.Query().Get("container"), "/"), page)
	return list(q, out, err)
}

func (q *request) readOpt() adapters.ReadOpt {
	return adapters.ReadOpt{
		Accept: strings.Join(q.Header.Values("Accept"), ", "), IfNoneMatch: q.list("If-None-Match"), Public: q.podRoot(),
	}
}

// podRoot returns the URL of the pods' root by which the caller reaches it. It is nil if the box
// cannot know that address, as on the control socket.
func (q *request) podRoot() *url.URL {
	if q.s.cfg.Origin == nil {
		return nil
	}
	origin := q.s.cfg.Origin(q.Request)
	if origin == nil {
		return nil
	}
	return &url.URL{Scheme: origin.Scheme, Host: origin.Host, Path: "/pods/"}
}

func readPod(q *request) error {
	opt := q.readOpt()
	// With If-Range, the caller wants a part only of the version that it has the rest of, and otherwise
	// the whole. It gets the whole: which version there is, is not known before the read.
	if q.Header.Get("If-Range") == "" {
		opt.Range = q.Header.Get("Range")
	}
	res, err := q.s.cfg.Slots.Pods().Read(q.Context(), q.podPath(), opt)
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
		// The status is already sent. A closed connection tells the caller that the body is incomplete.
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

// describe sets the headers of a resource and returns the status. The sandbox policy is needed
// because any writer of the pod may have made the document: a browser must not treat it as a page
// of the box.
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
		if strings.HasPrefix(l.Target, "/") {
			l.Target = "/pods" + l.Target
		}
		h.Add("Link", "<"+l.Target+`>; rel="`+l.Rel+`"`)
	}
	q.podMethods(res.Path, res.AcceptPatch, res.AcceptPost)
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
	return adapters.Cond{IfMatch: q.list("If-Match"), IfNoneMatch: q.list("If-None-Match")}
}

func writePod(q *request) error {
	path := q.podPath()
	pods := q.s.cfg.Slots.Pods()
	if adapters.IsContainer(path) {
		out, err := q.makeContainer(path)
		return q.written(out, err)
	}
	// The slot has a default type for Go callers. HTTP callers must send the type.
	contentType := q.Header.Get("Content-Type")
	if contentType == "" {
		return adapters.Invalid("Content-Type", "is required")
	}
	q.readDeadline(transferLimit)
	q.writeDeadline(transferLimit + answerLimit)
	// The slot limits the size of the body and reports an excess.
	out, err := pods.Write(q.Context(), path, q.podBody(contentType), q.cond())
	return q.written(out, err)
}

func (q *request) podBody(contentType string) adapters.Body {
	return adapters.Body{ContentType: contentType, Reader: q.Body, Size: q.ContentLength, Public: q.podRoot()}
}

// makeContainer makes an empty container. It refuses a request with a body: the description of the
// container in that body would be lost.
func (q *request) makeContainer(path string) (adapters.Written, error) {
	body, err := q.body()
	if err != nil {
		return adapters.Written{}, err
	}
	if len(bytes.TrimSpace(body)) > 0 {
		return adapters.Written{}, adapters.Errorf(adapters.CodeUnsupported, "a container is made without a body; write its description to %s.meta", adapters.Cut(path, 200))
	}
	out, err := q.s.cfg.Slots.Pods().CreateContainer(q.Context(), path)
	if err == nil && !out.Created && matches(q.list("If-None-Match"), out.ETag) {
		return out, adapters.Errorf(adapters.CodePreconditionFailed, "the container is there already")
	}
	return out, err
}

// createPod makes a resource or a container in a container (Solid Protocol, 5.3). It uses the name
// in the Slug header (RFC 5023, 9.7) if that name is free; otherwise, the box chooses a name.
func createPod(q *request) error {
	container := q.podPath()
	if !adapters.IsContainer(container) {
		return adapters.Errorf(adapters.CodeUnsupported, "only a container takes a POST; its path ends with /")
	}
	pods := q.s.cfg.Slots.Pods()
	if _, err := pods.Head(q.Context(), container, adapters.ReadOpt{}); err != nil {
		return err
	}
	if adapters.WantsContainer(q.Header) {
		return q.createIn(container, "/", func(path string) (adapters.Written, error) {
			out, err := q.makeContainer(path)
			if err == nil && !out.Created {
				err = adapters.ErrPreconditionFailed
			}
			return out, err
		})
	}
	contentType := q.Header.Get("Content-Type")
	if contentType == "" {
		return adapters.Invalid("Content-Type", "is required")
	}
	q.readDeadline(transferLimit)
	q.writeDeadline(transferLimit + answerLimit)
	return q.createIn(container, "", func(path string) (adapters.Written, error) {
		return pods.Write(q.Context(), path, q.podBody(contentType), adapters.Cond{IfNoneMatch: "*"})
	})
}

// createIn calls make with the path of a free name in the container.
func (q *request) createIn(container, suffix string, make func(path string) (adapters.Written, error)) error {
	id := adapters.NewID()
	name := cmp.Or(slug(q.Header.Get("Slug")), id)
	path := container + url.PathEscape(name) + suffix
	pods := q.s.cfg.Slots.Pods()
	// Find a free name before make reads the body: the body can be read only once. A document and a
	// container must not have the same name either.
	for _, taken := range []string{strings.TrimSuffix(path, "/"), strings.TrimSuffix(path, "/") + "/"} {
		_, err := pods.Head(q.Context(), taken, adapters.ReadOpt{})
		if err == nil {
			path = container + url.PathEscape(id+"-"+name) + suffix
			break
		}
		if !errors.Is(err, adapters.ErrNotFound) {
			return err
		}
	}
	out, err := make(path)
	if errors.Is(err, adapters.ErrPreconditionFailed) {
		// Another request took the name after the check above.
		return adapters.Errorf(adapters.CodeConflict, "the name has just been taken; send the request again")
	}
	if err != nil {
		return err
	}
	out.Created, out.Location = true, path
	return q.written(out, nil)
}

// slug returns the name in a Slug header, or "" if that is no valid name.
func slug(header string) string {
	name := adapters.PodSlug(header)
	if len(name) > 200 || adapters.CheckPodPath("/"+url.PathEscape(name)) != nil {
		return ""
	}
	return name
}

// podOptions answers which methods and media types a path takes, even if no resource exists there.
func podOptions(q *request) error {
	path := q.podPath()
	res, err := q.s.cfg.Slots.Pods().Head(q.Context(), path, adapters.ReadOpt{})
	if err != nil && !errors.Is(err, adapters.ErrNotFound) {
		return err
	}
	q.podMethods(path, res.AcceptPatch, res.AcceptPost)
	return q.done(nil)
}

// podMethods sets the headers that name the methods and media types of a path.
func (q *request) podMethods(path, patch, post string) {
	h := q.w.Header()
	h.Set("Accept-Patch", strings.Join(patchDialects(patch), ", "))
	if !adapters.IsContainer(path) {
		h.Set("Allow", "GET, HEAD, OPTIONS, PUT, PATCH, DELETE")
		return
	}
	h.Set("Allow", "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE")
	h.Set("Accept-Post", cmp.Or(post, "*/*"))
}

// patchDialects lists the media types of patches that both the box and the pod server support. If
// the server names none, it is assumed to support them all. JSON Patch is always listed: the box
// itself applies it.
func patchDialects(server string) []string {
	var out []string
	for _, dialect := range []string{adapters.DialectN3, adapters.DialectSPARQLUpdate} {
		if mt := adapters.PatchType(dialect); server == "" || strings.Contains(strings.ToLower(server), mt) {
			out = append(out, mt)
		}
	}
	return append(out, adapters.PatchType(adapters.DialectJSONPatch))
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
		out, err := q.s.cfg.Slots.Pods().Patch(q.Context(), q.podPath(), adapters.PodPatch{Dialect: dialect, Body: raw, Public: q.podRoot()}, q.cond())
		return q.written(out, err)
	}
	return adapters.Errorf(adapters.CodeUnsupported, "no patch dialect %q", adapters.Cut(mt, 100)).With("dialect", adapters.Cut(mt, 100))
}

func deletePod(q *request) error {
	deleted, err := q.s.cfg.Slots.Pods().Del(q.Context(), q.podPath(), q.cond())
	return q.result(http.StatusOK, Deleted{deleted}, err)
}
