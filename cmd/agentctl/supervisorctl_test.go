package main

import (
	"maps"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func TestOldTable(t *testing.T) {
	now := time.Date(2026, 3, 4, 15, 6, 7, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	long := "a-name-of-more-than-thirty-characters"
	for _, test := range []struct {
		p    api.Program
		want string
	}{
		{api.Program{Name: "web", State: "RUNNING", PID: 7, StartedAt: ago(3*time.Second + 900*time.Millisecond)}, "web                              RUNNING   pid 7, uptime 0:00:03\n"},
		{api.Program{Name: "web", State: "RUNNING", PID: 7, StartedAt: ago(-time.Hour)}, "web                              RUNNING   pid 7, uptime 0:00:00\n"},
		{api.Program{Name: "web", State: "RUNNING", PID: 7, StartedAt: ago(25*time.Hour + time.Minute)}, "web                              RUNNING   pid 7, uptime 1 day, 1:01:00\n"},
		{api.Program{Name: "web", State: "RUNNING", PID: 7, StartedAt: ago(12*24*time.Hour - time.Second)}, "web                              RUNNING   pid 7, uptime 11 days, 23:59:59\n"},
		{api.Program{Name: "web", State: "STARTING", Reason: "starting"}, "web                              STARTING  \n"},
		{api.Program{Name: "web", State: "STOPPING"}, "web                              STOPPING  \n"},
		{api.Program{Name: "web", State: "STOPPED", Since: now}, "web                              STOPPED   Not started\n"},
		{api.Program{Name: "web", State: "STOPPED", StartedAt: ago(time.Hour), EndedAt: ago(3 * time.Hour)}, "web                              STOPPED   Mar 04 12:06 PM\n"},
		{api.Program{Name: "web", State: "EXITED", StartedAt: ago(time.Hour), EndedAt: ago(16 * time.Hour)}, "web                              EXITED    Mar 03 11:06 PM\n"},
		{api.Program{Name: "web", State: "BACKOFF", Reason: "odd\x1b[2J\nweb RUNNING"}, `web                              BACKOFF   odd\x1b[2J\nweb RUNNING` + "\n"},
		{api.Program{Name: "web", State: "FATAL"}, "web                              FATAL     unknown error (try \"tail web\")\n"},
		{api.Program{Name: long, State: "FATAL", Reason: "x"}, long + "   FATAL     x\n"},
	} {
		if got := oldTable([]api.Program{test.p}, now, time.UTC); got != test.want {
			t.Errorf("got  %q\nwant %q", got, test.want)
		}
	}
	late := oldTable([]api.Program{{Name: "web", State: "EXITED", StartedAt: ago(0), EndedAt: ago(0)}}, now, time.FixedZone("", 9*3600))
	if want := "web                              EXITED    Mar 05 12:06 AM\n"; late != want {
		t.Errorf("in another zone: got %q, want %q", late, want)
	}
}

// A state that is as it should be is not down, though supervisord has no such states.
func TestDown(t *testing.T) {
	for _, test := range []struct {
		p    api.Program
		want bool
	}{
		{api.Program{State: "RUNNING"}, false},
		{api.Program{State: "STARTING"}, false},
		{api.Program{State: "BACKOFF"}, false},
		{api.Program{State: "STOPPING"}, false},
		{api.Program{State: "STOPPED"}, true},
		{api.Program{State: "EXITED"}, true},
		{api.Program{State: "FATAL"}, true},
		{api.Program{State: "EXITED", Shown: "COMPLETED"}, false},
		{api.Program{State: "STOPPED", Shown: "SCHEDULED"}, false},
		{api.Program{State: "STOPPED", Shown: "PAUSED"}, true},
	} {
		if got := down(test.p); got != test.want {
			t.Errorf("%s %s: %t", test.p.State, test.p.Shown, got)
		}
	}
}

func TestDifferences(t *testing.T) {
	got := differences([]api.ApplyChange{
		{Program: "same", Action: api.ApplyUnchanged},
		{Program: "web", Action: api.ApplyRestart}, {Program: "live", Action: api.ApplyLive},
		{Program: "new:0", Action: api.ApplyAdd}, {Program: "new:1", Action: api.ApplyAdd},
		{Program: "gone", Action: api.ApplyRemove},
		{Program: "more:0", Action: api.ApplyUnchanged}, {Program: "more:1", Action: api.ApplyUnchanged}, {Program: "more:2", Action: api.ApplyAdd},
		{Program: "less:1", Action: api.ApplyRemove}, {Program: "less:0", Action: api.ApplyUnchanged},
	})
	want := map[string]string{
		"web": "changed", "live": "changed", "new": "available", "gone": "disappeared", "more": "changed", "less": "changed",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
