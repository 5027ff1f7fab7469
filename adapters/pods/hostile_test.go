package pods

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// solidRoot answers the requests of Connect and passes all others to next.
func solidRoot(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/" && r.Method == http.MethodHead:
			w.Header().Set("Link", `<http://www.w3.org/ns/ldp#Container>; rel="type"`)
			w.Header().Set("Content-Type", "text/turtle")
		case r.URL.Path == "/v1/meta", r.URL.Path == wellKnownAt:
			http.NotFound(w, r)
		default:
			next(w, r)
		}
	}
}

// against returns a connected client of a server that behaves like next.
func against(t *testing.T, next http.HandlerFunc) adapters.Pods {
	t.Helper()
	srv := httptest.NewServer(solidRoot(next))
	t.Cleanup(srv.Close)
	return adapters.WrapPods(connected(t, Config{BaseURL: srv.URL}), nil)
}

func wantCode(t *testing.T, what string, err error, code adapters.Code) *adapters.Error {
	t.Helper()
	if adapters.CodeOf(err) != code {
		t.Fatalf("%s: %v, want %s", what, err, code)
	}
	return adapters.AsError(err)
}

func read(ctx context.Context, p adapters.Pods, opt adapters.ReadOpt) ([]byte, error) {
	return readPath(ctx, p, "/x", opt)
}

func readPath(ctx context.Context, p adapters.Pods, path string, opt adapters.ReadOpt) ([]byte, error) {
	r, err := p.Read(ctx, path, opt)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	return io.ReadAll(r.Body)
}

// raw sends the given bytes and closes the connection.
func raw(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		// The client may have closed the connection.
		_, _ = io.WriteString(conn, answer)
	}
}

func TestReadsFromLyingServers(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		code   adapters.Code
	}{
		"gzip nobody asked for": {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", adapters.CodeUnavailable},
		"part of nothing":       {"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc", adapters.CodeUnavailable},
		"too large":             {fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", adapters.MaxPodBody+1), adapters.CodePayloadTooLarge},
		"a status of its own":   {"HTTP/1.1 299 Fine\r\nContent-Length: 0\r\n\r\n", adapters.CodeUnavailable},
		"teapot":                {"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n", adapters.CodeValidation},
		"insufficient storage":  {"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n", adapters.CodePayloadTooLarge},
		"gone":                  {"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", adapters.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t.Context(), against(t, raw(c.answer)), adapters.ReadOpt{})
			wantCode(t, name, err, c.code)
		})
	}
}

// goodPod accepts all writes and has every requested resource.
func goodPod(t *testing.T) string {
	srv := httptest.NewServer(solidRoot(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the client may have closed the connection
		switch {
		case r.Method == http.MethodOptions:
			w.Header().Set("Accept-Patch", "text/n3")
		case r.URL.Path == "/c/" && r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "text/turtle")
			_, _ = io.WriteString(w, "<> <http://www.w3.org/ns/ldp#contains> <a>.")
		case r.Method == http.MethodGet || r.Method == http.MethodHead:
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "abc")
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestPeersThatMisbehave(t *testing.T) {
	// RDF without known terms is a container without members.
	fine := []string{"an array of numbers", "another shape"}
	contract.Peers(t, contract.PeerClass{Good: goodPod, Fine: fine, Open: func(t *testing.T, url string) []contract.PeerCall {
		p := adapters.WrapPods(connected(t, Config{BaseURL: url, Auth: wire.Bearer(func() string { return "sesame" })}), nil)
		write := func(size int64, body func() io.Reader) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := p.Write(ctx, "/x", adapters.Body{ContentType: "a/b", Reader: body(), Size: size}, adapters.Cond{})
				return err
			}
		}
		return []contract.PeerCall{
			{Name: "write", Answer: contract.Status, Call: write(1, func() io.Reader { return strings.NewReader("x") })},
			{Name: "upload", Answer: contract.Status, Call: write(smallBody+1, func() io.Reader { return io.LimitReader(zeros{}, smallBody+1) })},
			{Name: "read", Answer: contract.Forwarded, Call: func(ctx context.Context) error {
				_, err := read(ctx, p, adapters.ReadOpt{})
				return err
			}},
			{Name: "head", Answer: contract.Status, Call: func(ctx context.Context) error {
				_, err := p.Head(ctx, "/x", adapters.ReadOpt{})
				return err
			}},
			{Name: "patch", Answer: contract.Status, Call: func(ctx context.Context) error {
				_, err := p.Patch(ctx, "/x", adapters.PodPatch{Dialect: adapters.DialectN3, Body: []byte("<> a <x>.")}, adapters.Cond{})
				return err
			}},
			{Name: "del", Answer: contract.Status, Call: func(ctx context.Context) error {
				_, err := p.Del(ctx, "/x", adapters.Cond{})
				return err
			}},
			{Name: "list", Call: func(ctx context.Context) error {
				_, err := p.List(ctx, "/c/", adapters.PageOpt{})
				return err
			}},
			{Name: "createContainer", Answer: contract.Status, Call: func(ctx context.Context) error {
				_, err := p.CreateContainer(ctx, "/d/")
				return err
			}},
		}
	}})
}

