package telemetry

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/dreamlab-ai/agentinit/telemetry/collectortest"
)

// TestRequests uses a server of the standard library. The features that this server offers to
// handlers must still be available below the span.
func TestRequests(t *testing.T) {
	route := func(r *http.Request, pattern string) {
		trace.SpanFromContext(r.Context()).SetAttributes(attribute.String("http.route", pattern))
	}
	handlers := map[string]http.HandlerFunc{
		"plain":  func(_ http.ResponseWriter, r *http.Request) { route(r, "/{what}") },
		"refuse": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"fail": func(w http.ResponseWriter, r *http.Request) {
			route(r, "/{what}")
			w.WriteHeader(http.StatusBadGateway)
		},
		"abort": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"flush": func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		},
		"hijack": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			conn.Close()
		},
	}
	cases := []struct {
		method, handler, span string
		status                any // nil: none
		failed                bool
	}{
		{"GET", "plain", "GET /{what}", int64(200), false},
		{"MADEUP", "plain", "_OTHER /{what}", int64(200), false},
		{"GET", "refuse", "GET", int64(418), false},
		{"GET", "fail", "GET /{what}", int64(502), true},
		{"GET", "abort", "GET", nil, true},
		{"GET", "flush", "GET", int64(200), false},
		{"GET", "hijack", "GET", int64(101), false},
	}
	for _, c := range cases {
		t.Run(c.method+" "+c.handler, func(t *testing.T) {
			collector := collectortest.Start(t, collectortest.HTTP)
			p := pipeline(t, Config{Endpoint: collector.Endpoint, Report: func(err error) { t.Error(err) }})
			ask(t, p.Handler(handlers[c.handler]), c.method, c.handler == "abort" || c.handler == "hijack")
			if err := p.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans := collector.Spans()
			if len(spans) != 1 {
				t.Fatalf("spans %+v", spans)
			}
			s := spans[0]
			method, _, _ := strings.Cut(c.span, " ")
			if s.Name != c.span || s.Parent != "" || s.Attributes[statusKey] != c.status || s.Failed != c.failed || s.Attributes[methodKey] != method {
				t.Errorf("span %+v", s)
			}
			if strings.Contains(string(collector.Raw()), "private") {
				t.Errorf("the path is in %+v", s)
			}
		})
	}
}

// ask sends one request to h and returns when h has ended.
func ask(t *testing.T, h http.Handler, method string, breaks bool) {
	t.Helper()
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+"/private?private", strings.NewReader("private"))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil // if the client retried the request, there would be two spans
	req.Header.Set("Traceparent", "garbage")
	if breaks {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "something")
	}
	resp, err := srv.Client().Do(req)
	if breaks != errors.Is(err, io.EOF) {
		t.Errorf("the answer: %v", err)
	}
	if err == nil {
		resp.Body.Close()
	}
	<-ended // Close does not wait for a hijacked connection
}
