package telemetry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/internal/otlp"
	"github.com/dreamlab-ai/agentinit/telemetry/collectortest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var forms = []collectortest.Form{collectortest.HTTP, collectortest.GRPC}

// reports collects the errors that a pipeline reports.
type reports struct {
	mu   sync.Mutex
	said []string
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, err.Error())
}

func (r *reports) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.said, "\n")
}

func pipeline(t *testing.T, c Config) *Pipeline {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := p.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return p
}

func finish(p *Pipeline, spans int) {
	for i := range spans {
		_, span := p.Tracer().Start(context.Background(), fmt.Sprintf("span %d", i))
		span.End()
	}
}

func (p *Pipeline) lost(reason string) int {
	return int(testutil.ToFloat64(p.dropped.WithLabelValues(reason)))
}

func TestSpansReachTheCollector(t *testing.T) {
	for _, form := range forms {
		t.Run(string(form), func(t *testing.T) {
			collector := collectortest.Start(t, form)
			p := pipeline(t, Config{
				Endpoint: collector.Endpoint, Headers: "x-team=red,authorization=Bearer%20one%3Dtwo",
				Version: "1.2.3", Instance: "box-1", Report: func(err error) { t.Error(err) },
			})
			ctx, parent := p.Tracer().Start(context.Background(), "parent", trace.WithSpanKind(trace.SpanKindServer))
			_, child := p.Tracer().Start(ctx, "child", trace.WithAttributes(attribute.String("long", strings.Repeat("x", 2*maxValue))))
			child.End()
			parent.End()
			if err := p.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans := collector.Spans()
			if len(spans) != 2 || spans[0].Name != "child" || spans[0].Parent != spans[1].ID || spans[0].TraceID != spans[1].TraceID || spans[1].Kind != "SERVER" {
				t.Errorf("spans %+v", spans)
			}
			if got := spans[0].Attributes["long"].(string); len(got) != maxValue {
				t.Errorf("a value of %d characters was sent, the most is %d", len(got), maxValue)
			}
			if r := collector.Resource(); r["service.name"] != "agentinit" || r["service.version"] != "1.2.3" || r["service.instance.id"] != "box-1" {
				t.Errorf("resource %v", r)
			}
			for _, h := range collector.Headers() {
				if h.Get("X-Team") != "red" || h.Get("Authorization") != "Bearer one=two" || h.Get("User-Agent") != otlp.UserAgent {
					t.Errorf("headers %v", h)
				}
			}
			if got := testutil.ToFloat64(p.exported); got != 2 {
				t.Errorf("%v spans exported, want 2", got)
			}
			finish(p, 1) // a span after Shutdown is discarded and causes no panic
		})
	}
}

// TestFullQueueDropsAndCounts delays the collector's answer until the queue is full.
func TestFullQueueDropsAndCounts(t *testing.T) {
	collecting, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	endpoint := serve(t, collectortest.HTTP, func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(collecting) })
		<-release
		collectortest.Accept(w, collectortest.HTTP, nil)
	})
	p := pipeline(t, Config{Endpoint: endpoint, Report: func(err error) { t.Error(err) }})
	finish(p, batchSize)
	<-collecting
	const over = 100
	finish(p, queueSize-batchSize+over)
	if got := p.lost(dropQueue); got != over {
		t.Errorf("%d spans dropped, want %d", got, over)
	}
	close(release)
	if err := p.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(p.exported); got != queueSize {
		t.Errorf("%v spans exported, want %d", got, queueSize)
	}
	if held := p.held.Load(); held != 0 {
		t.Errorf("%d spans still counted as held", held)
	}
}

// TestCollectorsThatDoNotTakeSpans: each span is counted once, the shutdown completes, and no
// report contains the endpoint's password or a header's value.
func TestCollectorsThatDoNotTakeSpans(t *testing.T) {
	const spans = batchSize + 3
	cases := map[string]http.HandlerFunc{
		"500":            func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"503":            func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"redirects":      func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"endless answer": endless,
		"breaks off":     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"too many headers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 2*maxAnswer))
		},
	}
	for _, form := range forms {
		for name, handler := range cases {
			t.Run(string(form)+" "+name, func(t *testing.T) {
				var said reports
				endpoint := serve(t, form, handler)
				p := pipeline(t, Config{
					Endpoint: strings.Replace(endpoint, "://", "://me:hunter2@", 1), Headers: "x-secret=hunter3", Report: said.add,
				})
				finish(p, spans)
				if err := p.Shutdown(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := p.lost(dropExport); got != spans {
					t.Errorf("%d spans dropped, want %d", got, spans)
				}
				if text := said.all(); !strings.Contains(text, "spans lost") || strings.Contains(text, "hunter") || strings.Count(text, "\n") > 0 {
					t.Errorf("reported %q", text)
				}
			})
		}
	}
}