func TestReadOfAnEndlessBody(t *testing.T) {
	p := against(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 1<<20)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	r, err := p.Read(t.Context(), "/x", adapters.ReadOpt{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	wantCode(t, "endless body", err, adapters.CodePayloadTooLarge)
	if n != adapters.MaxPodBody {
		t.Errorf("%d bytes came through", n)
	}
}

func TestReadOfExactlyTheLimit(t *testing.T) {
	p := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(adapters.MaxPodBody))
		chunk := make([]byte, 1<<20)
		for range adapters.MaxPodBody >> 20 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	r, err := p.Read(t.Context(), "/x", adapters.ReadOpt{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if n, err := io.Copy(io.Discard, r.Body); err != nil || n != adapters.MaxPodBody {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// If a server pauses forever in a body, the read ends after bodyIdle. The transport is faked so
// that the time is that of the bubble.
func TestReadFromAPausingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustSolid(t, NewExternal, Config{BaseURL: "http://h.test/", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			res := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/turtle"}}, Body: http.NoBody, Request: r}
			if r.URL.Path == "/x" {
				pr, pw := io.Pipe()
				go func() { _, _ = io.WriteString(pw, "abc") }() // fails when the reader stops
				res.Body, res.ContentLength = pr, -1
			}
			return res, nil
		})})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		body, err := read(t.Context(), s, adapters.ReadOpt{})
		wantCode(t, "paused body", err, adapters.CodeTimeout)
		if string(body) != "abc" || time.Since(start) != bodyIdle {
			t.Errorf("%q after %s", body, time.Since(start))
		}
		if err := s.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestListsOfLyingServers(t *testing.T) {
	for name, c := range map[string]struct {
		contentType, body, link string
		code                    adapters.Code // "": no error
		want                    string
	}{
		"HTML":                 {contentType: "text/html", body: "<html>", code: adapters.CodeUnavailable},
		"no type":              {contentType: "", body: "<> <p> <o>.", code: adapters.CodeUnavailable},
		"broken Turtle":        {contentType: "text/turtle", body: "<> <p", code: adapters.CodeUnavailable},
		"JSON in Turtle":       {contentType: "text/turtle", body: "{}", code: adapters.CodeUnavailable},
		"another container":    {contentType: "text/turtle", body: "<http://other.test/d/> <http://www.w3.org/ns/ldp#contains> <a>.", code: adapters.CodeUnavailable},
		"huge":                 {contentType: "text/turtle", body: strings.Repeat("# comment\n", 2<<20), code: adapters.CodeUnavailable},
		"circle":               {contentType: "text/turtle", body: "", link: `<?page=1>; rel="next"`, code: adapters.CodeUnavailable},
		"next page elsewhere":  {contentType: "text/turtle", body: "", link: `<http://other.test/c/?p=2>; rel="next"`, code: adapters.CodeUnavailable},
		"next page above":      {contentType: "text/turtle", body: "", link: `</?p=2>; rel="next"`, code: adapters.CodeUnavailable},
		"cursor for ever":      {contentType: "application/ld+json", body: `{"_cursor":"same"}`, code: adapters.CodeUnavailable},
		"empty":                {contentType: "text/turtle; charset=utf-8", body: "<> a <x>."},
		"traversal":            {contentType: "text/turtle", body: "<> <http://www.w3.org/ns/ldp#contains> <../up>, <%2e%2e>, <d/e>, <.git>, <a%2fb>, <http://other.test/c/x>, <?q>, <#f>, <>, <ok>, <ok>, 'literal', _:b.", want: "/c/ok"},
		"by another name":      {contentType: "text/turtle", body: "@base <https://pod.example/c/>. <> <http://www.w3.org/ns/ldp#contains> <a>, <b/>.", want: "/c/a /c/b/"},
		"members of a member":  {contentType: "text/turtle", body: "<> <http://www.w3.org/ns/ldp#contains> <b/>. <b/> <http://www.w3.org/ns/ldp#contains> <b/c>.", want: "/c/b/"},
		"sizes of their fancy": {contentType: "text/turtle", body: "<> <http://www.w3.org/ns/ldp#contains> <a>. <a> <http://www.w3.org/ns/posix/stat#size> -5, 1e9, 'x'.", want: "/c/a"},
	} {
		t.Run(name, func(t *testing.T) {
			p := against(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{c.contentType}
				if c.link != "" {
					w.Header().Set("Link", c.link)
				}
				_, _ = io.WriteString(w, c.body) // a client that refuses the body closes the connection
			})
			page, err := p.List(t.Context(), "/c/", adapters.PageOpt{})
			if c.code != "" {
				wantCode(t, name, err, c.code)
				return
			}
			var got []string
			for _, e := range page.Items {
				got = append(got, e.Path)
				if e.Size != -1 {
					t.Errorf("size %d", e.Size)
				}
			}
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestListFollowsPages(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, page int){
		"links": func(w http.ResponseWriter, page int) {
			w.Header().Set("Content-Type", "text/turtle")
			if page < 3 {
				w.Header().Set("Link", fmt.Sprintf(`</c/?cursor=%d>; rel="next"`, page+1))
			}
			fmt.Fprintf(w, "</c/> <http://www.w3.org/ns/ldp#contains> </c/p%d>, </c/q%d>.", 9-page, page)
		},
		"cursors": func(w http.ResponseWriter, page int) {
			w.Header().Set("Content-Type", "application/ld+json")
			next := ""
			if page < 3 {
				next = strconv.Itoa(page + 1)
			}
			fmt.Fprintf(w, `{"@id":"/c/","ldp:contains":["/c/p%d","/c/q%d"],"_cursor":%q}`, 9-page, page, next)
		},
	} {
		p := against(t, func(w http.ResponseWriter, r *http.Request) {
			page, err := strconv.Atoi(r.URL.Query().Get("cursor"))
			if err != nil {
				page = 0
			}
			answer(w, page)
		})
		var got []string
		opt := adapters.PageOpt{Limit: 3}
		for {
			page, err := p.List(t.Context(), "/c/", opt)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, e := range page.Items {
				got = append(got, strings.TrimPrefix(e.Path, "/c/"))
			}
			if page.NextCursor == "" {
				break
			}
			opt.Cursor = string(page.NextCursor)
		}
		if s := strings.Join(got, " "); s != "p6 p7 p8 p9 q0 q1 q2 q3" {
			t.Errorf("%s: %s", name, s)
		}
	}
}

func TestWritesToLyingServers(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 1<<20)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		code   adapters.Code
	}{
		"redirected to a read": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				http.Redirect(w, r, "/elsewhere", http.StatusFound)
			}
		}, adapters.CodeUnavailable},
		"redirected away": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.2:1/", http.StatusTemporaryRedirect)
		}, adapters.CodeUnavailable},
		"refused before read": {raw("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), adapters.CodePayloadTooLarge},
		"unauthenticated":     {raw("HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), adapters.CodeUnauthenticated},
		"not modified":        {raw("HTTP/1.1 304 Not Modified\r\n\r\n"), adapters.CodeUnavailable},
	} {
		for size, body := range map[string][]byte{"small": []byte("x"), "large": big} {
			t.Run(name+" "+size, func(t *testing.T) {
				p := against(t, c.answer)
				_, err := p.Write(t.Context(), "/x", adapters.Body{ContentType: "a/b", Reader: bytes.NewReader(body), Size: -1}, adapters.Cond{})
				wantCode(t, name, err, c.code)
			})
		}
	}
}

// A body above the limit is never accepted as complete, whatever size it declares.
func TestWriteAboveTheLimit(t *testing.T) {
	var got atomic.Int64
	var whole atomic.Bool
	p := against(t, func(_ http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		got.Store(n)
		whole.Store(err == nil)
	})
	endless := io.LimitReader(zeros{}, adapters.MaxPodBody+1)
	_, err := p.Write(t.Context(), "/x", adapters.Body{ContentType: "a/b", Reader: endless, Size: -1}, adapters.Cond{})
	wantCode(t, "64 MiB + 1", err, adapters.CodePayloadTooLarge)
	if whole.Load() {
		t.Errorf("the server took %d bytes for the whole", got.Load())
	}
	if _, err := p.Write(t.Context(), "/x", adapters.Body{ContentType: "a/b", Reader: io.LimitReader(zeros{}, adapters.MaxPodBody), Size: adapters.MaxPodBody}, adapters.Cond{}); err != nil || got.Load() != adapters.MaxPodBody {
		t.Errorf("64 MiB: %d bytes, %v", got.Load(), err)
	}
}

type zeros struct{}

func (zeros) Read(buf []byte) (int, error) { clear(buf); return len(buf), nil }

func TestPatchGivesUpAfterThreeLostRaces(t *testing.T) {
	var puts atomic.Int32
	p := against(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, puts.Load()))
		if r.Method == http.MethodPut {
			puts.Add(1)
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	})
	ops := adapters.PodPatch{Dialect: adapters.DialectJSONPatch, Body: []byte(`[{"op":"add","path":"/a","value":1}]`)}
	_, err := p.Patch(t.Context(), "/x", ops, adapters.Cond{})
	wantCode(t, "three lost races", err, adapters.CodeConflict)
	if puts.Load() != patchRounds {
		t.Errorf("%d rounds", puts.Load())
	}
	_, err = p.Patch(t.Context(), "/x", ops, adapters.Cond{IfMatch: `"3"`})
	wantCode(t, "the caller's own condition", err, adapters.CodePreconditionFailed)
	if puts.Load() != patchRounds+1 {
		t.Error("a condition of the caller was tried again")
	}
}

