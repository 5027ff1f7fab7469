package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// If its table says so, a collector gets agentinit's own events: those of the current level, as a
// separate program, and no event about the sending itself.
func TestOwnEventsAreForwarded(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		var got []string // from one request after the other
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for in := json.NewDecoder(r.Body); ; {
				var line struct{ Program, Stream, Msg string }
				if in.Decode(&line) != nil {
					return
				}
				var e struct{ Event string }
				if err := json.Unmarshal([]byte(line.Msg), &e); err != nil {
					t.Errorf("%q: %v", line.Msg, err)
				}
				got = append(got, line.Program+" "+line.Stream+" "+e.Event)
			}
		}))
		b := &box{bus: event.NewBus(10), plane: logs.New(logs.Config{}), registry: prometheus.NewRegistry(), voice: newVoice(new(strings.Builder))}
		for _, e := range []event.Event{
			{Level: event.Info, Name: "First"}, {Level: event.Debug, Name: "Quiet"},
			{Level: event.Warn, Name: eventLogForwarding}, {Level: event.Error, Name: "Last"},
		} {
			b.bus.Publish(e)
		}
		m := &schema.Manifest{}
		m.Supervisor.Log.Forward = map[string]schema.LogForward{"x": {Type: "http", URL: srv.URL, Programs: []string{"web"}, Events: wanted}}
		forwards, err := b.forward(m)
		if err != nil {
			t.Fatal(err)
		}
		startForwards(forwards)
		if report := closeForwards(t.Context(), forwards); len(report) > 0 {
			t.Errorf("with events = %v: %s", wanted, report)
		}
		srv.Close()
		want := []string{"agentinit stdout First", "agentinit stderr Last"}
		if !wanted {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("with events = %v the collector got %q", wanted, got)
		}
		if err := b.plane.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestLevelOfForwardedEvents: a forwarded event keeps its level, so that a warning is no error.
func TestLevelOfForwardedEvents(t *testing.T) {
	b := &box{voice: newVoice(new(strings.Builder))}
	for _, level := range []event.Level{event.Info, event.Warn, event.Error} {
		if line, ok := (ownEvents{b}).line(event.Event{Level: level, Name: "Something"}); !ok || line.Level != string(level) {
			t.Errorf("%s: level %q, %v", level, line.Level, ok)
		}
	}
}

