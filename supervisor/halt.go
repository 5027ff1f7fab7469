package supervisor

import (
	"slices"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// halt is the progress of a requested stop of one program. Programs that are asked to stop together
// stop in the order of the box: the last wave first, and in a wave, dependents before the programs
// that they need.
type halt uint8

const (
	haltNone  halt = iota
	haltWaits      // its turn has not come yet
	haltAsked      // it is stopping
)

// halting tells whether the program must be stopped but its turn has not come yet.
func (e *entry) halting() bool { return e.halt == haltWaits && e.active() }

// stopsByRequest tells whether a stop of the program was requested and is not done yet.
func (e *entry) stopsByRequest() bool { return e.halting() || e.m.ToRest() }

// advanceHalt stops the programs whose turn has come.
func (l *loop) advanceHalt() {
	if !l.halts {
		return
	}
	last := -1
	for _, e := range l.order {
		restarted := e.halt == haltAsked && (e.m.State == program.Starting || e.m.State == program.Running)
		if e.gone() || restarted {
			e.halt = haltNone
		}
		if e.halt != haltNone {
			last = max(last, e.wave)
		}
	}
	l.halts = last >= 0
	if !l.halts {
		l.reviveAll()
	}
	for _, e := range l.order {
		if e.halt != haltWaits || e.wave != last || l.inTheWay(e) {
			continue
		}
		e.halt = haltAsked
		l.step(e, program.Event{Kind: program.Stop})
	}
}

// reviveAll starts, in the order of the boot, the programs that a restart of the box has stopped.
func (l *loop) reviveAll() {
	for _, e := range l.order {
		if !e.revive {
			continue
		}
		e.revive = false
		request := l.requestStartAll
		if e.scheduled() {
			request = l.requestRun
		}
		if err := request(e); err != nil {
			l.show(e) // it was started meanwhile, or is being removed
		}
	}
}

// inTheWay tells whether a dependent of e in the same wave must stop first.
func (l *loop) inTheWay(e *entry) bool {
	return slices.ContainsFunc(e.dependents, func(d *entry) bool { return d.halt != haltNone && d.wave == e.wave && !d.gone() })
}
