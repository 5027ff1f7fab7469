package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// sink is a server of the events protocol with a local journal. A test can switch on faults.
type sink struct {
	t      testing.TB
	events adapters.Events
	fault  atomic.Pointer[func(http.ResponseWriter, *http.Request, []byte) bool] // returns true if it has answered
	posts  atomic.Int64
	url    string
}

func newSink(t testing.TB) *sink {
	l := newLocal(t, LocalConfig{Dir: t.TempDir()})
	if err := l.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := &sink{t: t, events: adapters.WrapEvents(l, nil)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/meta", s.meta)
	mux.HandleFunc("POST /v1/events", s.post)
	mux.HandleFunc("GET /v1/events", s.list)
	mux.HandleFunc("GET /v1/events/stream", s.stream)
	srv := httptest.NewServer(mux)
	s.url = srv.URL
	t.Cleanup(func() {
		_ = l.Disconnect(context.Background()) // ends the streams for which Close waits
		srv.Close()
	})
	return s
}

func (s *sink) breaks(f func(http.ResponseWriter, *http.Request, []byte) bool) { s.fault.Store(&f) }

func (s *sink) meta(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"adapter_contract_versions":{"events":"1.1"},"capabilities":{"events":["history"]}}`)
}

func (s *sink) post(w http.ResponseWriter, r *http.Request) {
	s.posts.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if f := s.fault.Load(); f != nil && (*f)(w, r, body) {
		return
	}
	var batch []adapters.CloudEvent
	if r.Header.Get("Content-Type") == adapters.CloudBatchType {
		err = json.Unmarshal(body, &batch)
	} else {
		batch = make([]adapters.CloudEvent, 1)
		err = json.Unmarshal(body, &batch[0])
	}
	for _, c := range batch {
		var e adapters.Event
		if err == nil {
			e, err = c.Event()
		}
		if err == nil {
			_, err = s.events.Dispatch(r.Context(), e)
		}
	}
	if err != nil {
		adapters.WriteProblem(w, err)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

func (s *sink) filter(r *http.Request) adapters.EventFilter {
	q := r.URL.Query()
	return adapters.EventFilter{Kinds: q["kind"], SessionID: q.Get("session_id")}
}

func (s *sink) list(w http.ResponseWriter, r *http.Request) {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	page, err := s.events.History(r.Context(), s.filter(r), adapters.PageOpt{Limit: limit, Cursor: r.URL.Query().Get("cursor")})
	if err != nil {
		adapters.WriteProblem(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(page)
}

func (s *sink) stream(w http.ResponseWriter, r *http.Request) {
	from := adapters.From{Live: true}
	if after := r.URL.Query().Get("after"); after != "" {
		from.Live = false
		from.After, _ = strconv.ParseUint(after, 10, 64)
	}
	sub, err := s.events.Subscribe(r.Context(), s.filter(r), from)
	if err != nil {
		adapters.WriteProblem(w, err)
		return
	}
	defer sub.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
	for {
		e, err := sub.Next(r.Context())
		if err != nil {
			return
		}
		name, data := "event", any(e)
		if e.Kind == adapters.KindLagged {
			name, data = adapters.KindLagged, e.Payload
		}
		raw, _ := json.Marshal(data)
		fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, name, raw)
		w.(http.Flusher).Flush()
	}
}

func newExternal(t testing.TB, url, dir string, more ...func(*ExternalConfig)) *External {
	t.Helper()
	cfg := ExternalConfig{URL: url, Key: "integrations.external_events.url", Dir: dir, Source: testSource}
	for _, m := range more {
		m(&cfg)
	}
	x, err := NewExternal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestContractExternal(t *testing.T) {
	contract.Events(t, func(t testing.TB) adapters.Events { return newExternal(t, newSink(t).url, t.TempDir()) })
}

// connected connects x for the test and returns its wrapped slot.
func connected(t *testing.T, x *External) adapters.Events {
	t.Helper()
	if err := x.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Disconnect(context.Background()) })
	return adapters.WrapEvents(x, nil)
}

// The kind of an event becomes a line of the box's own event streams.
func TestEventsWithForgedKindsAreSkipped(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/meta", (&sink{}).meta)
	mux.HandleFunc("GET /v1/events/stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i, kind := range []string{`x\ndata: {}\n`, ``, `good`} {
			fmt.Fprintf(w, "id: %d\ndata: {\"seq\":%d,\"kind\":\"%s\"}\n\n", i+1, i+1, kind)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	x := newExternal(t, srv.URL, t.TempDir())
	if err := x.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer x.Disconnect(context.Background())
	sub, err := x.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{Live: true})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if e, err := sub.Next(t.Context()); err != nil || e.Kind != "good" || e.Seq != 3 {
		t.Errorf("%+v %v", e, err)
	}
}

func TestEventsWaitForASinkThatIsDown(t *testing.T) {
	dir := t.TempDir()
	dead := httptest.NewServer(http.NotFoundHandler())
	url := dead.URL
	dead.Close()
	x := newExternal(t, url, dir)
	w := connected(t, x)
	for i := range 50 {
		r, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: fmt.Sprintf("id-%d", i)})
		if err != nil || !r.Queued || r.Seq != uint64(i+1) {
			t.Fatalf("%+v %v", r, err)
		}
	}
	if h := x.Health(t.Context()); h.State != adapters.StateDegraded {
		t.Errorf("health %+v", h)
	}
	if err := x.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := newSink(t)
	again := newExternal(t, s.url, dir)
	connected(t, again)
	sub, err := s.events.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		e, err := sub.Next(t.Context())
		if err != nil || e.ID != fmt.Sprintf("id-%d", i) || e.Source != "urn:agentbox:test" {
			t.Fatalf("event %d: %+v %v", i, e, err)
		}
	}
	if h := again.Health(t.Context()); h.State != adapters.StateHealthy {
		t.Errorf("health %+v", h)
	}
}

func TestRefusedEventsAreBuriedAndTheOthersGoOn(t *testing.T) {
	s := newSink(t)
	s.breaks(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if !strings.Contains(string(body), "poison") {
			return false
		}
		w.WriteHeader(http.StatusUnprocessableEntity)
		return true
	})
	dir := t.TempDir()
	reports := make(chan string, 10)
	x := newExternal(t, s.url, dir, func(c *ExternalConfig) {
		c.Report = func(what string, fields map[string]any) {
			reports <- fmt.Sprint(what, " ", fields["event"], " ", fields["kind"], " ", fields["path"])
		}
	})
	w := connected(t, x)
	sub, err := s.events.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "poison", "b"} {
		if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"a", "b"} {
		if e, err := sub.Next(t.Context()); err != nil || e.ID != want {
			t.Fatalf("%+v %v", e, err)
		}
	}
	if n := x.Lost()["dead_letters"]; n != 1 {
		t.Errorf("%d dead letters", n)
	}
	raw, err := os.ReadFile(filepath.Join(dir, deadLetterFile))
	if err != nil || !strings.Contains(string(raw), `"id":"poison"`) || !strings.Contains(string(raw), "VALIDATION_ERROR") {
		t.Errorf("%s %v", raw, err)
	}
	if got, want := <-reports, "EventRefusedBySink poison x "+filepath.Join(dir, deadLetterFile); got != want || len(reports) > 0 {
		t.Errorf("reported %q and %d more, want %q", got, len(reports), want)
	}
}

// A sink that comes back with another MAJOR refuses every event, and none for its content.
func TestEventsWaitForTheRightContract(t *testing.T) {
	s := newSink(t)
	var other atomic.Bool
	other.Store(true)
	refused := make(chan struct{}, 100)
	s.breaks(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if !other.Load() {
			return false
		}
		w.Header().Set("Content-Type", adapters.ProblemType)
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"code":"CONTRACT_MISMATCH","detail":"the box speaks contract 1, wanted 2.0"}`)
		refused <- struct{}{}
		return true
	})
	w := connected(t, newExternal(t, s.url, t.TempDir()))
	sub, err := s.events.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: id}); err != nil {
			t.Fatal(err)
		}
		if other.Load() {
			<-refused
			other.Store(false)
		}
	}
	for _, id := range []string{"a", "b"} {
		if e, err := sub.Next(t.Context()); err != nil || e.ID != id {
			t.Fatalf("%+v, %v; want %s", e, err, id)
		}
	}
}

