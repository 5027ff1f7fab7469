package program

import "testing"

// A schedule that was stopped is shown as PAUSED however its latest run ended.
func TestPausedIsShown(t *testing.T) {
	for state, want := range map[State]string{
		Stopped: ShownPaused, Exited: ShownPaused, Fatal: ShownPaused, Starting: "STARTING", Stopping: "STOPPING", Backoff: "BACKOFF",
	} {
		if got := (&Status{State: state, Schedule: &ScheduleStatus{Paused: true}}).Shown(); got != want {
			t.Errorf("%s is shown as %s, want %s", state, got, want)
		}
	}
	if got := (&Status{State: Fatal, Schedule: &ScheduleStatus{}}).Shown(); got != "FATAL" {
		t.Errorf("a schedule that goes on is shown as %s", got)
	}
}
