package probes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
)

// ask sends a request through what the network sees.
func (r *rig) ask(t testing.TB, method, path string, set func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(method, "http://localhost"+path, nil)
	if set != nil {
		set(req)
	}
	w := httptest.NewRecorder()
	r.server.public().ServeHTTP(w, req)
	return w
}

// wantProblem fails unless the answer is a problem document of that code.
func wantProblem(t testing.TB, w *httptest.ResponseRecorder, status int, code problem.Code) map[string]any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatalf("%v: %q", err, w.Body)
	}
	if w.Code != status || doc["code"] != string(code) || doc["title"] != code.Row().Title || doc["status"] != float64(status) || doc["message"] != doc["detail"] ||
		doc["type"] != "urn:agentbox:error:"+strings.ToLower(string(code)) || w.Header().Get("Content-Type") != problem.Type {
		t.Errorf("%d %v, want %d %s", w.Code, doc, status, code)
	}
	return doc
}

func nothing(http.ResponseWriter, *http.Request) {}

func TestHostMustBeOurs(t *testing.T) {
	r := newRig(t, AuthBearer, func(c *Config) { c.Names = []string{"agentbox-7", "Box.Example.org."} })
	r.beReady()
	r.auth.SetKey("k")
	r.server.Mount("/v1/beads", http.HandlerFunc(nothing))
	for host, want := range map[string][2]bool{ // asked for the API, for a probe
		"localhost": {true, true}, "localhost:9090": {true, true}, "LOCALHOST.": {true, true},
		"127.0.0.1:9090": {true, true}, "[::1]:9090": {true, true}, "[::1]": {true, true},
		"10.42.0.17:9090": {true, true}, "203.0.113.9": {true, true}, // a pod's, a published port's
		"agentbox-7:9090": {true, true}, "box.example.org": {true, true}, "BOX.example.org:443": {true, true},

		"other": {false, true}, "agentbox.default.svc:9090": {false, true}, "agentbox.default.svc.cluster.local": {false, true},
		"box.internal": {false, true}, "": {false, true},

		"evil.example": {}, "evil.example:9090": {}, "localhost.evil.example": {}, "127.0.0.1.evil.example": {}, "127.0.0.1.nip.io": {},
		"evil.example.": {}, "box.example.org.evil.example": {}, "evilbox.example.org": {}, "evil.example@localhost": {},
		"svc.evil.example": {}, "internal.example": {}, "127.0.0.1,evil.example": {}, "[::1].evil.example": {},
	} {
		for path, ok := range map[string]bool{
			"/v1/beads/": want[0], "/v1/meta": want[0], "/": want[0], "/nothing": want[0], "//livez": want[0],
			"/livez": want[1], "/ready": want[1], "/health": want[1], "/metrics": want[1],
		} {
			w := r.ask(t, "GET", path, func(q *http.Request) {
				q.Host = host
				q.Header.Set("Authorization", "Bearer k")
			})
			if refused := w.Code == http.StatusMisdirectedRequest; refused == ok {
				t.Errorf("%q %s: %d", host, path, w.Code)
			}
			if !ok {
				wantProblem(t, w, http.StatusMisdirectedRequest, problem.Validation)
			}
		}
	}
	// What comes by the control socket was let in by its credentials.
	req := httptest.NewRequest("GET", "/v1/meta", nil)
	req.Host = "agentinit.sock"
	w := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(w, req)
	if w.Code != 200 {
		t.Errorf("by another listener: %d", w.Code)
	}
}