func TestASinkWithoutBatchesGetsSingles(t *testing.T) {
	s := newSink(t)
	var mu sync.Mutex
	types := map[string]int{}
	s.breaks(func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		types[r.Header.Get("Content-Type")]++
		if r.Header.Get("Content-Type") == adapters.CloudEventType {
			return false
		}
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return true
	})
	x := newExternal(t, s.url, t.TempDir())
	w := connected(t, x)
	sub, err := s.events.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 300
	for i := range n {
		if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		if e, err := sub.Next(t.Context()); err != nil || e.ID != fmt.Sprint(i) {
			t.Fatalf("%+v %v", e, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if types[adapters.CloudEventType] != n || types[adapters.CloudBatchType] > 1 || x.Lost()["dead_letters"] != 0 {
		t.Errorf("%v, %d dead letters", types, x.Lost()["dead_letters"])
	}
}

func TestAFullSpoolIsUnavailable(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	url := dead.URL
	dead.Close()
	w := connected(t, newExternal(t, url, t.TempDir(), func(c *ExternalConfig) { c.SpoolBytes = 1 << 20 }))
	payload := json.RawMessage(`{"a":"` + strings.Repeat("x", 60<<10) + `"}`)
	for i := range 30 {
		_, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", Payload: payload})
		if errors.Is(err, adapters.ErrUnavailable) && i >= 16 {
			return
		}
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	t.Fatal("1 MiB holds 30 events of 60 KiB")
}

func TestDeliveredSegmentsLeaveTheSpool(t *testing.T) {
	s := newSink(t)
	dir := t.TempDir()
	w := connected(t, newExternal(t, s.url, dir, func(c *ExternalConfig) { c.SpoolBytes = 1 << 20 }))
	sub, err := s.events.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{})
	if err != nil {
		t.Fatal(err)
	}
	payload := json.RawMessage(`{"a":"` + strings.Repeat("x", 60<<10) + `"}`)
	for i := range 60 { // 3.6 MiB through a spool of 1 MiB
		if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: fmt.Sprint(i), Payload: payload}); err != nil {
			t.Fatal(err)
		}
		if e, err := sub.Next(t.Context()); err != nil || e.ID != fmt.Sprint(i) {
			t.Fatal(e.ID, err)
		}
	}
}

