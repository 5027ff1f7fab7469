package supervisor

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// CauseKind says why a box ended.
type CauseKind string

// The causes.
const (
	CauseRequested CauseKind = "requested"  // from outside
	CauseEssential CauseKind = "essential"  // an essential program exited or is FATAL
	CauseFatal     CauseKind = "fatal"      // a program with on_fatal = "shutdown"
	CauseUnhealthy CauseKind = "unhealthy"  // a health check with action = "shutdown"
	CauseAllExited CauseKind = "all-exited" // on_all_exited = "exit"
	CauseFailed    CauseKind = "failed"     // the boot or an adapter has failed
	CauseInternal  CauseKind = "internal"   // a bug
)

// Cause is the first reason for a shutdown.
type Cause struct {
	Kind    CauseKind `json:"kind"`
	Program string    `json:"program,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	// Code is the box's exit code for this cause.
	Code int `json:"code"`
}

// String is the cause as one line.
func (c Cause) String() string {
	if c.Program == "" {
		return fmt.Sprintf("%s: %s", c.Kind, c.Detail)
	}
	return fmt.Sprintf("%s: program %s: %s", c.Kind, c.Program, c.Detail)
}

// Result is how a supervisor ended.
type Result struct {
	Cause Cause `json:"cause"`
	Code  int   `json:"code"`
	// Programs is the last status of every program, in start order.
	Programs []Status `json:"programs"`
	// Leftover names the programs that did not stop within the budget.
	Leftover []string      `json:"leftover,omitempty"`
	Took     time.Duration `json:"took"`
	// Grace is the budget that the shutdown had. It is the one of the boot; an apply does not
	// change it.
	Grace time.Duration `json:"grace"`
}

type endingPhase uint8

const (
	notEnding endingPhase = iota
	draining
	stopping
	killing
)

// ending is the shutdown.
type ending struct {
	l        *loop
	phase    endingPhase
	requests int // number of requests from outside
	cause    Cause
	began    time.Time

	hold item // end of the drain
	kill item // start of the reserve: KILL what is left
	over item // end of the budget

	scale float64
	wave  int // being stopped
	alive []int
	left  int
}

func (n *ending) init(l *loop) {
	n.l = l
	n.hold.fire = n.stopAll
	n.kill.fire = func() { n.killAll("the time for stopping is used up") }
	n.over.fire = func() { l.finished = true }
}

// requestShutdown is a request from outside. Each further request is more urgent.
func (l *loop) requestShutdown(c Cause) {
	n := &l.ending
	n.requests++
	switch {
	case n.phase == notEnding:
		l.shutDown(c)
	case n.requests == 1: // the box was already ending without a request
	case n.requests == 2:
		n.hurry()
	default:
		n.killAll("requested once more")
	}
}

// shutDown begins the shutdown; only the first cause counts.
func (l *loop) shutDown(c Cause) {
	n := &l.ending
	if n.phase != notEnding {
		return
	}
	cfg := &l.sup.cfg
	n.phase, n.cause, n.began = draining, c, l.now()
	l.sup.setPhase(Draining)
	close(l.sup.ending)
	for _, e := range l.order {
		l.noMoreRuns(e)
		revived := e.revive && e.m.Resting()
		e.again, e.revive, e.asked, e.halt, e.released = false, false, false, haltNone, true
		if e.wanted || e.waiting != "" || e.scheduled() || revived {
			l.unwant(e, "not started: the box is shutting down")
		}
	}
	l.agenda.set(&l.barrier, time.Time{})
	l.tell(event.ShutdownStarted, c.Program, map[string]any{
		"cause": string(c.Kind), "detail": c.Detail, "code": c.Code,
		"grace_ms": cfg.StopGrace.Milliseconds(), "drain_ms": cfg.Drain.Milliseconds(),
	})
	l.agenda.set(&n.kill, n.began.Add(cfg.StopGrace-program.KillReserve(cfg.StopGrace)))
	l.agenda.set(&n.over, n.began.Add(cfg.StopGrace))
	if cfg.Drain > 0 {
		l.agenda.set(&n.hold, n.began.Add(cfg.Drain))
		return
	}
	// Not at once: the step under way must first store the machine of the program that is the
	// cause.
	l.agenda.set(&n.hold, n.began)
}

// stopAll begins with the last wave. The declared ladders are shortened to the rest of the budget.
func (n *ending) stopAll() {
	if n.phase != draining {
		return
	}
	l := n.l
	n.phase = stopping
	l.agenda.set(&n.hold, time.Time{})
	l.sup.setPhase(Stopping)
	n.alive = make([]int, len(l.waves)+1)
	for _, e := range l.order {
		if e.gone() {
			continue
		}
		e.counted = true
		n.left++
		n.alive[n.rank(e)]++
		for _, d := range e.dependents {
			if !d.gone() && d.wave == e.wave {
				e.waitsFor++
			}
		}
	}
	n.scale = n.fit(n.kill.at.Sub(n.l.now()))
	n.wave = len(n.alive) - 1
	n.stopWave()
}

// rank is the wave of a program. For a program that is being removed, it is after the last wave.
func (n *ending) rank(e *entry) int {
	if e.removing {
		return len(n.alive) - 1
	}
	return e.wave
}

// fit returns the factor by which the declared waits must shrink to fit the budget.
func (n *ending) fit(budget time.Duration) float64 {
	var live []*program.Spec
	for _, e := range n.l.order {
		if e.counted {
			live = append(live, n.stopOf(e))
		}
	}
	scale, err := program.StopScale(live, budget)
	if err != nil {
		// The names and edges were checked when the specifications were taken.
		panic(err)
	}
	return scale
}

// stopOf returns the specification with which fit computes the stop of e. It copies the one in force
// only if the two differ: the first signal waits until fit has looked at every program.
func (n *ending) stopOf(e *entry) *program.Spec {
	var needs []program.Need
	for _, need := range e.needs() {
		if d := n.l.entries[need.Program]; d != nil && d.counted {
			needs = append(needs, need)
		}
	}
	spec := e.spec()
	if e.name == spec.Name && !e.removing && slices.Equal(needs, spec.Needs) {
		return spec
	}
	own := *spec
	own.Name, own.Needs = e.name, needs
	if e.removing {
		own.Priority = math.MaxInt // see rank
	}
	return &own
}

// stopWave asks the present wave to stop, and the next wave when that one is gone.
func (n *ending) stopWave() {
	for n.phase == stopping && n.left > 0 {
		for n.wave > 0 && n.alive[n.wave] == 0 {
			n.wave--
		}
		asked := false
		for _, e := range n.l.order {
			if e.counted && !e.stopAsked && e.waitsFor == 0 && n.rank(e) == n.wave {
				n.stop(e)
				asked = true
			}
		}
		// A program that waited for its back-off has no process and is gone at once.
		if !asked || n.alive[n.wave] > 0 {
			break
		}
	}
	n.finishIfEmpty()
}

func (n *ending) stop(e *entry) {
	e.stopAsked = true
	n.l.step(e, program.Event{Kind: program.Stop, Scale: n.scale})
	n.consider(e)
}

// consider records that a program is gone and stops the programs that waited for that.
func (n *ending) consider(e *entry) {
	if !e.counted || !e.gone() {
		return
	}
	e.counted = false
	n.left--
	n.alive[n.rank(e)]--
	for _, need := range e.needs() {
		d := n.l.entries[need.Program]
		if d == nil || d.wave != e.wave || d.waitsFor == 0 {
			continue
		}
		d.waitsFor--
		if n.phase == stopping && d.waitsFor == 0 && d.counted && !d.stopAsked && n.rank(d) == n.wave {
			n.stop(d)
		}
	}
}

// advance continues with the next wave when the present one is gone.
func (n *ending) advance() {
	if n.phase == stopping && n.alive[n.wave] == 0 {
		n.stopWave()
		return
	}
	n.finishIfEmpty()
}

func (n *ending) finishIfEmpty() {
	if n.phase >= stopping && n.left == 0 {
		n.l.finished = true
	}
}

// hurry skips the rest of the grace: no drain, no order, no hooks, and ladders shortened to half of
// the reserve.
func (n *ending) hurry() {
	l := n.l
	rest := program.KillReserve(l.sup.cfg.StopGrace) / 2
	n.stopAll()
	if n.phase != stopping {
		return
	}
	l.tell(event.ShutdownHurried, "", map[string]any{"left": n.left, "rest_ms": rest.Milliseconds()})
	if at := l.now().Add(rest); at.Before(n.kill.at) {
		l.agenda.set(&n.kill, at)
	}
	for _, e := range l.order {
		if !e.counted {
			continue
		}
		e.stopAsked = true
		scale := float64(1)
		if d := program.StopTime(e.spec()); d > rest {
			scale = float64(rest) / float64(d)
		}
		l.step(e, program.Event{Kind: program.Stop, Scale: scale, SkipHooks: true})
		n.consider(e)
	}
	n.finishIfEmpty()
}

// killAll sends KILL to everything that is left.
func (n *ending) killAll(why string) {
	l := n.l
	n.stopAll()
	if n.phase != stopping && n.phase != killing || n.left == 0 {
		return
	}
	n.phase = killing
	var left []string
	for _, e := range l.order {
		if e.counted {
			left = append(left, e.name)
		}
	}
	l.tell(event.ShutdownKills, "", map[string]any{"programs": left, "why": why})
	l.agenda.set(&n.kill, time.Time{})
	for _, e := range l.order {
		if e.counted {
			l.step(e, program.Event{Kind: program.Kill})
			n.consider(e)
		}
	}
	if at := l.now().Add(program.KillReserve(l.sup.cfg.StopGrace)); at.Before(n.over.at) {
		l.agenda.set(&n.over, at)
	}
	n.finishIfEmpty()
}

// checkAllExited ends the box if no program is left to run.
func (l *loop) checkAllExited() {
	if !l.sup.cfg.ExitWhenAllExited || l.ending.phase != notEnding || !l.allBooted() {
		return
	}
	l.look++
	for _, e := range l.order {
		if e.active() || e.cron != nil || e.again || e.revive || e.asked || e.wanted && !l.blocked(e) {
			return
		}
	}
	c := Cause{Kind: CauseAllExited, Detail: "every program has ended as expected"}
	if l.firstBad != nil {
		c.Program, c.Code, c.Detail = l.firstBad.name, l.badCode, l.firstBad.reason()
	}
	l.shutDown(c)
}

func (l *loop) allBooted() bool {
	select {
	case <-l.sup.started:
		return true
	default:
		return false
	}
}

// finish makes the result after the loop.
func (l *loop) finish() Result {
	n := &l.ending
	r := Result{Cause: n.cause, Code: n.cause.Code, Took: l.now().Sub(n.began), Grace: l.sup.cfg.StopGrace}
	for _, e := range l.order {
		e.dropWatches()
		for _, cancel := range e.hooks {
			cancel()
		}
		if !e.gone() {
			r.Leftover = append(r.Leftover, e.name)
		}
	}
	r.Programs = l.sup.Snapshot().Programs
	l.tell(event.ShutdownCompleted, "", map[string]any{
		"code": r.Code, "duration_ms": r.Took.Milliseconds(), "leftover": len(r.Leftover),
	})
	return r
}

func (l *loop) tell(name, about string, fields map[string]any) {
	l.sup.cfg.Bus.Publish(event.Event{Level: event.Info, Stage: stage, Name: name, Program: about, Fields: fields})
}
