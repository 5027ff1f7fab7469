package program

import (
	"fmt"
	"time"
)

func (t *transition) start(ev Event) {
	if ev.Spec != nil {
		t.next = ev.Spec
	}
	switch t.State {
	case Stopped, Exited, Fatal, Backoff:
		t.failures, t.missed, t.restarts = 0, 0, nil
		t.begin("starting")
	case Stopping:
		t.sequel = thenStart
		t.Reason = "stopping; a start is queued"
	case Starting, Running:
	}
}

// begin goes towards a new run. A program never has two: as long as anything of
// the run before may live, the new one waits.
func (t *transition) begin(reason string) {
	t.stopProbes()
	t.Completed = false
	t.sequel, t.scale = thenRest, 0
	t.cause = reason
	if !t.Live() {
		t.prepare()
		return
	}
	t.enter(Starting, clearing, fmt.Sprintf("%s; waits until all processes of run %d are gone", reason, t.Run))
	t.Deadline = t.now.Add(killAgain)
}

// pressClearing repeats what should long have emptied the run before.
func (t *transition) pressClearing() {
	t.Deadline = t.now.Add(killAgain)
	switch {
	case t.tree:
		t.do(Action{Kind: KillAll})
	case t.hook != "" && t.now.Before(t.hookBy):
		t.Deadline = t.hookBy
	case t.hook != "":
		t.dropHook()
		t.cleared()
	default: // a start that was given up; its answer goes on
		t.Deadline = time.Time{}
	}
}

func (t *transition) prepare() {
	if t.next != nil {
		t.spec, t.next = t.next, nil
	}
	t.Run++
	t.PID = 0
	t.StartedAt, t.RunningAt, t.EndedAt = t.now, time.Time{}, time.Time{}
	t.enter(Starting, preparing, t.cause+": its pre_start hook runs")
	if !t.runHook(PreStart) {
		t.fork()
	}
}

func (t *transition) fork() {
	t.enter(Starting, forking, t.cause)
	t.spawning = true
	t.startBy, t.aliveAt = time.Time{}, time.Time{}
	if t.spec.StartTimeout > 0 {
		t.startBy = t.now.Add(t.spec.StartTimeout)
	}
	t.Deadline = t.startBy
	t.do(Action{Kind: Spawn})
}

func (t *transition) began(pid int) {
	if !t.spawning {
		return
	}
	t.spawning, t.leader, t.tree = false, true, true
	t.PID = pid
	switch t.step {
	case forking:
		t.begunWarming()
	case unforked:
		if t.forced {
			t.killTree()
			return
		}
		t.ascend()
	default:
		// The start was given up before it answered.
		t.do(Action{Kind: KillAll})
		if t.step == clearing {
			t.Deadline = t.now.Add(killAgain)
		}
	}
}

func (t *transition) begunWarming() {
	t.step = warming
	switch {
	case t.oneshot():
		t.Reason = "runs to its completion"
	case len(t.spec.Readiness.Probes) > 0:
		t.Reason = "started, not ready yet"
		if d := t.spec.Readiness.Deadline; d > 0 && (t.startBy.IsZero() || t.now.Add(d).Before(t.startBy)) {
			t.startBy = t.now.Add(d)
		}
		t.probing = true
		t.do(Action{Kind: StartReadiness})
	default:
		t.Reason = "started, counts as running after " + t.spec.RunningAfter.String()
		t.aliveAt = t.now.Add(t.spec.RunningAfter)
	}
	t.warm("")
}

// warm looks at the two limits of a start that is under way; detail is what the
// loop knows of why it takes so long.
func (t *transition) warm(detail string) {
	switch {
	case !t.aliveAt.IsZero() && !t.now.Before(t.aliveAt):
		t.run()
	case !t.startBy.IsZero() && !t.now.Before(t.startBy):
		t.beginStop(thenFailedStart, t.tooSlow(detail))
	default:
		t.Deadline = earliest(t.aliveAt, t.startBy)
	}
}

func (t *transition) tooSlow(detail string) string {
	what := "running"
	switch {
	case t.oneshot():
		what = "complete"
	case len(t.spec.Readiness.Probes) > 0:
		what = "ready"
	}
	text := fmt.Sprintf("not %s within %s", what, rounded(t.startBy.Sub(t.StartedAt)))
	if detail != "" {
		text += ": " + detail
	}
	return text
}

// rounded is a duration as people want to read it.
func rounded(d time.Duration) time.Duration {
	if d >= time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}

func (t *transition) ready() {
	if t.step == warming && t.probing {
		t.run()
	}
}

func (t *transition) run() {
	t.enter(Running, idle, "")
	t.RunningAt = t.now
	t.missed = 0
	t.Ready, t.Healthy = true, true
	if t.spec.StartRetries >= 0 {
		t.failures = 0
	}
	if t.spec.Health.On() {
		t.probing = true
		t.do(Action{Kind: StartHealth})
	}
	t.runHook(PostReady)
}

func (t *transition) healthy() {
	if t.State == Running {
		t.Healthy, t.Reason = true, ""
	}
}

func (t *transition) unhealthy(why string) {
	if t.State != Running {
		return
	}
	t.Healthy, t.Reason = false, "unhealthy: "+why
	switch t.spec.Health.Action {
	case HealthRestart:
		t.beginStop(thenRestart, t.Reason)
	case HealthShutdown:
		t.do(Action{Kind: ShutDown, Reason: t.Reason})
	case HealthNone:
	}
}

// oneshot tells whether a run is meant to end by itself.
func (t *transition) oneshot() bool { return t.spec.Type == Oneshot || t.spec.Type == Schedule }

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
