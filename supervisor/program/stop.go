package program

import (
	"cmp"
	"time"
)

// StopLadder returns the rungs of the stop that is in force for s: the declared ones up to KILL,
// which always comes last.
func StopLadder(s *Spec) []StopStep {
	ladder := make([]StopStep, 0, len(s.Stop)+1)
	for _, rung := range s.Stop {
		ladder = append(ladder, rung)
		if rung.Signal == killSignal {
			return ladder
		}
	}
	if len(ladder) == 0 {
		ladder = append(ladder, StopStep{Signal: "TERM", Wait: DefaultStopWait})
	}
	return append(ladder, StopStep{Signal: killSignal})
}

const killSignal = "KILL"

const byRequest = "stopped by request"

func stoppingBecause(why string) string {
	if why == byRequest {
		return "stopping by request"
	}
	return "stopping: " + why
}

func (t *transition) stop(ev Event) {
	why := cmp.Or(ev.Reason, byRequest)
	switch t.State {
	case Stopped, Exited, Fatal:
	case Stopping:
		t.hurry(ev)
	case Backoff:
		t.scale = ev.Scale
		t.abandon(why)
	case Starting:
		t.scale = ev.Scale
		if t.step == warming {
			t.beginStopAt(thenRest, why, ev.SkipHooks)
			return
		}
		t.abandon(why)
	case Running:
		t.scale = ev.Scale
		t.beginStopAt(thenRest, why, ev.SkipHooks)
	}
}

// abandon stops a program that has no live leader: it waits for the rest of the run.
func (t *transition) abandon(why string) {
	st := cleaning
	switch {
	case t.spawning:
		st = unforked
	case t.tree:
		st = killing
	case t.hook == PreStart:
		st = unhooking
	}
	t.sequel, t.cause = thenRest, why
	t.enter(Stopping, st, stoppingBecause(why))
	switch st {
	case killing:
		t.Deadline = t.now.Add(killAgain)
	case unhooking:
		t.do(Action{Kind: CancelHook, Hook: t.hook})
		t.Deadline = t.now.Add(hookGrace)
	case cleaning:
		if t.hook == PostExit {
			t.Deadline = t.hookBy
			return
		}
		t.finish()
	}
}

func (t *transition) beginStop(then sequel, why string) {
	t.scale = 0
	t.beginStopAt(then, why, false)
}

func (t *transition) beginStopAt(then sequel, why string, skipHooks bool) {
	t.stopProbes()
	t.sequel, t.cause = then, why
	t.enter(Stopping, announcing, stoppingBecause(why))
	if skipHooks {
		t.ascend()
		return
	}
	if !t.runHook(PreStop) {
		t.afterHook()
	}
}

// afterHook continues after one hook of a stop: with the next hook, or with the ladder.
func (t *transition) afterHook() {
	if t.step == announcing {
		t.step = commanding
		if t.runHook(StopCommand) {
			return
		}
	}
	t.ascend()
}

// ascend begins the first rung of the ladder.
func (t *transition) ascend() {
	t.ladder, t.rung = StopLadder(t.spec), 0
	t.descend()
}

// descend sends the signal of the present rung and sets the end of its wait.
func (t *transition) descend() {
	rung := t.ladder[t.rung]
	if rung.Signal == killSignal {
		t.killTree()
		return
	}
	t.step = descending
	t.do(Action{Kind: Signal, Signal: rung.Signal})
	wait := t.scaled(rung.Wait)
	t.Deadline = t.now.Add(wait)
	t.rungBy = t.Deadline
	if wait == rung.Wait { // otherwise the box has no time to give
		t.rungBy = t.now.Add(maxExtended * wait)
	}
}

// maxExtended is how many times as long as its manifest says a program can make each wait of its
// stop. Without a bound, a program could never be stopped, and not be restarted when it is
// unhealthy.
const maxExtended = 10

// killTree sends KILL again and again until no process is left.
func (t *transition) killTree() {
	t.step = killing
	t.do(Action{Kind: KillAll})
	t.Deadline = t.now.Add(killAgain)
}

// hurry applies another Stop to a stop that is under way: it cancels the sequel and can only
// shorten the waits.
func (t *transition) hurry(ev Event) {
	t.sequel, t.cause = thenRest, byRequest
	t.Reason = stoppingBecause(t.cause)
	faster := ev.Scale > 0 && (t.scale <= 0 || ev.Scale < t.scale)
	if faster {
		t.scale = ev.Scale
	}
	switch t.step {
	case announcing, commanding:
		if ev.SkipHooks {
			t.dropHook()
			t.ascend()
		} else if h := t.spec.Hook(t.hook); faster && h != nil {
			t.shorten(t.scaled(h.Limit()))
		}
	case descending:
		if faster {
			t.shorten(t.scaled(t.ladder[t.rung].Wait))
			t.rungBy = t.Deadline
		}
	}
}

func (t *transition) shorten(d time.Duration) {
	if until := t.now.Add(d); until.Before(t.Deadline) {
		t.Deadline = until
	}
}

// kill ends the program at once, without hooks and ladder.
func (t *transition) kill() {
	if t.Resting() {
		return
	}
	const why = "killed to end the shutdown"
	t.dropHook()
	t.stopProbes()
	t.forced = true
	t.sequel, t.cause = thenRest, why
	t.enter(Stopping, cleaning, stoppingBecause(why))
	switch {
	case t.spawning:
		t.step = unforked
	case t.tree:
		t.killTree()
	default:
		t.finish()
	}
}

// finish leaves STOPPING when no process of the run is left.
func (t *transition) finish() {
	then, why := t.sequel, t.cause
	t.scale, t.ladder, t.forced = 0, nil, false
	switch then {
	case thenRest:
		t.rest(Stopped, why)
	case thenStart:
		t.failures, t.missed, t.restarts = 0, 0, nil
		t.begin("")
	case thenFailedStart:
		t.failStart(why)
	case thenRestart:
		if t.RunningAt.Add(t.spec.Backoff.ResetAfter).Before(t.EndedAt) {
			t.failures = 0
		}
		t.restart(why)
	}
}
