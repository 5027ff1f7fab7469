package control

import (
	"testing"
	"time"
)

// The pause after a reading is measured by its processor time: one that only waits
// does not put off the next, one that computes does.
func TestPauseCountsProcessorTime(t *testing.T) {
	if spent := processorTime(func() { <-time.After(100 * time.Millisecond) }); spent >= 100*time.Millisecond {
		t.Errorf("waiting for 100 ms counted as %s of computing", spent)
	}
	spent := processorTime(func() {
		for began := threadTime(); threadTime()-began < 20*time.Millisecond; {
		}
	})
	if spent < 10*time.Millisecond {
		t.Errorf("20 ms of computing counted as %s", spent)
	}
}
