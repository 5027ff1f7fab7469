package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/adapters/pods/solid"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/probes/nip98"
)

// podServer is a running agentctl pod-server, whose root belongs to a key.
type podServer struct {
	t    *testing.T
	base string
	key  *identity.Key
	log  *bufio.Scanner
	// begun is a time before the server had its port.
	begun time.Time
}

func runPodServer(t *testing.T) *podServer {
	t.Helper()
	key, err := identity.ParseKey("67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	list := "@prefix acl: <http://www.w3.org/ns/auth/acl#>. <#o> a acl:Authorization; acl:agent <" + key.Public().DID() +
		">; acl:accessTo <./>; acl:default <./>; acl:mode acl:Read, acl:Write, acl:Control."
	if err := os.WriteFile(filepath.Join(dir, ".acl"), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"JSS_PORT": "0", "JSS_ENABLE_RATE_LIMIT": "false"}
	ctx, cancel := context.WithCancel(context.Background())
	stderr, w := io.Pipe()
	ended := make(chan int, 1)
	begun := time.Now()
	go func() {
		ended <- run(ctx, []string{"pod-server", "--built-in", "--storage", dir}, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, strings.NewReader(""), io.Discard, w)
		w.Close()
	}()
	p := &podServer{t: t, key: key, log: bufio.NewScanner(stderr), begun: begun}
	t.Cleanup(func() {
		cancel()
		for p.log.Scan() {
		}
		if code := <-ended; code != exitOK {
			t.Errorf("the server ended with %d", code)
		}
	})
	var line struct {
		Msg     string
		BaseURL string `json:"base_url"`
	}
	if !p.log.Scan() || json.Unmarshal(p.log.Bytes(), &line) != nil || line.Msg != "serving pods" {
		t.Fatalf("first line %s", p.log.Bytes())
	}
	p.base = line.BaseURL
	return p
}

// send sends a request with an Authorization.
func (p *podServer) send(method, path, body string, change func(*http.Request)) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.base+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "text/plain")
	change(req)
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return res.StatusCode, string(raw)
}

func (p *podServer) signed(method, path, body string) func(*http.Request) {
	return p.signedAt(time.Now(), method, path, body)
}

func (p *podServer) signedAt(now time.Time, method, path, body string, more ...nostr.Tag) func(*http.Request) {
	text, err := nip98.Authorization(p.key, method, p.base+path, []byte(body), now, more...)
	if err != nil {
		p.t.Fatal(err)
	}
	return func(r *http.Request) { r.Header.Set("Authorization", text) }
}

func TestPodServerTakesSignedRequests(t *testing.T) {
	p := runPodServer(t)
	want := func(what string, status, want int, body string) {
		t.Helper()
		if status != want {
			t.Errorf("%s: %d, want %d: %s", what, status, want, body)
		}
	}
	put := p.signed("PUT", "/x", "hello")
	status, body := p.send("PUT", "/x", "hello", put)
	want("put", status, 201, body)
	status, body = p.send("PUT", "/x", "hello", put)
	want("the same signature again", status, 401, body)
	status, body = p.send("PUT", "/x", "changed", p.signed("PUT", "/x", "hello"))
	want("another body", status, 401, body)
	status, body = p.send("PUT", "/x", "hello", p.signed("PUT", "/x", ""))
	want("a body without payload", status, 401, body)
	status, body = p.send("PUT", "/x", "hello", p.signed("PUT", "/y", "hello"))
	want("another path", status, 401, body)
	status, body = p.send("GET", "/x", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") })
	want("another scheme", status, 401, body)
	status, body = p.send("GET", "/x", "", func(r *http.Request) {
		p.signed("GET", "/x", "")(r)
		r.Header.Add("Authorization", "Bearer x")
	})
	want("two credentials", status, 401, body)
	status, body = p.send("GET", "/x", "", p.signed("GET", "/x", ""))
	want("get", status, 200, body)
	if body != "hello" {
		t.Errorf("body %q", body)
	}
	status, body = p.send("GET", "/x", "", func(*http.Request) {})
	want("nobody", status, 401, body)
	other, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	mine := p.key
	p.key = other
	status, body = p.send("GET", "/x", "", p.signed("GET", "/x", ""))
	p.key = mine
	want("a stranger", status, 403, body)
	status, body = p.send("GET", "/did:nostr:"+p.key.Public().Npub(), "", func(*http.Request) {})
	want("DID", status, 200, body)
	if !strings.Contains(body, p.key.Public().DID()) {
		t.Errorf("DID document %s", body)
	}
}

// The signature of a streamed body comes after it, and holds for nothing but it.
func TestPodServerTakesASignatureAfterTheBody(t *testing.T) {
	p := runPodServer(t)
	now := time.Now()
	stream := func(sent, signed string, key nip98.Signer, at time.Time, more ...nostr.Tag) (int, string) {
		return p.send("PUT", "/big", "", func(r *http.Request) {
			p.signedAt(now, "PUT", "/big", "", more...)(r)
			r.Trailer, r.ContentLength = http.Header{nip98.Trailer: nil}, -1
			sum := sha256.Sum256([]byte(signed))
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader(sent), atEnd(func() error {
				text, err := nip98.AuthorizationFor(key, "PUT", p.base+"/big", &sum, at)
				if signed != "" {
					r.Trailer.Set(nip98.Trailer, text)
				}
				return err
			})))
		})
	}
	other, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		signed string
		key    nip98.Signer
		at     time.Time
		want   int
	}{
		"good": {"hello", p.key, now, 201}, "another body": {"bye", p.key, now, 401}, "no signature": {"", p.key, now, 401},
		"another key": {"hello", other, now, 401}, "another time": {"hello", p.key, now.Add(time.Second), 401},
	} {
		want := c.want
		if status, body := stream("hello", c.signed, c.key, c.at, nip98.AtEnd()); status != want && (status != 204 || want != 201) {
			t.Errorf("%s: %d, want %d: %s", what, status, want, body)
		}
	}
}

