package supervisor

import (
	"maps"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

const shuttingDown = "the box is shutting down"

func (l *loop) refuse(e *entry, verb, reason string) error {
	return &Refused{Program: e.name, Verb: verb, State: e.m.State, Reason: reason}
}

// changeable returns why no request may change the program now.
func (l *loop) changeable(e *entry, verb string) error {
	switch {
	case l.ending.phase != notEnding:
		return &Refused{Program: e.name, Verb: verb, State: e.m.State, Reason: shuttingDown, Ending: true}
	case e.removing:
		return l.refuse(e, verb, "it is being removed")
	}
	return nil
}

// requestStart makes a program run. For a schedule it resumes the runs at their times; requestRun
// starts a run now.
func (l *loop) requestStart(e *entry) error {
	if err := l.changeable(e, "start"); err != nil {
		return err
	}
	if e.scheduled() {
		if !e.paused {
			return l.refuse(e, "start", "its schedule is active; `run` starts a run now")
		}
		l.resume(e)
		return nil
	}
	return l.requestRun(e)
}

// requestRun starts a run now. If the program waits for its needs, it tries again.
func (l *loop) requestRun(e *entry) error {
	if err := l.changeable(e, "start"); err != nil {
		return err
	}
	switch {
	case e.halt == haltWaits && e.revive: // it starts after the stop
	case e.halt == haltWaits:
		e.halt = haltNone // the stop is cancelled
		l.show(e)
	case e.m.State == program.Running, e.m.State == program.Starting:
		return l.refuse(e, "start", "it has been started already")
	case e.m.State == program.Backoff, e.m.State == program.Stopping:
		l.step(e, program.Event{Kind: program.Start})
	default:
		l.want(e, true)
	}
	return nil
}

// requestStop makes a program stop; advanceHalt carries it out. A schedule is paused.
func (l *loop) requestStop(e *entry) error {
	rests := e.m.Resting()
	early, revived := e.awaitsTurn(), e.revive && rests
	e.again, e.revive, e.asked = false, false, false
	if e.scheduled() && !e.paused {
		l.pause(e)
		if rests && !e.wanted {
			return nil
		}
	}
	switch {
	case early:
		e.released = true // or its wave would start it
		l.unwant(e, "stopped by request before it was started")
	case e.wanted, revived:
		l.unwant(e, "stopped by request before it was started")
	case rests:
		return l.refuse(e, "stop", "it does not run")
	case l.ending.phase != notEnding:
		l.step(e, program.Event{Kind: program.Stop})
	default:
		e.halt, l.halts = haltWaits, true
		l.show(e)
	}
	return nil
}

// requestStartAll starts the programs as at the boot, wave by wave.
func (l *loop) requestStartAll(e *entry) error {
	if err := l.changeable(e, "start"); err != nil {
		return err
	}
	if e.scheduled() || e.active() || !e.spec().Autostart || !l.booting {
		return l.requestStart(e)
	}
	e.released, e.asked, e.firstStart = false, true, time.Time{}
	e.waiting = l.turn(e)
	e.status.Store(e.makeStatus())
	l.touch(e)
	return nil
}

// unwant gives up a start that waits for its needs.
func (l *loop) unwant(e *entry, why string) {
	e.wanted, e.blocked, e.restarts, e.waiting = false, false, "", why
	e.status.Store(e.makeStatus())
	l.touch(e)
}

func (l *loop) requestRestart(e *entry) error {
	if err := l.changeable(e, "restart"); err != nil {
		return err
	}
	e.halt = haltNone
	switch {
	case e.m.Resting() && e.scheduled():
		return l.refuse(e, "restart", "it does not run; `run` starts a run now")
	case e.m.Resting():
		return l.requestStart(e)
	}
	l.step(e, program.Event{Kind: program.Stop})
	if e.m.Resting() {
		l.want(e, true)
		return nil
	}
	l.step(e, program.Event{Kind: program.Start})
	return nil
}

// requestRestartAll stops the program in the stop order of the box. When all programs of the
// request have stopped, they start as at the boot.
func (l *loop) requestRestartAll(e *entry) error {
	if err := l.changeable(e, "restart"); err != nil {
		return err
	}
	if e.scheduled() && e.m.Resting() {
		return l.refuse(e, "restart", "it does not run; `run` starts a run now")
	}
	e.revive, l.halts = true, true
	e.again = false // its run starts when all programs have stopped
	if e.active() {
		e.halt = haltWaits
	}
	l.show(e)
	l.touch(e)
	return nil
}

// requestSignal sends the signal outside the loop; the channel sent gets the result.
func (l *loop) requestSignal(e *entry, signal string, sent chan<- error) error {
	if e.m.PID == 0 {
		return l.refuse(e, "signal", "it does not run")
	}
	r := SignalRequest{Program: e.name, Run: e.m.Run, Signal: signal, Scope: program.KillProcess, Asked: time.Now()}
	l.crew.submit(e.lane, job{do: func() { sent <- l.sup.cfg.Processes.Signal(r) }})
	return nil
}

// remove forgets a program that is gone.
func (l *loop) remove(e *entry) {
	l.agenda.set(&e.due, time.Time{})
	l.agenda.set(&e.cronD, time.Time{})
	e.dropWatches()
	delete(l.entries, e.name)
	maps.DeleteFunc(l.former, func(_ string, other *entry) bool { return other == e })
	l.order = slices.DeleteFunc(slices.Clone(l.order), func(other *entry) bool { return other == e })
	l.publishOrder()
	names := append([]string{e.name}, e.former...)
	l.crew.submit(e.lane, job{do: func() {
		for _, name := range names {
			l.sup.cfg.Processes.Forget(name)
		}
	}})
	l.tell(event.ProgramRemoved, e.name, nil)
}
