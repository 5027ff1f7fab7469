package supervisor

import (
	"fmt"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// boot begins with the first wave.
func (l *loop) boot() {
	if l.booting || l.ending.phase != notEnding {
		return
	}
	l.booting, l.bootedAt = true, time.Now()
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

// advanceBoot releases the next wave once the ones before are settled.
func (l *loop) advanceBoot() {
	if !l.booting || l.ending.phase != notEnding {
		return
	}
	for {
		for len(l.open) > 0 && l.settled(l.open[len(l.open)-1]) {
			l.open = l.open[:len(l.open)-1]
		}
		if len(l.open) > 0 {
			l.look++
			l.agenda.set(&l.barrier, l.givesUp(l.open[len(l.open)-1]))
			return
		}
		l.agenda.set(&l.barrier, time.Time{})
		if !l.release() {
			l.allStarted()
			return
		}
	}
}

// release wants every program of the first wave that has not been started. It
// returns false when there is none.
func (l *loop) release() bool {
	for _, wave := range l.waves {
		var fresh []*entry
		for _, e := range wave {
			if !e.released && e.spec().Autostart {
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
	select {
	case <-l.sup.started:
		return
	default:
	}
	close(l.sup.started)
	l.sup.cfg.Bus.Publish(event.Event{
		Level: event.Info, Stage: stage, Name: event.ProgramsStarted,
		Fields: map[string]any{
			"programs": len(l.order), "waves": len(l.waves),
			"duration_ms": time.Since(l.bootedAt).Milliseconds(),
		},
	})
	l.checkAllExited()
}

// want starts e as soon as its needs hold, and what it needs with it. Programs
// that have given up are tried again only when somebody asked for e, and so are
// those that wait for such.
func (l *loop) want(e *entry, asked bool) {
	l.look++
	l.wantFor(e, asked)
}

// wantFor visits each program once a look, however many paths lead to it.
func (l *loop) wantFor(e *entry, asked bool) {
	if e.visited == l.look {
		return
	}
	e.visited, e.wanted = l.look, true
	for _, need := range e.needs() {
		n := l.entries[need.Program]
		idle := !n.wanted && n.m.State == program.Stopped && n.m.Run == 0 || asked && n.m.Resting()
		if idle && !meets(n, need.Condition) {
			l.wantFor(n, asked)
		}
	}
	l.tryStart(e)
}

// tryStart starts a wanted program whose needs hold, or notes what it waits for.
func (l *loop) tryStart(e *entry) {
	for _, need := range e.needs() {
		n := l.entries[need.Program]
		if meets(n, need.Condition) {
			continue
		}
		waiting := fmt.Sprintf("waits for %s to be %s (it is %s: %s)", n.name, need.Condition, n.status.Load().Shown(), n.ownReason())
		blocked := l.lost(e)
		if waiting != e.waiting || blocked != e.blocked {
			e.waiting, e.blocked = waiting, blocked
			l.show(e)
			l.touch(e)
		}
		return
	}
	l.step(e, program.Event{Kind: program.Start})
}

// lost tells whether a wanted program waits for one that will not come without a
// request: it rests, or waits itself for such a one.
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

// settled tells whether the next wave need not wait for e: it has passed the
// barrier or given up.
func (l *loop) settled(e *entry) bool {
	spec := e.spec()
	switch {
	case l.sup.cfg.Barrier == program.BarrierNone, spec.Type == program.Schedule, e.removing:
		return true
	case e.m.Resting() && !e.wanted, e.m.Completed, e.m.Ready:
		return true
	case l.late(e):
		return true
	case e.wanted:
		l.look++
		return l.blocked(e)
	}
	return l.sup.cfg.Barrier == program.BarrierReady && spec.Type != program.Oneshot &&
		len(spec.Readiness.Probes) == 0 && meets(e, program.NeedStarted)
}

// late tells whether e has had its start timeout, counted from its first start:
// a program that fails again and again must not hold up the rest.
func (l *loop) late(e *entry) bool {
	limit := e.spec().StartTimeout
	return limit > 0 && !e.firstStart.IsZero() && time.Since(e.firstStart) >= limit
}

// blocked tells whether a wanted program waits for one that will not come. Each
// program is judged once a look: without that, programs that share their needs
// with those they need would be walked as often as there are paths between them.
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

// givesUp is when settled may change by time alone, zero if it will not. It is
// found once a look for each program, as blocked is.
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
