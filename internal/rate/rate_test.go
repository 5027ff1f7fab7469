package rate

import (
	"fmt"
	"testing"
	"time"
)

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestTake(t *testing.T) {
	c := NewCallers[string](Limit{PerSecond: 2, Burst: 3}, 10)
	for i, step := range []struct {
		at   time.Duration
		wait time.Duration // 0: the caller gets a token
	}{
		{0, 0}, {0, 0}, {0, 0}, {0, 500 * time.Millisecond},
		{250 * time.Millisecond, 250 * time.Millisecond}, {500 * time.Millisecond, 0}, {500 * time.Millisecond, 500 * time.Millisecond},
		{time.Hour, 0}, {time.Hour, 0}, {time.Hour, 0}, {time.Hour, 500 * time.Millisecond}, // a bucket never holds more than the burst
	} {
		now := begin.Add(step.at)
		if empty := c.Empty("a", now); empty != (step.wait > 0) {
			t.Errorf("step %d: empty %v", i, empty)
		}
		if wait, ok := c.Take("a", now); wait != step.wait || ok != (step.wait == 0) {
			t.Errorf("step %d: %v %v, want %v", i, wait, ok, step.wait)
		}
	}
	if _, ok := c.Take("b", begin); !ok || c.Empty("c", begin) {
		t.Error("one caller pays for another")
	}
}

func TestCallersAreBounded(t *testing.T) {
	c := NewCallers[string](Limit{PerSecond: 1, Burst: 1}, 10)
	for i := range 35 {
		c.Take(fmt.Sprint(i), begin)
		if len(c.buckets) > 10 {
			t.Fatalf("%d callers are remembered", len(c.buckets))
		}
	}
}

func TestNoLimit(t *testing.T) {
	c := NewCallers[string](Limit{}, 1)
	for range 1000 {
		if _, ok := c.Take("a", begin); !ok {
			t.Fatal("refused")
		}
	}
}
