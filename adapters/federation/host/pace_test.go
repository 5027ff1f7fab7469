package host

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
)

func TestPace(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	for name, c := range map[string]struct {
		p      pace
		random float64
		wait   time.Duration
		next   time.Duration // next place in the line after this one
	}{
		"the first of all":             {pace{}, 0, time.Second, time.Second + time.Second/150},
		"an old line":                  {pace{next: in(-time.Hour)}, 0, time.Second, time.Second + time.Second/150},
		"behind another":               {pace{next: in(5 * time.Second)}, 0.9, 5 * time.Second, 5*time.Second + time.Second/150},
		"a fast host":                  {pace{each: 0.001}, 0, time.Second, time.Second + time.Second/750},
		"a slow host":                  {pace{each: 0.025}, 0, time.Second, time.Second + time.Second/30},
		"a rate that cannot be true":   {pace{each: 1e-6}, 0, time.Second, time.Second + time.Second/3750},
		"a host that hardly moves":     {pace{each: 60}, 0, time.Second, time.Second + 2*time.Second/15},
		"the last place of the line":   {pace{next: in(maxPause)}, 0.5, maxPause, maxPause + time.Second/150},
		"a line that is full, soonest": {pace{next: in(maxPause + 1)}, 0, maxPause / 2, maxPause + 1},
		"a line that is full, latest":  {pace{next: in(maxPause + 1)}, 0.999999, maxPause, maxPause + 1},
		"the clock was set back":       {pace{next: in(24 * time.Hour)}, 0.5, maxPause * 3 / 4, 24 * time.Hour},
	} {
		wait, after := c.p.later(now, c.random)
		if d := wait - c.wait; d < -time.Millisecond || d > time.Millisecond {
			t.Errorf("%s: a pause of %v, want %v", name, wait, c.wait)
		}
		if d := after.next.Sub(in(c.next)); d < -time.Millisecond || d > time.Millisecond {
			t.Errorf("%s: the line reaches to %v, want %v", name, after.next.Sub(now), c.next)
		}
	}
}

// The measured rate follows the speed of the host, whether it is busy or idle. One slow
// registration changes the rate little.
func TestPaceMeasures(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := pace{}
	is := func(what string, from, to float64) {
		t.Helper()
		if r := p.rate(); r < from || r > to {
			t.Errorf("%s: %v a second, want %v to %v", what, r, from, to)
		}
	}
	is("nothing measured", firstRate, firstRate)
	// 64 begin at once, and one ends every 5 ms.
	begun := now
	for range 64 {
		now = now.Add(5 * time.Millisecond)
		p = p.served(begun, now)
	}
	is("64 at once", 199, 201)
	// The host was idle for an hour.
	now = now.Add(time.Hour)
	p = p.served(now, now.Add(5*time.Millisecond))
	is("after an hour", 199, 201)
	now = now.Add(time.Second)
	p = p.served(now, now.Add(10*time.Millisecond))
	is("one that took twice as long", 190, 201)
	for range 1000 {
		now = now.Add(time.Second)
		p = p.served(now, now.Add(50*time.Millisecond))
	}
	is("a host that has become slow", 19, 21)
	for range 2000 {
		p = p.served(now, now)
	}
	is("a rate that cannot be true", mostRate, mostRate)
	p = p.served(now.Add(time.Second), now) // the clock was set back
	is("an end before its beginning", mostRate, mostRate)
}

// oneByOne is a registry that takes a fixed time for each change and makes one change at a time.
type oneByOne struct {
	turn chan struct{}
	each time.Duration
}

func (s oneByOne) write(ctx context.Context, _ func(tx) error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	time.Sleep(s.each)
	<-s.turn
	return nil
}

func (s oneByOne) read(ctx context.Context, do func(tx) error) error { return s.write(ctx, do) }
func (s oneByOne) close() error                                      { return nil }

// herd lets boxes register within spread, with a host whose registry takes the time each for one
// change. It returns how many boxes were refused more than once, and the time until the last box
// was registered.
func herd(t *testing.T, boxes int, each, spread time.Duration) (again int, took time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(Config{Interval: time.Minute, Now: time.Now, Endpoints: func() federation.Endpoints { return federation.Endpoints{} }})
		h.store = oneByOne{make(chan struct{}, 1), each}
		begun := time.Now()
		random := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range boxes {
			first := time.Duration(random.Int64N(int64(spread) + 1))
			all.Go(func() {
				time.Sleep(first)
				refused := 0
				s, _ := federation.Step(federation.New(uint64(i), time.Now()), federation.Start{}, time.Now())
				for {
					ctx, cancel := context.WithTimeout(t.Context(), federation.RegisterLimit)
					g, err := h.Register(ctx, "member token", box(adapters.NewID(), "boot"))
					cancel()
					if err == nil {
						s, _ = federation.Step(s, federation.Registered{Call: s.Call, ID: g.SessionID}, time.Now())
						break
					}
					e, ok := errors.AsType[*adapters.Error](err)
					if !ok || e.Code != adapters.CodeUnavailable {
						t.Error(err)
						return
					}
					refused++
					s, _ = federation.Step(s, federation.Failed{Call: s.Call, RetryAfter: e.RetryAfter()}, time.Now())
					time.Sleep(time.Until(s.Next))
					s, _ = federation.Step(s, federation.Tick{}, time.Now())
				}
				mu.Lock()
				defer mu.Unlock()
				if refused > 1 {
					again++
				}
			})
		}
		all.Wait()
		took = time.Since(begun)
	})
	return again, took
}

// Ten thousand boxes register at once with hosts of different speed. Few boxes are refused more
// than once, and the host is rarely idle meanwhile.
func TestHerdIsAbsorbed(t *testing.T) {
	for _, c := range []struct {
		boxes        int
		each, spread time.Duration
		again        int           // at most
		took         time.Duration // at most
	}{
		{10_000, time.Millisecond, time.Second, 100, 25 * time.Second},
		{10_000, time.Millisecond, 0, 100, 90 * time.Second}, // no rate is measured yet when the line is formed
		{10_000, 5 * time.Millisecond, time.Second, 100, 100 * time.Second},
		// For ten seconds, new boxes take the turns of boxes that come back.
		{10_000, 10 * time.Millisecond, 10 * time.Second, 900, 200 * time.Second},
		{150, 10 * time.Millisecond, 0, 0, 2 * time.Second}, // none is refused
		{1000, 100 * time.Microsecond, 0, 0, 10 * time.Second},
	} {
		if testing.Short() && c.spread > 0 {
			continue // long
		}
		again, took := herd(t, c.boxes, c.each, c.spread)
		if again > c.again || took > c.took {
			t.Errorf("%d boxes within %v, %v each: %d refused again, all in after %v", c.boxes, c.spread, c.each, again, took)
		}
	}
}
