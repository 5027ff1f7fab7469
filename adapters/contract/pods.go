package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// podsCase is one case over a connected, empty pod.
type podsCase struct {
	name string
	run  func(t *testing.T, ctx context.Context, p adapters.Pods)
}

func podsCases() []podsCase {
	return []podsCase{
		{"write, read, overwrite, delete", podsWrite},
		{"conditions", podsConditions},
		{"paths", podsPaths},
		{"bodies", podsBodies},
		{"ranges and conditional reads", podsRanges},
		{"head", podsHead},
		{"containers", podsContainers},
		{"list and paging", podsList},
		{"paging under writes", podsPaging},
		{"json patch", podsJSONPatch},
		{"json patches at once", podsPatchRace},
		{"n3 patch", podsN3},
		{"sparql update", podsSPARQL},
		{"notifications", podsNotices},
		{"ended contexts", podsContexts},
	}
}

// Pods runs the suite of the pods slot. newAdapter makes a fresh, unconnected adapter over an empty
// pod in which the adapter may do everything.
func Pods(t *testing.T, newAdapter func(testing.TB) adapters.Pods) {
	t.Run("life", func(t *testing.T) {
		a := newAdapter(t)
		describe(t, a, adapters.SlotPods)
		w := adapters.WrapPods(a, nil)
		life(t, a, func(ctx context.Context) error {
			_, err := w.Head(ctx, "/nobody", adapters.ReadOpt{})
			return err
		})
	})
	if !newAdapter(t).Enabled() {
		t.Run("off", func(t *testing.T) { podsOff(t, adapters.WrapPods(newAdapter(t), nil)) })
		return
	}
	for _, c := range podsCases() {
		t.Run(c.name, func(t *testing.T) {
			a := newAdapter(t)
			ctx := connect(t, a)
			c.run(t, ctx, adapters.WrapPods(a, nil))
		})
	}
}

