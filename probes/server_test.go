package probes

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/dreamlab-ai/agentinit/internal/idle"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

type rig struct {
	bus    *event.Bus
	ready  *Readiness
	auth   *Auth
	reg    *prometheus.Registry
	server *Server
}

func newRig(t testing.TB, mode AuthMode, opts ...func(*Config)) *rig {
	t.Helper()
	bus := event.NewBus(256)
	reg := prometheus.NewRegistry()
	ready := NewReadiness(bus, Requirement{ID: "program:web", Kind: KindProgram, Reason: "STARTING"})
	auth, err := NewAuth(mode, nil, reg)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Bus: bus, Readiness: ready, Auth: auth, Gatherer: reg, Registerer: reg,
		Liveness: NewLiveness(pingFunc(func(context.Context) error { return nil }), time.Now()),
		Health:   func() Health { return NewHealth(Facts{Verdict: ready.Verdict()}) },
		Meta:     func(*http.Request) any { return map[string]string{"version": "1"} },
	}
	for _, o := range opts {
		o(&cfg)
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{bus, ready, auth, reg, s}
}

func (r *rig) do(t *testing.T, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(w, req)
	return w
}

// wantMetric fails unless /metrics has exactly this line.
func (r *rig) wantMetric(t *testing.T, line string) {
	t.Helper()
	if text := r.do(t, "GET", "/metrics").Body.String(); !strings.Contains(text, "\n"+line+"\n") {
		t.Errorf("no line %s in\n%s", line, text)
	}
}

func (r *rig) beReady() {
	r.ready.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
	r.ready.Set(Requirement{ID: "program:web", Kind: KindProgram, Met: true})
}

func decode(t *testing.T, w *httptest.ResponseRecorder) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
		t.Fatalf("%v in %q", err, w.Body)
	}
	return m
}

func TestReadyAnswers(t *testing.T) {
	r := newRig(t, AuthHybrid)
	w := r.do(t, "GET", "/ready")
	body := decode(t, w)
	missing := body["missing"].([]any)
	if w.Code != 503 || body["ready"] != false || len(missing) != 2 || missing[1].(map[string]any)["id"] != "program:web" {
		t.Fatalf("%d %v", w.Code, body)
	}
	r.beReady()
	w = r.do(t, "GET", "/ready")
	body = decode(t, w)
	if _, err := time.Parse(time.RFC3339, body["since"].(string)); err != nil || w.Code != 200 || body["ready"] != true {
		t.Fatalf("%d %v %v", w.Code, body, err)
	}
	r.ready.Shutdown()
	w = r.do(t, "GET", "/ready")
	if body = decode(t, w); w.Code != 503 || body["reason"] != reasonShutdown {
		t.Fatalf("%d %v", w.Code, body)
	}
}

func TestVerbose(t *testing.T) {
	r := newRig(t, AuthHybrid)
	r.ready.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
	want := "[+]bootstrap-sentinel ok\n[-]program:web failed: STARTING\nready check failed\n"
	for _, q := range []string{"?verbose", "?verbose=true", "?verbose=1"} {
		if w := r.do(t, "GET", "/ready"+q); w.Code != 503 || w.Body.String() != want {
			t.Errorf("%s: %d %q", q, w.Code, w.Body)
		}
	}
	if w := r.do(t, "GET", "/ready?verbose=false"); w.Header().Get("Content-Type") != "application/json" {
		t.Error("verbose=false is verbose")
	}
	if w := r.do(t, "GET", "/livez?verbose"); w.Body.String() != "[+]supervisor-loop ok\nlivez check passed\n" {
		t.Errorf("%q", w.Body)
	}
}

func TestOpenRoutesAndMethods(t *testing.T) {
	r := newRig(t, AuthBearer)
	for path, code := range map[string]int{
		"/livez": 200, "/ready": 503, "/health": 200, "/v1/meta": 200, "/metrics": 200, "/health/pods": 404,
		"/nothing": 404, "/v1": 404,
	} {
		for _, method := range []string{"GET", "HEAD"} {
			if w := r.do(t, method, path); w.Code != code {
				t.Errorf("%s %s: %d, want %d", method, path, w.Code, code)
			}
		}
		if w := r.do(t, "POST", path); w.Code != 405 && w.Code != 404 {
			t.Errorf("POST %s: %d", path, w.Code)
		}
	}
}

