package supervisor

import (
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func (l *loop) refuse(e *entry, verb, reason string) error {
	return &Refused{Program: e.name, Verb: verb, State: e.m.State, Reason: reason}
}

func (l *loop) requestStart(e *entry) error {
	switch {
	case l.ending.phase != notEnding:
		return l.refuse(e, "start", "the box is shutting down")
	case e.removing:
		return l.refuse(e, "start", "it is being removed")
	case e.m.State == program.Running, e.m.State == program.Starting:
		return l.refuse(e, "start", "it has been started already")
	case e.m.State == program.Backoff, e.m.State == program.Stopping:
		l.step(e, program.Event{Kind: program.Start})
	case !e.wanted:
		l.want(e, true)
	}
	return nil
}

func (l *loop) requestStop(e *entry) error {
	e.again = false
	if e.wanted {
		l.unwant(e, "stopped by request before it was started")
		return nil
	}
	if e.m.Resting() {
		return l.refuse(e, "stop", "it does not run")
	}
	l.step(e, program.Event{Kind: program.Stop})
	return nil
}

// unwant gives up a start that waits for its needs.
func (l *loop) unwant(e *entry, why string) {
	e.wanted, e.waiting = false, why
	e.status.Store(e.makeStatus())
	l.touch(e)
}

func (l *loop) requestRestart(e *entry) error {
	switch {
	case l.ending.phase != notEnding:
		return l.refuse(e, "restart", "the box is shutting down")
	case e.removing:
		return l.refuse(e, "restart", "it is being removed")
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

// requestSignal has the signal sent beside the loop; sent takes the outcome.
func (l *loop) requestSignal(e *entry, signal string, sent chan<- error) error {
	if e.m.PID == 0 {
		return l.refuse(e, "signal", "it does not run")
	}
	run := e.m.Run
	l.crew.submit(e.name, func() {
		sent <- l.sup.cfg.Processes.Signal(e.name, run, signal, program.KillProcess)
	})
	return nil
}

// remove forgets a program that is gone.
func (l *loop) remove(e *entry) {
	l.agenda.set(&e.due, time.Time{})
	l.agenda.set(&e.cronD, time.Time{})
	e.dropWatches()
	delete(l.entries, e.name)
	for i, other := range l.order {
		if other == e {
			l.order = append(l.order[:i:i], l.order[i+1:]...)
			break
		}
	}
	l.publishOrder()
	l.crew.submit(e.name, func() { l.sup.cfg.Processes.Forget(e.name) })
	l.tell("ProgramRemoved", e.name, nil)
}
