package supervisor

import (
	"fmt"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// boot starts the first wave.
func (l *loop) boot() {
	if l.booting || l.ending.phase != notEnding {
		return
	}
	l.booting, l.bootedAt = true, l.now()
	l.sup.setPhase(Running)
	for _, e := range l.order {
		if e.spec().Autostart && !e.released {
			e.waiting = l.turn(e)
			e.status.Store(e.makeStatus())
		}
	}
	l.advanceBoot()
}

func (l *loop) turn(e *entry) string {
	if e.scheduled() {
		return ""
	}
	return fmt.Sprintf("waits for its turn (priority %d)", e.spec().Priority)
}

// advanceBoot releases the next wave when the ones before are settled.
func (l *loop) advanceBoot() {
	if !l.booting || l.ending.phase != notEnding {
		return
	}
	for {
		for len(l.open) > 0 && l.settled(l.open[len(l.open)-1]) {
			l.open = l.open[:len(l.open)-1]
		}
		if len(l.open) > 0 {
			last := l.open[len(l.open)-1]
			l.sup.awaited.Store(last)
			l.look++
			l.agenda.set(&l.barrier, l.givesUp(last))
			return
		}
		l.sup.awaited.Store(nil)
		l.agenda.set(&l.barrier, time.Time{})
		if !l.release() {
			l.allStarted()
			return
		}
	}
}

// release makes every program of the first wave that was not started yet wanted. It returns false
// if there is none.
func (l *loop) release() bool {
	for _, wave := range l.waves {
		var fresh []*entry
		for _, e := range wave {
			if !e.released && (e.asked || e.spec().Autostart) {
				fresh = append(fresh, e)
			}
		}
		if len(fresh) == 0 {
			continue
		}
		for _, e := range fresh {
			asked := e.asked
			e.released, e.asked = true, false
			l.open = append(l.open, e)
			switch {
			case e.scheduled() && !e.paused:
				l.timetable(e)
			case !e.scheduled() && !e.active() && (asked || e.m.Run == 0):
				l.want(e, asked)
			}
		}
		return true
	}
	return false
}

func (l *loop) allStarted() {
	if l.allBooted() {
		return
	}
	close(l.sup.started)
	l.sup.cfg.Bus.Publish(event.Event{
		Level: event.Info, Stage: stage, Name: event.ProgramsStarted,
		Fields: map[string]any{
			"programs": len(l.order), "waves": len(l.waves),
			"duration_ms": l.now().Sub(l.bootedAt).Milliseconds(),
		},
	})
	l.checkAllExited()
}

// want starts e as soon as its needs hold, and also starts what it needs. Programs that have given
// up are tried again only if a request named e. The same holds for programs that wait for such
// programs.
func (l *loop) want(e *entry, asked bool) {
	if asked {
		e.restarts = ""
	}
	l.look++
	l.wantFor(e, asked)
}

// wantFor visits each program once in a walk, even if several paths lead to it.
func (l *loop) wantFor(e *entry, asked bool) {
	if e.visited == l.look {
		return
	}
	e.visited, e.wanted = l.look, true
	for _, need := range e.needs() {
		n := l.entries[need.Program]
		idle := !n.wanted && n.m.State == program.Stopped && n.m.Run == 0 && !n.declined() || asked && n.m.Resting()
		if idle && !meets(n, need.Condition) {
			l.wantFor(n, asked)
		}
	}
	l.tryStart(e)
}

// tryStart starts a wanted program whose needs hold. Otherwise it records what the program waits
// for.
func (l *loop) tryStart(e *entry) {
	need := l.unmet(e)
	if need == nil {
		l.step(e, program.Event{Kind: program.Start, Reason: e.restarts})
		return
	}
	n := l.entries[need.Program]
	waiting := fmt.Sprintf("waits for %s to be %s (it is %s: %s)", n.name, need.Condition, n.status.Load().Shown(), n.ownReason())
	if e.restarts != "" {
		waiting = e.restarts + "; " + waiting
	}
	blocked := l.lost(e)
	if waiting != e.waiting || blocked != e.blocked {
		e.waiting, e.blocked = waiting, blocked
		l.show(e)
		l.touch(e)
	}
}

// unmet returns the first need of e that does not hold, nil if all hold. A program
// that is being removed may name one that is gone already.
func (l *loop) unmet(e *entry) *program.Need {
	needs := e.needs()
	for i := range needs {
		if n := l.entries[needs[i].Program]; n != nil && !meets(n, needs[i].Condition) {
			return &needs[i]
		}
	}
	return nil
}

// awaitNeeds has a run that is due wait for what the program needs. A run that was
// asked for starts what it needs, as every start does.
func (l *loop) awaitNeeds(e *entry, restarts string) {
	if l.ending.phase != notEnding {
		e.waiting = "not started: the box is shutting down"
		return
	}
	e.restarts = restarts
	l.want(e, restarts == "" && !e.scheduled())
}

// lost tells whether a wanted program needs one that will not start without a request: that one
// rests, or is lost itself.
func (l *loop) lost(e *entry) bool {
	for _, need := range e.needs() {
		n := l.entries[need.Program]
		switch {
		case meets(n, need.Condition), n.active(), n.cron != nil, n.again:
		case n.wanted && !n.blocked, !n.released && n.spec().Autostart:
		default:
			return true
		}
	}
	return false
}

// meets tells whether a needed program satisfies the condition.
func meets(n *entry, c program.Condition) bool { return c.Met(n.status.Load()) }

// settled tells whether the next wave need not wait for e: e has passed the barrier or given up.
func (l *loop) settled(e *entry) bool {
	spec := e.spec()
	switch {
	case l.sup.cfg.Barrier == program.BarrierNone, spec.Type == program.Schedule, e.removing:
		return true
	case l.late(e):
		return true
	case e.revive: // a restart of the box comes before the next wave
		return false
	case e.m.Resting() && !e.wanted, e.m.Completed, e.m.Ready:
		return true
	case e.wanted:
		l.look++
		return l.blocked(e)
	}
	return l.sup.cfg.Barrier == program.BarrierReady && spec.Type != program.Oneshot &&
		len(spec.Readiness.Probes) == 0 && meets(e, program.NeedStarted)
}

// late tells whether the start timeout of e has passed, counted from its first start. A program
// that fails again and again must not delay the others.
func (l *loop) late(e *entry) bool {
	limit := e.spec().StartTimeout
	return limit > 0 && !e.firstStart.IsZero() && l.now().Sub(e.firstStart) >= limit
}

// blocked tells whether a wanted program waits for one that will not become ready. Each program is
// judged once in a walk. Otherwise, programs that share needs would be visited once for each path
// between them.
func (l *loop) blocked(e *entry) bool {
	if e.looked != l.look {
		e.looked, e.isBlocked = l.look, false
		e.isBlocked = l.lacksNeed(e)
	}
	return e.isBlocked
}

func (l *loop) lacksNeed(e *entry) bool {
	for _, need := range e.needs() {
		n := l.entries[need.Program]
		if meets(n, need.Condition) {
			continue
		}
		if n.wanted && l.blocked(n) || !n.wanted && n.m.Resting() || l.late(n) {
			return true
		}
	}
	return false
}

// givesUp is when the result of settled may change without an event, or zero if it cannot. Like
// blocked, it is computed once in a walk for each program.
func (l *loop) givesUp(e *entry) time.Time {
	if e.timed != l.look {
		e.timed, e.gaveUp = l.look, time.Time{}
		e.gaveUp = l.firstLimit(e)
	}
	return e.gaveUp
}

func (l *loop) firstLimit(e *entry) time.Time {
	if limit := e.spec().StartTimeout; limit > 0 && !e.firstStart.IsZero() {
		return e.firstStart.Add(limit)
	}
	var first time.Time
	if e.wanted {
		for _, need := range e.needs() {
			n := l.entries[need.Program]
			if meets(n, need.Condition) {
				continue
			}
			if at := l.givesUp(n); first.IsZero() || !at.IsZero() && at.Before(first) {
				first = at
			}
		}
	}
	return first
}
