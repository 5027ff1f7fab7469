package probes

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
)

// signedServer echoes bodies to whoever a signature lets in.
func signedServer(t *testing.T, admin identity.PublicKey, change func(*NostrConfig)) (*httptest.Server, *Auth) {
	t.Helper()
	cfg := NostrConfig{Origins: []string{"https://box.example"}, Role: func(pubkey string) (Principal, bool) {
		return Principal{Role: RoleAdmin, ID: pubkey}, pubkey == string(admin)
	}}
	if change != nil {
		change(&cfg)
	}
	auth, err := NewAuth(AuthHybrid, NewNostr(cfg), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := auth.Authenticate(r)
		if err != nil {
			w.Header().Set("Reason", reasonOf(err))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s %d", who.ID, len(body))
	}))
	t.Cleanup(s.Close)
	return s, auth
}

func testKey(t *testing.T) *identity.Key {
	t.Helper()
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// chunked hides its length, so that the client sends it in chunks.
type chunked struct{ io.Reader }

func TestSignedRequests(t *testing.T) {
	owner, stranger := testKey(t), testKey(t)
	s, auth := signedServer(t, owner.Public(), nil)
	local := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	big := bytes.Repeat([]byte("x"), maxHeld+1000)
	for _, c := range []struct {
		name         string
		signed, host string // host: of the request, "" = as signed
		key          *identity.Key
		signedBody   []byte
		body         io.Reader
		status       int
		reason       string
	}{
		{"get", s.URL + "/x?y=1", "", owner, nil, nil, 200, ""},
		{"by localhost", local + "/x?y=1", strings.TrimPrefix(local, "http://"), owner, nil, nil, 200, ""},
		{"body", s.URL + "/x?y=1", "", owner, []byte("hello"), strings.NewReader("hello"), 200, ""},
		{"chunked body", s.URL + "/x?y=1", "", owner, []byte("hello"), chunked{strings.NewReader("hello")}, 200, ""},
		{"empty chunked body", s.URL + "/x?y=1", "", owner, nil, chunked{strings.NewReader("")}, 200, ""},
		{"large body", s.URL + "/x?y=1", "", owner, big, bytes.NewReader(big), 200, ""},
		{"another body", s.URL + "/x?y=1", "", owner, []byte("hello"), strings.NewReader("hellO"), 401, "payload"},
		{"body that was not signed", s.URL + "/x?y=1", "", owner, nil, strings.NewReader("hello"), 401, "payload"},
		{"body that is missing", s.URL + "/x?y=1", "", owner, []byte("hello"), nil, 401, "payload"},
		{"another large body", s.URL + "/x?y=1", "", owner, big, bytes.NewReader(append(bytes.Clone(big), 'y')), 400, ""},
		{"stranger", s.URL + "/x?y=1", "", stranger, nil, nil, 401, "stranger"},
		{"another query", s.URL + "/x?y=2", "", owner, nil, nil, 401, "url"},
		{"another server", "http://evil.example/x?y=1", "", owner, nil, nil, 401, "url"},
		{"another server and its Host", "http://evil.example/x?y=1", "evil.example", owner, nil, nil, 401, "url"},
		{"another address and its Host", "http://10.1.2.3:9090/x?y=1", "10.1.2.3:9090", owner, nil, nil, 401, "url"},
		{"https without a proxy", "https://box.example/x?y=1", "box.example", owner, nil, nil, 401, "url"},
	} {
		header, err := nip98.Authorization(c.key, "POST", c.signed, c.signedBody, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest("POST", s.URL+"/x?y=1", c.body)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		req.Header.Set("Authorization", header)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status || resp.Header.Get("Reason") != c.reason {
			t.Errorf("%s: %d %q, want %d %q", c.name, resp.StatusCode, resp.Header.Get("Reason"), c.status, c.reason)
		}
		if c.status == 200 { // the same once more is a replay
			again := req.Clone(t.Context())
			if seeker, ok := c.body.(io.Seeker); ok {
				if _, err := seeker.Seek(0, io.SeekStart); err != nil {
					t.Fatal(err)
				}
				again.Body = io.NopCloser(c.body)
			} else if c.body != nil {
				continue
			}
			resp, err := http.DefaultClient.Do(again)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.Header.Get("Reason") != "replay" {
				t.Errorf("%s, replayed: %d %q", c.name, resp.StatusCode, resp.Header.Get("Reason"))
			}
		}
	}
	if n := testutil.ToFloat64(auth.failures.WithLabelValues("nip98", "stranger")); n != 1 {
		t.Errorf("strangers counted: %v", n)
	}
}

// Forwarded headers count from a trusted proxy alone.
func TestSignedRequestsBehindAProxy(t *testing.T) {
	owner := testKey(t)
	for _, c := range []struct {
		trusted bool
		status  int
	}{{true, 200}, {false, 401}} {
		s, _ := signedServer(t, owner.Public(), func(cfg *NostrConfig) {
			if c.trusted {
				cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			}
		})
		header, err := nip98.Authorization(owner, "GET", "https://box.example/x", nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest("GET", s.URL+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", header)
		req.Header.Set("X-Forwarded-Proto", "https")
		req.Header.Set("X-Forwarded-Host", "box.example")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("trusted %v: %d", c.trusted, resp.StatusCode)
		}
	}
	// TLS ends at a proxy that passes the Host on and is not trusted.
	r := httptest.NewRequest("GET", "/x", nil)
	r.Host = "box.example"
	_, err := NewNostr(NostrConfig{Origins: []string{"https://box.example"}}).Authenticate(r)
	if err == nil || !strings.Contains(err.Error(), "[api].trusted_proxies") {
		t.Errorf("the refusal does not say what to do: %v", err)
	}
}

// read is a body.
type read func([]byte) (int, error)

func (r read) Read(p []byte) (int, error) { return r(p) }

// A request with a used token begins while the token is valid and still remembered. Its body comes when
// both are over.
func TestReplayWithALateBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owner := testKey(t)
		n := NewNostr(NostrConfig{Origins: []string{"https://box.example"}, Role: func(pubkey string) (Principal, bool) {
			return Principal{Role: RoleAdmin, ID: pubkey}, true
		}})
		ask := func(created time.Time, body io.Reader) error {
			header, err := nip98.Authorization(owner, "POST", "https://box.example/x", []byte("hello"), created)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("POST", "https://box.example/x", body)
			r.RequestURI = "/x"
			r.Header.Set("Authorization", header)
			_, err = n.Authenticate(r)
			return err
		}
		token := time.Now().Add(nip98.Window) // the signer's clock is fast
		if err := ask(token, strings.NewReader("hello")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*nip98.Window - time.Second)
		text := strings.NewReader("hello")
		late := read(func(p []byte) (int, error) {
			if text.Len() == len("hello") {
				time.Sleep(2 * time.Second)
				// Another request makes the box forget old tokens.
				if err := ask(time.Now(), strings.NewReader("hello")); err != nil {
					t.Error(err)
				}
			}
			return text.Read(p)
		})
		if err := ask(token, late); err == nil {
			t.Error("a token was taken twice")
		}
	})
}