// A server gives a weak ETag, or one of a compressed form, and does not accept it in If-Match. No other request
// lost a race, so the error does not advise another attempt.
func TestPatchWithAnETagThatTheServerRefuses(t *testing.T) {
	for _, etag := range []string{`W/"1"`, `"1-gzip"`} {
		p := against(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", etag)
			w.Header().Set("Content-Type", "application/json")
			if r.Method == http.MethodPut {
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			_, _ = io.WriteString(w, "{}")
		})
		ops := adapters.PodPatch{Dialect: adapters.DialectJSONPatch, Body: []byte(`[{"op":"add","path":"/a","value":1}]`)}
		_, err := p.Patch(t.Context(), "/x", ops, adapters.Cond{})
		if e := wantCode(t, etag, err, adapters.CodeUnsupported); e.Retryable {
			t.Errorf("%s: %v is to be tried again", etag, err)
		}
	}
}

// If a server accepts JSON Patch, it gets JSON Patch. The client asks for the accepted formats once
// in five minutes.
func TestPatchDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]int{}
		s := mustSolid(t, NewExternal, Config{BaseURL: "http://h.test/", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			res := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/turtle"}}, Body: http.NoBody, Request: r}
			if r.URL.Path == "/x" {
				seen[r.Method]++
			}
			if r.Method == http.MethodOptions {
				res.Header.Set("Accept-Patch", "text/n3, Application/JSON-Patch+json;v=1")
			}
			return res, nil
		})})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, wait := range []time.Duration{0, dialectAge - time.Second, time.Second} {
			time.Sleep(wait)
			ops := adapters.PodPatch{Dialect: adapters.DialectJSONPatch, Body: []byte(`[]`)}
			if _, err := s.Patch(t.Context(), "/x", ops, adapters.Cond{}); err != nil {
				t.Fatal(err)
			}
		}
		if seen["OPTIONS"] != 2 || seen["PATCH"] != 3 || seen["GET"]+seen["PUT"]+seen["HEAD"] != 0 {
			t.Errorf("requests %v", seen)
		}
		if caps := s.Capabilities(); len(caps) != 1 || caps[0] != CapN3Patch {
			t.Errorf("capabilities %v", caps)
		}
	})
}

