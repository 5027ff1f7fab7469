package program

import (
	"fmt"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/plural"
)

func (t *transition) failed(ev Event) {
	if !t.spawning {
		return
	}
	t.spawning = false
	t.Code = ev.Status
	if t.step == forking {
		t.notStarted(ev.Reason, ev.Starved)
	} else {
		t.cleared() // the start was given up before, and it has no process left
	}
}

func (t *transition) ended(exit Exit) {
	if !t.leader {
		return
	}
	t.leader, t.PID = false, 0
	t.LastExit, t.EndedAt, t.Code = &exit, t.now, exit.Status()
	t.stopProbes()
	switch {
	case t.step == warming:
		t.leftovers()
		t.endedStarting(exit)
	case t.State == Running:
		t.leftovers()
		t.endedRunning(exit)
	case t.step == announcing || t.step == commanding:
		t.dropHook()
		t.ascend()
	}
	if t.spec.Kill == KillProcess {
		t.emptied()
	}
}

// leftovers kills the processes that remain when the leader ended without a request.
func (t *transition) leftovers() {
	if t.spec.Kill != KillProcess {
		t.do(Action{Kind: KillAll})
	}
}

func (t *transition) endedStarting(exit Exit) {
	after := exit.Lived
	if after == 0 {
		after = t.now.Sub(t.StartedAt)
	}
	after = rounded(after)
	switch {
	case t.oneshot() && Expected(t.spec, exit):
		t.rest(Exited, "completed: "+exit.String())
		t.Completed = true
		t.failures, t.missed = 0, 0
	case t.oneshot():
		t.failOneshot(exit.String())
	case len(t.spec.Readiness.Probes) > 0:
		t.failStart(fmt.Sprintf("%s after %s, before it was ready", exit.String(), after))
	case Ran(t.spec, exit):
		// The event Began may come late. Then the program ended before the loop could have called
		// it RUNNING.
		t.RunningAt = t.now
		t.endedRunning(exit)
	default:
		why := fmt.Sprintf("%s after %s, sooner than start_seconds (%s)", exit.String(), after, t.spec.RunningAfter)
		if Expected(t.spec, exit) {
			why += "; a server must stay in the foreground, and a job is type = \"oneshot\""
		}
		t.failStart(why)
	}
}

// failOneshot handles a failed oneshot. If it is not restarted, its state is EXITED, because it did
// run.
func (t *transition) failOneshot(why string) {
	if t.spec.Restart == RestartNever && t.spec.StartRetries < 0 && t.spec.Type != Schedule {
		t.rest(Exited, why+"; not restarted (restart = \"never\")")
		return
	}
	t.failStart(why)
}

func (t *transition) endedRunning(exit Exit) {
	t.missed = 0
	if t.now.Sub(t.RunningAt) >= t.spec.Backoff.ResetAfter {
		t.failures = 0
	}
	fine := Expected(t.spec, exit)
	switch {
	case t.spec.Restart == RestartAlways, t.spec.Restart == RestartOnFailure && !fine:
		t.restart(exit.String())
	case fine:
		t.rest(Exited, exit.String()+", as expected")
	default:
		t.rest(Exited, exit.String()+"; not restarted (restart = \"never\")")
	}
}

// Ran tells whether a run that ended while it was STARTING counts as one that was RUNNING. For a run that
// should end, each end counts, expected or not.
func Ran(s *Spec, exit Exit) bool {
	return s.Type != Service || len(s.Readiness.Probes) == 0 && exit.Lived >= s.RunningAfter
}

// Expected tells whether the exit is one that the specification calls expected.
func Expected(s *Spec, exit Exit) bool {
	return exit.Signal == "" && exit.SignalNumber == 0 && slices.Contains(s.ExitCodes, exit.Code)
}

// emptied takes the end of the last process of a run. The run is cleared when its post_exit hook has
// ended too.
func (t *transition) emptied() {
	if !t.tree || t.leader && !t.killed() {
		return
	}
	// If even KILL did not end the leader, the machine gives it up. Otherwise everything that waits
	// for it would wait for ever.
	t.tree, t.leader, t.PID = false, false, 0
	until := t.Deadline
	if t.forced || !t.runHook(PostExit) {
		t.cleared()
		return
	}
	if t.State == Stopping {
		t.step = cleaning
		return
	}
	if t.step != clearing {
		t.Deadline = until
	}
}

