package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// post is one request to a plain sink.
type post struct {
	uri, contentType string
	body             []byte
}

// plainSink accepts a POST on every path; meta answers all other requests.
func plainSink(t *testing.T, meta http.HandlerFunc) (url string, posts <-chan post) {
	t.Helper()
	got := make(chan post, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			meta(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- post{r.URL.RequestURI(), r.Header.Get("Content-Type"), body}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, got
}

// A sink that is not another box need not have /v1/meta.
func TestAPlainSinkIsHealthy(t *testing.T) {
	for name, meta := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<!doctype html><p>hello") },
		"JSON of its own": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `["a", 1]`)
		},
		"an object": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"ok":true}`)
		},
		"an empty 200": func(http.ResponseWriter, *http.Request) {},
		"401":          func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"405":          func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) },
	} {
		t.Run(name, func(t *testing.T) {
			url, posts := plainSink(t, meta)
			x := newExternal(t, url+"/hook", t.TempDir())
			w := connected(t, x)
			if h := x.Health(t.Context()); h.State != adapters.StateHealthy {
				t.Errorf("health %+v", h)
			}
			if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "tool.used", ID: "e-1", Payload: json.RawMessage(`{"n":1}`)}); err != nil {
				t.Fatal(err)
			}
			got := <-posts
			var c adapters.CloudEvent
			if err := json.Unmarshal(got.body, &c); err != nil || c.ID != "e-1" || c.Type != "agentbox.tool.used" {
				t.Errorf("%s: %v", got.body, err)
			}
			if got.uri != "/hook/v1/events" || got.contentType != adapters.CloudEventType {
				t.Errorf("%+v", got)
			}
		})
	}
}

// The negative test: a peer with another contract version is refused. A peer that is down is not
// taken for a plain sink.
func TestAPeerIsNotAPlainSink(t *testing.T) {
	url, _ := plainSink(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"adapter_contract_versions":{"events":"2.0"}}`)
	})
	if err := newExternal(t, url, t.TempDir()).Connect(t.Context()); adapters.CodeOf(err) != adapters.CodeContractMismatch {
		t.Errorf("got %v", err)
	}
	url, _ = plainSink(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	x := newExternal(t, url, t.TempDir())
	connected(t, x)
	if h := x.Health(t.Context()); h.State != adapters.StateDegraded {
		t.Errorf("health %+v", h)
	}
}

// The key of the box may be rotated while the slot is connected: the source of an event is that of
// the moment.
func TestSourceOfTheMoment(t *testing.T) {
	var key string
	source := func() string { return "urn:agentbox:" + key }
	url, posts := plainSink(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked %s %s", r.Method, r.URL) })
	dir := t.TempDir()
	local := adapters.WrapEvents(start(t, LocalConfig{Dir: dir, Source: source}), nil)
	external := connected(t, newExternal(t, url+"/in", t.TempDir(), func(c *ExternalConfig) { c.Format, c.Source = FormatJSON, source }))
	for _, key = range []string{"first", "second"} {
		for _, e := range []adapters.Events{local, external} {
			if _, err := e.Dispatch(t.Context(), adapters.Event{Kind: "test"}); err != nil {
				t.Fatal(err)
			}
		}
		var e adapters.Event
		if got := <-posts; json.Unmarshal(got.body, &e) != nil || e.Source != source() {
			t.Errorf("%s is not from %s", got.body, source())
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var lines []byte
	for _, file := range files {
		more, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, more...)
	}
	for _, want := range []string{`"urn:agentbox:first"`, `"urn:agentbox:second"`} {
		if !bytes.Contains(lines, []byte(want)) {
			t.Errorf("%s is not in %s", want, lines)
		}
	}
}

// With format json, each event is one POST of plain JSON to exactly the configured URL.
func TestAPlainJSONSink(t *testing.T) {
	url, posts := plainSink(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked %s %s", r.Method, r.URL) })
	for path, uri := range map[string]string{
		"/in/box%2F1/?key=a%20b&x": "/in/box%2F1/?key=a%20b&x", "/hook": "/hook", "/": "/", "": "/",
	} {
		t.Run(path, func(t *testing.T) {
			x := newExternal(t, url+path, t.TempDir(), func(c *ExternalConfig) { c.Format = FormatJSON })
			w := connected(t, x)
			for i := range 3 {
				if _, err := w.Dispatch(t.Context(), adapters.Event{Kind: "tool.used", ID: fmt.Sprint("e-", i), Payload: json.RawMessage(`{"n":1}`)}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 3 {
				got := <-posts
				var e adapters.Event
				if err := json.Unmarshal(got.body, &e); err != nil || e.ID != fmt.Sprint("e-", i) || e.Kind != "tool.used" || e.Source != testSource() || string(e.Payload) != `{"n":1}` {
					t.Errorf("%s: %v", got.body, err)
				}
				if got.uri != uri || got.contentType != "application/json" {
					t.Errorf("%+v", got)
				}
			}
			if _, err := w.Subscribe(t.Context(), adapters.EventFilter{}, adapters.From{}); adapters.CodeOf(err) != adapters.CodeUnsupported {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := NewExternal(ExternalConfig{URL: url, Dir: t.TempDir(), Format: "xml"}); err == nil {
		t.Error("an unknown format is taken")
	}
}

// A power loss can leave an empty position file. The slot then connects and delivers the events
// again.
func TestAPositionThatCannotBeReadDeliversAgain(t *testing.T) {
	url, posts := plainSink(t, http.NotFound)
	dir := t.TempDir()
	deliver := func(id string) {
		t.Helper()
		x := newExternal(t, url, dir)
		if err := x.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := adapters.WrapEvents(x, nil).Dispatch(t.Context(), adapters.Event{Kind: "x", ID: id}); err != nil {
			t.Fatal(err)
		}
		<-posts
		if err := x.Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deliver("a")
	for _, text := range []string{"", "\x00\x00", "x"} {
		if err := os.WriteFile(filepath.Join(dir, positionFile), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		deliver("b" + fmt.Sprint(len(text)))
	}
}