func TestDialectsAreBounded(t *testing.T) {
	d := newDialects()
	for i := range 3 * maxDialects {
		d.learn(strconv.Itoa(i), http.Header{"Accept-Patch": {"text/n3"}})
	}
	if len(d.byPath) > maxDialects {
		t.Errorf("%d paths remembered", len(d.byPath))
	}
	if _, ok := d.known(strconv.Itoa(3*maxDialects - 1)); !ok {
		t.Error("the last one was forgotten")
	}
}

// A header of 64 KiB, the largest that the client reads, must not stay in memory for each path.
func TestDialectsKeepNoTypes(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	d, before := newDialects(), heap()
	for i := range 64 {
		d.learn(strconv.Itoa(i), http.Header{"Accept-Patch": {strings.Repeat("a,", 32<<10)}})
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("64 paths take %d KiB", (after-before)>>10)
	}
	if takes, ok := d.known("63"); takes || !ok {
		t.Errorf("%v %v", takes, ok)
	}
}

func TestConnectRefusesWhatIsNoSolidServer(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		code   adapters.Code
	}{
		"a web site":       {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/html") }, adapters.CodeUnavailable},
		"nobody":           {raw(""), adapters.CodeUnavailable},
		"starting":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, adapters.CodeUnavailable},
		"a guarded pod":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, ""},
		"an empty pod":     {http.NotFound, ""},
		"another contract": {solidRootMeta(`{"adapter_contract_versions":{"pods":"2.0"}}`), adapters.CodeContractMismatch},
		"this contract":    {solidRootMeta(`{"adapter_contract_versions":{"pods":"1.7"}}`), ""},
		"odd meta":         {solidRootMeta(`[1,2`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(c.answer)
			defer srv.Close()
			s := mustSolid(t, NewLocal, Config{BaseURL: srv.URL})
			err := s.Connect(t.Context())
			if adapters.CodeOf(err) != c.code {
				t.Errorf("%v, want %q", err, c.code)
			}
			if err := s.Disconnect(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func solidRootMeta(meta string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/meta" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, meta) // the client may refuse the body
			return
		}
		w.Header().Set("WAC-Allow", `user="read"`)
	}
}

func TestBadConfigurationNamesItsKey(t *testing.T) {
	for key, build := range map[string]func(Config) (*Solid, error){"integrations.solid_pod_rs.base_url": NewLocal, "federation.external_url": NewExternal} {
		for _, base := range []string{"", "ftp://x/", "http://u:hunter2@h/", "http://h/?q"} {
			if _, err := build(Config{BaseURL: base}); err == nil || !strings.Contains(err.Error(), key) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q: %v", base, err)
			}
		}
	}
}

