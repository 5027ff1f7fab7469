package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a transport whose answers the test writes; its time is the bubble's.
type peer func(*http.Request) (*http.Response, error)

func (p peer) RoundTrip(r *http.Request) (*http.Response, error) { return p(r) }

func answer(r *http.Request, status int, contentType, body string, header ...string) *http.Response {
	h := http.Header{"Content-Type": {contentType}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

func client(t *testing.T, rt http.RoundTripper, auth Authorizer) *Client {
	t.Helper()
	c, err := New(Config{Slot: adapters.SlotBeads, BaseURL: "http://host.test/base/", Key: "k", Transport: rt, Auth: auth})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func real(t *testing.T, h http.Handler) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(Config{Slot: adapters.SlotBeads, BaseURL: srv.URL, Key: "k", Auth: Bearer(func() string { return "secret" })})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestBadBasesNameTheKeyAndNoSecret(t *testing.T) {
	for _, base := range []string{"", "ftp://x", "http://", "http://u:hunter2@x", "http://x?q=1", "://", "http://x/\x7f hunter2"} {
		_, err := New(Config{Slot: adapters.SlotBeads, BaseURL: base, Key: "integrations.external_beads.url"})
		if ce, ok := errors.AsType[*adapters.ConfigError](err); !ok || ce.Key != "integrations.external_beads.url" || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", base, err)
		}
	}
}

func TestRequestsCarryMetadataAndCredentials(t *testing.T) {
	var got *http.Request
	c := client(t, peer(func(r *http.Request) (*http.Response, error) {
		got = r
		return answer(r, 200, "application/json", `{}`), nil
	}), Bearer(func() string { return "tok" }))
	ctx := adapters.WithMeta(t.Context(), adapters.Meta{
		SessionID: "s1", ExecutionID: "e1", Actor: "ann", IdempotencyKey: "k1", TraceParent: "00-1-2-01",
	})
	if _, err := c.Do(ctx, Request{Method: "POST", Path: "/v1/beads/a%2Fb/claim", Keyed: true, Body: []byte("{}"), ContentType: "application/json"}); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]string{
		"Authorization": "Bearer tok", "Agentbox-Contract": "beads/1", "Agentbox-Session": "s1", "Agentbox-Execution": "e1",
		"Agentbox-Actor": "ann", "Idempotency-Key": "k1", "Traceparent": "00-1-2-01", "User-Agent": "agentinit", "Content-Type": "application/json",
	} {
		if g := got.Header.Get(k); g != want {
			t.Errorf("%s: %q, want %q", k, g, want)
		}
	}
	if got.URL.EscapedPath() != "/base/v1/beads/a%2Fb/claim" {
		t.Errorf("path %s", got.URL.EscapedPath())
	}
	ctx = adapters.WithMeta(t.Context(), adapters.Meta{Actor: "a\r\nX-Evil: 1"})
	if _, err := c.Do(ctx, Request{Method: "GET", Path: "/"}); !errors.Is(err, adapters.ErrValidation) {
		t.Errorf("header injection: %v", err)
	}
}

func TestOnlyPassingErrorsOfRepeatableCallsAreRetried(t *testing.T) {
	for _, c := range []struct {
		name   string
		req    Request
		status int
		tries  int
	}{
		{"read, unavailable", Request{Method: "GET"}, 503, 3},
		{"read, not found", Request{Method: "GET"}, 404, 1},
		{"write, unavailable", Request{Method: "POST"}, 503, 1},
		{"keyed write, unavailable", Request{Method: "POST", Keyed: true}, 503, 3},
		{"keyed write, conflict", Request{Method: "POST", Keyed: true}, 409, 3},
		{"keyed write, invalid", Request{Method: "POST", Keyed: true}, 400, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keys := map[string]bool{}
				tries := 0
				cl := client(t, peer(func(r *http.Request) (*http.Response, error) {
					tries++
					keys[r.Header.Get("Idempotency-Key")] = true
					return answer(r, c.status, "text/plain", "no"), nil
				}), nil)
				begin := time.Now()
				if _, err := cl.Do(t.Context(), c.req); err == nil {
					t.Fatal("no error")
				}
				if tries != c.tries || len(keys) != 1 {
					t.Errorf("%d tries, want %d; keys %v", tries, c.tries, keys)
				}
				if took := time.Since(begin); took > time.Second {
					t.Errorf("waited %v", took)
				}
			})
		})
	}
}