// forwardingBox is a box whose program web has printed two lines, and which has published two events.
func forwardingBox(t *testing.T) *box {
	t.Helper()
	b := &box{bus: event.NewBus(20), plane: logs.New(logs.Config{}), registry: prometheus.NewRegistry(), voice: newVoice(new(strings.Builder))}
	capture, err := b.plane.Open(logs.Options{Program: "web", To: logs.ToNone})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := capture.Stdout.WriteString("one\ntwo\n"); err != nil {
		t.Fatal(err)
	}
	capture.Started(1)
	<-capture.Done()
	b.bus.Publish(event.Event{Level: event.Info, Name: "First"})
	b.bus.Publish(event.Event{Level: event.Info, Name: "Second"})
	t.Cleanup(func() {
		if err := b.plane.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// The end of the box says for each collector how many lines it did not get, with agentinit's own events.
func TestLinesThatNoCollectorGotAreReported(t *testing.T) {
	b := forwardingBox(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer srv.Close()
	m := &schema.Manifest{}
	m.Supervisor.Log.Forward = map[string]schema.LogForward{
		"all": {Type: "http", URL: srv.URL, Events: true}, "web": {Type: "http", URL: srv.URL}, "none": {Type: "http", URL: srv.URL, Programs: []string{"db"}},
	}
	forwards, err := b.forward(m)
	if err != nil {
		t.Fatal(err)
	}
	startForwards(forwards)
	const why = ": the collector did not take them before the box ended\n"
	want := "agentinit: 4 lines not forwarded to all" + why + "agentinit: 2 lines not forwarded to web" + why
	if got := string(closeForwards(t.Context(), forwards)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// If one table has a mistake, the collectors of the other tables are not sent to: nothing would end that.
func TestNoForwarderRunsAfterAMistake(t *testing.T) {
	b := forwardingBox(t)
	before := goleak.IgnoreCurrent()
	m := &schema.Manifest{}
	m.Supervisor.Log.Forward = map[string]schema.LogForward{
		"a": {Type: "http", URL: "http://127.0.0.1:1"}, "b": {Type: "http", URL: "http://127.0.0.1:1"}, "c": {Type: "http", URL: "http://127.0.0.1:1"},
		"d": {Type: "http", URL: "https://127.0.0.1:1", CAFile: "/nowhere/ca.pem"},
	}
	if _, err := b.forward(m); err == nil || !strings.Contains(err.Error(), "/nowhere/ca.pem") {
		t.Errorf("got %v", err)
	}
	goleak.VerifyNone(t, before)
}

// A table with events has two forwarders. One outage of its collector is one pair of events.
func TestOneOutageIsReportedOnce(t *testing.T) {
	b := forwardingBox(t)
	// Both first requests are refused. Both second ones wait for each other, so that both refusals were
	// reported before the first of them succeeds.
	var mu sync.Mutex
	requests := map[string]int{}
	var rounds [3]sync.WaitGroup
	rounds[1].Add(2)
	rounds[2].Add(2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var line struct{ Program string }
		if err := json.NewDecoder(r.Body).Decode(&line); err != nil {
			t.Error(err)
		}
		mu.Lock()
		requests[line.Program]++
		n := requests[line.Program]
		mu.Unlock()
		if n < len(rounds) {
			rounds[n].Done()
			rounds[n].Wait()
		}
		if n == 1 {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer srv.Close()
	m := &schema.Manifest{}
	m.Supervisor.Log.Forward = map[string]schema.LogForward{"x": {Type: "http", URL: srv.URL, Events: true, BatchLines: 1}}
	forwards, err := b.forward(m)
	if err != nil {
		t.Fatal(err)
	}
	events := b.bus.Watch(0)
	startForwards(forwards)
	var got []event.Level
	for !slices.Contains(got, event.Info) {
		e, err := events.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == eventLogForwarding {
			got = append(got, e.Level)
		}
	}
	closeForwards(t.Context(), forwards)
	for e, ok := events.TryNext(); ok; e, ok = events.TryNext() {
		got = append(got, e.Level)
	}
	if want := []event.Level{event.Warn, event.Info}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The forwarders of a collector tell each change of its trouble, and it is reported once.
func TestChangesOfAnOutage(t *testing.T) {
	var got []string
	o := &outage{report: func(err error) { got = append(got, fmt.Sprint(err)) }}
	lines, events := o.teller(), o.teller()
	away, refused := errors.New("connection refused"), errors.New("401 Unauthorized")
	lines(away)
	events(errors.New("connection reset"))
	lines(refused)
	events(refused)
	lines(nil)
	events(nil)
	events(away)
	events(nil)
	want := []string{"connection refused", "401 Unauthorized", "<nil>", "connection refused", "<nil>"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A collector that refuses every second request is reported a few times, not at each request. The
// other events of the ring would be pushed out.
func TestFlappingCollectorIsReportedNowAndThen(t *testing.T) {
	const lines = 40
	b := forwardingBox(t)
	b.bus = event.NewBus(3 * lines)
	requests := 0 // one after the other
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests%2 == 1 {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer srv.Close()
	for range lines {
		b.bus.Publish(event.Event{Level: event.Info, Name: "Something"})
	}
	events := b.bus.Watch(lines)
	m := &schema.Manifest{}
	m.Supervisor.Log.Forward = map[string]schema.LogForward{"x": {Type: "http", URL: srv.URL, Programs: []string{"none"}, Events: true, BatchLines: 1}}
	forwards, err := b.forward(m)
	if err != nil {
		t.Fatal(err)
	}
	startForwards(forwards)
	closeForwards(t.Context(), forwards)
	reported := 0
	for e, ok := events.TryNext(); ok; e, ok = events.TryNext() {
		if e.Name == eventLogForwarding {
			reported++
		}
	}
	if requests < lines || reported != logTroubleBurst {
		t.Errorf("%d of %d requests are reported, want %d", reported, requests, logTroubleBurst)
	}
}
