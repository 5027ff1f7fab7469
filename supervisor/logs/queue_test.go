package logs

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A slow reader delays a program once and not for every batch. When the reader is quick again, the
// program waits for it again.
func TestSlowReaderHoldsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hold = 250 * time.Millisecond
		var pause atomic.Int64
		pause.Store(int64(4 * hold))
		q := &queue{
			limit: 10, hold: hold, mark: func(uint64) []byte { return []byte("!\n") },
			write: func([]byte) (int, int) { time.Sleep(time.Duration(pause.Load())); return 0, 0 },
		}
		s := &stream{program: &programLog{}, kind: Stdout, reactor: &reactor{wake: -1}}
		line := []byte("0123456789\n")
		resumed := func() bool {
			s.reactor.mu.Lock()
			defer s.reactor.mu.Unlock()
			was := len(s.reactor.posted) > 0
			s.reactor.posted = nil
			return was
		}
		held, lost := 0, 0
		print := func() {
			if !q.admit(s) {
				held++
				for !resumed() {
					time.Sleep(time.Millisecond)
				}
			}
			if !q.put(s, line, len(line)) {
				lost++
			}
			synctest.Wait()
		}
		for range 100 {
			print()
			time.Sleep(hold / 5)
		}
		if held != 1 || lost < 70 {
			t.Errorf("a slow reader: held %d times, %d lines lost", held, lost)
		}
		pause.Store(0)
		time.Sleep(10 * hold)
		print()
		pause.Store(int64(hold / 2))
		held, lost = 0, 0
		for range 20 {
			print()
		}
		if held < 10 || lost != 0 {
			t.Errorf("a reader that is quick enough: held %d times, %d lines lost", held, lost)
		}
		if err := q.flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
