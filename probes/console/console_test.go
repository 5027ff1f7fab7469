package console

import (
	"errors"
	"io/fs"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const key = "the right key of the box"

func newConsole(t *testing.T, readOnly bool) *Console {
	t.Helper()
	c, err := New(Config{
		Login: func(_ *http.Request, k string) (Holder, error) {
			if k != key {
				return Holder{}, errors.New("this key is not known")
			}
			return Holder{Role: "admin", ID: "management-key"}, nil
		},
		ReadOnly: readOnly, Version: "1.2.3",
		Programs: func() []Program {
			return []Program{{Name: "web", State: "RUNNING", Reason: `<script>alert(1)</script>`, PID: 7}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// credentials are what a login gives.
type credentials struct {
	cookie *http.Cookie
	key    string
}

// request is a request of a page of the console, if it has credentials.
func request(method, path, body, origin string, in ...credentials) *http.Request {
	r := httptest.NewRequest(method, "http://box:9090"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	for _, c := range in {
		r.AddCookie(c.cookie)
		r.Header.Set(keyHeader, c.key)
	}
	return r
}

func serve(c *Console, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Result()
}

func loggedIn(t *testing.T, c *Console) credentials {
	t.Helper()
	resp := serve(c, request("POST", "/ui/login", url.Values{"key": {key}}.Encode(), "http://box:9090"))
	if resp.StatusCode != http.StatusSeeOther || len(resp.Cookies()) != 1 {
		t.Fatalf("the login got %d", resp.StatusCode)
	}
	_, session, ok := strings.Cut(resp.Header.Get("Location"), "/ui/#key=")
	if !ok {
		t.Fatalf("the login leads to %q", resp.Header.Get("Location"))
	}
	return credentials{resp.Cookies()[0], session}
}

// The page escapes what programs say, and every answer forbids what is not ours.
func TestPageWithoutScripts(t *testing.T) {
	c := newConsole(t, false)
	w := httptest.NewRecorder()
	c.ServeHTTP(w, request("GET", "/ui/", "", "", loggedIn(t, c)))
	body := w.Body.String()
	if !strings.Contains(body, "&lt;script&gt;alert(1)") || strings.Contains(body, "<script>alert") {
		t.Errorf("the reason of a program is not escaped:\n%s", body)
	}
	for _, path := range []string{"/ui", "/ui/", "/ui/static/app.js", "/ui/static/absent.js"} {
		h := serve(c, request("GET", path, "", "")).Header
		if !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s comes without its policy: %v", path, h)
		}
	}
}

// A program of root can put a FIFO in place of the files that package mime reads, which would hold up every
// request that asks it. The media types of the static files are the console's own.
func TestStaticFilesDoNotDependOnTheSystem(t *testing.T) {
	for _, ext := range []string{".css", ".js"} {
		if err := mime.AddExtensionType(ext, "text/of-the-system"); err != nil {
			t.Fatal(err)
		}
	}
	c := newConsole(t, false)
	names, err := fs.Glob(static, "static/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("the static files: %v %v", names, err)
	}
	want := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
	for _, name := range names {
		resp := serve(c, request("GET", "/ui/"+name, "", ""))
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != want[path.Ext(name)] {
			t.Errorf("%s: %d, media type %q", name, resp.StatusCode, got)
		}
	}
	if resp := serve(c, request("GET", "/ui/static/absent.txt", "", "")); resp.StatusCode != http.StatusNotFound ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("an absent file: %d, media type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
}

func TestHolder(t *testing.T) {
	c := newConsole(t, false)
	in := loggedIn(t, c)
	cookie := in.cookie
	for _, test := range []struct {
		name           string
		method, origin string
		site           string
		cookie         *http.Cookie
		want           error
	}{
		{"read", "GET", "", "", cookie, nil},
		{"change from the console", "POST", "http://box:9090", "same-origin", cookie, nil},
		{"change from the console, an old browser", "POST", "http://box:9090", "", cookie, nil},
		{"change without an origin", "POST", "", "", cookie, ErrCrossSite},
		{"change from another port", "POST", "http://box:9091", "", cookie, ErrCrossSite},
		{"change from another site", "POST", "http://evil.example", "cross-site", cookie, ErrCrossSite},
		{"change from a sibling", "POST", "", "same-site", cookie, ErrCrossSite},
		{"change from a sandboxed frame", "POST", "null", "", cookie, ErrCrossSite},
		{"no cookie", "GET", "", "", nil, ErrNoSession},
		{"somebody's invention", "GET", "", "", &http.Cookie{Name: cookieName, Value: "guessed"}, ErrNoSession},
		{"empty", "GET", "", "", &http.Cookie{Name: cookieName, Value: ""}, ErrNoSession},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := request(test.method, "/v1/programs/web/stop", "", test.origin)
			if test.site != "" {
				r.Header.Set("Sec-Fetch-Site", test.site)
			}
			r.Header.Set(keyHeader, in.key)
			if test.cookie != nil {
				r.AddCookie(test.cookie)
			}
			h, err := c.Holder(r)
			if !errors.Is(err, test.want) || err == nil && h.ID != "management-key" {
				t.Errorf("got %v, %v; want %v", h, err, test.want)
			}
		})
	}
}

// The cookie goes to every port of the host, and a program of the box may listen on one. It opens
// nothing without the key, which only the answer to the login has.
func TestStolenCookie(t *testing.T) {
	c := newConsole(t, false)
	in, other := loggedIn(t, c), loggedIn(t, c)
	for name, key := range map[string]string{"no key": "", "the cookie as key": in.cookie.Value, "the key of another session": other.key} {
		if h, err := c.Holder(request("GET", "/v1/programs", "", "", credentials{in.cookie, key})); !errors.Is(err, ErrNoSession) {
			t.Errorf("%s: %v %v", name, h, err)
		}
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, request("GET", "/ui/", "", "", credentials{in.cookie, ""}))
	if strings.Contains(w.Body.String(), in.key) {
		t.Error("the page has the key")
	}
}

func TestSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConsole(t, true)
		first := loggedIn(t, c)
		if h, err := c.Holder(request("GET", "/", "", "", first)); err != nil || h.Role != RoleViewer {
			t.Errorf("a session of a read-only console is %v, %v", h, err)
		}
		time.Sleep(sessionLife - time.Second)
		if _, err := c.Holder(request("GET", "/", "", "", first)); err != nil {
			t.Errorf("a second before its end: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := c.Holder(request("GET", "/", "", "", first)); !errors.Is(err, ErrNoSession) {
			t.Errorf("at its end: %v", err)
		}
		second := loggedIn(t, c)
		time.Sleep(time.Millisecond)
		for range maxSessions {
			loggedIn(t, c)
		}
		if _, err := c.Holder(request("GET", "/", "", "", second)); !errors.Is(err, ErrNoSession) {
			t.Errorf("the oldest of too many sessions: %v", err)
		}
		if n := len(c.sessions.held); n != maxSessions {
			t.Errorf("%d sessions are kept", n)
		}
	})
}

func FuzzSameOrigin(f *testing.F) {
	f.Add("http://box:9090", "same-origin", "box:9090")
	f.Add("null", "", "")
	f.Fuzz(func(t *testing.T, origin, site, host string) {
		r := httptest.NewRequest("POST", "http://x/", nil)
		r.Host = host
		r.Header.Set("Origin", origin)
		r.Header.Set("Sec-Fetch-Site", site)
		if !sameOrigin(r) {
			return
		}
		if site != "" && site != "same-origin" || origin != "" && !strings.Contains(strings.ToLower(origin), strings.ToLower(host)) {
			t.Errorf("origin %q, site %q passes for host %q", origin, site, host)
		}
	})
}
