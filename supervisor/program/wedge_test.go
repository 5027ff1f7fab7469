package program

import (
	"strings"
	"testing"
	"time"
)

func TestWedge(t *testing.T) {
	s := func(n int) time.Duration { return time.Duration(n) * time.Second }
	type look struct {
		output  uint64
		cpu     int // seconds
		blocked []int
		want    string // part of the reason; "": not wedged
	}
	all := Wedge{NoOutput: s(20), Spinning: s(10), Blocked: s(5)}
	for name, tc := range map[string]struct {
		rules Wedge
		looks []look // one every five seconds, the first at the start
	}{
		"works": {all, []look{{0, 0, nil, ""}, {1, 1, nil, ""}, {2, 2, nil, ""}, {3, 3, nil, ""}, {4, 4, nil, ""}, {5, 5, nil, ""}}},
		"silent, then speaks": {Wedge{NoOutput: s(10)}, []look{
			{7, 0, nil, ""}, {7, 0, nil, ""}, {7, 0, nil, "no output for 10s"}, {7, 0, nil, "no output"}, {8, 0, nil, ""}, {8, 0, nil, ""}, {8, 0, nil, "no output"},
		}},
		"spins":              {all, []look{{7, 0, nil, ""}, {7, 5, nil, ""}, {7, 10, nil, "it spins (a whole processor wanted, no output) for 10s"}}},
		"pauses":             {Wedge{Spinning: s(10)}, []look{{7, 0, nil, ""}, {7, 5, nil, ""}, {7, 7, nil, ""}, {7, 12, nil, ""}, {7, 17, nil, "processor"}}},
		"computes and tells": {Wedge{Spinning: s(10)}, []look{{1, 0, nil, ""}, {2, 5, nil, ""}, {3, 10, nil, ""}, {4, 15, nil, ""}}},
		"blocked": {all, []look{
			{1, 0, nil, ""}, {2, 0, []int{9, 4}, ""}, {3, 0, []int{4, 8}, "process 4 in an uninterruptible sleep (state D) for 5s"}, {4, 0, []int{8}, "process 8"}, {5, 0, []int{4}, ""},
		}},
		"one after the other": {all, []look{{1, 0, []int{4}, ""}, {2, 0, []int{5}, ""}, {3, 0, []int{4}, ""}}},
		"off":                 {Wedge{}, []look{{0, 0, []int{4}, ""}, {0, 100, []int{4}, ""}, {0, 200, []int{4}, ""}, {0, 300, []int{4}, ""}}},
	} {
		now := time.Unix(1000, 0)
		var w *WedgeWatch
		for i, l := range tc.looks {
			v := Vitals{Output: l.output, CPU: s(l.cpu), Blocked: l.blocked}
			if w == nil {
				w = NewWedgeWatch(tc.rules, now, v)
				continue
			}
			now = now.Add(s(5))
			if got := w.Look(now, v); (got == "") != (l.want == "") || !strings.Contains(got, l.want) {
				t.Errorf("%s, look %d: %q, want %q", name, i, got, l.want)
			}
		}
	}
}

func TestWedgeEvery(t *testing.T) {
	for rules, want := range map[Wedge]time.Duration{
		{NoOutput: time.Minute}:                               15 * time.Second,
		{NoOutput: time.Hour}:                                 30 * time.Second,
		{NoOutput: time.Minute, Spinning: 2 * time.Second}:    500 * time.Millisecond,
		{Blocked: time.Millisecond, StackSignal: "QUIT"}:      250 * time.Millisecond,
		{NoOutput: 0, Spinning: 0, Blocked: 20 * time.Second}: 5 * time.Second,
	} {
		if got := rules.Every(); got != want {
			t.Errorf("%+v: %s, want %s", rules, got, want)
		}
	}
}
