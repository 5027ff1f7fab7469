// Package collectortest is an OpenTelemetry collector for tests: it takes spans
// as OTLP over HTTP or gRPC and keeps them in memory.
//
// Only tests may import it: it must never be part of a binary.
package collectortest

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Form is the protocol that a collector speaks.
type Form string

// The forms.
const (
	HTTP Form = "http"
	GRPC Form = "grpc" // over cleartext HTTP/2
)

// patience limits how long a test waits for spans.
const patience = time.Minute

// Span is a span as the collector received it. Parent is "" for a root span.
type Span struct {
	Name, TraceID, ID, Parent string
	Kind                      string // "SERVER", "INTERNAL", …
	Failed                    bool
	Start, End                time.Time
	Attributes                map[string]any
	Events                    []string
}

// Collector is a server. Its methods may be called from any goroutine.
type Collector struct {
	// Endpoint is the address to give to an exporter.
	Endpoint string

	mu       sync.Mutex
	spans    []Span
	resource map[string]any
	headers  []http.Header
	faults   []error
	raw      []byte
	news     chan struct{} // closed and replaced with every batch
}

// Start serves until the test ends. The test fails if a request arrives that is not OTLP in this
// form.
func Start(t testing.TB, form Form) *Collector {
	t.Helper()
	c := &Collector{news: make(chan struct{})}
	l := Listen(t, form)
	c.Endpoint = "http://" + l.Addr().String()
	srv := &http.Server{Handler: c.handler(form), Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(form == HTTP)
	srv.Protocols.SetUnencryptedHTTP2(form == GRPC)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		<-ended
		for _, err := range c.faults {
			t.Errorf("the collector was sent something else than OTLP: %v", err)
		}
	})
	return c
}

// Listen opens a loopback address with the conventional port of the form: 4317 for gRPC, any other
// port for HTTP.
func Listen(t testing.TB, form Form) net.Listener {
	t.Helper()
	address := "127.0.0.1:0"
	if form == GRPC {
		// All of 127/8 is loopback on Linux, so a random address avoids a conflict between two
		// tests.
		address = fmt.Sprintf("127.%d.%d.%d:4317", 1+rand.N(254), rand.N(256), 1+rand.N(254))
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (c *Collector) handler(form Form) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		message, err := Message(r, form)
		var data tracepb.TracesData
		if err == nil {
			err = proto.Unmarshal(message, &data)
		}
		c.mu.Lock()
		if err != nil {
			c.faults = append(c.faults, err)
		}
		c.headers = append(c.headers, r.Header.Clone())
		c.raw = append(c.raw, message...)
		for _, rs := range data.ResourceSpans {
			c.resource = attributes(rs.Resource.GetAttributes())
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					c.spans = append(c.spans, span(s))
				}
			}
		}
		close(c.news)
		c.news = make(chan struct{})
		c.mu.Unlock()
		Accept(w, form, nil)
	})
}

// Message returns the protobuf message of an export request. The error says which part of the HTTP
// request is wrong.
func Message(r *http.Request, form Form) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	want := map[Form][2]string{
		HTTP: {"/v1/traces", "application/x-protobuf"},
		GRPC: {"/opentelemetry.proto.collector.trace.v1.TraceService/Export", "application/grpc+proto"},
	}[form]
	if r.Method != http.MethodPost || r.URL.Path != want[0] || r.Header.Get("Content-Type") != want[1] {
		return nil, fmt.Errorf("%s %s with %q", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
	}
	if form == HTTP {
		return body, nil
	}
	if r.ProtoMajor != 2 || r.Header.Get("Te") != "trailers" {
		return nil, fmt.Errorf("%s with te %q", r.Proto, r.Header.Get("Te"))
	}
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return nil, fmt.Errorf("a frame of %d bytes that begins %x", len(body), body[:min(len(body), 5)])
	}
	return body[5:], nil
}

// Accept sends the ExportTraceServiceResponse that says that the spans were taken.
func Accept(w http.ResponseWriter, form Form, response []byte) {
	if form == GRPC {
		w.Header().Set("Content-Type", "application/grpc+proto")
		w.Header().Set("Trailer", "Grpc-Status")
		response = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(response))), response...)
		defer w.Header().Set("Grpc-Status", "0")
	} else {
		w.Header().Set("Content-Type", "application/x-protobuf")
	}
	_, _ = w.Write(response) // the client may have closed the connection; it needs no answer then
}

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Await waits until enough returns true, then returns the spans.
func (c *Collector) Await(t testing.TB, enough func([]Span) bool) []Span {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		c.mu.Lock()
		news := c.news
		c.mu.Unlock()
		spans := c.Spans()
		if enough(spans) {
			return spans
		}
		select {
		case <-news:
		case <-ctx.Done():
			t.Fatalf("the spans that were waited for did not come; there are %v", spans)
		}
	}
}

// Resource returns the resource attributes that came with the spans.
func (c *Collector) Resource() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resource
}

// Headers returns the headers of every request.
func (c *Collector) Headers() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]http.Header(nil), c.headers...)
}

// Raw returns all messages as received. Tests search it for text that must not be sent.
func (c *Collector) Raw() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.raw...)
}

func span(s *tracepb.Span) Span {
	out := Span{
		Name: s.Name, TraceID: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
		Kind: strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"), Failed: s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR,
		Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
		Attributes: attributes(s.Attributes),
	}
	for _, e := range s.Events {
		out.Events = append(out.Events, e.Name)
	}
	return out
}

func attributes(list []*commonpb.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range list {
		switch v := kv.Value.GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.Key] = v.IntValue
		case *commonpb.AnyValue_BoolValue:
			out[kv.Key] = v.BoolValue
		case *commonpb.AnyValue_DoubleValue:
			out[kv.Key] = v.DoubleValue
		default:
			out[kv.Key] = kv.Value.String()
		}
	}
	return out
}