func TestTargetsThatCannotTakeEventsAreRefused(t *testing.T) {
	_, err := NewExternal(ExternalConfig{MCPEndpoint: "http://x", Dir: "d", Key: "integrations.external_events"})
	if !errors.Is(err, adapters.ErrUnsupported) {
		t.Errorf("mcp alone: %v", err)
	}
	_, err = NewExternal(ExternalConfig{Dir: "d", Key: "integrations.external_events.url"})
	if ce, ok := errors.AsType[*adapters.ConfigError](err); !ok || ce.Key != "integrations.external_events.url" {
		t.Errorf("no url: %v", err)
	}
}

func TestSinksThatMisbehave(t *testing.T) {
	good := newSink(t)
	contract.Peers(t, contract.PeerClass{
		Good: func(*testing.T) string { return good.url },
		Open: func(t *testing.T, url string) []contract.PeerCall {
			w := connected(t, newExternal(t, url, t.TempDir(), sesame))
			if _, err := good.events.Dispatch(t.Context(), adapters.Event{Kind: "x"}); err != nil {
				t.Fatal(err)
			}
			return []contract.PeerCall{
				{Name: "history", Call: func(ctx context.Context) error {
					_, err := w.History(ctx, adapters.EventFilter{}, adapters.PageOpt{Limit: 3})
					return err
				}},
				{Name: "subscribe", Answer: contract.Followed, Call: func(ctx context.Context) error {
					sub, err := w.Subscribe(ctx, adapters.EventFilter{}, adapters.From{})
					if err != nil {
						return err
					}
					defer sub.Close()
					_, err = sub.Next(ctx)
					return err
				}},
			}
		},
	})
}

