package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

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
		closeForwards(t.Context(), forwards)
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