func TestHealthIsDegradedNotDown(t *testing.T) {
	h := NewHealth(Facts{
		Verdict:  Verdict{Report: Report{Ready: true}},
		Programs: []program.Status{{Name: "a", State: program.Running}, {Name: "b", State: program.Fatal}},
		Adapters: []AdapterState{{Slot: "pods", Status: "degraded"}, {Slot: "memory", Status: "off"}},
		Drift:    []Drift{{Surface: "x"}}, Listeners: []ListenerState{{Name: "metrics"}},
	})
	if h.Status != "degraded" || h.DegradedCount != 4 || h.Programs["FATAL"][0] != "b" {
		t.Fatalf("got %+v", h)
	}
	if h := NewHealth(Facts{Verdict: Verdict{Report: Report{Ready: true}}}); h.Status != "ok" || h.Adapters == nil {
		t.Fatalf("got %+v", h)
	}
}

func TestMountedRoutesNeedTheKey(t *testing.T) {
	r := newRig(t, AuthHybrid)
	sub := chi.NewRouter()
	sub.Get("/{id}", func(w http.ResponseWriter, q *http.Request) {
		p, _ := PrincipalFrom(q.Context())
		fmt.Fprint(w, p.Role, " ", chi.URLParam(q, "id"))
	})
	sub.Post("/", func(w http.ResponseWriter, q *http.Request) {
		if _, err := io.Copy(io.Discard, q.Body); err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		}
	})
	r.server.Mount("/v1/beads", sub)
	r.server.Mount("/open", sub, Open())

	if w := r.do(t, "GET", "/v1/beads/7", "Authorization", "Bearer k"); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Fatalf("before there is a key: %d", w.Code)
	}
	r.auth.SetKey("the-key")
	for _, c := range []struct {
		header []string
		code   int
	}{
		{nil, 401},
		{[]string{"Authorization", "Bearer wrong"}, 401},
		{[]string{"Authorization", "Bearer"}, 401},
		{[]string{"Authorization", "Basic dGhlLWtleQ=="}, 401},
		{[]string{"Authorization", "Nostr e30="}, 401},
		{[]string{"Authorization", "Bearer the-key", "Authorization", "Bearer the-key"}, 401},
		{[]string{"Authorization", "bearer the-key"}, 200},
	} {
		w := r.do(t, "GET", "/v1/beads/7", c.header...)
		if w.Code != c.code {
			t.Errorf("%v: %d, want %d", c.header, w.Code, c.code)
		}
		if c.code == 401 && !slices.Equal(w.Header().Values("WWW-Authenticate"), []string{"Bearer"}) {
			t.Errorf("%v: challenges %v", c.header, w.Header())
		}
		if c.code == 200 && w.Body.String() != "admin 7" {
			t.Errorf("got %q", w.Body)
		}
	}
	if w := r.do(t, "GET", "/open/8"); w.Code != 200 {
		t.Errorf("open route: %d", w.Code)
	}
	if w := r.do(t, "GET", "/v1/../v1/beads/7"); w.Code == 200 {
		t.Error("an unclean path got past the key")
	}
	req := httptest.NewRequest("POST", "/open/", strings.NewReader(strings.Repeat("x", maxBodyBytes+1)))
	w := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body over the limit: %d", w.Code)
	}
	r.wantMetric(t, `agentbox_http_requests_total{code="200",method="GET",route="/v1/beads/{id}"} 1`)
}