func TestClientIsTheLastAddressNotOfAProxy(t *testing.T) {
	r := newRig(t, AuthBearer, func(c *Config) {
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	})
	for name, c := range map[string]struct {
		peer      string
		forwarded []string
		want      string
	}{
		"no proxy":               {"192.0.2.1:80", nil, "192.0.2.1"},
		"a liar":                 {"192.0.2.1:80", []string{"198.51.100.1"}, "192.0.2.1"},
		"a liar names a proxy":   {"192.0.2.1:80", []string{"10.0.0.1"}, "192.0.2.1"},
		"a proxy":                {"10.0.0.1:80", []string{"198.51.100.1"}, "198.51.100.1"},
		"a proxy with a port":    {"10.0.0.1:80", []string{"198.51.100.1:4711"}, "198.51.100.1"},
		"a liar behind a proxy":  {"10.0.0.1:80", []string{"127.0.0.1, 203.0.113.5, 198.51.100.1"}, "198.51.100.1"},
		"several headers":        {"10.0.0.1:80", []string{"127.0.0.1", "198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		"two proxies":            {"10.0.0.1:80", []string{"198.51.100.1, 10.9.9.9"}, "198.51.100.1"},
		"proxies alone":          {"10.0.0.1:80", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		"a proxy says nothing":   {"10.0.0.1:80", nil, "10.0.0.1"},
		"a proxy does not know":  {"10.0.0.1:80", []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		"an empty entry":         {"10.0.0.1:80", []string{"198.51.100.1,"}, "10.0.0.1"},
		"IPv6 proxy":             {"[fd00::1]:80", []string{"2001:db8::7"}, "2001:db8::7"},
		"IPv6 in brackets":       {"[fd00::1]:80", []string{"[2001:db8::7]:99"}, "2001:db8::7"},
		"IPv4 within IPv6":       {"[::ffff:10.0.0.1]:80", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		"a zone is not believed": {"[fd00::1]:80", []string{"fe80::1%eth0"}, "fe80::1"},
		"a unix socket":          {"@", []string{"198.51.100.1"}, "@"},
		"an endless chain":       {"10.0.0.1:80", []string{"198.51.100.1" + strings.Repeat(", 10.0.0.1", maxHops)}, "10.0.0.1"},
	} {
		req := httptest.NewRequest("GET", "/", nil)
		req.RemoteAddr = c.peer
		req.Header["X-Forwarded-For"] = c.forwarded
		if got := r.server.client(req); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		peer      string
		forwarded []string
		old       string // X-Forwarded-For
		want      string
	}{
		"a proxy":                   {"10.0.0.1:80", []string{"for=198.51.100.1"}, "", "198.51.100.1"},
		"a liar":                    {"192.0.2.1:80", []string{"for=198.51.100.1"}, "", "192.0.2.1"},
		"all that may be there":     {"10.0.0.1:80", []string{`by=_us;FOR="198.51.100.1:4711"; proto=https;host="a,b;c"`}, "", "198.51.100.1"},
		"IPv6":                      {"[fd00::1]:80", []string{`for="[2001:db8::7]"`}, "", "2001:db8::7"},
		"IPv6 with a port":          {"[fd00::1]:80", []string{`For="[2001:db8::7]:99"`}, "", "2001:db8::7"},
		"a secret port":             {"10.0.0.1:80", []string{`for="[2001:db8::7]:_p"`}, "", "2001:db8::7"},
		"IPv4 within IPv6":          {"10.0.0.1:80", []string{`for="[::ffff:198.51.100.1]"`}, "", "198.51.100.1"},
		"two proxies":               {"10.0.0.1:80", []string{`for=203.0.113.5, for=198.51.100.1, for=10.9.9.9;by=10.0.0.1`}, "", "198.51.100.1"},
		"several headers":           {"10.0.0.1:80", []string{"for=127.0.0.1", "for=198.51.100.1"}, "", "198.51.100.1"},
		"an open quote before":      {"10.0.0.1:80", []string{`for=127.0.0.1;by="`, `for=198.51.100.1;host="h"`}, "", "198.51.100.1"},
		"an open quote, two IPv6":   {"10.0.0.1:80", []string{`for=127.0.0.1;by=", for="[2001:db8::7]"`}, "", "2001:db8::7"},
		"obfuscated":                {"10.0.0.1:80", []string{"for=198.51.100.1, for=_hidden"}, "", "10.0.0.1"},
		"unknown":                   {"10.0.0.1:80", []string{"for=198.51.100.1, for=unknown"}, "", "10.0.0.1"},
		"says something else":       {"10.0.0.1:80", []string{"for=198.51.100.1, proto=https"}, "", "10.0.0.1"},
		"twice":                     {"10.0.0.1:80", []string{"for=198.51.100.1;for=127.0.0.1"}, "", "10.0.0.1"},
		"an address alone":          {"10.0.0.1:80", []string{"198.51.100.1"}, "", "10.0.0.1"},
		"an open quote at the end":  {"10.0.0.1:80", []string{`for="198.51.100.1`}, "", "10.0.0.1"},
		"an empty element":          {"10.0.0.1:80", []string{"for=198.51.100.1,"}, "", "10.0.0.1"},
		"nothing":                   {"10.0.0.1:80", []string{""}, "198.51.100.1", "198.51.100.1"},
		"an endless chain":          {"10.0.0.1:80", []string{"for=198.51.100.1" + strings.Repeat(",for=10.0.0.1", maxHops)}, "", "10.0.0.1"},
		"both of one mind":          {"10.0.0.1:80", []string{"for=127.0.0.1, for=198.51.100.1"}, "198.51.100.1", "198.51.100.1"},
		"the standard one is false": {"10.0.0.1:80", []string{"for=127.0.0.1"}, "198.51.100.1", "10.0.0.1"},
		"the old one is false":      {"10.0.0.1:80", []string{"for=198.51.100.1"}, "127.0.0.1", "10.0.0.1"},
		"garbage beside the old":    {"10.0.0.1:80", []string{"garbage"}, "198.51.100.1", "10.0.0.1"},
	} {
		req := httptest.NewRequest("GET", "/", nil)
		req.RemoteAddr = c.peer
		req.Header["Forwarded"] = c.forwarded
		if c.old != "" {
			req.Header.Set("X-Forwarded-For", c.old)
		}
		if got := r.server.client(req); got != c.want {
			t.Errorf("Forwarded, %s: %q, want %q", name, got, c.want)
		}
	}
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "2001:db8::7": "2001:db8::/64", "2001:db8:0:0:ffff::1": "2001:db8::/64", "@": "@",
	} {
		if got := bucketOf(address); got != want {
			t.Errorf("%s counts as %s", address, got)
		}
	}
}

func TestTheAnonymousAreLimitedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, AuthHybrid, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")} })
		r.beReady()
		r.auth.SetKey("k")
		r.server.Mount("/openapi.json", http.HandlerFunc(nothing), Open())
		r.server.Mount("/v1/x", http.HandlerFunc(nothing))
		r.server.Mount("/v1/told", http.HandlerFunc(nothing), TellWrongKeys())
		from := func(peer, forwarded, key, path string) *httptest.ResponseRecorder {
			return r.ask(t, "GET", path, func(q *http.Request) {
				q.RemoteAddr = peer + ":1"
				if forwarded != "" {
					q.Header.Set("X-Forwarded-For", forwarded)
				}
				if key != "" {
					q.Header.Set("Authorization", key)
				}
			})
		}
		for i := range anonymousBurst {
			path := []string{"/openapi.json", "/nothing", "/v1/x/"}[i%3]
			if w := from("10.0.0.1", "192.0.2.1", "", path); w.Code == http.StatusTooManyRequests {
				t.Fatalf("%s is refused after %d", path, i)
			}
		}
		for _, path := range []string{"/openapi.json", "/nothing", "/v1/x/"} {
			w := from("10.0.0.1", "192.0.2.1", "", path)
			if doc := wantProblem(t, w, http.StatusTooManyRequests, problem.RateLimited); doc["retryable"] != true || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s: %v %v", path, doc, w.Header())
			}
		}
		for what, w := range map[string]*httptest.ResponseRecorder{
			"another client of the proxy":        from("10.0.0.1", "192.0.2.2", "", "/openapi.json"),
			"the same address, with the key":     from("10.0.0.1", "192.0.2.1", "Bearer k", "/v1/x/"),
			"an open path, with the key":         from("10.0.0.1", "192.0.2.1", "Bearer k", "/openapi.json"),
			"the proxy itself":                   from("10.0.0.1", "", "", "/openapi.json"),
			"who only says to be another":        from("192.0.2.3", "192.0.2.1", "", "/openapi.json"),
			"a probe from the address":           from("10.0.0.1", "192.0.2.1", "", "/livez"),
			"a scrape from the address":          from("10.0.0.1", "192.0.2.1", "", "/metrics"),
			"a look at the versions from there":  from("10.0.0.1", "192.0.2.1", "", "/v1/meta"),
			"the readiness probe, from the same": from("10.0.0.1", "192.0.2.1", "Bearer wrong", "/ready"),
		} {
			if w.Code != 200 {
				t.Errorf("%s: %d", what, w.Code)
			}
		}
		// Whoever acts on it hears that the key is wrong, however many share the address.
		for range 2 * anonymousBurst {
			if w := from("10.0.0.1", "192.0.2.1", "Bearer old", "/v1/told/"); w.Code != http.StatusUnauthorized {
				t.Fatalf("an old key: %d", w.Code)
			}
		}
		if w := from("10.0.0.1", "192.0.2.1", "Bearer old", "/v1/x/"); w.Code != http.StatusTooManyRequests {
			t.Errorf("an old key elsewhere: %d", w.Code)
		}
		// Requests without a key do not shut out those that are signed; false signatures do. A
		// signature is dear to check: such a request is not even looked at.
		for range anonymousBurst {
			if w := from("10.0.0.1", "192.0.2.1", "Nostr e30=", "/v1/x/"); w.Code != http.StatusUnauthorized {
				t.Errorf("signed: %d", w.Code)
			}
		}
		for _, path := range []string{"/v1/x/", "/v1/told/"} {
			if w := from("10.0.0.1", "192.0.2.1", "Nostr e30=", path); w.Code != http.StatusTooManyRequests {
				t.Errorf("signed, once more, at %s: %d", path, w.Code)
			}
		}
		time.Sleep(time.Second / anonymousPerSec)
		if w := from("10.0.0.1", "192.0.2.1", "", "/openapi.json"); w.Code != 200 {
			t.Errorf("a token later: %d", w.Code)
		}
		if w := from("10.0.0.1", "192.0.2.1", "", "/openapi.json"); w.Code != http.StatusTooManyRequests {
			t.Errorf("one more: %d", w.Code)
		}
		// Probes have no bucket at all.
		for range 10 * anonymousBurst {
			if w := from("192.0.2.9", "", "", "/livez"); w.Code != 200 {
				t.Fatalf("a probe is limited: %d", w.Code)
			}
		}
		if w := from("192.0.2.9", "", "", "/openapi.json"); w.Code != 200 {
			t.Errorf("probes were counted: %d", w.Code)
		}
	})
}