// A request that was not accepted had no effect: it is signed again, unless its body was read.
func TestARequestThatWasNotAcceptedIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			upload io.Reader
			again  string
			reads  bool // the peer, before it answers
			want   int
		}{{nil, "true", false, 2}, {nil, "false", false, 1}, {strings.NewReader("x"), "true", true, 1}, {strings.NewReader("x"), "true", false, 2}} {
			signed, sent := 0, 0
			p := client(t, peer(func(r *http.Request) (*http.Response, error) {
				if sent++; sent > 1 {
					return answer(r, 204, "", ""), nil
				}
				if c.reads {
					_, _ = io.ReadAll(r.Body)
				}
				return answer(r, 401, adapters.ProblemType, `{"code":"UNAUTHENTICATED","retryable":`+c.again+`}`), nil
			}), Bearer(func() string { signed++; return "x" }))
			_, err := p.Do(t.Context(), Request{Method: "POST", Upload: c.upload, UploadSize: -1})
			if signed != c.want || (err == nil) != (c.want == 2) {
				t.Errorf("upload %t, read %t, retryable %s: signed %d times: %v", c.upload != nil, c.reads, c.again, signed, err)
			}
		}
	})
}

// Each request to a server of this box has a connection of its own, and goes to its listener alone.
func TestLocalTransport(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var conns atomic.Int64
	srv := &httptest.Server{Listener: l, Config: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns.Add(1)
			}
		},
	}}
	srv.Start()
	defer srv.Close()
	c, err := New(Config{Slot: adapters.SlotPods, BaseURL: "http://localhost:" + port, Key: "k", Transport: LocalTransport("127.0.0.2")})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		res, err := c.Do(t.Context(), Request{Method: "GET", Path: "/"})
		if err != nil || string(res.Body) != "localhost:"+port {
			t.Fatalf("%v, %v", res, err)
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("two requests over %d connections", n)
	}
}

func TestRetryAfterIsObeyedUpToThirtySecondsAndWithinTheDeadline(t *testing.T) {
	for _, c := range []struct {
		after    string
		deadline time.Duration
		tries    int
		took     time.Duration
	}{
		{"20", time.Hour, 3, 40 * time.Second},
		{"31", time.Hour, 1, 0},
		{"20", 10 * time.Second, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			cl := client(t, peer(func(r *http.Request) (*http.Response, error) {
				tries++
				return answer(r, 429, "text/plain", "", "Retry-After", c.after), nil
			}), nil)
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			defer cancel()
			begin := time.Now()
			_, err := cl.Do(ctx, Request{Method: "GET"})
			if !errors.Is(err, adapters.ErrRateLimited) || tries != c.tries || time.Since(begin) != c.took {
				t.Errorf("%+v: %v after %d tries and %v", c, err, tries, time.Since(begin))
			}
		})
	}
}

func TestBreakerOpensAfterFiveAndTriesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		up := false
		cl := client(t, peer(func(r *http.Request) (*http.Response, error) {
			tries.Add(1)
			if !up {
				return nil, errors.New("connection refused")
			}
			return answer(r, 204, "", ""), nil
		}), nil)
		call := func() error { _, err := cl.Do(t.Context(), Request{Method: "POST"}); return err }
		for range 20 {
			if err := call(); !errors.Is(err, adapters.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if n := tries.Load(); n != breakerFailures {
			t.Errorf("%d attempts before it opened", n)
		}
		if err := call(); !strings.Contains(err.Error(), "left alone: cannot reach the peer: connection refused") {
			t.Errorf("the open breaker hides why: %v", err)
		}
		time.Sleep(breakerOpen + time.Millisecond)
		for range 3 {
			_ = call()
		}
		if n := tries.Load(); n != breakerFailures+1 {
			t.Errorf("%d attempts after the pause, want one trial", n-breakerFailures)
		}
		up = true
		time.Sleep(breakerOpen + time.Millisecond)
		for range 3 {
			if err := call(); err != nil {
				t.Errorf("closed again: %v", err)
			}
		}
	})
}

// A health check that succeeds says nothing about the calls, and one is made also while the breaker is open.
func TestProbesDoNotChangeTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, probes atomic.Int32
		cl := client(t, peer(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/v1/meta") {
				probes.Add(1)
				return answer(r, 200, "application/json", "{}"), nil
			}
			calls.Add(1)
			return answer(r, 503, "", ""), nil
		}), nil)
		for range 2 * breakerFailures {
			if _, err := cl.Do(t.Context(), Request{Method: "POST"}); !errors.Is(err, adapters.ErrUnavailable) {
				t.Error(err)
			}
			if _, err := cl.Handshake(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if c, p := calls.Load(), probes.Load(); c != breakerFailures || p != 2*breakerFailures {
			t.Errorf("%d calls, %d probes", c, p)
		}
	})
}