func podsOff(t *testing.T, p adapters.Pods) {
	ctx := context.Background()
	one := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"write": one(p.Write(ctx, "/x", text("x"), adapters.Cond{})), "read": one(p.Read(ctx, "/x", adapters.ReadOpt{})),
		"patch": one(p.Patch(ctx, "/x", adapters.PodPatch{}, adapters.Cond{})), "del": one(p.Del(ctx, "/x", adapters.Cond{})),
		"list": one(p.List(ctx, "/", adapters.PageOpt{})), "head": one(p.Head(ctx, "/x", adapters.ReadOpt{})),
		"createContainer": one(p.CreateContainer(ctx, "/x/")), "subscribe": one(p.Subscribe(ctx, "/")),
	} {
		if e := want(t, name, err, adapters.CodeDisabled); e.Retryable || e.HTTPStatus() != 501 || e.Method != name {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func text(s string) adapters.Body {
	return adapters.Body{ContentType: "text/plain", Reader: strings.NewReader(s), Size: int64(len(s))}
}

func jsonDoc(s string) adapters.Body {
	b := text(s)
	b.ContentType = "application/json"
	return b
}

func putPod(t *testing.T, ctx context.Context, p adapters.Pods, path string, b adapters.Body) adapters.Written {
	t.Helper()
	return ok[adapters.Written](t, "write "+path)(p.Write(ctx, path, b, adapters.Cond{}))
}

// getPod reads a whole resource.
func getPod(t *testing.T, ctx context.Context, p adapters.Pods, path string, opt adapters.ReadOpt) (adapters.Resource, string) {
	t.Helper()
	r := ok[adapters.Resource](t, "read "+path)(p.Read(ctx, path, opt))
	defer r.Body.Close()
	return r, string(ok[[]byte](t, "body of "+path)(io.ReadAll(r.Body)))
}

func podsWrite(t *testing.T, ctx context.Context, p adapters.Pods) {
	const doc = "/a/b/doc.txt"
	w := putPod(t, ctx, p, doc, text("one"))
	holds(t, w, facts{"created": w.Created, "location": w.Location == "" || w.Location == doc})
	r, body := getPod(t, ctx, p, doc, adapters.ReadOpt{})
	equal(t, "body", body, "one")
	holds(t, r, facts{
		"type": strings.HasPrefix(r.ContentType, "text/plain"), "path": r.Path == doc, "ETag": r.ETag != "", "size": r.Size == 3 || r.Size == -1,
	})
	for range 2 {
		equal(t, "an overwrite creates", putPod(t, ctx, p, doc, text("two")).Created, false)
	}
	_, body = getPod(t, ctx, p, doc, adapters.ReadOpt{})
	equal(t, "after overwrite", body, "two")
	for _, there := range []bool{true, false} {
		gives(t, "delete", there)(p.Del(ctx, doc, adapters.Cond{}))
	}
	_, err := p.Read(ctx, "/a/b/doc.txt", adapters.ReadOpt{})
	if e := want(t, "read of nothing", err, adapters.CodeNotFound); e.Fields["id"] != "/a/b/doc.txt" || e.Fields["resource"] == nil {
		t.Errorf("fields: %v", e.Fields)
	}
	putPod(t, ctx, p, "/ld", adapters.Body{Reader: strings.NewReader(`{"@id":"http://a.test/x","http://b.test/p":"v"}`), Size: -1})
	if r, body = getPod(t, ctx, p, "/ld", adapters.ReadOpt{Accept: "text/turtle"}); !strings.Contains(body, "<http://a.test/x>") {
		t.Errorf("JSON-LD as Turtle: %s %q", r.ContentType, body)
	}
	_, err = p.Read(ctx, "/ld", adapters.ReadOpt{Accept: "image/png"})
	want(t, "read as an image", err, adapters.CodeUnsupported)
}

func podsConditions(t *testing.T, ctx context.Context, p adapters.Pods) {
	write := func(b string, c adapters.Cond) error {
		_, err := p.Write(ctx, "/c.txt", text(b), c)
		return err
	}
	if err := write("1", adapters.Cond{IfNoneMatch: "*"}); err != nil {
		t.Fatal(err)
	}
	want(t, "create again", write("x", adapters.Cond{IfNoneMatch: "*"}), adapters.CodePreconditionFailed)
	first, _ := getPod(t, ctx, p, "/c.txt", adapters.ReadOpt{})
	if err := write("two", adapters.Cond{IfMatch: first.ETag}); err != nil {
		t.Fatal(err)
	}
	second, body := getPod(t, ctx, p, "/c.txt", adapters.ReadOpt{})
	if body != "two" || second.ETag == first.ETag {
		t.Fatalf("%q, ETag %s after %s", body, second.ETag, first.ETag)
	}
	want(t, "stale write", write("x", adapters.Cond{IfMatch: first.ETag}), adapters.CodePreconditionFailed)
	_, err := p.Del(ctx, "/c.txt", adapters.Cond{IfMatch: first.ETag})
	want(t, "stale delete", err, adapters.CodePreconditionFailed)
	if _, body = getPod(t, ctx, p, "/c.txt", adapters.ReadOpt{}); body != "two" {
		t.Errorf("a refused write was carried out: %q", body)
	}
	if !ok[bool](t, "delete")(p.Del(ctx, "/c.txt", adapters.Cond{IfMatch: second.ETag})) {
		t.Error("not deleted")
	}
	want(t, "bad condition", write("x", adapters.Cond{IfNoneMatch: `"a"`}), adapters.CodeValidation)
	want(t, "header split", write("x", adapters.Cond{IfMatch: "a\r\nX: y"}), adapters.CodeValidation)
}

func podsPaths(t *testing.T, ctx context.Context, p adapters.Pods) {
	for name, path := range map[string]string{
		"relative": "a", "empty": "", "parent": "/a/../b", "escaped parent": "/a/%2e%2E/b", "here": "/./a", "empty segment": "/a//b",
		"escaped slash": "/a%2Fb", "NUL": "/a%00", "control": "/a%0ab", "backslash": `/a\b`, "escaped backslash": "/a%5Cb",
		"dot file": "/.git", "escaped dot file": "/%2Egit", "broken escape": "/a%2", "not UTF-8": "/%ff",
		"segment 256": "/" + long(256), "path 1025": strings.Repeat("/"+long(127), 8) + "/",
	} {
		_, err := p.Read(ctx, path, adapters.ReadOpt{})
		want(t, "read: "+name, err, adapters.CodeValidation)
		_, err = p.Write(ctx, path, text("x"), adapters.Cond{})
		want(t, "write: "+name, err, adapters.CodeValidation)
		_, err = p.Del(ctx, path, adapters.Cond{})
		want(t, "delete: "+name, err, adapters.CodeValidation)
	}
	_, err := p.Write(ctx, "/dir/", text("x"), adapters.Cond{})
	want(t, "write of a container", err, adapters.CodeValidation)
	_, err = p.CreateContainer(ctx, "/dir")
	want(t, "container without a slash", err, adapters.CodeValidation)
	_, err = p.List(ctx, "/dir", adapters.PageOpt{})
	want(t, "list without a slash", err, adapters.CodeValidation)
	for name, path := range map[string]string{
		"umlaut": "/grüße.txt", "space": "/a b", "escaped": "/a%20c", "dots": "/a..b", "plus": "/a+b&c=d", "path 1023": strings.Repeat("/"+long(127), 7) + "/" + long(126),
		"path 1024": strings.Repeat("/"+long(127), 8), "segment 200": "/" + long(200),
	} {
		putPod(t, ctx, p, path, text(name))
		if _, body := getPod(t, ctx, p, path, adapters.ReadOpt{}); body != name {
			t.Errorf("%s: %q", name, body)
		}
	}
	if _, body := getPod(t, ctx, p, "/a%20b", adapters.ReadOpt{}); body != "space" {
		t.Errorf("the same name escaped: %q", body)
	}
}

type brokenReader struct{ after io.Reader }

var errBroken = errors.New("broken on purpose")

func (b brokenReader) Read(buf []byte) (int, error) {
	n, err := b.after.Read(buf)
	if err == io.EOF {
		err = errBroken
	}
	return n, err
}

func podsBodies(t *testing.T, ctx context.Context, p adapters.Pods) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	for name, size := range map[string]int64{"known": int64(len(big)), "unknown": -1} {
		putPod(t, ctx, p, "/big", adapters.Body{ContentType: "application/octet-stream", Reader: bytes.NewReader(big), Size: size})
		if _, body := getPod(t, ctx, p, "/big", adapters.ReadOpt{}); body != string(big) {
			t.Errorf("size %s: %d bytes came back", name, len(body))
		}
	}
	putPod(t, ctx, p, "/empty", adapters.Body{ContentType: "text/plain", Reader: strings.NewReader(""), Size: 0})
	if _, body := getPod(t, ctx, p, "/empty", adapters.ReadOpt{}); body != "" {
		t.Errorf("an empty body came back as %q", body)
	}
	for name, b := range map[string]adapters.Body{
		"shorter than said":  {ContentType: "a/b", Reader: strings.NewReader("abc"), Size: 4},
		"longer than said":   {ContentType: "a/b", Reader: strings.NewReader("abc"), Size: 2},
		"large, shorter":     {ContentType: "a/b", Reader: bytes.NewReader(big), Size: int64(len(big)) + 1},
		"large, longer":      {ContentType: "a/b", Reader: bytes.NewReader(big), Size: int64(len(big)) - 1},
		"broken":             {ContentType: "a/b", Reader: brokenReader{strings.NewReader("abc")}, Size: -1},
		"large, broken":      {ContentType: "a/b", Reader: brokenReader{bytes.NewReader(big)}, Size: -1},
		"no reader":          {ContentType: "a/b", Size: -1},
		"content type split": {ContentType: "a/b\x00", Reader: strings.NewReader("x"), Size: 1},
	} {
		_, err := p.Write(ctx, "/big", b, adapters.Cond{})
		want(t, name, err, adapters.CodeValidation)
	}
	_, err := p.Write(ctx, "/big", adapters.Body{ContentType: "a/b", Reader: strings.NewReader("x"), Size: adapters.MaxPodBody + 1}, adapters.Cond{})
	want(t, "64 MiB + 1", err, adapters.CodePayloadTooLarge)
	if _, body := getPod(t, ctx, p, "/big", adapters.ReadOpt{}); body != string(big) {
		t.Errorf("a failed write changed the resource to %d bytes", len(body))
	}
}

func podsRanges(t *testing.T, ctx context.Context, p adapters.Pods) {
	putPod(t, ctx, p, "/r.txt", text("0123456789"))
	r, body := getPod(t, ctx, p, "/r.txt", adapters.ReadOpt{Range: "bytes=2-4"})
	if r.ContentRange != "" && (body != "234" || r.Size != 10) || r.ContentRange == "" && body != "0123456789" {
		t.Errorf("%q, %+v", body, r)
	}
	if _, err := p.Read(ctx, "/r.txt", adapters.ReadOpt{Range: "bytes=20-30"}); err != nil {
		want(t, "range beyond the end", err, adapters.CodeValidation)
	}
	whole, _ := getPod(t, ctx, p, "/r.txt", adapters.ReadOpt{})
	r, body = getPod(t, ctx, p, "/r.txt", adapters.ReadOpt{IfNoneMatch: whole.ETag})
	if !r.NotModified || body != "" || r.ETag != whole.ETag {
		t.Errorf("unchanged: %q, %+v", body, r)
	}
	if r, body = getPod(t, ctx, p, "/r.txt", adapters.ReadOpt{IfNoneMatch: `"other"`}); r.NotModified || body != "0123456789" {
		t.Errorf("changed: %q, %+v", body, r)
	}
}

func podsHead(t *testing.T, ctx context.Context, p adapters.Pods) {
	putPod(t, ctx, p, "/h.txt", text("hello"))
	read, _ := getPod(t, ctx, p, "/h.txt", adapters.ReadOpt{})
	head := ok[adapters.Resource](t, "head")(p.Head(ctx, "/h.txt", adapters.ReadOpt{}))
	if head.ETag != read.ETag || head.ContentType != read.ContentType || !head.Modified.Equal(read.Modified.Time) || head.Size > 5 || head.Modified.IsZero() {
		t.Errorf("head %+v, read %+v", head, read)
	}
	acl := slices.IndexFunc(head.Links, func(l adapters.Link) bool { return l.Rel == "acl" })
	if acl < 0 || !strings.HasPrefix(head.Links[acl].Target, "/h.txt") {
		t.Errorf("links: %v", head.Links)
	}
	_, err := p.Head(ctx, "/nothing", adapters.ReadOpt{})
	want(t, "head of nothing", err, adapters.CodeNotFound)
}

func podsContainers(t *testing.T, ctx context.Context, p adapters.Pods) {
	if w := ok[adapters.Written](t, "create")(p.CreateContainer(ctx, "/x/y/")); !w.Created {
		t.Errorf("created: %+v", w)
	}
	if w := ok[adapters.Written](t, "create again")(p.CreateContainer(ctx, "/x/y/")); w.Created {
		t.Errorf("created twice: %+v", w)
	}
	if names := podNames(t, ctx, p, "/x/", 0); !slices.Equal(names, []string{"/x/y/"}) {
		t.Errorf("members: %v", names)
	}
	if names := podNames(t, ctx, p, "/x/y/", 0); len(names) != 0 {
		t.Errorf("an empty container holds %v", names)
	}
	putPod(t, ctx, p, "/x/y/z", text("z"))
	_, err := p.Del(ctx, "/x/y/", adapters.Cond{})
	want(t, "delete of a filled container", err, adapters.CodeConflict)
	ok[bool](t, "delete")(p.Del(ctx, "/x/y/z", adapters.Cond{}))
	if !ok[bool](t, "delete")(p.Del(ctx, "/x/y/", adapters.Cond{})) {
		t.Error("the empty container is not deleted")
	}
	_, err = p.List(ctx, "/x/y/", adapters.PageOpt{})
	want(t, "list of nothing", err, adapters.CodeNotFound)
}

// podNames lists the members of a container, in pages.
func podNames(t *testing.T, ctx context.Context, p adapters.Pods, container string, limit int) []string {
	t.Helper()
	var names []string
	opt := adapters.PageOpt{Limit: limit}
	for {
		page := ok[adapters.Page[adapters.PodEntry]](t, "list")(p.List(ctx, container, opt))
		for _, e := range page.Items {
			names = append(names, e.Path)
		}
		if page.NextCursor == "" {
			return names
		}
		opt.Cursor = string(page.NextCursor)
	}
}

func podsList(t *testing.T, ctx context.Context, p adapters.Pods) {
	for _, n := range []string{"/l/b.json", "/l/a b", "/l/c/inner", "/l/" + long(200), "/l/B"} {
		putPod(t, ctx, p, n, jsonDoc(`{"a":1}`))
	}
	all := []string{"/l/B", "/l/a%20b", "/l/b.json", "/l/c/", "/l/" + long(200)}
	for _, limit := range []int{0, 1, 2, 5, 1000} {
		equal(t, fmt.Sprintf("limit %d", limit), podNames(t, ctx, p, "/l/", limit), all)
	}
	page := ok[adapters.Page[adapters.PodEntry]](t, "list")(p.List(ctx, "/l/", adapters.PageOpt{}))
	for _, e := range page.Items {
		holds(t, e, facts{
			"container": e.Container == strings.HasSuffix(e.Path, "/"), "modified": !e.Modified.IsZero(),
			"size": e.Container || e.Size == 7 || e.Size == -1,
			"type": e.Container || slices.Contains([]string{"", "application/json"}, e.ContentType),
		})
	}
	_, body := getPod(t, ctx, p, "/l/a%20b", adapters.ReadOpt{})
	equal(t, "a listed path", body, `{"a":1}`)
	first := ok[adapters.Page[adapters.PodEntry]](t, "list")(p.List(ctx, "/l/", adapters.PageOpt{Limit: 1}))
	for name, opt := range map[string]adapters.PageOpt{
		"foreign": {Cursor: "AAAA"}, "long": {Cursor: long(513)}, "limit": {Limit: 1001}, "negative": {Limit: -1},
	} {
		_, err := p.List(ctx, "/l/", opt)
		want(t, name, err, adapters.CodeValidation)
	}
	_, err := p.List(ctx, "/l/c/", adapters.PageOpt{Cursor: string(first.NextCursor)})
	want(t, "cursor of another list", err, adapters.CodeValidation)
	_, err = p.List(ctx, "/none/", adapters.PageOpt{})
	want(t, "list of nothing", err, adapters.CodeNotFound)
}

func podsPaging(t *testing.T, ctx context.Context, p adapters.Pods) {
	for i := range 12 {
		putPod(t, ctx, p, fmt.Sprintf("/p/k%02d", i), text("x"))
	}
	var seen []string
	opt := adapters.PageOpt{Limit: 3}
	for round := 0; ; round++ {
		page := ok[adapters.Page[adapters.PodEntry]](t, "list")(p.List(ctx, "/p/", opt))
		for _, e := range page.Items {
			seen = append(seen, e.Path)
		}
		if page.NextCursor == "" {
			break
		}
		opt.Cursor = string(page.NextCursor)
		// Delete the row of the cursor, and add a row before it.
		ok[bool](t, "delete")(p.Del(ctx, page.Items[len(page.Items)-1].Path, adapters.Cond{}))
		putPod(t, ctx, p, fmt.Sprintf("/p/a%02d", round), text("x"))
	}
	if len(seen) != 12 || !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != 12 {
		t.Errorf("seen %v", seen)
	}
}

func patch(dialect, body string) adapters.PodPatch {
	return adapters.PodPatch{Dialect: dialect, Body: []byte(body)}
}

func podsJSONPatch(t *testing.T, ctx context.Context, p adapters.Pods) {
	apply := func(path, body string, cond adapters.Cond) error {
		_, err := p.Patch(ctx, path, patch(adapters.DialectJSONPatch, body), cond)
		return err
	}
	putPod(t, ctx, p, "/j", jsonDoc(`{"a":1,"b":[1,2],"html":"<&>"}`))
	before, _ := getPod(t, ctx, p, "/j", adapters.ReadOpt{})
	if err := apply("/j", `[{"op":"test","path":"/a","value":1},{"op":"add","path":"/b/-","value":3},{"op":"remove","path":"/a"}]`, adapters.Cond{}); err != nil {
		t.Fatal(err)
	}
	if r, body := getPod(t, ctx, p, "/j", adapters.ReadOpt{}); body != `{"b":[1,2,3],"html":"<&>"}` || !strings.HasPrefix(r.ContentType, "application/json") {
		t.Errorf("%s %s", r.ContentType, body)
	}
	want(t, "stale", apply("/j", `[{"op":"add","path":"/x","value":1}]`, adapters.Cond{IfMatch: before.ETag}), adapters.CodePreconditionFailed)
	want(t, "exists", apply("/j", `[{"op":"add","path":"/x","value":1}]`, adapters.Cond{IfNoneMatch: "*"}), adapters.CodePreconditionFailed)
	now, _ := getPod(t, ctx, p, "/j", adapters.ReadOpt{})
	if err := apply("/j", `[{"op":"replace","path":"/b","value":null}]`, adapters.Cond{IfMatch: now.ETag}); err != nil {
		t.Errorf("with the right ETag: %v", err)
	}
	want(t, "test fails", apply("/j", `[{"op":"test","path":"/b","value":9}]`, adapters.Cond{}), adapters.CodeConflict)
	want(t, "no such member", apply("/j", `[{"op":"remove","path":"/zzz"}]`, adapters.Cond{}), adapters.CodeConflict)
	for name, body := range map[string]string{
		"not JSON": `[`, "no array": `{"op":"add"}`, "no op": `[{"path":"/a"}]`, "no path": `[{"op":"remove"}]`, "unknown op": `[{"op":"eat","path":"/a"}]`, "null": `[null]`,
	} {
		want(t, name, apply("/j", body, adapters.Cond{}), adapters.CodeValidation)
	}
	want(t, "missing target", apply("/none", `[{"op":"add","path":"/x","value":1}]`, adapters.Cond{}), adapters.CodeNotFound)
	putPod(t, ctx, p, "/t.txt", text("plain"))
	want(t, "not JSON", apply("/t.txt", `[{"op":"add","path":"/x","value":1}]`, adapters.Cond{}), adapters.CodeUnsupported)
	_, err := p.Patch(ctx, "/j", patch("merge", `{}`), adapters.Cond{})
	want(t, "unknown dialect", err, adapters.CodeUnsupported)
	_, err = p.Patch(ctx, "/j", patch(adapters.DialectJSONPatch, `["`+long(adapters.MaxPodPatch)+`"]`), adapters.Cond{})
	want(t, "patch too large", err, adapters.CodePayloadTooLarge)
	// A patch of exactly the limit is read, and refused for its content.
	want(t, "patch of the limit", apply("/j", `["`+long(adapters.MaxPodPatch-4)+`"]`, adapters.Cond{}), adapters.CodeValidation)
}

func podsPatchRace(t *testing.T, ctx context.Context, p adapters.Pods) {
	const writers = 3 // each patch is tried up to three times, so at least one writer wins
	putPod(t, ctx, p, "/race", jsonDoc(`[]`))
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		wg.Go(func() {
			_, errs[i] = p.Patch(ctx, "/race", patch(adapters.DialectJSONPatch, fmt.Sprintf(`[{"op":"add","path":"/-","value":"w%d"}]`, i)), adapters.Cond{})
		})
	}
	wg.Wait()
	_, body := getPod(t, ctx, p, "/race", adapters.ReadOpt{})
	for i, err := range errs {
		if in := strings.Contains(body, fmt.Sprintf(`"w%d"`, i)); in != (err == nil) {
			t.Errorf("writer %d: %v, the document is %s", i, err, body)
		}
		if err != nil {
			want(t, "lost race", err, adapters.CodeConflict)
		}
	}
	if body == "[]" {
		t.Error("nobody won")
	}
}

