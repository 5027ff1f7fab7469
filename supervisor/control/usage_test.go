package control

import (
	"testing"
	"time"
)

// The pause after a reading depends on the processor time of the reading. A reading that only waits
// does not delay the next one; a reading that computes does.
func TestPauseCountsProcessorTime(t *testing.T) {
	var computed time.Duration // as f itself sees it
	compute := func() {
		began := threadTime()
		for computed = 0; computed < 20*time.Millisecond; computed = threadTime() - began {
		}
	}
	spent := processorTime(compute)
	if spent < computed {
		t.Errorf("%s of computing counted as %s", computed, spent)
	}

	// While f waits, another thread computes. Of the elapsed time and of the process's time, that
	// would be a part.
	spent = processorTime(func() {
		done := make(chan struct{})
		go func() { defer close(done); processorTime(compute) }()
		<-done
	})
	if spent >= computed {
		t.Errorf("waiting for %s of computing counted as %s", computed, spent)
	}
}
