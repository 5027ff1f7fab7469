package program

import (
	"cmp"
	"fmt"
	"time"
)

func (t *transition) start(ev Event) {
	if ev.Spec != nil {
		t.next = ev.Spec
	}
	switch t.State {
	case Stopped, Exited, Fatal, Backoff:
		if ev.Reason == "" {
			t.failures, t.missed, t.restarts = 0, 0, nil
		}
		t.begin(ev.Reason)
	case Stopping:
		t.sequel = thenStart
		t.Reason = "stopping; a start is queued"
	case Starting, Running:
	}
}

// begin prepares a new run; why is the reason of the restart policy, or "" for a requested run. A
// program never has two runs: the new one waits as long as a process of the old one may live.
func (t *transition) begin(why string) {
	t.stopProbes()
	t.Completed = false
	t.sequel, t.scale = thenRest, 0
	t.cause = why
	if t.unmet || !t.Live() {
		t.prepare()
		return
	}
	t.enter(Starting, clearing, fmt.Sprintf("%s; waits until all processes of run %d are gone", t.starting(), t.Run))
	t.Deadline = t.now.Add(killAgain)
}

// starting says in words what begin does.
func (t *transition) starting() string {
	if t.cause == "" {
		return "starting"
	}
	return "starting again: " + t.cause
}

// pressClearing repeats the KILL for a previous run that should be empty by now.
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
	default: // a start was given up; its result comes later
		t.Deadline = time.Time{}
	}
}

// prepare begins the run, unless its needs do not hold: no run begins before them.
func (t *transition) prepare() {
	if t.next != nil {
		t.spec, t.next = t.next, nil
	}
	if t.unmet {
		why := t.cause
		t.rest(Stopped, cmp.Or(why, "waits for what it needs"))
		t.do(Action{Kind: AwaitNeeds, Reason: why})
		return
	}
	if t.cause != "" {
		t.Restarts++
	}
	t.Run++
	t.PID = 0
	t.StartedAt, t.RunningAt, t.EndedAt = t.now, time.Time{}, time.Time{}
	t.enter(Starting, preparing, t.starting()+"; its pre_start hook runs")
	if !t.runHook(PreStart) {
		t.fork()
	}
}

func (t *transition) fork() {
	t.enter(Starting, forking, t.starting())
	t.spawning = true
	t.startBy, t.aliveAt, t.unready = time.Time{}, time.Time{}, ""
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
		// The start was given up before it returned.
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

// warm checks the two limits of a start that is under way. detail is the reason, as far as the loop
// knows it, why the start takes so long.
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
		detail = cmp.Or(detail, "no sign of "+t.spec.ReadyBy()) // a log line or a message is not tried, so no try has failed
	}
	text := fmt.Sprintf("not %s within %s", what, rounded(t.startBy.Sub(t.StartedAt)))
	if detail != "" {
		text += ": " + detail
	}
	return text
}

// rounded rounds a duration for people.
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
	t.judge("")
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
		t.judge("")
	}
}

// withdrawn takes note of what the program says about its own readiness, also while other conditions
// of its readiness do not hold yet.
func (t *transition) withdrawn(why string) {
	if t.State != Running && t.step != warming {
		return
	}
	t.unready = why
	if t.State == Running {
		t.judge(t.ailment)
	}
}

// judge says how well a program that is RUNNING works.
func (t *transition) judge(ailment string) {
	t.ailment = ailment
	t.Ready, t.Healthy = t.unready == "", ailment == ""
	t.Reason = cmp.Or(t.unready, ailment)
}

func (t *transition) unhealthy(why string) {
	if t.State != Running {
		return
	}
	t.judge("unhealthy: " + why)
	switch t.spec.Health.Action {
	case HealthRestart:
		t.beginStop(thenRestart, t.ailment)
	case HealthShutdown:
		t.do(Action{Kind: ShutDown, Reason: t.ailment})
	case HealthNone:
	}
}

// oneshot tells whether a run should end by itself.
func (t *transition) oneshot() bool { return t.spec.Type == Oneshot || t.spec.Type == Schedule }

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
