package rest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// tenBytes has a text of ten bytes at every path and gives the part that it is asked for.
type tenBytes struct{ podsFake }

func (tenBytes) Read(_ context.Context, path string, opt adapters.ReadOpt) (adapters.Resource, error) {
	if opt.Range == "bytes=20-" { // as the external class gets it
		return adapters.Resource{}, adapters.FromProblem(416, http.Header{"Content-Range": {"bytes */10"}}, nil)
	}
	r := adapters.Resource{Path: path, ContentType: "text/plain", ETag: `"1"`, Size: 10, Body: io.NopCloser(strings.NewReader("0123456789"))}
	if opt.Range == "bytes=0-3" {
		r.ContentRange, r.Body = "bytes 0-3/10", io.NopCloser(strings.NewReader("0123"))
	}
	return r, nil
}

func (p tenBytes) Head(ctx context.Context, path string, opt adapters.ReadOpt) (adapters.Resource, error) {
	return p.Read(ctx, path, opt)
}

// A caller that has a part of another version must not get the rest of this one (RFC 9110, 13.1.5), and
// a HEAD has no parts (14.2).
func TestPartsOfPods(t *testing.T) {
	b := newBoxWith(t, map[adapters.Slot]adapters.Adapter{adapters.SlotPods: tenBytes{podsFake{slot{adapters.SlotPods, "local-solid-rs"}}}})
	for _, c := range []struct {
		method  string
		headers []string
		status  int
		body    string
	}{
		{"GET", []string{"Range", "bytes=0-3"}, 206, "0123"},
		{"GET", []string{"Range", "bytes=0-3", "If-Range", `"0"`}, 200, "0123456789"},
		{"GET", []string{"Range", "bytes=0-3", "If-Range", "Mon, 02 Jan 2006 15:04:05 GMT"}, 200, "0123456789"},
		{"HEAD", []string{"Range", "bytes=0-3"}, 200, ""},
		{"HEAD", []string{"Range", "bytes=20-"}, 200, ""},
	} {
		a := b.do("admin", c.method, "/pods/x", "", c.headers...)
		if a.status != c.status || string(a.body) != c.body || (a.header.Get("Content-Range") != "") != (c.status == 206) {
			t.Errorf("%s %v: status %d, %q, Content-Range %q", c.method, c.headers, a.status, a.body, a.header.Get("Content-Range"))
		}
	}
	a := b.do("admin", "GET", "/pods/x", "", "Range", "bytes=20-")
	if a.status != 416 || a.header.Get("Content-Range") != "bytes */10" || !strings.Contains(string(a.body), `"code":"VALIDATION_ERROR"`) {
		t.Errorf("beyond the end: status %d, Content-Range %q, %s", a.status, a.header.Get("Content-Range"), a.body)
	}
}