const insertN3 = `@prefix solid: <http://www.w3.org/ns/solid/terms#>.
_:p a solid:InsertDeletePatch; solid:inserts { <http://a.test/s> <http://a.test/p> "new". }.`

func podsN3(t *testing.T, ctx context.Context, p adapters.Pods) {
	apply := func(body string) error {
		_, err := p.Patch(ctx, "/n3.ttl", patch(adapters.DialectN3, body), adapters.Cond{})
		return err
	}
	if err := apply(insertN3); err != nil {
		if !slices.Contains(p.Capabilities(), "n3-patch") {
			want(t, "n3 without the capability", err, adapters.CodeUnsupported)
			return
		}
		t.Fatalf("an insert creates: %v", err)
	}
	if _, body := getPod(t, ctx, p, "/n3.ttl", adapters.ReadOpt{Accept: "text/turtle"}); !strings.Contains(body, `"new"`) {
		t.Errorf("created: %q", body)
	}
	if !slices.Contains(p.Capabilities(), "n3-patch") {
		t.Errorf("capabilities %v", p.Capabilities())
	}
	change := func(where string) string {
		return `@prefix solid: <http://www.w3.org/ns/solid/terms#>.
_:p a solid:InsertDeletePatch; solid:where { ?s <http://a.test/p> "` + where + `". };
  solid:deletes { ?s <http://a.test/p> "` + where + `". }; solid:inserts { ?s <http://a.test/p> "newer". }.`
	}
	if err := apply(change("new")); err != nil {
		t.Errorf("change: %v", err)
	}
	want(t, "no match", apply(change("new")), adapters.CodeConflict)
	want(t, "malformed", apply("this is no N3"), adapters.CodeValidation)
	if _, body := getPod(t, ctx, p, "/n3.ttl", adapters.ReadOpt{Accept: "text/turtle"}); !strings.Contains(body, `"newer"`) {
		t.Errorf("changed: %q", body)
	}
}

