package supervisor

import "github.com/dreamlab-ai/agentinit/supervisor/program"

// halt is where a program is in a stop that was asked for. Programs that are asked
// to stop together stop in the order of the box: the last wave first, and inside a
// wave those that depend on others before these.
type halt uint8

const (
	haltNone  halt = iota
	haltWaits      // its turn has not come
	haltAsked      // it stops
)

// halting tells whether the program is to be stopped and its turn has not come.
func (e *entry) halting() bool { return e.halt == haltWaits && e.active() }

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

// reviveAll starts, in the order of the boot, what a restart of the box has stopped.
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
			l.show(e) // it has been started meanwhile, or is being removed
		}
	}
}

// inTheWay tells whether a dependent of e, of the same wave, is still to stop.
func (l *loop) inTheWay(e *entry) bool {
	for _, d := range e.dependents {
		if d.halt != haltNone && d.wave == e.wave && !d.gone() {
			return true
		}
	}
	return false
}