// While what knows a token cannot be asked, its holder is told to come back; the keys
// are known without it.
func TestTokensThatCannotBeCheckedNow(t *testing.T) {
	r := newRig(t, AuthHybrid)
	r.server.Mount("/who", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		p, _ := PrincipalFrom(q.Context())
		fmt.Fprint(w, p.ID)
	}))
	r.auth.SetTokens(func(token string) (Principal, error) {
		switch token {
		case "held":
			return Principal{Role: "box", ID: "box-1"}, nil
		case "wrong":
			return Principal{}, ErrBadCredential
		}
		return Principal{}, fmt.Errorf("the database is away: %w", ErrCannotTell)
	})
	check := func(token string, status int, says string) {
		t.Helper()
		w := r.do(t, "GET", "/who/", "Authorization", "Bearer "+token)
		if w.Code != status || !strings.Contains(w.Body.String(), says) || (w.Header().Get("Retry-After") != "") != (status == 503) {
			t.Errorf("%s: %d %v %s", token, w.Code, w.Header(), w.Body)
		}
	}
	check("wrong", 503, "no management key")
	r.auth.SetNoKey()
	check("wrong", 401, "this box has no management key")
	check("held", 200, "box-1")
	r.auth.SetKey("the-key")
	check("held", 200, "box-1")
	check("wrong", 401, "UNAUTHENTICATED")
	check("any", 503, "UNAVAILABLE")
	check("the-key", 200, "management-key")
}

func TestFailuresAreLimitedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, AuthBearer)
		r.auth.SetKey("the-key")
		r.server.Mount("/x", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		ask := func(from, key string) int {
			req := httptest.NewRequest("GET", "/x/", nil)
			req.RemoteAddr = from
			req.Header.Set("Authorization", "Bearer "+key)
			req.Header.Set("X-Forwarded-For", "9.9.9.9")
			w := httptest.NewRecorder()
			r.server.Handler().ServeHTTP(w, req)
			return w.Code
		}
		for i := range anonymousBurst {
			if code := ask(fmt.Sprint("1.1.1.1:", i), "wrong"); code != 401 {
				t.Fatalf("attempt %d: %d", i, code)
			}
		}
		if code := ask("1.1.1.1:98", "wrong"); code != 429 {
			t.Fatalf("guessing goes on: %d", code)
		}
		if code := ask("1.1.1.1:99", "the-key"); code != 200 {
			t.Fatalf("whoever has the key is locked out: %d", code)
		}
		if code := ask("2.2.2.2:1", "the-key"); code != 200 {
			t.Fatalf("another address pays for it: %d", code)
		}
		time.Sleep(time.Second)
		if code := ask("1.1.1.1:99", "wrong"); code != 401 {
			t.Fatalf("never forgiven: %d", code)
		}
	})
}

func TestTicketsLetInWithoutAHeader(t *testing.T) {
	r := newRig(t, AuthBearer)
	r.auth.SetKey("the-key")
	r.server.Mount("/v1/stream", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		p, _ := PrincipalFrom(q.Context())
		fmt.Fprint(w, p.Role)
	}))
	if w := r.do(t, "GET", "/v1/stream?ticket=good"); w.Code != 401 {
		t.Errorf("without anybody to ask: %d", w.Code)
	}
	r.auth.SetTickets(func(q *http.Request) (Principal, bool) {
		return Principal{Role: "reader"}, q.URL.Query().Get("ticket") == "good"
	})
	if w := r.do(t, "GET", "/v1/stream?ticket=good"); w.Code != 200 || w.Body.String() != "reader" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, c := range [][]string{{"/v1/stream?ticket=bad"}, {"/v1/stream?ticket=good", "Authorization", "Bearer wrong"}} {
		if w := r.do(t, "GET", c[0], c[1:]...); w.Code != 401 {
			t.Errorf("%q: %d", c, w.Code)
		}
	}
}

