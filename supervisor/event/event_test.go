package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchSeesEveryEventInOrder(t *testing.T) {
	b := NewBus(8)
	w := b.Watch(0)
	for i := range 5 {
		if seq := b.Publish(Event{Name: fmt.Sprint("e", i)}); seq != uint64(i+1) {
			t.Fatalf("event %d was numbered %d", i, seq)
		}
	}
	for i := range 5 {
		e, ok := w.TryNext()
		if !ok || e.Seq != uint64(i+1) || e.Name != fmt.Sprint("e", i) {
			t.Fatalf("event %d: got %+v, %v", i, e, ok)
		}
	}
	if e, ok := w.TryNext(); ok {
		t.Fatalf("an event that was never published: %+v", e)
	}
}

func TestSlowReaderIsToldWhatItMissed(t *testing.T) {
	b := NewBus(4)
	b.Publish(Event{Name: "seen"})
	w := b.Watch(0)
	if e, _ := w.TryNext(); e.Name != "seen" {
		t.Fatalf("got %+v", e)
	}
	for range 10 {
		b.Publish(Event{Name: "burst"})
	}
	e, ok := w.TryNext()
	if !ok || e.Name != Lagged || e.Fields["dropped"] != uint64(6) || e.Fields["resume_from"] != uint64(8) {
		t.Fatalf("want Lagged with 6 dropped and resume_from 8, got %+v", e)
	}
	for want := uint64(8); want <= 11; want++ {
		if e, ok := w.TryNext(); !ok || e.Seq != want {
			t.Fatalf("after the lag: want %d, got %+v", want, e)
		}
	}
}

func TestRingKeepsTheNewest(t *testing.T) {
	for _, most := range []int{1, 2, partSize - 1, partSize, partSize + 1, 3*partSize + 5} {
		for _, published := range []int{1, most - 1, most, most + 1, 2*most + 1} {
			b := NewBus(most)
			for i := range published {
				b.Publish(Event{Name: fmt.Sprint("e", i+1)})
			}
			oldest, w := max(1, published-most+1), b.Watch(0)
			for want := oldest; want <= published; want++ {
				if e, ok := w.TryNext(); !ok || e.Seq != uint64(want) || e.Name != fmt.Sprint("e", want) {
					t.Fatalf("%d of %d: want event %d, got %+v", most, published, want, e)
				}
			}
		}
	}
}

func TestWatchFromTheBeginningIsNotLagged(t *testing.T) {
	b := NewBus(2)
	for range 5 {
		b.Publish(Event{Name: "x"})
	}
	if e, ok := b.Watch(0).TryNext(); !ok || e.Seq != 4 {
		t.Fatalf("want the oldest held event, 4, got %+v", e)
	}
}

func TestNextWaitsAndHonoursTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBus(4)
		w := b.Watch(b.Seq())
		got := make(chan Event)
		go func() {
			e, err := w.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- e
		}()
		synctest.Wait()
		b.Publish(Event{Name: "late"})
		if e := <-got; e.Name != "late" {
			t.Fatalf("got %+v", e)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("want the deadline, got %v", err)
		}
	})
}

func TestPublishNeverWaitsForReaders(t *testing.T) {
	b := NewBus(16)
	const readers, events = 8, 2000
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			w, next := b.Watch(0), uint64(1)
			for next <= events {
				e, err := w.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if e.Name == Lagged {
					next = e.Fields["resume_from"].(uint64)
					continue
				}
				if e.Seq != next && next != 1 {
					t.Errorf("want %d, got %d", next, e.Seq)
					return
				}
				next = e.Seq + 1
			}
		})
	}
	for range events {
		b.Publish(Event{Name: "storm"})
	}
	wg.Wait()
	if n := b.Counts()["storm"]; n != events {
		t.Fatalf("counted %d of %d", n, events)
	}
}

func TestEventIsOneFlatObject(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789_000_000, time.FixedZone("x", 3600))
	raw, err := json.Marshal(Event{
		Seq: 7, Time: at, Level: Warn, Stage: "supervisor", Name: ProgramStateChanged,
		Program: "web", Run: 2, Change: &Change{From: "STARTING", To: "RUNNING", PID: 12},
		Fields: map[string]any{"reason": "x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"agentbox.stage":"supervisor","change":{"from":"STARTING","to":"RUNNING","pid":12,"ready":false},` +
		`"event":"ProgramStateChanged","level":"warn","program":"web","reason":"x","run":2,"seq":7,"time":"2026-02-03T03:05:06.789Z"}`
	if string(raw) != want {
		t.Fatalf("\ngot  %s\nwant %s", raw, want)
	}
}