// A read, which may be retried, does not wait for the breaker either, and it says why the peer failed.
func TestAnOpenBreakerRefusesReadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := client(t, peer(func(r *http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }), nil)
		for range 2 {
			_, _ = cl.Do(t.Context(), Request{Method: "GET"})
		}
		begin := time.Now()
		_, err := cl.Do(t.Context(), Request{Method: "GET"})
		if e := adapters.AsError(err); e.Code != adapters.CodeUnavailable || !e.Retryable || e.RetryAfter() == 0 || !strings.Contains(e.Message, "left alone: cannot reach the peer: connection refused") {
			t.Errorf("%+v", err)
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("waited %v", waited)
		}
	})
}

func TestCallersMistakesDoNotOpenTheBreaker(t *testing.T) {
	cl := client(t, peer(func(r *http.Request) (*http.Response, error) { return answer(r, 404, "", ""), nil }), nil)
	for range 20 {
		if _, err := cl.Do(t.Context(), Request{Method: "GET"}); !errors.Is(err, adapters.ErrNotFound) {
			t.Fatal(err)
		}
	}
}

// Who reads the error has a credential too, for the box itself. The error says whose was refused, and
// by whom.
func TestARefusedCredentialIsThatOfTheBox(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"code":"UNAUTHENTICATED","detail":"the credential is wrong"}`)
	}))
	defer srv.Close()
	c, err := New(Config{Slot: adapters.SlotBeads, BaseURL: srv.URL + "/base", Key: "k", Auth: Bearer(func() string { return "secret" })})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.JSON(t.Context(), Request{Method: http.MethodGet, Path: "/v1/beads"}, nil, nil)
	want := srv.URL + " does not accept the credential of this box: the credential is wrong"
	if e := adapters.AsError(err); e == nil || e.Code != adapters.CodeUnauthenticated || e.Message != want {
		t.Errorf("%v; want %s", err, want)
	}
}

func TestAHangingPeerIsATimeoutWithinTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := client(t, peer(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}), nil)
		begin := time.Now()
		if _, err := cl.Do(t.Context(), Request{Method: "POST"}); !errors.Is(err, adapters.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took != writeLimit {
			t.Errorf("took %v", took)
		}
	})
}

func TestPeersThatMisbehave(t *testing.T) {
	contract.Peers(t, contract.PeerClass{
		Good: func(t *testing.T) string {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.URL.Path == "/stream" {
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprint(w, "id: 1\ndata: x\n\n")
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					return
				}
				fmt.Fprint(w, `{"id":"x","items":[{"id":"x"}],"next_cursor":null}`)
			}))
			t.Cleanup(srv.Close)
			return srv.URL
		},
		Open: func(t *testing.T, url string) []contract.PeerCall {
			c, err := New(Config{Slot: adapters.SlotBeads, BaseURL: url, Key: "k", Auth: Bearer(func() string { return "sesame" })})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			type thing struct {
				ID string `json:"id"`
			}
			object := func(r Request) func(context.Context) error {
				return func(ctx context.Context) error {
					var out thing
					_, err := c.JSON(ctx, r, struct{}{}, &out)
					return err
				}
			}
			return []contract.PeerCall{
				{Name: "read", Call: object(Request{Method: "GET", Path: "/x"})},
				{Name: "write", Call: object(Request{Method: "POST", Path: "/x"})},
				{Name: "keyed write", Call: object(Request{Method: "PUT", Path: "/x", Keyed: true})},
				{Name: "delete", Answer: contract.Status, Call: func(ctx context.Context) error {
					_, err := c.Do(ctx, Request{Method: "DELETE", Path: "/x", Keyed: true})
					return err
				}},
				{Name: "list", Call: func(ctx context.Context) error {
					res, err := c.Do(ctx, Request{Method: "GET", Path: "/x"})
					if err == nil {
						_, err = List[thing](res)
					}
					return err
				}},
				{Name: "body", Answer: contract.Forwarded, Call: func(ctx context.Context) error {
					res, err := c.Open(ctx, Request{Method: "GET", Path: "/x"})
					if err != nil {
						return err
					}
					defer res.Body.Close()
					if _, err := io.Copy(io.Discard, res.Body); err != nil {
						return transportError(ctx, err)
					}
					return nil
				}},
				{Name: "events", Answer: contract.Followed, Call: func(ctx context.Context) error {
					s, err := c.Events(ctx, "/stream", nil)
					if err != nil {
						return err
					}
					defer s.Close()
					_, err = s.Next(ctx)
					return err
				}},
			}
		},
	})
}

func TestCredentialsStayWithTheirOrigin(t *testing.T) {
	var seen http.Header
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header
		w.WriteHeader(204)
	}))
	defer other.Close()
	c := real(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/same" {
			if r.Header.Get("Authorization") == "" {
				t.Error("lost within the origin")
			}
			w.WriteHeader(204)
			return
		}
		if r.URL.Path == "/to-same" {
			http.Redirect(w, r, "/same", http.StatusTemporaryRedirect)
			return
		}
		http.Redirect(w, r, other.URL+"/x", http.StatusTemporaryRedirect)
	}))
	ctx := adapters.WithMeta(t.Context(), adapters.Meta{SessionID: "s", Actor: "a", IdempotencyKey: "k"})
	if _, err := c.Do(ctx, Request{Method: "GET", Path: "/to-same"}); err != nil {
		t.Error(err)
	}
	if _, err := c.Do(ctx, Request{Method: "GET", Path: "/away", Keyed: true}); err != nil {
		t.Error(err)
	}
	for _, k := range []string{"Authorization", "Agentbox-Session", "Agentbox-Actor", "Idempotency-Key"} {
		if v := seen.Get(k); v != "" {
			t.Errorf("%s went to another origin: %q", k, v)
		}
	}
	seen = nil
	if _, err := c.Do(ctx, Request{Method: "POST", Path: "/away", Body: []byte("private")}); !errors.Is(err, adapters.ErrUnavailable) || seen != nil {
		t.Errorf("a write followed a redirect away: %v", err)
	}
}

func TestHandshake(t *testing.T) {
	for _, c := range []struct {
		name, body string
		status     int
		contract   string
		want       error
	}{
		{"same", `{"adapter_contract_versions":{"beads":"1.1"},"capabilities":{"beads":["graph"]}}`, 200, "1.1", nil},
		{"newer minor", `{"adapter_contract_versions":{"beads":"1.9"}}`, 200, "1.9", nil},
		{"older minor", `{"adapter_contract_versions":{"beads":"1.0"}}`, 200, "1.0", nil},
		{"other major", `{"adapter_contract_versions":{"beads":"2.0"}}`, 200, "2.0", adapters.ErrContractMismatch},
		{"no meta", ``, 404, "1.0", nil},
		{"down", ``, 502, "", adapters.ErrUnavailable},
		{"nonsense", `[]`, 200, "", adapters.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := client(t, peer(func(r *http.Request) (*http.Response, error) {
				return answer(r, c.status, "application/json", c.body), nil
			}), nil)
			p, err := cl.Handshake(t.Context())
			if !errors.Is(err, c.want) || p.Contract != c.contract {
				t.Errorf("%+v %v", p, err)
			}
		})
	}
}

func TestListsComeAsArrayOrEnvelope(t *testing.T) {
	for _, c := range []struct{ body, link, cursor string }{
		{`["a","b"]`, ``, ""},
		{`["a","b"]`, `<http://x/v1?limit=2&cursor=abc>; rel="next", <http://x>; rel="first"`, "abc"},
		{` {"items":["a","b"],"next_cursor":"q"}`, ``, "q"},
		{`{"items":["a","b"],"next_cursor":null}`, ``, ""},
	} {
		res := &Response{Status: 200, Header: http.Header{"Content-Type": {"application/json"}, "Link": {c.link}}, Body: []byte(c.body)}
		p, err := List[string](res)
		if err != nil || len(p.Items) != 2 || string(p.NextCursor) != c.cursor {
			t.Errorf("%s: %+v %v", c.body, p, err)
		}
	}
}