func endless(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	for chunk := make([]byte, 32<<10); r.Context().Err() == nil; {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// TestNobodyListens: no server listens at the endpoint.
func TestNobodyListens(t *testing.T) {
	for _, form := range forms {
		l := collectortest.Listen(t, form)
		endpoint := "http://" + l.Addr().String()
		l.Close()
		var said reports
		p := pipeline(t, Config{Endpoint: endpoint, Report: said.add})
		finish(p, 3)
		if err := p.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.lost(dropExport); got != 3 || !strings.Contains(said.all(), "refused") {
			t.Errorf("%s: %d spans dropped, want 3; reported %q", form, got, said.all())
		}
	}
}

// TestShutdownLetsGoOfASilentCollector: the collector accepts the connection and never answers.
// Shutdown takes no longer than its context allows.
func TestShutdownLetsGoOfASilentCollector(t *testing.T) {
	for _, form := range forms {
		t.Run(string(form), func(t *testing.T) {
			l := collectortest.Listen(t, form)
			defer l.Close()
			connected := make(chan struct{})
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				conn, err := l.Accept()
				if err != nil {
					return
				}
				close(connected)
				for buf := make([]byte, 1<<10); err == nil; { // until the client closes the connection
					_, err = conn.Read(buf)
				}
				conn.Close()
			}()
			var said reports
			p := pipeline(t, Config{Endpoint: "http://" + l.Addr().String(), Report: said.add})
			finish(p, 3)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() { ended <- p.Shutdown(ctx) }()
			<-connected // the export has begun and would not end by itself
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Shutdown: %v", err)
			}
			<-closed
		})
	}
}

func TestEndpointsThatAreNone(t *testing.T) {
	for _, endpoint := range []string{"collector:4318", "://", "http://", "http://:4318", "ftp://collector", "http://me:hunter2@coll ector", "/v1/traces"} {
		_, err := New(Config{Endpoint: endpoint})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

func TestHeaders(t *testing.T) {
	cases := []struct {
		list string
		want []string // "Name: value", sorted by name
		bad  int
	}{
		{"", nil, 0},
		{"a=b", []string{"A: b"}, 0},
		{" a = b , c=d%2Ce ", []string{"A: b", "C: d,e"}, 0},
		{"a=,b=c=d", []string{"A: ", "B: c=d"}, 0},
		{"a=b,,", []string{"A: b"}, 0},
		{"secret", nil, 1},
		{"a b=secret,=secret,a=%zzsecret,a=%0Asecret,x=y", []string{"X: y"}, 4},
		{"content-type=secret,te=secret,host=secret", nil, 3},
		{"ü=secret", nil, 1},
	}
	for _, c := range cases {
		headers, err := parseHeaders(c.list)
		var got []string
		for name := range headers {
			got = append(got, name+": "+headers.Get(name))
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.list, got, c.want)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if n := strings.Count(text, "is not used"); n != c.bad || strings.Contains(text, "secret") {
			t.Errorf("%q: %d complaints, want %d: %s", c.list, n, c.bad, text)
		}
	}
}

// serve runs handler as a collector of this form until the test ends.
func serve(t *testing.T, form collectortest.Form, handler http.HandlerFunc) (endpoint string) {
	t.Helper()
	l := collectortest.Listen(t, form)
	srv := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(form == collectortest.HTTP)
	srv.Protocols.SetUnencryptedHTTP2(form == collectortest.GRPC)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		<-ended
	})
	return "http://" + l.Addr().String()
}

// TestGRPCOverTLS: an https endpoint with port 4317 uses HTTP/2, negotiated by ALPN.
func TestGRPCOverTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := collectortest.Message(r, collectortest.GRPC); err != nil {
			t.Error(err)
		}
		collectortest.Accept(w, collectortest.GRPC, nil)
	}))
	srv.Listener.Close()
	srv.Listener = collectortest.Listen(t, collectortest.GRPC)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // hides the handshake error of the client that trusts no certificate
	srv.StartTLS()
	defer srv.Close()
	for _, trusted := range []bool{true, false} {
		var said reports
		p := pipeline(t, Config{Endpoint: "https://" + srv.Listener.Addr().String(), Report: said.add})
		if trusted {
			roots := x509.NewCertPool()
			roots.AddCert(srv.Certificate())
			p.client.tls.RootCAs, p.client.tls.ServerName = roots, "example.com"
		}
		finish(p, 1)
		if err := p.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := testutil.ToFloat64(p.exported); (got == 1) != trusted || trusted != (said.all() == "") {
			t.Errorf("trusted %v: %v exported, reported %q", trusted, got, said.all())
		}
	}
}