func TestRefusalsSayWhy(t *testing.T) {
	r := newRig(t, AuthHybrid)
	r.auth.SetKey("k")
	r.server.Mount("/x", http.HandlerFunc(nothing))
	for header, reason := range map[string]string{
		"": "missing", "Bearer wrong": "wrong", "Basic eA==": "scheme", "Nostr e30=": "scheme", "Bearer k,Bearer k": "several",
	} {
		w := r.ask(t, "GET", "/x/", func(q *http.Request) {
			if header != "" {
				q.Header["Authorization"] = strings.Split(header, ",")
			}
		})
		doc := wantProblem(t, w, http.StatusUnauthorized, problem.Unauthenticated)
		if doc["reason"] != reason || doc["retryable"] != false {
			t.Errorf("%q: %v", header, doc)
		}
		if detail, _ := doc["detail"].(string); header == "" && !strings.Contains(detail, "Authorization") {
			t.Errorf("the answer does not say what to send: %q", detail)
		}
		if c := w.Header().Values("WWW-Authenticate"); !slices.Equal(c, []string{"Bearer"}) {
			t.Errorf("%q: challenges %q", header, c)
		}
	}
	// A scheme is offered where it can be verified.
	for mode, want := range map[AuthMode][]string{AuthBearer: {"Bearer"}, AuthHybrid: {"Bearer", "Nostr"}, AuthNIP98: {"Nostr"}} {
		signed := newRig(t, mode)
		signed.auth.nostr = authenticatorFunc(func(*http.Request) (Principal, error) { return Principal{}, ErrBadCredential })
		signed.server.Mount("/x", http.HandlerFunc(nothing))
		if c := signed.ask(t, "GET", "/x/", nil).Header().Values("WWW-Authenticate"); !slices.Equal(c, want) {
			t.Errorf("%s: challenges %q, want %q", mode, c, want)
		}
	}
	stranger := newRig(t, AuthHybrid)
	stranger.auth.nostr = authenticatorFunc(func(*http.Request) (Principal, error) {
		return Principal{}, fmt.Errorf("a stranger signed: %w", ErrForbidden)
	})
	stranger.server.Mount("/x", http.HandlerFunc(nothing))
	w := stranger.ask(t, "GET", "/x/", func(q *http.Request) { q.Header.Set("Authorization", "Nostr e30=") })
	wantProblem(t, w, http.StatusForbidden, problem.PermissionDenied)
	if w.Header().Get("WWW-Authenticate") != "" {
		t.Error("who is known is asked who it is")
	}
	full := newRig(t, AuthHybrid)
	full.auth.nostr = authenticatorFunc(func(*http.Request) (Principal, error) {
		return Principal{}, &nip98.Refusal{Reason: nip98.ReasonFull, Detail: "too many"}
	})
	full.server.Mount("/x", http.HandlerFunc(nothing))
	for range 2 * anonymousBurst { // a good signature is no failure of the address
		w = full.ask(t, "GET", "/x/", func(q *http.Request) { q.Header.Set("Authorization", "Nostr e30=") })
		doc := wantProblem(t, w, http.StatusTooManyRequests, problem.RateLimited)
		if after, err := strconv.Atoi(w.Header().Get("Retry-After")); err != nil || after < 15 || doc["detail"] != "NIP-98: too many" {
			t.Errorf("no room for signatures: Retry-After %q, %v", w.Header().Get("Retry-After"), doc)
		}
	}
	early := newRig(t, AuthBearer)
	early.server.Mount("/x", http.HandlerFunc(nothing))
	w = early.ask(t, "GET", "/x/", func(q *http.Request) { q.Header.Set("Authorization", "Bearer k") })
	wantProblem(t, w, http.StatusServiceUnavailable, problem.Unavailable)
	wantProblem(t, r.ask(t, "GET", "/nothing", nil), http.StatusNotFound, problem.NotFound)
	wantProblem(t, r.ask(t, "GET", "/health/relay", nil), http.StatusNotFound, problem.NotFound)
	w = r.ask(t, "POST", "/livez", nil)
	wantProblem(t, w, http.StatusMethodNotAllowed, problem.Unsupported)
	if w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("allow %q", w.Header().Get("Allow"))
	}
}