func TestAuthModes(t *testing.T) {
	if _, err := ParseAuthMode("basic"); err == nil {
		t.Error("basic is a mode")
	}
	if m, err := ParseAuthMode(""); err != nil || m != AuthHybrid {
		t.Errorf("got %v %v", m, err)
	}
	for _, mode := range []AuthMode{AuthBearer, AuthHybrid, AuthNIP98} {
		r := newRig(t, mode)
		r.auth.SetKey("k")
		r.server.Mount("/x", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		want := 200
		if mode == AuthNIP98 {
			want = 401
		}
		if w := r.do(t, "GET", "/x/", "Authorization", "Bearer k"); w.Code != want {
			t.Errorf("%s: %d", mode, w.Code)
		}
	}
}

func TestPanicIsContainedAndCounted(t *testing.T) {
	r := newRig(t, AuthBearer)
	r.server.Mount("/boom", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("ouch") }), Open())
	for range 3 {
		if w := r.do(t, "GET", "/boom/"); w.Code != 500 || strings.Contains(w.Body.String(), "ouch") {
			t.Fatalf("%d %q", w.Code, w.Body)
		}
	}
	r.wantMetric(t, `agentbox_http_panics_total 3`)
	r.wantMetric(t, `agentbox_http_requests_total{code="500",method="GET",route="/boom"} 3`)
	if r.bus.Counts()[EventHandlerPanic] != 3 {
		t.Fatal("not published")
	}
}

// start serves the rig on loopback ports until the test ends.
func (r *rig) start(t *testing.T) {
	t.Helper()
	r.server.cfg.ManagementAddress, r.server.cfg.MetricsAddress = "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithCancel(t.Context())
	if err := r.server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		r.server.Wait()
		http.DefaultClient.CloseIdleConnections()
	})
}

func TestListenersServe(t *testing.T) {
	r := newRig(t, AuthBearer)
	r.start(t)
	for url, code := range map[string]int{
		"http://" + r.server.Bound("management") + "/livez": 200,
		"http://" + r.server.Bound("metrics") + "/metrics":  200,
		"http://" + r.server.Bound("metrics") + "/ready":    404,
	} {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != code {
			t.Errorf("%s: %d", url, resp.StatusCode)
		}
	}
}

// Whoever reads the URL in /v1/meta can fetch it as it stands.
func TestMetricsURL(t *testing.T) {
	r := newRig(t, AuthBearer, func(c *Config) { c.Names = []string{"box.example"} })
	ask := func(host string) *http.Request {
		req := httptest.NewRequest("GET", "/v1/meta", nil)
		req.Host = host
		return req
	}
	if got := r.server.MetricsURL(ask("127.0.0.1:9090")); got != "" {
		t.Errorf("without a listener: %q", got)
	}
	r.start(t)
	got := r.server.MetricsURL(ask("box.example:9090"))
	if want := "http://" + r.server.Bound("metrics") + "/metrics"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	resp, err := http.Get(got)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", got, resp.Status)
	}
	r.server.mu.Lock()
	r.server.listeners["metrics"].bound = &net.TCPAddr{IP: net.IPv6unspecified, Port: 9091}
	r.server.mu.Unlock()
	for host, want := range map[string]string{
		"Box.Example:9090": "http://box.example:9091/metrics", "10.1.2.3:9090": "http://10.1.2.3:9091/metrics",
		"[fd00::1]:9090": "http://[fd00::1]:9091/metrics", "localhost": "http://localhost:9091/metrics",
		"agentinit": "http://127.0.0.1:9091/metrics", "": "http://127.0.0.1:9091/metrics",
	} {
		if got := r.server.MetricsURL(ask(host)); got != want {
			t.Errorf("asked as %q: got %q, want %q", host, got, want)
		}
	}
}

func TestTakenPortIsSaidAndTriedAgain(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, AuthBearer)
	r.server.cfg.ManagementAddress, r.server.cfg.MetricsAddress = taken.Addr().String(), Off
	ctx, cancel := context.WithCancel(t.Context())
	if err := r.server.Start(ctx); err == nil || !strings.Contains(err.Error(), "management") {
		t.Fatalf("got %v", err)
	}
	l := r.server.Listeners()
	if len(l) != 1 || l[0].Bound || l[0].Reason == "" || r.bus.Counts()[EventListenFailed] != 1 {
		t.Fatalf("got %+v", l)
	}
	taken.Close()
	// The second attempt, made by hand rather than waited for.
	s := r.server
	n, err := s.bind(ctx, s.listeners["management"])
	if err != nil || s.Bound("management") == "" {
		t.Fatalf("%v: %+v", err, s.Listeners())
	}
	n.Close()
	cancel()
	s.Wait()
}

