package logs

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// resumed tells whether a queue has resumed a stream that it held.
func resumed(s *stream) bool {
	s.reactor.mu.Lock()
	defer s.reactor.mu.Unlock()
	was := len(s.reactor.posted) > 0
	s.reactor.posted = nil
	return was
}

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
		held, lost := 0, 0
		print := func() {
			if !q.admit(s) {
				held++
				for !resumed(s) {
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
		if kept, err := q.flush(t.Context()); kept > 0 || err != nil {
			t.Errorf("%d bytes are kept, error %v", kept, err)
		}
	})
}

// A file that fails, with or without taking some bytes at each attempt, delays a program once until
// it works again. What fits the queue is not lost, the queue does not grow, and the rest is counted.
func TestFailingFileHoldsOnce(t *testing.T) {
	for _, some := range []int{0, 10} {
		synctest.Test(t, func(t *testing.T) {
			var failing atomic.Bool
			var file bytes.Buffer
			const limit = 1 << 10
			q := &queue{
				limit: limit, hold: fileHold, mark: fileMark,
				write: func(b []byte) (int, int) {
					n := len(b)
					if failing.Load() {
						n = min(n, some)
					}
					file.Write(b[:n])
					return 0, len(b) - n
				},
			}
			s := &stream{program: &programLog{}, kind: Stdout, reactor: &reactor{wake: -1}}
			line := strings.Repeat("x", 63) + "\n"
			printed, lost := 0, 0
			var held time.Duration
			print := func() {
				begin := time.Now()
				for !q.admit(s) {
					for !resumed(s) {
						time.Sleep(time.Millisecond)
					}
				}
				held += time.Since(begin)
				if q.put(s, []byte(line), len(line)) {
					printed += len(line)
				} else {
					lost += len(line)
				}
				synctest.Wait()
				q.mu.Lock()
				defer q.mu.Unlock()
				if n := len(q.pending); n > limit+2*len(line)+len(fileMark(1e9)) {
					t.Fatalf("%d bytes wait", n)
				}
			}
			for trouble := range 2 {
				failing.Store(true)
				for range limit / len(line) {
					print()
				}
				if held > 0 || lost > 0 {
					t.Errorf("trouble %d: held for %v and %d bytes lost while there was room", trouble, held, lost)
				}
				for begin := time.Now(); time.Since(begin) < 2*time.Minute; time.Sleep(10 * time.Millisecond) {
					print()
				}
				if held.Round(time.Second) != fileHold || lost == 0 {
					t.Errorf("trouble %d: held for %v, %d bytes lost", trouble, held, lost)
				}
				failing.Store(false)
				if kept, err := q.flush(t.Context()); kept > 0 || err != nil {
					t.Errorf("%d bytes are kept, error %v", kept, err)
				}
				held = 0
				for range 100 {
					print()
				}
				if held > 0 || !q.atRest() {
					t.Errorf("trouble %d: held for %v after it", trouble, held)
				}
				got := file.String()
				if n := strings.Count(got, line); n*len(line) != printed || markedIn(t, got) != uint64(lost) {
					t.Errorf("trouble %d: the file has %d of %d bytes and says that %d of %d are missing", trouble, n*len(line), printed, markedIn(t, got), lost)
				}
				file.Reset()
				printed, lost = 0, 0
			}
		})
	}
}

// A mark belongs to a block of a stream also if nothing was queued but what a pump left: readers place
// it by that block.
func TestAMarkAfterWhatAPumpLeftBelongsToItsBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		failing.Store(true)
		s := &stream{program: &programLog{}, kind: Stdout, reactor: &reactor{wake: -1}}
		q := &queue{limit: 4, hold: fileHold, mark: fileMark, pump: func(*stream) pumped { return pumpedEmpty }}
		var written []piece
		q.write = func(b []byte) (int, int) {
			if failing.Load() {
				return 0, len(b)
			}
			written = append(written, q.taken...)
			return 0, 0
		}
		ring := &s.program.rings[Stdout-1]
		q.keepFor(s, []byte(strings.Repeat("x", 16)), piece{n: 16, ring: ring, seq: 7})
		if q.put(s, []byte("y\n"), 2) {
			t.Fatal("a full queue takes more")
		}
		failing.Store(false)
		if kept, err := q.flush(t.Context()); kept > 0 || err != nil {
			t.Fatalf("%d bytes are kept, error %v", kept, err)
		}
		if len(written) != 2 || written[1].seq != 7 || written[1].ring != ring {
			t.Errorf("written: %+v", written)
		}
	})
}
