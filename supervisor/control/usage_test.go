package control

import (
	"testing"
	"time"
)

// The pause after a reading depends on the processor time of the reading. A reading that only waits
// does not delay the next one; a reading that computes does.
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
