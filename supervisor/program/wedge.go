package program

import (
	"cmp"
	"fmt"
	"time"
)

// Wedge says when a RUNNING program counts as wedged: it lives but does no work any more. A zero
// duration switches its rule off.
type Wedge struct {
	NoOutput    time.Duration `json:"no_output,omitempty"`    // no output on standard output or error for this long
	Spinning    time.Duration `json:"spinning,omitempty"`     // no output for this long, while it uses or waits for at least about one processor
	Blocked     time.Duration `json:"blocked,omitempty"`      // one process in an uninterruptible sleep (state D) for this long
	StackSignal string        `json:"stack_signal,omitempty"` // sent first, so that the program writes its stacks
}

// On tells whether any rule is on.
func (w Wedge) On() bool { return w.NoOutput > 0 || w.Spinning > 0 || w.Blocked > 0 }

// The shortest and the longest time between two checks of a program.
const (
	minWedgeLook = 250 * time.Millisecond
	maxWedgeLook = 30 * time.Second
)

// Every is how often the program must be checked: four times within the shortest rule.
func (w Wedge) Every() time.Duration {
	shortest := 4 * maxWedgeLook
	for _, d := range []time.Duration{w.NoOutput, w.Spinning, w.Blocked} {
		if d > 0 {
			shortest = min(shortest, d)
		}
	}
	return max(shortest/4, minWedgeLook)
}

// Vitals is one reading of the processes of a run.
type Vitals struct {
	Output   uint64        // bytes written so far
	CPU      time.Duration // used so far
	Runnable time.Duration // CPU time and time spent waiting for a processor so far, of living members; 0 if unknown
	Blocked  []int         // pids in an uninterruptible sleep
}

// spinningShare is how much of a processor a program uses or waits for at least when it counts as
// spinning.
const spinningShare = 0.9

// WedgeWatch judges the readings of one run.
type WedgeWatch struct {
	rules Wedge
	last  Vitals
	at    time.Time

	wrote, calm time.Time         // time of the last output; last time that it was not spinning
	blocked     map[int]time.Time // since when each process has been blocked
}

// NewWedgeWatch begins with the first reading.
func NewWedgeWatch(rules Wedge, now time.Time, v Vitals) *WedgeWatch {
	w := &WedgeWatch{rules: rules, last: v, at: now, wrote: now, calm: now}
	w.block(now, v)
	return w
}

// block records the processes that are blocked.
func (w *WedgeWatch) block(now time.Time, v Vitals) {
	since := make(map[int]time.Time, len(v.Blocked))
	for _, pid := range v.Blocked {
		since[pid] = now
		if was, ok := w.blocked[pid]; ok {
			since[pid] = was
		}
	}
	w.blocked = since
}

// Look judges a further reading. It returns why the program is wedged, or "" if it is not.
func (w *WedgeWatch) Look(now time.Time, v Vitals) string {
	if v.Output != w.last.Output {
		w.wrote, w.calm = now, now
	}
	busy := max(v.CPU-w.last.CPU, v.Runnable-w.last.Runnable)
	if span := now.Sub(w.at); span > 0 && busy.Seconds() < spinningShare*span.Seconds() {
		w.calm = now
	}
	w.block(now, v)
	w.last, w.at = v, now
	over := func(limit time.Duration, since time.Time) bool { return limit > 0 && now.Sub(since) >= limit }
	pid := w.longest()
	switch {
	case pid != 0 && over(w.rules.Blocked, w.blocked[pid]):
		return fmt.Sprintf("wedged: process %d in an uninterruptible sleep (state D) for %s", pid, w.rules.Blocked)
	case over(w.rules.Spinning, w.calm):
		return fmt.Sprintf("wedged: it spins (a whole processor wanted, no output) for %s", w.rules.Spinning)
	case over(w.rules.NoOutput, w.wrote):
		return fmt.Sprintf("wedged: no output for %s", w.rules.NoOutput)
	}
	return ""
}

// longest is the process that has been blocked longest, of several the one with the lowest pid; 0
// if there is none.
func (w *WedgeWatch) longest() (pid int) {
	for p, since := range w.blocked {
		if was, ok := w.blocked[pid]; !ok || cmp.Or(since.Compare(was), cmp.Compare(p, pid)) < 0 {
			pid = p
		}
	}
	return pid
}
