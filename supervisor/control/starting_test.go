package control

import (
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// starting is a box whose start is over when the channel is closed.
type starting struct {
	Supervisor
	started chan struct{}
}

func (s starting) Started() <-chan struct{}      { return s.started }
func (s starting) Snapshot() supervisor.Snapshot { return supervisor.Snapshot{} }

// intact are logs without trouble.
type intact struct{ Logs }

func (intact) Troubles() map[string]error { return nil }

// Only an answer for a script waits while the box starts, and not longer than startingPause.
func TestStatusForScriptsWaitsWhileTheBoxStarts(t *testing.T) {
	for _, tc := range []struct {
		query   string
		startIn time.Duration // when the start is over
		want    time.Duration
	}{
		{"?text=true", time.Hour, startingPause},
		{"?text=true", startingPause / 2, startingPause / 2},
		{"?text=true", 0, 0},
		{"", time.Hour, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			box := starting{nil, make(chan struct{})}
			if tc.startIn == 0 {
				close(box.started)
			} else {
				time.AfterFunc(tc.startIn, func() { close(box.started) })
			}
			cfg := Config{Supervisor: box, Events: event.NewBus(64), Logs: intact{}, Usage: func() []api.ProgramUsage { return nil }}
			began := time.Now()
			if _, err := getStatus(New(cfg), httptest.NewRequest("GET", "/v1/status"+tc.query, nil)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != tc.want {
				t.Errorf("%q, started in %v: answered after %v, want %v", tc.query, tc.startIn, took, tc.want)
			}
		})
	}
}