// channelServer offers a notification channel; talk writes its messages.
func channelServer(t *testing.T, receiveFrom func(host string) string, talk func(context.Context, *websocket.Conn)) *Solid {
	t.Helper()
	var host string
	srv := httptest.NewServer(solidRoot(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case channelPath:
			w.Header().Set("Content-Type", "application/ld+json")
			fmt.Fprintf(w, `{"receiveFrom":%q}`, receiveFrom(host))
		case "/ws":
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer conn.CloseNow()
			talk(r.Context(), conn)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	host = strings.TrimPrefix(srv.URL, "http://")
	return connected(t, Config{BaseURL: srv.URL, Auth: wire.Bearer(func() string { return "secret" })})
}

func TestChannelsElsewhereAreRefused(t *testing.T) {
	for name, from := range map[string]func(string) string{
		"another host": func(string) string { return "ws://127.0.0.2:1/ws" },
		"no WebSocket": func(h string) string { return "http://" + h + "/ws" },
		"credentials":  func(h string) string { return "ws://a:b@" + h + "/ws" },
		"nothing":      func(string) string { return "" },
		"no upgrade":   func(h string) string { return "ws://" + h + "/none" },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := channelServer(t, from, nil).Subscribe(t.Context(), "/c/")
			wantCode(t, name, err, adapters.CodeUnavailable)
		})
	}
}