// Which methods a path allows, only its handler knows, also for a method that HTTP does not define.
func TestEveryMethodReachesTheMountedHandler(t *testing.T) {
	r := newRig(t, AuthHybrid)
	r.server.Mount("/x", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Allow", "POST")
		http.Error(w, q.Method, http.StatusMethodNotAllowed)
	}), Open())
	for path, allow := range map[string]string{"/x": "POST", "/x/y": "POST", "/livez": "GET, HEAD"} {
		for _, method := range []string{"DELETE", "TRACE", "PURGE", "post"} {
			w := r.ask(t, method, path, nil)
			if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != allow || allow == "POST" && w.Body.String() != method+"\n" {
				t.Errorf("%s %s: %d, allow %q: %s", method, path, w.Code, w.Header().Get("Allow"), w.Body)
			}
		}
	}
}

type authenticatorFunc func(*http.Request) (Principal, error)

func (f authenticatorFunc) Authenticate(r *http.Request) (Principal, error) { return f(r) }

func TestIndexAndRelay(t *testing.T) {
	r := newRig(t, AuthBearer, func(c *Config) { c.Relay = func() any { return map[string]int{"connections": 3} } })
	if w := r.ask(t, "GET", "/health/relay", nil); w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"connections":3}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	doc := decode(t, r.ask(t, "GET", "/", nil))
	if doc["api"] != "/openapi.json" || len(doc["open"].([]any)) != len(r.server.keyless)-1 {
		t.Errorf("%v", doc)
	}
	for _, path := range doc["open"].([]any) {
		if w := r.ask(t, "GET", path.(string), nil); w.Code == http.StatusUnauthorized || w.Code == http.StatusMethodNotAllowed {
			t.Errorf("%s is listed and not open: %d", path, w.Code)
		}
	}
}

