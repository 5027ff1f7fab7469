package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// A program makes its log fail and work again a hundred times a second, for ten minutes. There are
// few events, they count the others, and the last one tells how it is. Another program's trouble is
// published at once.
func TestLogTroublesOfAFlappingLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []event.Event
		l := &logTroubles{publish: func(e event.Event) { events = append(events, e) }, event: programTrouble}
		changes := 0
		for begun := time.Now(); time.Since(begun) < 10*time.Minute; time.Sleep(10 * time.Millisecond) {
			l.report("web", errors.New("no such directory"))
			l.report("web", nil)
			changes += 2
		}
		l.report("db", errors.New("disk full"))
		if e := events[len(events)-1]; e.Program != "db" || e.Fields["error"] != "disk full" {
			t.Errorf("the trouble of db: %+v", e)
		}
		l.report("web", errors.New("the end"))
		changes++
		time.Sleep(2 * logTroubleEvery)
		synctest.Wait()
		if e := events[len(events)-1]; e.Program != "web" || e.Fields["error"] != "the end" {
			t.Errorf("the last event is %+v", e)
		}
		if most := 10 + 2 + logTroubleBurst; len(events) > most {
			t.Errorf("%d events, want at most %d", len(events), most)
		}
		for _, e := range events {
			changes--
			if n, ok := e.Fields["suppressed"].(uint64); ok {
				changes -= int(n)
			}
		}
		if changes != -1 { // the event of db
			t.Errorf("%d changes are not counted", changes+1)
		}
	})
}

// A log that fails now and then is reported at once, and so is its recovery.
func TestLogTroublesNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		l := &logTroubles{publish: func(event.Event) { n++ }, event: programTrouble}
		for i := range 20 {
			l.report("web", errors.New("disk full"))
			l.report("web", nil)
			if n != 2*i+2 {
				t.Fatalf("%d events after %d changes", n, 2*i+2)
			}
			time.Sleep(2 * logTroubleEvery)
		}
	})
}
