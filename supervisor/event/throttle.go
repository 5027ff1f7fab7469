package event

import (
	"cmp"
	"sync"
	"time"
)

// Throttle bounds the events of one kind whose number a program decides: some at once, then one in a
// while. It counts the others. Otherwise these events push all others out of the ring. Its zero
// value is ready for use, from any goroutine: 10 events at once, then one in 10 seconds.
type Throttle struct {
	Burst int           // how many pass at once; 0 = 10
	Every time.Duration // one more passes in this time; 0 = 10 seconds

	mu         sync.Mutex
	used       time.Duration // Every for each event that passed, less the time since
	at         time.Time
	suppressed uint64
}

// At this rate, one kind of event needs a day to fill the ring of a box.
const (
	throttleBurst = 10
	throttleEvery = 10 * time.Second
)

// Pass tells whether the event may be published now, and how many were not since the last one that
// was. The publisher adds that number to the event as the field "suppressed".
func (t *Throttle) Pass(now time.Time) (suppressed uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	burst, every := time.Duration(cmp.Or(t.Burst, throttleBurst)), cmp.Or(t.Every, throttleEvery)
	t.used, t.at = max(0, t.used-now.Sub(t.at)), now
	if t.used+every > burst*every {
		t.suppressed++
		return 0, false
	}
	t.used += every
	suppressed, t.suppressed = t.suppressed, 0
	return suppressed, true
}