func sesame(c *ExternalConfig) { c.Auth = wire.Bearer(func() string { return "sesame" }) }

// Whatever a sink does instead of accepting an event, the caller has its receipt. When the sink
// works again, the event arrives, and no event becomes a dead letter.
func TestSinksThatMisbehaveLoseNothing(t *testing.T) {
	good := newSink(t)
	var all sync.WaitGroup
	defer all.Wait()
	for i, m := range contract.Misbehaviours() {
		if m.Part == contract.Content {
			continue // the sink has accepted the event
		}
		all.Go(func() {
			t.Run(m.Name, func(t *testing.T) {
				peer := contract.NewPeer(t, good.url)
				x := newExternal(t, peer.URL, t.TempDir(), sesame)
				w := connected(t, x)
				kind := fmt.Sprintf("kind-%d", i)
				sub, err := good.events.Subscribe(t.Context(), adapters.EventFilter{Kinds: []string{kind}}, adapters.From{})
				if err != nil {
					t.Fatal(err)
				}
				defer sub.Close()
				hit := peer.Misbehave(m)
				if r, err := w.Dispatch(t.Context(), adapters.Event{Kind: kind, ID: kind}); err != nil || !r.Queued {
					t.Fatalf("%+v, %v", r, err)
				}
				<-hit
				peer.Heal()
				if e, err := sub.Next(t.Context()); err != nil || e.ID != kind {
					t.Fatalf("%+v, %v", e, err)
				}
				if n := x.Lost()["dead_letters"]; n != 0 {
					t.Errorf("%d dead letters", n)
				}
			})
		})
	}
}

// A new Connect shows that the sink is back, so waiting events are delivered soon, and not after
// the longest pause between two attempts.
func TestConnectAgainEndsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExternal(t, "http://sink.test", t.TempDir())
		var down atomic.Bool
		down.Store(true)
		arrived := make(chan struct{}, 1)
		client, err := wire.New(wire.Config{Slot: adapters.SlotEvents, BaseURL: "http://sink.test", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if down.Load() {
				return nil, errors.New("no answer")
			}
			if r.Method == http.MethodPost {
				arrived <- struct{}{}
			}
			return &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		x.client = client
		w := connected(t, x)
		if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		down.Store(false)
		back := time.Now()
		if err := x.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-arrived
		// After a failure, the client does not contact the peer for 5 s.
		if took := time.Since(back); took > 10*time.Second {
			t.Errorf("delivered after %s", took)
		}
		if err := x.Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The sink changes while events are dispatched. No event is refused, and each arrives at one of the
// two sinks.
func TestMoveRefusesNoEvent(t *testing.T) {
	first, second := newSink(t), newSink(t)
	x := newExternal(t, first.url, t.TempDir())
	w := connected(t, x)
	const events = 300
	var writers sync.WaitGroup
	half := make(chan struct{})
	writers.Go(func() {
		for i := range events {
			if i == events/2 {
				close(half)
			}
			if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: fmt.Sprintf("id-%d", i)}); err != nil {
				t.Errorf("event %d: %v", i, err)
			}
		}
	})
	<-half
	if err := x.Move(t.Context(), second.url); err != nil {
		t.Fatal(err)
	}
	writers.Wait()
	if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: "last"}); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	sub, err := second.events.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{})
	if err != nil {
		t.Fatal(err)
	}
	for !got["last"] {
		e, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got[e.ID] = true
	}
	page, err := first.events.History(t.Context(), adapters.EventFilter{}, adapters.PageOpt{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Items {
		got[e.ID] = true
	}
	for i := range events {
		if id := fmt.Sprintf("id-%d", i); !got[id] {
			t.Errorf("%s is lost", id)
		}
	}
	if err := x.Move(t.Context(), "ftp://nowhere"); err == nil {
		t.Error("moved to what is no HTTP URL")
	}
}