func podsSPARQL(t *testing.T, ctx context.Context, p adapters.Pods) {
	_, err := p.Patch(ctx, "/s.ttl", patch(adapters.DialectSPARQLUpdate, `INSERT DATA { <http://a.test/s> <http://a.test/p> "new" }`), adapters.Cond{})
	if err != nil {
		want(t, "sparql", err, adapters.CodeUnsupported)
		return
	}
	if _, body := getPod(t, ctx, p, "/s.ttl", adapters.ReadOpt{Accept: "text/turtle"}); !strings.Contains(body, `"new"`) {
		t.Errorf("updated: %q", body)
	}
}

func podsNotices(t *testing.T, ctx context.Context, p adapters.Pods) {
	putPod(t, ctx, p, "/n/doc", text("1"))
	doc, err := p.Subscribe(ctx, "/n/doc")
	if !slices.Contains(p.Capabilities(), "notifications") {
		want(t, "subscribe without the capability", err, adapters.CodeUnsupported)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer doc.Close()
	box := ok[adapters.PodSubscription](t, "subscribe")(p.Subscribe(ctx, "/n/"))
	defer box.Close()
	putPod(t, ctx, p, "/n/doc", text("2"))
	n := awaitNotice(t, ctx, doc, "Update", "/n/doc")
	if n.State == "" || n.TS.IsZero() {
		t.Errorf("notice %+v", n)
	}
	putPod(t, ctx, p, "/n/other", text("1"))
	awaitNotice(t, ctx, box, "Add", "/n/other")
	ok[bool](t, "delete")(p.Del(ctx, "/n/doc", adapters.Cond{}))
	awaitNotice(t, ctx, doc, "Delete", "/n/doc")
	awaitNotice(t, ctx, box, "Remove", "/n/doc")
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = doc.Next(short)
	if adapters.CodeOf(err) != adapters.CodeTimeout {
		t.Errorf("nothing to come: %v", err)
	}
	for range 2 {
		if err := doc.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err = doc.Next(ctx); adapters.CodeOf(err) != adapters.CodeUnavailable {
		t.Errorf("after close: %v", err)
	}
}

// awaitNotice reads notices until one has the given kind and path.
func awaitNotice(t *testing.T, ctx context.Context, s adapters.PodSubscription, kind, path string) adapters.PodNotice {
	t.Helper()
	var seen []adapters.PodNotice
	for {
		n, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %s %s after %+v: %v", kind, path, seen, err)
		}
		if n.Type == kind && n.Path == path {
			return n
		}
		seen = append(seen, n)
	}
}

func podsContexts(t *testing.T, ctx context.Context, p adapters.Pods) {
	putPod(t, ctx, p, "/x", text("x"))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	one := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"write": one(p.Write(ended, "/x", text("y"), adapters.Cond{})), "read": one(p.Read(ended, "/x", adapters.ReadOpt{})),
		"patch": one(p.Patch(ended, "/x", patch(adapters.DialectN3, insertN3), adapters.Cond{})), "del": one(p.Del(ended, "/x", adapters.Cond{})),
		"list": one(p.List(ended, "/", adapters.PageOpt{})), "head": one(p.Head(ended, "/x", adapters.ReadOpt{})),
		"createContainer": one(p.CreateContainer(ended, "/x/")), "subscribe": one(p.Subscribe(ended, "/")),
	} {
		if e := want(t, name, err, adapters.CodeTimeout); e.Method != name {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if _, body := getPod(t, ctx, p, "/x", adapters.ReadOpt{}); body != "x" {
		t.Errorf("a call that was given up was carried out: %q", body)
	}
}
