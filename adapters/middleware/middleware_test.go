package middleware

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
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// beads is a slot whose answers the test writes; what it does not write is
// class off's.
type beads struct {
	adapters.Beads
	show   func(context.Context) (adapters.Bead, error)
	create func(context.Context, adapters.NewBead) (adapters.Bead, error)
}

func newBeads() *beads { return &beads{Beads: adapters.WrapBeads(nil, nil)} }

func (b *beads) Impl() string          { return "local-sqlite" }
func (b *beads) Class() adapters.Class { return adapters.ClassLocal }
func (b *beads) Enabled() bool         { return true }
func (b *beads) Show(ctx context.Context, _ string) (adapters.Bead, error) {
	return b.show(ctx)
}
func (b *beads) CreateEpic(ctx context.Context, in adapters.NewBead) (adapters.Bead, error) {
	return b.create(ctx, in)
}

func stack(t *testing.T, o Options) *Stack {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOutcomesAreCountedOnce(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := stack(t, Options{Registerer: reg})
	b := newBeads()
	w := adapters.WrapBeads(b, s.Middleware())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for want, f := range map[string]func(context.Context) (adapters.Bead, error){
		"success":  func(context.Context) (adapters.Bead, error) { return adapters.Bead{}, nil },
		"error":    func(context.Context) (adapters.Bead, error) { return adapters.Bead{}, errors.New("no code") },
		"disabled": func(context.Context) (adapters.Bead, error) { return adapters.Bead{}, adapters.ErrDisabled },
		"rejected": func(context.Context) (adapters.Bead, error) { return adapters.Bead{}, adapters.ErrPrivacyRejected },
		"timeout":  func(context.Context) (adapters.Bead, error) { return adapters.Bead{}, context.DeadlineExceeded },
		"canceled": func(context.Context) (adapters.Bead, error) { return adapters.Bead{}, canceled.Err() },
	} {
		b.show = f
		_, _ = w.Show(t.Context(), "ab-1")
		if n := testutil.ToFloat64(s.metrics.dispatch.WithLabelValues("beads", "show", "local-sqlite", want)); n != 1 {
			t.Errorf("%s counted %v times", want, n)
		}
	}
	b.show = func(context.Context) (adapters.Bead, error) { panic("bug") }
	_, err := w.Show(t.Context(), "ab-1")
	if e := adapters.AsError(err); e.Code != adapters.CodeInternal || e.Fields["error_id"] == nil {
		t.Errorf("panic became %+v", e)
	}
	if n := testutil.ToFloat64(s.metrics.dispatch.WithLabelValues("beads", "show", "local-sqlite", "error")); n != 2 {
		t.Errorf("the panic was not counted: %v", n)
	}
	if n := testutil.ToFloat64(s.metrics.errors.WithLabelValues("beads", "INTERNAL")); n != 2 {
		t.Errorf("INTERNAL counted %v times", n)
	}
	if n := testutil.ToFloat64(s.metrics.inflight.WithLabelValues("beads")); n != 0 {
		t.Errorf("%v calls still under way", n)
	}
}

func TestStatusMetricsLeaveOutWhatIsOff(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := stack(t, Options{Registerer: reg})
	err := s.Watch(func() []adapters.SlotStatus {
		return []adapters.SlotStatus{
			{Slot: "beads", Wanted: "local-sqlite", Class: "local", State: adapters.StateHealthy, ContractVersion: "1.1", Reconnects: 2},
			{Slot: "pods", Wanted: "external", Class: "external", State: adapters.StateDegraded, ContractVersion: "1.1"},
			{Slot: "memory", Wanted: "external-pg", Class: "external", State: adapters.StateUnhealthy, ContractVersion: "1.1"},
			{Slot: "events", Wanted: "off", Class: "off", State: adapters.StateOff, ContractVersion: "1.1"},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `# HELP agentbox_adapter_health Health of a slot's adapter: 0 unhealthy, 1 healthy, 2 degraded.
# TYPE agentbox_adapter_health gauge
agentbox_adapter_health{impl="external",slot="pods"} 2
agentbox_adapter_health{impl="external-pg",slot="memory"} 0
agentbox_adapter_health{impl="local-sqlite",slot="beads"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "agentbox_adapter_health"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func TestLogHasTheCallAndNoPayload(t *testing.T) {
	var out bytes.Buffer
	s := stack(t, Options{Log: zerolog.New(&out)})
	b := newBeads()
	b.create = func(context.Context, adapters.NewBead) (adapters.Bead, error) {
		return adapters.Bead{}, errors.New("disk on fire")
	}
	w := adapters.WrapBeads(b, s.Middleware())
	ctx := adapters.WithMeta(t.Context(), adapters.Meta{SessionID: "s1", ExecutionID: "e1"})
	_, err := w.CreateEpic(ctx, adapters.NewBead{Title: "my secret title"})
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	for k, want := range map[string]any{
		"level": "error", "slot": "beads", "method": "createEpic", "impl": "local-sqlite", "session_id": "s1", "execution_id": "e1",
		"outcome": "error", "code": "INTERNAL", "cause": "disk on fire", "error_id": adapters.AsError(err).Fields["error_id"],
	} {
		if line[k] != want {
			t.Errorf("%s = %v, want %v", k, line[k], want)
		}
	}
	if strings.Contains(out.String(), "secret") {
		t.Error("the payload is in the log")
	}
	if _, body := adapters.Problem(err); bytes.Contains(body, []byte("fire")) {
		t.Errorf("the cause leaves the box: %s", body)
	}
}

func TestSpansNameCallParentAndCode(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	s := stack(t, Options{Tracer: tp.Tracer("test")})
	b := newBeads()
	var forwarded string
	b.show = func(ctx context.Context) (adapters.Bead, error) {
		forwarded = adapters.MetaFrom(ctx).TraceParent
		return adapters.Bead{}, adapters.NotFound("bead", "ab-1")
	}
	ctx := adapters.WithMeta(t.Context(), adapters.Meta{TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	_, _ = adapters.WrapBeads(b, s.Middleware()).Show(ctx, "ab-1")
	spans := rec.Ended()
	if len(spans) != 1 || spans[0].Name() != "agentbox.adapter.beads.show" || spans[0].Parent().SpanID().String() != "b7ad6b7169203331" {
		t.Fatalf("spans %+v", spans)
	}
	if !strings.Contains(fmt.Sprint(spans[0].Attributes()), "NOT_FOUND") {
		t.Errorf("attributes %v", spans[0].Attributes())
	}
	if !strings.Contains(forwarded, spans[0].SpanContext().SpanID().String()) {
		t.Errorf("forwarded %q", forwarded)
	}
}

// TestSpanOfAPanicHasNoText: a panic may quote the payload.
func TestSpanOfAPanicHasNoText(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	s := stack(t, Options{Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec)).Tracer("test")})
	b := newBeads()
	b.show = func(context.Context) (adapters.Bead, error) { panic("the payload") }
	_, _ = adapters.WrapBeads(b, s.Middleware()).Show(t.Context(), "ab-1")
	spans := rec.Ended()
	if len(spans) != 1 || len(spans[0].Events()) != 0 || !strings.Contains(fmt.Sprint(spans[0].Attributes()), "INTERNAL") {
		t.Fatalf("spans %+v", spans)
	}
}

// TestRedactionIsBelowTheCall: what the sidecar is sent continues the trace.
func TestRedactionIsBelowTheCall(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	var sent string
	sidecar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Traceparent")
		_, _ = io.WriteString(w, `{"text":"[SECRET]","replaced":[{"entity_group":"secret"}]}`)
	}))
	defer sidecar.Close()
	s := stack(t, Options{
		Tracer:  sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec)).Tracer("test"),
		Privacy: PrivacyConfig{Redactor: NewSidecar(sidecar.Listener.Addr().(*net.TCPAddr).Port)},
	})
	text := "hunter2"
	call := adapters.Call{Slot: adapters.SlotMemory, Method: "store", Write: true, Text: []adapters.Text{{String: &text}}}
	_, err := adapters.Do(t.Context(), s.Middleware(), call, func(context.Context) (string, error) { return text, nil })
	if err != nil || text != "[SECRET]" {
		t.Fatalf("%v, %q", err, text)
	}
	spans := rec.Ended()
	if len(spans) != 2 || spans[0].Name() != "agentbox.privacy_filter.redact" || spans[0].Parent().SpanID() != spans[1].SpanContext().SpanID() {
		t.Fatalf("spans %+v", spans)
	}
	for _, want := range []string{"strict", "memory", "entity_hits", "redacted_bytes"} {
		if got := fmt.Sprint(spans[0].Attributes()); !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if !strings.Contains(sent, spans[0].SpanContext().SpanID().String()) {
		t.Errorf("the sidecar was sent %q", sent)
	}
}

func TestEveryCallHasADeadlineAndStreamsOnlyUntilOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stack(t, Options{ReadLimit: time.Second})
		b := newBeads()
		b.show = func(ctx context.Context) (adapters.Bead, error) { <-ctx.Done(); return adapters.Bead{}, ctx.Err() }
		begin := time.Now()
		if _, err := adapters.WrapBeads(b, s.Middleware()).Show(t.Context(), "ab-1"); !errors.Is(err, adapters.ErrTimeout) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		for _, slow := range []bool{false, true} {
			ctx, cancel := context.WithCancelCause(t.Context())
			open, err := adapters.Do(ctx, s.Middleware(), adapters.Call{Slot: "pods", Method: "read", Cancel: cancel},
				func(ctx context.Context) (context.Context, error) {
					if slow {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return ctx, nil
				})
			if slow != errors.Is(err, adapters.ErrTimeout) {
				t.Errorf("slow %v: %v", slow, err)
			}
			if !slow {
				time.Sleep(time.Hour)
				if open.Err() != nil {
					t.Error("the stream ended with its opening's limit")
				}
			}
			cancel(nil)
		}
	})
}

func TestIdempotencyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stack(t, Options{})
		b := newBeads()
		n := 0
		hold := make(chan struct{})
		b.create = func(_ context.Context, in adapters.NewBead) (adapters.Bead, error) {
			n++
			switch in.Title {
			case "slow":
				<-hold
			case "fail":
				return adapters.Bead{}, adapters.Unavailable(nil, "down")
			case "panic":
				panic("bug")
			}
			return adapters.Bead{ID: fmt.Sprintf("ab-%d", n), Tags: []string{"x"}}, nil
		}
		w := adapters.WrapBeads(b, s.Middleware())
		call := func(actor, key, title string) (adapters.Bead, bool, error) {
			var r adapters.Report
			ctx := adapters.WithReport(adapters.WithMeta(t.Context(), adapters.Meta{Actor: actor, IdempotencyKey: key}), &r)
			got, err := w.CreateEpic(ctx, adapters.NewBead{Title: title})
			return got, r.Replayed, err
		}
		first, replayed, err := call("ann", "k", "a")
		if err != nil || replayed {
			t.Fatal(err, replayed)
		}
		again, replayed, err := call("ann", "k", "a")
		if err != nil || !replayed || again.ID != first.ID || again.Tags[0] != "x" {
			t.Errorf("replay: %+v %v %v", again, replayed, err)
		}
		if _, _, err := call("ann", "k", "b"); !errors.Is(err, adapters.ErrIdempotencyMismatch) {
			t.Errorf("other request: %v", err)
		}
		if other, replayed, err := call("bob", "k", "a"); err != nil || replayed || other.ID == first.ID {
			t.Errorf("another actor's key: %+v %v", other, err)
		}
		if a, _, _ := call("ann", "", "a"); a.ID == first.ID {
			t.Error("replayed without a key")
		}
		for range 2 { // a failure is not an answer
			if _, replayed, err := call("ann", "f", "fail"); !errors.Is(err, adapters.ErrUnavailable) || replayed {
				t.Errorf("%v %v", err, replayed)
			}
			if _, _, err := call("ann", "p", "panic"); !errors.Is(err, adapters.ErrInternal) {
				t.Errorf("panic: %v", err)
			}
		}
		done := make(chan error)
		go func() { _, _, err := call("ann", "s", "slow"); done <- err }()
		synctest.Wait()
		if _, _, err := call("ann", "s", "slow"); !errors.Is(err, adapters.ErrConflict) || !adapters.AsError(err).Retryable {
			t.Errorf("while running: %v", err)
		}
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(adapters.IdempotencyLife + time.Second)
		if late, replayed, _ := call("ann", "k", "a"); replayed || late.ID == first.ID {
			t.Error("remembered after 24 h")
		}
		if len(s.replays.byKey) != 1 || s.replays.order.Len() != 1 {
			t.Errorf("%d keys kept", len(s.replays.byKey))
		}
	})
}

func TestRememberedAnswersAreBounded(t *testing.T) {
	r := newReplays(zerolog.Nop())
	answer := make([]byte, 1<<20)
	for i := range 100 {
		key := [32]byte{byte(i)}
		if _, err := r.begin(t.Context(), key, key); err != nil {
			t.Fatal(err)
		}
		r.finish(t.Context(), key, key, answer)
	}
	if r.bytes > maxReplayed || len(r.byKey) != 32 {
		t.Errorf("%d bytes in %d keys", r.bytes, len(r.byKey))
	}
	r = newReplays(zerolog.Nop())
	for i := range maxReplays {
		if _, err := r.begin(t.Context(), [32]byte{byte(i), byte(i >> 8)}, [32]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.begin(t.Context(), [32]byte{31: 1}, [32]byte{}); !errors.Is(err, adapters.ErrRateLimited) {
		t.Errorf("full of running calls: %v", err)
	}
}

// mask is a redactor that masks one word.
type mask struct {
	mu    sync.Mutex
	texts []string
	err   error
	hang  bool
}

func (m *mask) Redact(ctx context.Context, r RedactRequest) (a RedactAnswer, err error) {
	m.mu.Lock()
	m.texts = append(m.texts, r.Text)
	m.mu.Unlock()
	if m.hang {
		<-ctx.Done()
		return a, ctx.Err()
	}
	out := strings.ReplaceAll(r.Text, "Alice", "[PRIVATE_PERSON]")
	return RedactAnswer{Text: &out}, m.err
}

func TestPoliciesDecideWhatAFailureMeans(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		err    error
		stored string
		want   error
	}{
		{PolicyStrict, nil, "hi [PRIVATE_PERSON]", nil},
		{PolicySoft, nil, "hi [PRIVATE_PERSON]", nil},
		{PolicyOff, nil, "hi Alice", nil},
		{PolicyStrict, errors.New("model unavailable"), "", adapters.ErrPrivacyRejected},
		{PolicySoft, errors.New("model unavailable"), "hi Alice", nil},
		{PolicyOff, errors.New("model unavailable"), "hi Alice", nil},
	} {
		t.Run(string(c.policy)+fmt.Sprint(c.err), func(t *testing.T) {
			var log bytes.Buffer
			m := &mask{err: c.err}
			s := stack(t, Options{Log: zerolog.New(&log), Privacy: PrivacyConfig{Redactor: m, Policies: map[adapters.Slot]Policy{adapters.SlotBeads: c.policy}}})
			b, stored := newBeads(), ""
			b.create = func(_ context.Context, in adapters.NewBead) (adapters.Bead, error) {
				stored = in.Title
				return adapters.Bead{}, nil
			}
			for range 2 {
				_, err := adapters.WrapBeads(b, s.Middleware()).CreateEpic(t.Context(), adapters.NewBead{Title: "hi Alice"})
				if !errors.Is(err, c.want) || stored != c.stored {
					t.Errorf("%v, stored %q", err, stored)
				}
			}
			closed, open := testutil.ToFloat64(s.privacy.metrics.closed.WithLabelValues("beads")), testutil.ToFloat64(s.privacy.metrics.open.WithLabelValues("beads"))
			if failed := c.err != nil; (closed == 2) != (failed && c.policy == PolicyStrict) || (open == 2) != (failed && c.policy == PolicySoft) {
				t.Errorf("closed %v, open %v", closed, open)
			}
			if n := strings.Count(log.String(), "without a check"); n > 1 {
				t.Errorf("%d warnings for two calls", n)
			}
			if asked := len(m.texts) > 0; asked != (c.policy != PolicyOff) {
				t.Errorf("asked %v", m.texts)
			}
		})
	}
}

func TestASlowRedactorHasTwoSecondsInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stack(t, Options{Privacy: PrivacyConfig{Redactor: &mask{hang: true}}})
		payload := json.RawMessage(`{"a":["1x","2x","3x","4x","5x","6x","7x","8x"]}`)
		begin := time.Now()
		err := s.privacy.rewrite(t.Context(), adapters.SlotMemory, []adapters.Text{{JSON: &payload}}, nil)
		if !errors.Is(err, adapters.ErrPrivacyRejected) || time.Since(begin) != redactLimit {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

func TestWhatTheRedactorMakesTooLongIsItsFailure(t *testing.T) {
	s := stack(t, Options{Privacy: PrivacyConfig{Redactor: &mask{}}})
	b, stored := newBeads(), ""
	b.create = func(_ context.Context, in adapters.NewBead) (adapters.Bead, error) {
		stored = in.Title
		return adapters.Bead{}, nil
	}
	title := "Alice" + strings.Repeat("x", 495)
	if _, err := adapters.WrapBeads(b, s.Middleware()).CreateEpic(t.Context(), adapters.NewBead{Title: title}); err != nil || stored != title {
		t.Errorf("soft: %v, stored %d bytes", err, len(stored))
	}
}

func TestDocumentsKeepTheirStructure(t *testing.T) {
	const id = "urn:agentbox:Alice"
	for name, c := range map[string]struct{ contentType, in, want string }{
		"json":       {"application/json", `{ "Alice" : "Alice", "n": 1.50, "list":["x Alice\n",null], "user_id":"Alice-1"}`, `{ "Alice" : "[PRIVATE_PERSON]", "n": 1.50, "list":["x [PRIVATE_PERSON]\n",null], "user_id":"Alice-1"}`},
		"json-ld":    {"application/ld+json", `{"@id":"#Alice","@type":"Alice","name":{"@value":"Alice"},"u":"` + id + `"}`, `{"@id":"#Alice","@type":"Alice","name":{"@value":"[PRIVATE_PERSON]"},"u":"` + id + `"}`},
		"ids in use": {"application/json", `{"id":"Alice Smith","x":[{"id":"a"},"Alice"]}`, `{"id":"[PRIVATE_PERSON] Smith","x":[{"id":"a"},"[PRIVATE_PERSON]"]}`},
		"turtle": {"text/turtle", "# Alice\n<http://x/Alice#\"> <p> \"Alice \\\"q\\\"\"@en, '''x\nAlice''' ; <q> \"\\u0041lice\" .",
			"# Alice\n<http://x/Alice#\"> <p> \"[PRIVATE_PERSON] \\\"q\\\"\"@en, '''x\\n[PRIVATE_PERSON]''' ; <q> \"[PRIVATE_PERSON]\" ."},
		"turtle names": {"text/turtle", `x:Alice\'s <p> "Alice" . x:a\#b <p> 'Alice' .`, `x:Alice\'s <p> "[PRIVATE_PERSON]" . x:a\#b <p> '[PRIVATE_PERSON]' .`},
		"open literal": {"text/turtle", `<a> <p> "Alice" , "Alice .`, `<a> <p> "[PRIVATE_PERSON]" , "[PRIVATE_PERSON] .`},
		"open line":    {"text/turtle", "<a> <p> 'x .\n<b> <p> Alice, 'y' .", "<a> <p> 'x .\n<b> <p> [PRIVATE_PERSON], 'y' ."},
		"broken json":  {"application/json", `{"a": Alice`, `{"a": [PRIVATE_PERSON]`},
		"text":         {"text/plain; charset=utf-8", "Alice", "[PRIVATE_PERSON]"},
	} {
		t.Run(name, func(t *testing.T) {
			s := stack(t, Options{Privacy: PrivacyConfig{Redactor: &mask{}}})
			body := adapters.Body{ContentType: c.contentType, Reader: strings.NewReader(c.in), Size: -1}
			if name == "turtle" { // an IRI holds no quote; the scanner must not stumble
				body.Reader = strings.NewReader(strings.Replace(c.in, `#">`, `#>`, 1))
				c.want = strings.Replace(c.want, `#">`, `#>`, 1)
			}
			if err := s.privacy.rewrite(t.Context(), adapters.SlotPods, []adapters.Text{{Body: &body}}, nil); err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(body.Reader)
			if string(got) != c.want || body.Size != int64(len(got)) {
				t.Errorf("\ngot  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestBinaryAndHugeBodiesAreRefusedOrWhole(t *testing.T) {
	huge := strings.Repeat("Alice ", 1<<18)
	for name, c := range map[string]struct{ contentType, in string }{
		"binary": {"image/png", "\x89PNG Alice"}, "not UTF-8": {"text/plain", "\xff Alice"}, "huge": {"text/plain", huge}, "no type": {"???", "Alice"},
	} {
		for policy, want := range map[Policy]error{PolicyStrict: adapters.ErrPrivacyRejected, PolicySoft: nil} {
			s := stack(t, Options{Privacy: PrivacyConfig{Redactor: &mask{}, Policies: map[adapters.Slot]Policy{adapters.SlotPods: policy}}})
			body := adapters.Body{ContentType: c.contentType, Reader: strings.NewReader(c.in), Size: -1}
			err := s.privacy.rewrite(t.Context(), adapters.SlotPods, []adapters.Text{{Body: &body}}, nil)
			if !errors.Is(err, want) {
				t.Errorf("%s, %s: %v", name, policy, err)
			}
			if got, _ := io.ReadAll(body.Reader); string(got) != c.in {
				t.Errorf("%s, %s: the body was damaged (%d of %d bytes)", name, policy, len(got), len(c.in))
			}
		}
	}
}

func TestSidecarProtocol(t *testing.T) {
	var got RedactRequest
	padding := 0
	status, answer := 200, `{"text":"[ENTITY]","replaced":[{"entity_group":"private_person","start":0,"end":5,"score":0.9},{"entity_group":"new","start":0,"end":1,"score":1}],"latency_ms":1.5}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/redact" || json.NewDecoder(r.Body).Decode(&got) != nil {
			t.Errorf("bad request %s", r.URL)
		}
		w.Header().Set("Padding", strings.Repeat("x", padding))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer srv.Close()
	u, _ := url.Parse(srv.URL)
	port, _ := strconv.Atoi(u.Port())
	car := NewSidecar(port)
	defer car.Close()
	s := stack(t, Options{Privacy: PrivacyConfig{Redactor: car, Entities: []string{"private_person"}}})
	text := "Alice"
	rewrite := func() error {
		return s.privacy.rewrite(t.Context(), adapters.SlotMemory, []adapters.Text{{String: &text}}, nil)
	}
	if err := rewrite(); err != nil || text != "[ENTITY]" {
		t.Errorf("%v %q", err, text)
	}
	if got.Text != "Alice" || got.Slot != "memory" || len(got.Entities) != 1 {
		t.Errorf("asked %+v", got)
	}
	for _, entity := range []string{"private_person", "other"} {
		if n := testutil.ToFloat64(s.privacy.metrics.redactions.WithLabelValues("memory", entity)); n != 1 {
			t.Errorf("%s counted %v times", entity, n)
		}
	}
	for name, c := range map[string]struct {
		status int
		answer string
	}{"no text": {200, `{"error":"model unavailable"}`}, "down": {503, `{"text":"x"}`}, "garbage": {200, "<html>"}, "redirect": {307, ""}} {
		status, answer = c.status, c.answer
		if err := rewrite(); !errors.Is(err, adapters.ErrPrivacyRejected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Any program can take the port while the sidecar is down, and hundreds of calls wait for it at once.
	status, answer, padding = 200, `{"text":"x"}`, 128<<10
	if err := rewrite(); !errors.Is(err, adapters.ErrPrivacyRejected) {
		t.Errorf("large header: %v", err)
	}
}

func FuzzLeaves(f *testing.F) {
	f.Add(`{"a":"b\"c","d":[1,"x"],"@id":"y"}`, "<a> <b> \"c\\n\" . # d")
	f.Fuzz(func(t *testing.T, doc, rdf string) {
		upper := func(p *pieces) {
			for _, x := range p.all() {
				x.redacted = strings.ToUpper(x.text) + "!"
			}
		}
		if json.Valid([]byte(doc)) {
			raw := json.RawMessage(doc)
			p := &pieces{byText: make(map[string]*piece)}
			p.json(&raw)
			upper(p)
			p.apply()
			if !json.Valid(raw) {
				t.Fatalf("%q became %q", doc, raw)
			}
		}
		p := &pieces{byText: make(map[string]*piece)}
		d := document{raw: []byte(rdf), spans: p.rdfSpans([]byte(rdf))}
		upper(p)
		out, _ := d.rewrite()
		p2 := &pieces{byText: make(map[string]*piece)}
		if again := p2.rdfSpans(out); len(again) != len(d.spans) {
			t.Fatalf("%q has %d literals, rewritten %q has %d", rdf, len(d.spans), out, len(again))
		}
	})
}