// Connections that send nothing stay in the kernel; those that ask are served at once.
func TestSilentConnectionsAreNotAccepted(t *testing.T) {
	r := newRig(t, AuthBearer)
	n, err := r.server.bind(t.Context(), &listener{name: "management", address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", n.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	asks := dial()
	fmt.Fprint(asks, "GET / HTTP/1.1\r\n")
	c, err := n.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.RemoteAddr().String() != asks.LocalAddr().String() {
		t.Errorf("%s was accepted, %s has asked", c.RemoteAddr(), asks.LocalAddr())
	}
}

// A flood of connections that send a byte and wait must not lock anyone out.
func TestSlowConnectionsLockNobodyOut(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 16
	l := newBoundedListener(inner, limit)
	r := newRig(t, AuthBearer)
	srv := &http.Server{Handler: r.server.Handler(), ConnContext: connContext, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() { srv.Serve(l); close(served) }()
	var slow []net.Conn
	for range 4 * limit {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHo")
		slow = append(slow, c)
	}
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, "200 OK") {
		t.Fatalf("%q %v", line, err)
	}
	l.mu.Lock()
	held := len(l.conns)
	l.mu.Unlock()
	if held > limit {
		t.Fatalf("%d connections are held", held)
	}
	for _, c := range append(slow, c) {
		c.Close()
	}
	srv.Close()
	<-served
}

func TestBusyConnectionsAreNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newBoundedListener(nil, 2)
		pipe := func() *boundedConn {
			a, b := net.Pipe()
			t.Cleanup(func() { a.Close(); b.Close() })
			return &boundedConn{Conn: a, owner: l}
		}
		begun := time.Now()
		a, b, c, d := pipe(), pipe(), pipe(), pipe()
		l.admit(a)
		a.begin()
		l.admit(b)
		if !l.admit(c) || time.Since(begun) != idle.Patience {
			t.Fatalf("the idle one should make room when its request could have come, and not before: %s", time.Since(begun))
		}
		if _, err := b.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the idle one is still open: %v", err)
		}
		c.begin()
		if l.admit(d) {
			t.Fatal("a connection whose handler works was given up")
		}
		time.AfterFunc(time.Millisecond, func() { a.Close() })
		begun = time.Now()
		if !l.admit(d) || time.Since(begun) != time.Millisecond {
			t.Fatalf("no room after %s", time.Since(begun))
		}
		a.Close()
		c.end()
		if len(l.conns) != 2 || l.working != 0 || l.idle.Len() != 2 {
			t.Fatalf("the list is wrong: %d connections, %d at work", len(l.conns), l.working)
		}
		first, _ := l.idle.Oldest()
		if last, _ := l.idle.Oldest(); first != d || last != c {
			t.Error("the order is wrong")
		}
	})
}

type fakePrograms struct {
	mu   sync.Mutex
	list []ProgramFacts
}

func (f *fakePrograms) Programs() []ProgramFacts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list
}
func (*fakePrograms) AgentRefusals() map[string][]RefusedCalls {
	return map[string][]RefusedCalls{"coder": {{By: "seccomp", Count: 4}}}
}
func (*fakePrograms) Reaped() (uint64, uint64) { return 3, 20000 }

func (*fakePrograms) ScoreRestored() uint64 { return 2 }

type fakeBoot struct{}

func (fakeBoot) Phases() []PhaseState {
	return []PhaseState{{Number: "0.5", Outcome: "ok", Duration: 2 * time.Millisecond}, {Number: "9", Outcome: PhaseRunning}}
}
func (fakeBoot) Took() (time.Duration, bool) { return 1500 * time.Millisecond, true }