func corsHeaders(h http.Header) (found []string) {
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

func TestPagesOfListedOriginsMayRead(t *testing.T) {
	page := func(origins ...string) func(*http.Request) {
		return func(q *http.Request) {
			q.Header["Origin"] = origins
			q.Header.Set("Authorization", "Bearer k")
		}
	}
	preflight := func(origin string) func(*http.Request) {
		return func(q *http.Request) {
			q.Header.Set("Origin", origin)
			q.Header.Set("Access-Control-Request-Method", "PUT")
			q.Header.Set("Access-Control-Request-Headers", "authorization, x-evil")
		}
	}
	newBox := func(origins ...string) *rig {
		r := newRig(t, AuthBearer, func(c *Config) { c.Origins = origins })
		r.auth.SetKey("k")
		r.server.Mount("/v1/x", http.HandlerFunc(nothing))
		return r
	}
	none := newBox()
	for _, w := range []*httptest.ResponseRecorder{
		none.ask(t, "GET", "/v1/x/", page("https://app.example")), none.ask(t, "OPTIONS", "/v1/x/", preflight("https://app.example")),
	} {
		if h := corsHeaders(w.Header()); h != nil || w.Header().Get("Vary") != "" {
			t.Errorf("without any listed origin: %v", w.Header())
		}
	}

	r := newBox("https://app.example", "http://localhost:5173")
	for _, origin := range []string{"https://app.example", "http://localhost:5173"} {
		w := r.ask(t, "GET", "/v1/x/", page(origin))
		if w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != origin || w.Header().Get("Vary") != "Origin" {
			t.Errorf("%s: %d %v", origin, w.Code, w.Header())
		}
		// Refusals too: the page must be able to read why.
		w = r.ask(t, "GET", "/v1/x/", func(q *http.Request) { q.Header.Set("Origin", origin) })
		if w.Code != 401 || w.Header().Get("Access-Control-Allow-Origin") != origin {
			t.Errorf("%s without the key: %d %v", origin, w.Code, w.Header())
		}
		w = r.ask(t, "OPTIONS", "/v1/x/", preflight(origin))
		h := w.Header()
		if w.Code != 204 || w.Body.Len() != 0 || h.Get("Access-Control-Allow-Origin") != origin || h.Get("Access-Control-Max-Age") != "600" ||
			!strings.Contains(h.Get("Access-Control-Allow-Methods"), "PUT") || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") ||
			strings.Contains(strings.ToLower(h.Get("Access-Control-Allow-Headers")), "x-evil") || !strings.HasPrefix(strings.Join(h.Values("Vary"), ","), "Origin,") {
			t.Errorf("%s: preflight %d %v", origin, w.Code, h)
		}
	}
	for _, origins := range [][]string{
		{"https://evil.example"}, {"https://app.example.evil.example"}, {"http://app.example"}, {"https://app.example:444"}, {"https://APP.example"},
		{"https://app.example/"}, {"null"}, {"*"}, {""}, {"https://app.example", "https://evil.example"}, {"http://localhost"},
	} {
		for _, w := range []*httptest.ResponseRecorder{
			r.ask(t, "GET", "/v1/x/", page(origins...)), r.ask(t, "OPTIONS", "/v1/x/", preflight(strings.Join(origins, " "))),
		} {
			if h := corsHeaders(w.Header()); h != nil || w.Header().Get("Vary") != "Origin" {
				t.Errorf("%q: %v", origins, w.Header())
			}
		}
	}
	// A question about OPTIONS that is no preflight is a request like any other.
	if w := r.ask(t, "OPTIONS", "/v1/x/", func(q *http.Request) { q.Header.Set("Origin", "https://app.example") }); w.Code != 401 {
		t.Errorf("OPTIONS without a credential: %d", w.Code)
	}
	for _, w := range []*httptest.ResponseRecorder{r.ask(t, "GET", "/v1/x/", page("https://app.example")), r.ask(t, "OPTIONS", "/v1/x/", preflight("https://app.example"))} {
		if c := w.Header().Get("Access-Control-Allow-Credentials"); c != "" {
			t.Errorf("credentials are allowed: %q", c)
		}
	}
	// A rebound name gets nothing, whatever origin it shows.
	w := r.ask(t, "GET", "/v1/x/", func(q *http.Request) {
		page("https://app.example")(q)
		q.Host = "evil.example"
	})
	if w.Code != http.StatusMisdirectedRequest || corsHeaders(w.Header()) != nil {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

// Whatever a request says of itself, the answer is one of ours: never a failure,
// and a refusal is a problem document with a code.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/v1/x/1", "localhost:9090", "Bearer k", "1.2.3.4, 10.0.0.1", "https://app.example")
	f.Add("OPTIONS", "/livez", "evil.example", "Nostr e30=", "[::1]:9, unknown,,", "null")
	f.Add("HEAD", "/v1/../openapi.json", "[::1", "Bearer", "", "https://app.example, https://b")
	r := newRig(f, AuthHybrid, func(c *Config) {
		c.Names, c.Origins = []string{"box"}, []string{"https://app.example"}
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	})
	r.beReady()
	r.auth.SetKey("k")
	r.server.Mount("/v1/x", http.HandlerFunc(nothing))
	codes := []problem.Code{problem.Validation, problem.Unauthenticated, problem.NotFound, problem.Unsupported, problem.RateLimited}
	f.Fuzz(func(t *testing.T, method, path, host, authorization, forwarded, origin string) {
		req := httptest.NewRequest("GET", "http://localhost/", nil)
		req.Method, req.URL.Path, req.Host = method, path, host
		for name, v := range map[string]string{"Authorization": authorization, "X-Forwarded-For": forwarded, "Origin": origin} {
			req.Header.Set(name, v)
		}
		req.Header.Set("Access-Control-Request-Method", "GET")
		w := httptest.NewRecorder()
		r.server.public().ServeHTTP(w, req)
		if w.Code >= 500 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if w.Code >= 400 {
			var doc map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || !slices.Contains(codes, problem.Code(fmt.Sprint(doc["code"]))) {
				t.Fatalf("%d %q %v", w.Code, w.Body, err)
			}
		}
		if allowed := w.Header().Get("Access-Control-Allow-Origin"); allowed != "" && allowed != "https://app.example" {
			t.Fatalf("origin %q is allowed", allowed)
		}
		scheme, key, _ := strings.Cut(authorization, " ")
		if entitled := strings.EqualFold(scheme, "bearer") && strings.TrimSpace(key) == "k"; strings.HasPrefix(path, "/v1/x/") && w.Code == 200 && !entitled {
			t.Fatalf("let in with %q", authorization)
		}
	})
}

// Whatever a client writes, what a trusted proxy adds after it decides: the
// answer is the proxy's word, or the proxy itself when that word is lost.
func FuzzForwarded(f *testing.F) {
	for _, s := range []string{"", "for=1.2.3.4", `for="[::1]:9";by=_x`, `by="`, `\`, `for="\"`, `a="b\", for=unknown,,;`} {
		f.Add(s, false)
		f.Add(s, true)
	}
	r := newRig(f, AuthHybrid, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")} })
	f.Fuzz(func(t *testing.T, invented string, apart bool) {
		ask := func(forwarded ...string) string {
			req := httptest.NewRequest("GET", "/", nil)
			req.RemoteAddr = "10.0.0.1:80"
			req.Header["Forwarded"] = forwarded
			return r.server.client(req)
		}
		if a, err := netip.ParseAddr(ask(invented)); err != nil || a.Zone() != "" {
			t.Fatalf("%q is from %q", invented, a)
		}
		for _, added := range []string{`for=198.51.100.1;host="a,b"`, `for="[2001:db8::7]:_p";proto=https`} {
			got := ask(invented + ", " + added)
			if apart {
				got = ask(invented, added)
			}
			if want, _ := elementAddress(added); got != want.String() {
				t.Fatalf("%q before %q is from %q", invented, added, got)
			}
		}
	})
}
