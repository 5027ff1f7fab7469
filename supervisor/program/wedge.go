package program

import (
	"cmp"
	"fmt"
	"time"
)

// Wedge says when a RUNNING program counts as wedged: it lives, and does not work any more. A
// zero duration switches its rule off.
type Wedge struct {
	NoOutput    time.Duration `json:"no_output,omitempty"`    // no byte on standard output or error
	Spinning    time.Duration `json:"spinning,omitempty"`     // a whole processor or more wanted, and no output
	Blocked     time.Duration `json:"blocked,omitempty"`      // one process in an uninterruptible sleep (state D)
	StackSignal string        `json:"stack_signal,omitempty"` // sent first, so that the program writes its stacks
}

// On tells whether any rule is.
func (w Wedge) On() bool { return w.NoOutput > 0 || w.Spinning > 0 || w.Blocked > 0 }

// The least and the longest time between two looks at a program.
const (
	minWedgeLook = 250 * time.Millisecond
	maxWedgeLook = 30 * time.Second
)

// Every is how often the program must be looked at: four times within the shortest rule.
func (w Wedge) Every() time.Duration {
	shortest := 4 * maxWedgeLook
	for _, d := range []time.Duration{w.NoOutput, w.Spinning, w.Blocked} {
		if d > 0 {
			shortest = min(shortest, d)
		}
	}
	return max(shortest/4, minWedgeLook)
}

// Vitals is one look at the processes of a run.
type Vitals struct {
	Output   uint64        // bytes written so far
	CPU      time.Duration // used so far
	Runnable time.Duration // CPU and waiting for a processor so far, of what lives; 0 if it is not known
	Blocked  []int         // pids in an uninterruptible sleep
}

// spinningShare is how much of a processor a program uses or waits for at least while it
// spins.
const spinningShare = 0.9

// WedgeWatch judges the looks at one run.
type WedgeWatch struct {
	rules Wedge
	last  Vitals
	at    time.Time

	wrote, calm time.Time         // last output; last time that it was not spinning
	blocked     map[int]time.Time // since when each process has been seen blocked
}

// NewWedgeWatch begins with the first look.
func NewWedgeWatch(rules Wedge, now time.Time, v Vitals) *WedgeWatch {
	w := &WedgeWatch{rules: rules, last: v, at: now, wrote: now, calm: now}
	w.block(now, v)
	return w
}

// block takes note of the processes that are blocked.
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

// Look takes a later look. It returns why the program is wedged, "" while it is not.
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

// longest is the process that has been blocked longest, the lowest pid of several; 0 for none.
func (w *WedgeWatch) longest() (pid int) {
	for p, since := range w.blocked {
		if was, ok := w.blocked[pid]; !ok || cmp.Or(since.Compare(was), cmp.Compare(p, pid)) < 0 {
			pid = p
		}
	}
	return pid
}