// killed tells whether KILL was the last signal to the run.
func (t *transition) killed() bool {
	return t.step == killing || t.step == clearing || t.State == Backoff || t.Resting()
}

// cleared continues what has waited for the end of a run's last process.
func (t *transition) cleared() {
	switch {
	case t.Live():
	case t.State == Stopping:
		t.finish()
	case t.step == clearing:
		t.prepare()
	}
}

func (t *transition) hookDone(ev Event) {
	if ev.Hook == "" || ev.Hook != t.hook {
		return
	}
	t.hook = ""
	switch t.step {
	case preparing:
		if ev.Reason != "" {
			t.notStarted("its pre_start hook failed: "+ev.Reason, ev.Starved)
			return
		}
		t.fork()
	case announcing, commanding:
		t.afterHook()
	default:
		t.cleared()
	}
}

// starvedWait is the least wait after a starved start.
const starvedWait = time.Second

// notStarted decides what follows a start that made no process. A starved one counts for no limit, and is
// repeated with RestartNever too, because no process has run: otherwise a program that takes all processes could
// make others FATAL for good.
func (t *transition) notStarted(why string, starved bool) {
	if !starved || t.nextRunRetries() {
		t.failStart(why)
		return
	}
	t.wait(why, max(t.backoff(t.failures), starvedWait))
	if t.spec.StartRetries < 0 {
		t.failures++
	}
}

// nextRunRetries tells whether a start that failed is repeated only by the next run of a schedule.
func (t *transition) nextRunRetries() bool {
	return t.spec.Restart == RestartNever && t.spec.StartRetries < 0 && t.spec.Type == Schedule
}

// failStart decides what follows a start that did not lead to RUNNING.
func (t *transition) failStart(why string) {
	if t.spec.StartRetries >= 0 {
		t.failures++
		if t.failures > t.spec.StartRetries {
			t.rest(Fatal, fmt.Sprintf("%s; gave up after %s", why, plural.Of(t.failures, "failed start")))
			return
		}
		t.wait(why, t.backoff(t.failures-1))
		return
	}
	if t.nextRunRetries() {
		t.rest(Exited, why)
		return
	}
	if t.spec.Restart == RestartNever {
		t.rest(Fatal, why+"; not started again (restart = \"never\")")
		return
	}
	t.missed++
	t.restart(why)
}

// restart starts again after a back-off, unless the restart limit is reached.
func (t *transition) restart(why string) {
	l := t.spec.RestartLimit
	switch {
	case t.spec.StartRetries >= 0:
	case !t.withinLimit():
		t.rest(Fatal, fmt.Sprintf("%s; gave up: %s within %s", why, plural.Of(l.Count, "restart"), l.Window))
		return
	case l.Count > 0 && t.missed > l.Count:
		// This does not depend on the window: if each start takes its whole start_timeout, fewer
		// than Count of them fit into the window.
		t.rest(Fatal, fmt.Sprintf("%s; gave up after %s in a row", why, plural.Of(t.missed, "failed start")))
		return
	}
	t.wait(why, t.backoff(t.failures))
	if t.spec.StartRetries < 0 {
		t.failures++
	}
}

// withinLimit records a restart if the limit allows it.
func (t *transition) withinLimit() bool {
	l := t.spec.RestartLimit
	if l.Count <= 0 {
		return true
	}
	// A new slice each time: machines are values and must not share one.
	recent := make([]time.Time, 0, len(t.restarts)+1)
	for _, at := range t.restarts {
		if t.now.Sub(at) < l.Window {
			recent = append(recent, at)
		}
	}
	if len(recent) >= l.Count {
		return false
	}
	t.restarts = append(recent, t.now)
	return true
}

func (t *transition) wait(why string, delay time.Duration) {
	t.sequel = thenRest
	if delay <= 0 {
		t.begin(why)
		return
	}
	t.enter(Backoff, idle, fmt.Sprintf("%s; starts again %s later", why, rounded(delay)))
	t.cause = why
	t.Deadline = t.now.Add(delay)
}

// backoff is the wait before the restart after n failures.
func (t *transition) backoff(n int) time.Duration {
	b := t.spec.Backoff
	base := b.base(n)
	if base <= 0 {
		return 0
	}
	return time.Duration(base * (1 + b.share()*(2*t.random()-1)))
}

// random is a number in [0, 1) that depends only on the seed (splitmix64).
func (t *transition) random() float64 {
	t.seed += 0x9e3779b97f4a7c15
	z := t.seed
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(z>>11) / (1 << 53)
}