// The token in the header of such a request is good for nothing without the one after the body, and another token is none of its kind.
func TestPodServerRefusesTheFirstHalfOfAStreamedRequest(t *testing.T) {
	p := runPodServer(t)
	if status, body := p.send("PUT", "/x", "hello", p.signed("PUT", "/x", "hello")); status != 201 {
		t.Fatalf("put: %d %s", status, body)
	}
	half := func(more ...nostr.Tag) func(*http.Request) { return p.signedAt(time.Now(), "PUT", "/x", "", more...) }
	declared := func(change func(*http.Request)) func(*http.Request) {
		return func(r *http.Request) {
			change(r)
			r.Trailer, r.ContentLength, r.Body = http.Header{nip98.Trailer: nil}, -1, io.NopCloser(strings.NewReader(""))
		}
	}
	for what, change := range map[string]func(*http.Request){
		"without the trailer": half(nip98.AtEnd()), "with an empty trailer": declared(half(nip98.AtEnd())), "a token without the mark": declared(half()),
	} {
		if status, body := p.send("PUT", "/x", "", change); status != 401 {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	if status, body := p.send("GET", "/x", "", p.signed("GET", "/x", "")); status != 200 || body != "hello" {
		t.Errorf("then: %d %q", status, body)
	}
}

// Another program may have had the port before, and a request that was signed for it.
func TestPodServerRefusesWhatWasSignedBeforeIt(t *testing.T) {
	p := runPodServer(t)
	if status, body := p.send("PUT", "/x", "hello", p.signedAt(p.begun, "PUT", "/x", "hello")); status != 401 {
		t.Errorf("signed before: %d %s", status, body)
	}
	if status, body := p.send("PUT", "/x", "hello", p.signed("PUT", "/x", "hello")); status != 201 {
		t.Errorf("signed since: %d %s", status, body)
	}
	since := time.Now().Truncate(time.Second)
	identify := (&podSigners{since: since}).identifyFor(p.base)
	for created, want := range map[time.Time]error{since.Add(-time.Second): solid.ErrSignAgain, since: nil} {
		r := httptest.NewRequest("GET", p.base+"/x", nil)
		p.signedAt(created, "GET", "/x", "")(r)
		if _, err := identify(r, p.base+"/x"); !errors.Is(err, want) {
			t.Errorf("signed %s after the begin: %v", created.Sub(since), err)
		}
	}
}

// A signature for a write that only creates holds for no other one.
func TestPodServerChecksSignedHeaders(t *testing.T) {
	p := runPodServer(t)
	h := http.Header{"Content-Type": {"text/plain"}, "If-None-Match": {"*"}}
	signed := func(r *http.Request) { p.signedAt(time.Now(), "PUT", "/x", "hello", nip98.Headers(h))(r) }
	create := func(r *http.Request) { signed(r); r.Header.Set("If-None-Match", "*") }
	if status, body := p.send("PUT", "/x", "hello", create); status != 201 {
		t.Fatalf("put: %d %s", status, body)
	}
	for what, change := range map[string]func(*http.Request){
		"without its condition": signed,
		"with another type":     func(r *http.Request) { create(r); r.Header.Set("Content-Type", "text/html") },
		"with a name":           func(r *http.Request) { create(r); r.Header.Set("Slug", "x") },
	} {
		if status, body := p.send("PUT", "/x", "hello", change); status != 401 {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	if status, body := p.send("PUT", "/x", "hello", create); status != 412 {
		t.Errorf("as it was signed: %d %s", status, body)
	}
}

// atEnd calls f at the end of what was read before it.
type atEnd func() error

func (f atEnd) Read([]byte) (int, error) {
	if err := f(); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

// A key whose signatures fill its share of the memory does not keep out who owns the tree, nor others.
func TestPodServerRemembersAShareOfEachKey(t *testing.T) {
	var signers podSigners
	now := time.Now()
	use := func(key string, id int, s solid.Standing) error {
		p := &podSigner{signers: &signers, at: now, token: nip98.Token{ID: strconv.Itoa(id), Pubkey: key, Created: now}}
		return p.Use(s)
	}
	n := 0
	var full error
	for n < 200_000 && full == nil {
		if full = use("one", n, solid.Listed); full == nil {
			n++
		}
	}
	if n != 10_000 || !errors.Is(full, solid.ErrTooManySigned) {
		t.Errorf("one key has room for %d signatures; then %v", n, full)
	}
	if err := errors.Join(use("other", n, solid.Listed), use("mine", n+1, solid.Owner)); err != nil {
		t.Error(err)
	}
	if err := use("mine", 0, solid.Owner); err == nil || errors.Is(err, solid.ErrTooManySigned) {
		t.Errorf("a signature is used twice: %v", err)
	}
}