func TestChannelsThatMisbehave(t *testing.T) {
	here := func(h string) string { return "ws://" + h + "/ws" }
	say := func(ctx context.Context, conn *websocket.Conn, msg string) bool {
		return conn.Write(ctx, websocket.MessageText, []byte(msg)) == nil
	}
	update := func(host string) string {
		return fmt.Sprintf(`{"type":["Update"],"object":{"id":"http://%s/c/x"},"state":"s","published":"2026-01-02T03:04:05Z"}`, host)
	}
	var host string
	p := channelServer(t, func(h string) string { host = h; return here(h) }, func(ctx context.Context, conn *websocket.Conn) {
		for _, junk := range []string{"", "garbage", `{"type":5}`, `{"type":"Eat","object":"http://` + host + `/c/x"}`, `{"type":"Update","object":"http://other.test/c/x"}`, `{"type":"Update","object":"http://` + host + `/c/../x"}`} {
			if !say(ctx, conn, junk) {
				return
			}
		}
		say(ctx, conn, update(host))
	})
	sub, err := p.Subscribe(t.Context(), "/c/")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	n, err := sub.Next(t.Context())
	if err != nil || n.Path != "/c/x" || n.Type != "Update" || n.State != "s" || n.TS.IsZero() {
		t.Fatalf("%+v, %v", n, err)
	}
	_, err = sub.Next(t.Context())
	wantCode(t, "after the server closed", err, adapters.CodeUnavailable)
}

// A slow reader gets all notices that were kept, and then an error.
func TestSlowReaderOfAChannel(t *testing.T) {
	var host string
	p := channelServer(t, func(h string) string { host = h; return "ws://" + h + "/ws" }, func(ctx context.Context, conn *websocket.Conn) {
		msg := fmt.Appendf(nil, `{"type":"Update","object":"http://%s/c/x"}`, host)
		for conn.Write(ctx, websocket.MessageText, msg) == nil {
		}
	})
	s, err := p.Subscribe(t.Context(), "/c/")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	<-s.(*subscription).end // the test reads only after the subscription has ended
	for i := 0; ; i++ {
		if _, err = s.Next(t.Context()); err != nil {
			if i != noticeBuffer {
				t.Errorf("%d notices before the end", i)
			}
			break
		}
	}
	if e := wantCode(t, "fell behind", err, adapters.CodeUnavailable); !strings.Contains(e.Message, "behind") {
		t.Error(e)
	}
}

func TestRedirectedReadKeepsItsSecrets(t *testing.T) {
	leaked := make(chan string, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked <- r.Header.Get("Authorization") + r.Header.Get("Agentbox-Actor")
		_, _ = io.WriteString(w, "theirs") // read below
	})}}
	other.Start()
	defer other.Close()
	srv := httptest.NewServer(solidRoot(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+"/y", http.StatusFound) }))
	defer srv.Close()
	p := connected(t, Config{BaseURL: srv.URL, Auth: wire.Bearer(func() string { return "secret" })})
	body, err := read(adapters.WithMeta(t.Context(), adapters.Meta{Actor: "ann"}), p, adapters.ReadOpt{})
	if err != nil || string(body) != "theirs" {
		t.Fatalf("%q, %v", body, err)
	}
	if s := <-leaked; s != "" {
		t.Errorf("the other origin was told %q", s)
	}
}

// The program on the port of the box's pod server may name any container as the place for subscriptions. What is sent there is
// signed by the box.
func TestTheLocalServerNamesNoPlaceForSubscriptions(t *testing.T) {
	for class, c := range map[string]struct {
		build func(Config) (*Solid, error)
		want  string
	}{"local": {NewLocal, channelPath}, "external": {NewExternal, "/priv/inbox/"}} {
		var posted []string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				posted = append(posted, r.URL.Path)
			}
			if r.URL.Path != wellKnownAt {
				solidRoot(http.NotFound)(w, r)
				return
			}
			w.Header().Set("Content-Type", "text/turtle")
			fmt.Fprintf(w, "<> <%[1]ssubscription> </priv/inbox/>. </priv/inbox/> <%[1]schannelType> <%[1]sWebSocketChannel2023>.", rdf.Notify)
		}))
		t.Cleanup(srv.Close)
		s := mustSolid(t, c.build, Config{BaseURL: srv.URL})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := s.Subscribe(t.Context(), "/c/")
		if err == nil || !slices.Equal(posted, []string{c.want}) {
			t.Errorf("%s: posted to %q: %v", class, posted, err)
		}
		if err := s.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Another program can listen on another address that "localhost" stands for.
func TestTheLocalServerIsReachedAtItsListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: solidRoot(http.NotFound)}}
	srv.Start()
	defer srv.Close()
	base := fmt.Sprintf("http://localhost:%d", l.Addr().(*net.TCPAddr).Port)
	if err := mustSolid(t, NewLocal, Config{BaseURL: base, Listener: "127.0.0.2"}).Connect(t.Context()); err != nil {
		t.Error(err)
	}
}