// The memory for a list is many times its text, so a peer must not send one that is too long. An event
// with the longest payload is good.
func TestListsAreBounded(t *testing.T) {
	elements := strings.Repeat("0,", maxElements)
	for body, good := range map[string]bool{
		`{"items":[{"payload":[` + elements[:adapters.MaxEventPayload-3] + `]}]}`: true,
		`{"items":[` + elements + `0]}`:                                           false,
		`[` + elements + `0]`:                                                     false,
		`[{"deps":[` + elements + `0]}]`:                                          false,
		`[{"payload":{` + strings.Repeat(`"":0,`, maxElements) + `"":0}}]`:        false,
	} {
		_, err := List[struct{ Payload, Deps json.RawMessage }](&Response{
			Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body),
		})
		told := err != nil && strings.Contains(err.Error(), "a list of more than")
		if good != (err == nil) || !good && (!told || !errors.Is(err, adapters.ErrUnavailable)) {
			t.Errorf("%.30s: %v", body, err)
		}
	}
}

func TestEventStreamResumes(t *testing.T) {
	var conns atomic.Int32
	var lastIDs [3]string
	c := real(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := conns.Add(1)
		if n > 3 {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		lastIDs[n-1] = r.Header.Get("Last-Event-ID")
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		fmt.Fprintf(w, ": hello\r\nretry: 10\nid: %d\nevent: tick\ndata: a\ndata:  b\n\nid: torn\ndata: never", n)
	}))
	s, err := c.Events(t.Context(), "/stream", url.Values{"after": {"0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := 1; i <= 3; i++ {
		e, err := s.Next(t.Context())
		if err != nil || e.ID != fmt.Sprint(i) || e.Type != "tick" || string(e.Data) != "a\n b" {
			t.Fatalf("event %d: %+v %v", i, e, err)
		}
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, adapters.ErrPermissionDenied) {
		t.Errorf("the end: %v", err)
	}
	if lastIDs != [3]string{"", "1", "2"} {
		t.Errorf("resumed with %q", lastIDs)
	}
}

func TestEventStreamEndsWithCloseAndContext(t *testing.T) {
	c := real(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	s, err := c.Events(t.Context(), "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, adapters.ErrTimeout) {
		t.Errorf("cancelled: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
}

func TestAPeerWithoutAStreamIsUnsupported(t *testing.T) {
	c := real(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	if _, err := c.Events(t.Context(), "/", nil); !errors.Is(err, adapters.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

func TestEventsAreBounded(t *testing.T) {
	data := func(n int) string { return "data: " + strings.Repeat("x", n) + "\n" }
	for name, c := range map[string]struct {
		stream string
		size   int // of the event that gets through, 0 = none does
	}{
		"an event of the limit":    {data(sseEvent/2) + data(sseEvent/2-1), sseEvent}, // a line end joins them
		"an event below the limit": {data(sseEvent/2) + data(sseEvent/2-2), sseEvent - 1},
		"an event above the limit": {data(sseEvent/2) + data(sseEvent/2), 0},
		"a line below the limit":   {data(sseLine - len("data: ") - 2), sseLine - len("data: ") - 2},
		"a line above the limit":   {data(sseLine), 0},
		"a comment above it":       {":" + strings.Repeat("x", sseLine) + "\n" + data(1), 0},
	} {
		out := make(chan ServerEvent, 1)
		res := &http.Response{Body: io.NopCloser(strings.NewReader(c.stream + "\n"))}
		got, err := (&follower{retry: sseRetry}).read(t.Context(), res, out)
		close(out)
		if e := <-out; got != (c.size > 0) || len(e.Data) != c.size || errors.Is(err, adapters.ErrPayloadTooLarge) == got {
			t.Errorf("%s: %d bytes, %v", name, len(e.Data), err)
		}
	}
}

func FuzzParser(f *testing.F) {
	f.Add([]byte("id: 1\nevent: x\ndata: {}\n\n"))
	f.Add([]byte("data\r\rdata:\n: c\nretry: 99999999999\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		fo := &follower{retry: sseRetry}
		out := make(chan ServerEvent, len(stream)+1)
		res := &http.Response{Body: io.NopCloser(bytes.NewReader(stream))}
		if _, err := fo.read(context.Background(), res, out); err == nil {
			t.Fatal("a stream ended without saying so")
		}
		close(out)
		for e := range out {
			if bytes.ContainsAny(e.Data, "\r") || strings.ContainsAny(e.ID, "\r\n") {
				t.Fatalf("a line end got through: %+v", e)
			}
		}
		if fo.retry < 10*time.Millisecond || fo.retry > sseRetryMax {
			t.Fatalf("retry %v", fo.retry)
		}
	})
}

// The wait between tries is bounded by what the caller has left.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		start := time.Now()
		if !Pause(ctx, 20*time.Second) || time.Since(start) != 20*time.Second {
			t.Errorf("paused %v", time.Since(start))
		}
		if Pause(ctx, MaxRetryWait+1) || Pause(ctx, 40*time.Second) || time.Since(start) != 20*time.Second {
			t.Error("a wait that is of no use was begun")
		}
	})
}