func TestMetricsNamesAreGoldenAndClean(t *testing.T) {
	r := newRig(t, AuthBearer)
	r.beReady()
	code := 137
	programs := &fakePrograms{list: []ProgramFacts{{
		Name: "web", State: "RUNNING", Restarts: 2, StartedAt: time.Unix(1700000000, 0), LastExit: &code,
		CPUSeconds: 1.5, Usage: &Usage{ResidentBytes: 4096, OpenFDs: 7},
		Logs: []StreamLogs{{Stream: "stdout", Bytes: 10}, {Stream: "stderr", Dropped: 1}},
	}, {Name: "job", State: "EXITED", CPUSeconds: 2.5}}}
	_, err := RegisterMetrics(r.reg, MetricsConfig{Bus: r.bus, Readiness: r.ready, Programs: programs, Boot: fakeBoot{},
		Build: func() Build { return Build{Version: "1.2.3", FederationMode: "standalone"} }})
	if err != nil {
		t.Fatal(err)
	}
	r.do(t, "GET", "/livez")
	text := r.do(t, "GET", "/metrics").Body.String()
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Fatalf("%v %v", problems, err)
	}
	checkGolden(t, text)
	if promtool, err := exec.LookPath("promtool"); err == nil {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	} else {
		t.Log("needs promtool for the second opinion")
	}
	for _, line := range []string{
		`agentinit_program_state{program="web",state="RUNNING"} 1`,
		`agentinit_program_state{program="web",state="FATAL"} 0`,
		`agentinit_program_last_exit_code{program="web"} 137`,
		`agentinit_program_cpu_seconds_total{program="web"} 1.5`,
		`agentinit_program_cpu_seconds_total{program="job"} 2.5`,
		`agentinit_program_open_fds{program="web"} 7`,
		`agentinit_reaped_processes_total{kind="orphan"} 20000`,
		`agentinit_oom_score_restored_total 2`,
		`agentinit_boot_phase_duration_seconds{phase="0.5"} 0.002`,
		`agentinit_boot_duration_seconds 1.5`,
		`agentinit_ready 1`,
		`agentinit_ready_requirement{id="program:web"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if strings.Contains(text, `agentinit_program_open_fds{program="job"}`) {
		t.Error("a program that does not run has open descriptors")
	}
	if strings.Contains(text, `phase="9"`) {
		t.Error("a phase that has not finished has a duration")
	}
}

// checkGolden compares the names, types and help of our own metrics.
func checkGolden(t *testing.T, text string) {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "# ") && strings.Contains(line, " agent") {
			b.WriteString(line)
		}
	}
	const file = "testdata/metrics.golden"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the metrics have changed (UPDATE_GOLDEN=1 accepts that)\ngot\n%s\nwant\n%s", b.String(), want)
	}
}

func TestCPUCounterNeverFalls(t *testing.T) {
	r := newRig(t, AuthBearer)
	p := &fakePrograms{}
	m, err := RegisterMetrics(r.reg, MetricsConfig{Bus: r.bus, Readiness: r.ready, Programs: p, Build: func() Build { return Build{} }})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ is, want string }{{"5", "5"}, {"3", "5"}, {"6", "6"}} {
		var cpu float64
		fmt.Sscan(c.is, &cpu)
		p.list = []ProgramFacts{{Name: "w", CPUSeconds: cpu}}
		want := `agentinit_program_cpu_seconds_total{program="w"} ` + c.want + "\n"
		if text := r.do(t, "GET", "/metrics").Body.String(); !strings.Contains(text, want) {
			t.Errorf("cpu %s: no %q", c.is, want)
		}
	}
	p.list = nil
	r.do(t, "GET", "/metrics")
	if len(m.cpu) != 0 {
		t.Error("a program that is gone is remembered")
	}
}

func BenchmarkLivez(b *testing.B) {
	l := NewLiveness(pingFunc(func(context.Context) error { return nil }), time.Now())
	for b.Loop() {
		if err := l.check(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// net/http ends the request's context when the client has sent its last byte (nc -N).
func TestLivezAnswersAHalfClosedClient(t *testing.T) {
	r := newRig(t, AuthBearer)
	w := r.ask(t, "GET", "/livez", func(q *http.Request) {
		gone, cancel := context.WithCancel(q.Context())
		cancel()
		*q = *q.WithContext(gone)
	})
	if w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
