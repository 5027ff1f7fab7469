package event

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var th Throttle
		passed, suppressed := 0, uint64(0)
		flood := func(d, pause time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(pause) {
				if n, ok := th.Pass(time.Now()); ok {
					passed++
					suppressed += n
				}
			}
		}
		flood(time.Hour, 100*time.Millisecond)
		if passed != throttleBurst+int(time.Hour/throttleEvery)-1 || suppressed != uint64(36000-passed-99) {
			t.Errorf("%d passed in an hour, and told of %d others", passed, suppressed)
		}
		time.Sleep(throttleBurst * throttleEvery)
		if n, ok := th.Pass(time.Now()); n != 99 || !ok {
			t.Errorf("after a pause: %v, %d others", ok, n)
		}
		passed = 0
		flood(24*time.Hour, 2*throttleEvery)
		if passed != 24*3600/20 {
			t.Errorf("%d of the rare ones passed", passed)
		}
	})
}
