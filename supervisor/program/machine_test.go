package program

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// life drives one machine by hand.
type life struct {
	t       testing.TB
	m       Machine
	now     time.Time
	actions []Action // of the latest event
}

func newLife(t testing.TB, change func(*Spec)) *life {
	s := &Spec{
		Name: "p", Type: Service, Restart: RestartOnFailure, ExitCodes: []int{0},
		RunningAfter: time.Second, StartTimeout: time.Minute, StartRetries: -1,
		Backoff:      BackoffPolicy{Initial: time.Second, Factor: 2, Max: 10 * time.Second, ResetAfter: 30 * time.Second},
		RestartLimit: RestartLimit{Count: 10, Window: 5 * time.Minute},
		Stop:         []StopStep{{Signal: "TERM", Wait: 10 * time.Second}},
		Kill:         KillTree,
	}
	if change != nil {
		change(s)
	}
	return &life{t: t, m: NewMachine(s, 7, epoch), now: epoch}
}

func (l *life) on(ev Event) *life {
	l.t.Helper()
	ev.Run = l.m.Run
	l.m, l.actions = l.m.Step(l.now, ev)
	return l
}

func (l *life) start() *life { return l.on(Event{Kind: Start}) }
func (l *life) began() *life { return l.on(Event{Kind: Began, PID: 42}) }
func (l *life) exit(code int) *life {
	return l.on(Event{Kind: Ended, Exit: Exit{Code: code}})
}
func (l *life) emptied() *life { return l.on(Event{Kind: Emptied}) }
func (l *life) after(d time.Duration) *life {
	l.t.Helper()
	l.now = l.now.Add(d)
	return l.on(Event{Kind: Tick})
}

// due moves the time to the deadline.
func (l *life) due() *life {
	l.t.Helper()
	if l.m.Deadline.IsZero() {
		l.t.Fatalf("%v (%s) has no deadline", l.m.State, l.m.Reason)
	}
	return l.after(l.m.Deadline.Sub(l.now))
}

func (l *life) is(s State, reason string) *life {
	l.t.Helper()
	if l.m.State != s || !strings.Contains(l.m.Reason, reason) {
		l.t.Fatalf("is %v (%s), want %v (…%s…)", l.m.State, l.m.Reason, s, reason)
	}
	return l
}

func (l *life) did(want ...string) *life {
	l.t.Helper()
	var got []string
	for _, a := range l.actions {
		got = append(got, a.String())
	}
	if !slices.Equal(got, want) {
		l.t.Fatalf("did %q, want %q", got, want)
	}
	return l
}

func (l *life) waits(d time.Duration) *life {
	l.t.Helper()
	if got := l.m.Deadline.Sub(l.now); got != d {
		l.t.Fatalf("waits %v, want %v", got, d)
	}
	return l
}

func TestRunningAfter(t *testing.T) {
	l := newLife(t, nil).start().did("Spawn").began().is(Starting, "counts as running after 1s").waits(time.Second)
	l.after(999*time.Millisecond).is(Starting, "")
	l.after(time.Millisecond).is(Running, "")
	if !l.m.Ready || !l.m.Healthy || l.m.PID != 42 || !l.m.Deadline.IsZero() {
		t.Errorf("%+v", l.m)
	}
	newLife(t, func(s *Spec) { s.RunningAfter = 0 }).start().began().is(Running, "")
}

func TestExitBeforeRunningAfterIsAFailure(t *testing.T) {
	newLife(t, nil).start().began().exit(0).did("KillAll").
		is(Backoff, `exited with code 0 after 0s, sooner than start_seconds (1s); a server must stay in the foreground, and a job is type = "oneshot"`).waits(time.Second)
}

// The lifetime of the program counts, not the time at which the loop hears of its end.
func TestRunningAfterCountsTheLife(t *testing.T) {
	ended := func(lived time.Duration) *life {
		return newLife(t, func(s *Spec) { s.Restart = RestartNever }).start().began().
			on(Event{Kind: Ended, Exit: Exit{Lived: lived}})
	}
	ended(time.Second).is(Exited, "exited with code 0, as expected")
	ended(999*time.Millisecond).is(Fatal, "exited with code 0 after 999ms, sooner than start_seconds (1s)")
}

// As in supervisord, a service that ends before start_seconds has failed to start, whatever its
// exit code.
func TestQuickEndOfAServiceThatIsNotRestarted(t *testing.T) {
	never := func(s *Spec) { s.Restart = RestartNever }
	newLife(t, never).start().began().exit(0).is(Fatal, `start_seconds (1s); a server must stay in the foreground, and a job is type = "oneshot"`)
	l := newLife(t, never).start().began().exit(3).is(Fatal, "sooner than start_seconds (1s); not started again")
	if strings.Contains(l.m.Reason, "oneshot") {
		t.Errorf("a crash is told to be a oneshot: %s", l.m.Reason)
	}
	newLife(t, never).start().began().after(time.Second).exit(0).is(Exited, "as expected")
	newLife(t, func(s *Spec) { s.Restart, s.RunningAfter = RestartNever, 0 }).start().began().exit(0).is(Exited, "as expected")
}

func TestSpawnFailure(t *testing.T) {
	l := newLife(t, nil).start().on(Event{Kind: Failed, Reason: "command not found: nosuch", Status: 127}).
		is(Backoff, "command not found: nosuch")
	if l.m.Code != 127 {
		t.Errorf("code %d", l.m.Code)
	}
}

func TestBackoffGrowsAndResets(t *testing.T) {
	l := newLife(t, nil).start()
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		l.began().due().is(Running, "").exit(1).is(Backoff, "exited with code 1").waits(want * time.Second)
		l.emptied().due().is(Starting, "starting again").did("Spawn")
	}
	if l.m.Restarts != 6 || l.m.Run != 7 {
		t.Errorf("%d restarts, run %d", l.m.Restarts, l.m.Run)
	}
	l.began().due().is(Running, "").after(30 * time.Second).exit(1).waits(time.Second)
}

func TestJitterStaysInItsShareAndFollowsFromTheSeed(t *testing.T) {
	delay := func(seed uint64) time.Duration {
		l := newLife(t, func(s *Spec) { s.Backoff.Jitter = 0.1 })
		l.m.seed = seed
		l.start().began().exit(1)
		return l.m.Deadline.Sub(l.now)
	}
	seen := map[time.Duration]bool{}
	for seed := range uint64(100) {
		d := delay(seed)
		if d < 900*time.Millisecond || d > 1100*time.Millisecond {
			t.Fatalf("seed %d waits %v", seed, d)
		}
		if d != delay(seed) {
			t.Fatalf("seed %d waits differently the second time", seed)
		}
		seen[d] = true
	}
	if len(seen) < 90 {
		t.Errorf("only %d different waits of 100", len(seen))
	}
}

func TestNoBackoffRestartsWhenTheTreeIsEmpty(t *testing.T) {
	l := newLife(t, func(s *Spec) { s.Backoff.Initial = 0 }).start().began().due()
	l.exit(1).did("KillAll").is(Starting, "waits until all processes of run 1 are gone")
	l.due().did("KillAll")
	l.emptied().did("Spawn")
	if l.m.Run != 2 || l.m.Restarts != 1 {
		t.Errorf("run %d, %d restarts", l.m.Run, l.m.Restarts)
	}
}

// A lack of processes or open files makes no program FATAL, however long it lasts: another program may
// cause it.
func TestStarvedStartsHaveNoLimit(t *testing.T) {
	starved := Event{Kind: Failed, Reason: "no process left", Status: 126, Starved: true}
	other := starved
	other.Starved = false
	limit := func(s *Spec) { s.RestartLimit = RestartLimit{Count: 2, Window: time.Hour} }
	l := newLife(t, limit).start()
	for range 20 {
		l.on(starved).is(Backoff, "no process left").due()
	}
	for range 2 {
		l.began().exit(1).emptied().is(Backoff, "").due()
	}
	l.began().exit(1).is(Fatal, "gave up: 2 restarts within 1h0m0s")
	newLife(t, func(s *Spec) { limit(s); s.Backoff.Initial = 0 }).start().on(starved).is(Backoff, "").waits(starvedWait)
	never := newLife(t, func(s *Spec) { s.Restart = RestartNever }).start()
	never.on(starved).is(Backoff, "no process left").due().on(other).is(Fatal, "not started again")
	retries := newLife(t, func(s *Spec) { s.StartRetries = 0 }).start()
	for range 5 {
		retries.on(starved).is(Backoff, "no process left").due()
	}
	retries.on(other).is(Fatal, "gave up after 1 failed start")
	nightly := newLife(t, func(s *Spec) { s.Type, s.Restart = Schedule, RestartNever }).start()
	nightly.on(starved).is(Exited, "no process left")
	hook := newLife(t, func(s *Spec) { limit(s); s.Hooks.PreStart = &Hook{Argv: []string{"x"}, Timeout: time.Second} }).start()
	for range 5 {
		hook.on(Event{Kind: HookDone, Hook: PreStart, Reason: "no process left", Starved: true}).is(Backoff, "its pre_start hook failed: no process left").due()
	}
	newLife(t, limit).start().on(other).due().on(other).due().on(other).is(Fatal, "gave up: 2 restarts within 1h0m0s")
}

func TestRestartLimit(t *testing.T) {
	limit := func(s *Spec) { s.RestartLimit = RestartLimit{Count: 2, Window: time.Minute} }
	l := newLife(t, limit).start()
	for range 2 {
		l.began().exit(1).emptied().is(Backoff, "").due()
	}
	l.began().exit(3).is(Fatal, "gave up: 2 restarts within 1m0s")
	if l.m.Code != 3 || !l.m.Deadline.IsZero() {
		t.Errorf("code %d, deadline %v", l.m.Code, l.m.Deadline)
	}
	l.emptied().start().is(Starting, "").began().exit(1).is(Backoff, "")

	slow := newLife(t, limit).start()
	for range 5 {
		slow.began().due().after(31*time.Second).exit(1).emptied().is(Backoff, "").due()
	}
	// Failed starts count without regard to the window, until a start leads to RUNNING.
	stuck := newLife(t, func(s *Spec) { limit(s); s.Readiness.Probes = []Probe{{Dialect: "notify"}} }).start()
	late := func() *life { return stuck.began().due().is(Stopping, "").exit(0).emptied() }
	late().is(Backoff, "").due()
	late().is(Backoff, "").due()
	stuck.began().on(Event{Kind: Ready}).is(Running, "").after(time.Hour).exit(1).emptied().is(Backoff, "").due()
	late().is(Backoff, "").due()
	late().is(Backoff, "").due()
	late().is(Fatal, "gave up after 3 failed starts in a row")
	stuck.start()
	late().is(Backoff, "")
	newLife(t, func(s *Spec) { s.RestartLimit.Count = 0 }).start().began().exit(1).is(Backoff, "")
}

func TestStartRetriesCountsAsSupervisord(t *testing.T) {
	l := newLife(t, func(s *Spec) { s.StartRetries = 2; s.Restart = RestartNever }).start()
	for range 2 {
		l.began().exit(1).emptied().is(Backoff, "").due()
	}
	l.began().exit(1).is(Fatal, "gave up after 3 failed starts")

	// RUNNING resets the count. A restart after RUNNING has no limit.
	l = newLife(t, func(s *Spec) { s.StartRetries = 1 }).start()
	for range 20 {
		l.began().due().is(Running, "").exit(1).emptied().is(Backoff, "").due()
	}
}

func TestRestartPolicies(t *testing.T) {
	signal := Exit{Code: -1, Signal: "SEGV", SignalNumber: 11}
	for _, c := range []struct {
		policy RestartPolicy
		exit   Exit
		want   State
		reason string
	}{
		{RestartAlways, Exit{}, Backoff, "exited with code 0"},
		{RestartAlways, Exit{Code: 1}, Backoff, ""},
		{RestartOnFailure, Exit{}, Exited, "exited with code 0, as expected"},
		{RestartOnFailure, Exit{Code: 2}, Exited, "as expected"},
		{RestartOnFailure, Exit{Code: 1}, Backoff, "exited with code 1"},
		{RestartOnFailure, signal, Backoff, "ended by signal SEGV"},
		{RestartNever, Exit{Code: 1}, Exited, "not restarted"},
		{RestartNever, Exit{}, Exited, "as expected"},
	} {
		l := newLife(t, func(s *Spec) { s.Restart = c.policy; s.ExitCodes = []int{0, 2} }).start().began().due()
		l.on(Event{Kind: Ended, Exit: c.exit}).is(c.want, c.reason)
	}
	newLife(t, func(s *Spec) { s.Restart = RestartNever }).start().began().exit(0).is(Fatal, "restart = \"never\"")
}

func TestOneshot(t *testing.T) {
	oneshot := func(s *Spec) { s.Type = Oneshot; s.StartTimeout = 0 }
	l := newLife(t, oneshot).start().began().is(Starting, "runs to its completion")
	if !l.m.Deadline.IsZero() {
		t.Error("a oneshot without start_timeout has a deadline")
	}
	l.after(time.Hour).exit(0).is(Exited, "completed")
	if !l.m.Completed || l.m.Ready {
		t.Errorf("%+v", l.m)
	}
	if l.emptied().start(); l.m.Completed {
		t.Error("still completed in its next run")
	}
	newLife(t, oneshot).start().began().exit(1).is(Backoff, "exited with code 1")
	l = newLife(t, func(s *Spec) { oneshot(s); s.Restart = RestartNever }).start().began().exit(1).is(Exited, "not restarted")
	if l.m.Completed {
		t.Error("a failed oneshot is completed")
	}
	newLife(t, func(s *Spec) { s.Type = Oneshot }).start().began().due().
		is(Stopping, "not complete within 1m0s").did("Signal TERM")
}

func TestReadiness(t *testing.T) {
	notify := func(s *Spec) { s.Readiness.Probes = []Probe{{Dialect: "notify"}} }
	l := newLife(t, notify).start().began().did("StartReadiness").waits(time.Minute)
	l.after(5*time.Second).is(Starting, "not ready yet").on(Event{Kind: Ready}).is(Running, "")
	l = newLife(t, notify).start().began().due().is(Stopping, "not ready within 1m0s: no sign of READY=1 on its notify socket").did("StopProbes", "Signal TERM")
	l.exit(0).emptied().is(Backoff, "not ready within 1m0s").due().is(Starting, "")
	l = newLife(t, func(s *Spec) { notify(s); s.Readiness.Deadline = 5 * time.Second }).start().began().waits(5 * time.Second)
	l.on(Event{Kind: Extend, Extend: time.Hour}).waits(time.Hour)
	l = newLife(t, func(s *Spec) { notify(s); s.Restart = RestartNever }).start().began().due().exit(0).emptied()
	l.is(Fatal, "not ready within 1m0s")
}

func TestWithdrawnReadiness(t *testing.T) {
	both := func(s *Spec) {
		s.Readiness.Probes, s.Health = []Probe{{Dialect: "notify"}, {Dialect: "tcp"}}, Health{Watchdog: time.Second}
	}
	reloads, again := Event{Kind: Withdrawn, Reason: "it reloads"}, Event{Kind: Withdrawn}
	check := func(l *life, ready, healthy bool, reason string) {
		t.Helper()
		if m := l.m; m.State != Running || m.Ready != ready || m.Healthy != healthy || m.Reason != reason {
			t.Errorf("%v, ready %v, healthy %v: %q; want ready %v, healthy %v: %q", m.State, m.Ready, m.Healthy, m.Reason, ready, healthy, reason)
		}
	}
	l := newLife(t, both).start().began().on(Event{Kind: Ready})
	check(l.on(reloads), false, true, "it reloads")
	check(l.on(Event{Kind: Unhealthy, Reason: "no answer"}), false, false, "it reloads")
	check(l.on(again), true, false, "unhealthy: no answer")
	check(l.on(reloads).on(Event{Kind: Healthy}), false, true, "it reloads")
	check(l.on(again), true, true, "")
	check(l.on(reloads).exit(1).emptied().due().began().on(Event{Kind: Ready}), true, true, "") // it holds for one run
	// It is withdrawn before another condition holds.
	l = newLife(t, both).start().began().on(reloads).is(Starting, "not ready yet")
	check(l.on(Event{Kind: Ready}), false, true, "it reloads")
	check(newLife(t, both).start().began().on(reloads).on(again).on(Event{Kind: Ready}), true, true, "")
}

func TestHealth(t *testing.T) {
	with := func(a HealthAction) *life {
		return newLife(t, func(s *Spec) {
			s.Health = Health{Watchdog: time.Second, Action: a}
			s.RunningAfter = 0
		}).start().began().did("StartHealth").on(Event{Kind: Unhealthy, Reason: "no answer"})
	}
	l := with(HealthNone).is(Running, "unhealthy: no answer").did()
	if l.m.Healthy {
		t.Error("still healthy")
	}
	if l.on(Event{Kind: Healthy}); !l.m.Healthy || l.m.Reason != "" {
		t.Errorf("%+v", l.m)
	}
	with(HealthShutdown).is(Running, "").did("ShutDown")
	with(HealthRestart).is(Stopping, "no answer").did("StopProbes", "Signal TERM").
		exit(0).emptied().is(Backoff, "unhealthy: no answer").due().is(Starting, "")
}

func TestLadder(t *testing.T) {
	l := newLife(t, func(s *Spec) {
		s.Stop = []StopStep{{"INT", 2 * time.Second}, {"TERM", 3 * time.Second}, {"KILL", 0}, {"USR1", 0}}
	}).start().began().due()
	l.on(Event{Kind: Stop}).did("Signal INT").waits(2 * time.Second)
	l.due().did("Signal TERM").waits(3 * time.Second)
	l.due().did("KillAll").waits(time.Second)
	l.due().did("KillAll")
	l.exit(0).is(Stopping, "").emptied().is(Stopped, "stopped by request")
	if !l.m.Deadline.IsZero() || l.m.PID != 0 {
		t.Errorf("%+v", l.m)
	}
}

func TestALeaderThatSurvivesKillIsGivenUp(t *testing.T) {
	l := newLife(t, nil).start().began().due().on(Event{Kind: Stop}).emptied().is(Stopping, "")
	l.due().did("KillAll").emptied().is(Stopped, "stopped by request")
	if l.m.PID != 0 || l.m.Live() {
		t.Errorf("%+v", l.m)
	}
}

// A program that extends its stop again and again is killed nevertheless.
func TestExtendedStopEnds(t *testing.T) {
	forever := Event{Kind: Extend, Extend: 1000 * time.Hour}
	l := newLife(t, nil).start().began().on(Event{Kind: Stop}).waits(10 * time.Second)
	l.on(Event{Kind: Extend, Extend: 30 * time.Second}).waits(30 * time.Second)
	l.on(forever).waits(maxExtended * 10 * time.Second).due().did("KillAll")
	// A box that has to hurry gives no time.
	l = newLife(t, nil).start().began().on(Event{Kind: Stop, Scale: 0.5}).on(forever).waits(5 * time.Second)
	l.due().did("KillAll")
	l = newLife(t, nil).start().began().on(Event{Kind: Stop}).on(forever).on(Event{Kind: Stop, Scale: 0.5}).on(forever)
	l.waits(5 * time.Second).due().did("KillAll")
}

func TestAFailedPreStartIsToldWhileTheNextRuns(t *testing.T) {
	l := newLife(t, func(s *Spec) { s.Hooks.PreStart = &Hook{Argv: []string{"x"}, Timeout: time.Second} }).start()
	l.is(Starting, "starting; its pre_start hook runs").on(Event{Kind: HookDone, Hook: PreStart, Reason: "ended with status 5"})
	l.due().is(Starting, "starting again: its pre_start hook failed: ended with status 5; its pre_start hook runs")
}

func TestStopScale(t *testing.T) {
	hook := &Hook{Argv: []string{"x"}, Timeout: 8 * time.Second}
	l := newLife(t, func(s *Spec) { s.Hooks.PreStop = hook }).start().began().due()
	l.on(Event{Kind: Stop, Scale: 0.5}).did("RunHook pre_stop").waits(4*time.Second + hookGrace)
	l.due().did("CancelHook pre_stop", "Signal TERM").waits(5 * time.Second)
	l.on(Event{Kind: Stop, Scale: 0.1}).waits(time.Second)
	l.on(Event{Kind: Stop, Scale: 0.9}).waits(time.Second)
	l = newLife(t, func(s *Spec) { s.Hooks.PreStop = hook }).start().began().due()
	l.on(Event{Kind: Stop, SkipHooks: true}).did("Signal TERM")
	l = newLife(t, func(s *Spec) { s.Hooks.PreStop = hook }).start().began().due().on(Event{Kind: Stop})
	l.on(Event{Kind: Stop, SkipHooks: true, Scale: 0.2}).did("CancelHook pre_stop", "Signal TERM").waits(2 * time.Second)
}

func TestLeftoversKeepTheLadderOfAnAskedStop(t *testing.T) {
	l := newLife(t, nil).start().began().due().on(Event{Kind: Stop})
	l.exit(0).did().is(Stopping, "").due().did("KillAll").emptied().is(Stopped, "")
}

func TestKillScopeProcessNeedsNoEmptyTree(t *testing.T) {
	process := func(s *Spec) { s.Kill = KillProcess; s.Backoff.Initial = 0 }
	newLife(t, process).start().began().due().exit(1).did("Spawn")
	newLife(t, process).start().began().due().on(Event{Kind: Stop}).exit(0).is(Stopped, "")
}

func TestStopWhileForking(t *testing.T) {
	l := newLife(t, nil).start().on(Event{Kind: Stop}).did().is(Stopping, "")
	l.began().did("Signal TERM").exit(0).emptied().is(Stopped, "")
	newLife(t, nil).start().on(Event{Kind: Stop}).on(Event{Kind: Failed, Reason: "x"}).is(Stopped, "")
	newLife(t, nil).start().on(Event{Kind: Kill}).did().began().did("KillAll").exit(0).emptied().is(Stopped, "killed")
}

func TestRestartIsAQueuedStart(t *testing.T) {
	next := &Spec{Name: "p", Type: Service, Kill: KillTree, RunningAfter: time.Minute, StartRetries: -1}
	l := newLife(t, nil).start().began().due().on(Event{Kind: Stop}).on(Event{Kind: Start, Spec: next})
	l.is(Stopping, "a start is queued")
	if l.m.Spec() == next {
		t.Error("the new specification is in force before its run")
	}
	l.exit(0).emptied().is(Starting, "").did("Spawn")
	if l.m.Spec() != next || l.m.Restarts != 0 {
		t.Errorf("spec %v, %d restarts", l.m.Spec(), l.m.Restarts)
	}
	newLife(t, nil).start().began().due().on(Event{Kind: Stop}).start().on(Event{Kind: Stop}).exit(0).emptied().is(Stopped, "")
}

func TestGivenUpStartIsKilledWhenItAnswers(t *testing.T) {
	l := newLife(t, nil).start().due().is(Backoff, "could not be started within 1m0s")
	l.due().is(Starting, "waits until all processes of run 1 are gone").did()
	l.began().did("KillAll").exit(-1).emptied().did("Spawn")
	if l.m.Run != 2 {
		t.Errorf("run %d", l.m.Run)
	}
}

func TestStepIsPure(t *testing.T) {
	l := newLife(t, nil).start().began().exit(1)
	before := fmt.Sprintf("%+v", l.m)
	a, _ := l.m.Step(l.m.Deadline, Event{Kind: Tick})
	b, _ := l.m.Step(l.m.Deadline, Event{Kind: Stop})
	if fmt.Sprintf("%+v", l.m) != before || a.State == b.State {
		t.Error("Step changed the machine it was called on")
	}
}

// world is a kernel for one machine. It knows which processes really live.
type world struct {
	spawned, answered uint64
	leader, tree      bool
	signalled         bool // a signal of the present stop has been sent
	forced            bool
}

// TestInvariants runs random events and checks the invariants.
func TestInvariants(t *testing.T) { rapid.Check(t, invariants) }

func FuzzInvariants(f *testing.F) { f.Fuzz(rapid.MakeFuzz(invariants)) }

func invariants(t *rapid.T) {
	spec := fullSpec()
	spec.Type = rapid.SampledFrom([]Type{Service, Oneshot, Schedule}).Draw(t, "type")
	spec.Kill = rapid.SampledFrom([]KillScope{KillTree, KillProcess}).Draw(t, "kill")
	spec.Restart = rapid.SampledFrom([]RestartPolicy{RestartAlways, RestartOnFailure, RestartNever}).Draw(t, "restart")
	spec.StartRetries = rapid.IntRange(-1, 2).Draw(t, "retries")
	spec.Backoff.Initial = rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "backoff")
	if rapid.Bool().Draw(t, "plain") {
		spec.Hooks, spec.StopCommand, spec.Readiness = Hooks{}, nil, Readiness{}
	}
	m, now := NewMachine(spec, rapid.Uint64().Draw(t, "seed"), epoch), epoch
	var w world
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		s := rapid.SampledFrom(stimuli).Draw(t, "event")
		ev := s.make(m)
		if !w.possible(ev.Kind, spec) {
			continue
		}
		if ev.Kind == Tick {
			now = now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds")) * time.Second)
		}
		if ev.Kind == Stop && rapid.Bool().Draw(t, "fast") {
			ev.Scale, ev.SkipHooks = 0.1, true
		}
		before := m
		var actions []Action
		m, actions = m.Step(now, ev)
		w.happened(ev.Kind, spec)
		for _, a := range actions {
			w.act(t, a, before, m, ev)
		}
		w.check(t, before, m)
	}
}

func (w *world) possible(k EventKind, spec *Spec) bool {
	switch k {
	case Began, Failed:
		return w.answered < w.spawned
	case Ended, Ready, Unhealthy, Healthy, Withdrawn, Extend:
		return w.leader
	case Emptied:
		return w.tree && !w.leader
	}
	return true
}

func (w *world) happened(k EventKind, spec *Spec) {
	switch k {
	case Began:
		w.answered++
		w.leader, w.tree, w.signalled = true, true, false
	case Failed:
		w.answered++
	case Ended:
		w.leader = false
		w.tree = spec.Kill != KillProcess
	case Emptied:
		w.tree = false
	case Kill:
		w.forced = true
	}
}

func (w *world) act(t *rapid.T, a Action, before, after Machine, ev Event) {
	switch a.Kind {
	case Spawn:
		if w.leader || w.tree || w.answered < w.spawned {
			t.Fatalf("a second live run: %s", after.Reason)
		}
		w.spawned++
		w.forced = false
		if a.Run <= before.Run && before.Run != 0 && before.step != preparing {
			t.Fatalf("run %d after run %d", a.Run, before.Run)
		}
	case Signal:
		w.signalled = true
	case KillAll:
		if ev.Kind == Began && before.step != unforked {
			w.forced = true // the start was given up before it was answered
		}
		if w.leader && !w.signalled && !w.forced {
			t.Fatalf("KILL before the first rung, in %v on %v", before.State, ev.Kind)
		}
	}
}

func (w *world) check(t *rapid.T, before, m Machine) {
	if m.Resting() && !m.Deadline.IsZero() {
		t.Fatalf("%v has the deadline %v", m.State, m.Deadline)
	}
	if m.Restarts < before.Restarts || m.Run < before.Run || m.Run > before.Run+1 {
		t.Fatalf("restarts %d → %d, run %d → %d", before.Restarts, m.Restarts, before.Run, m.Run)
	}
	if m.State == Stopped && (w.tree || w.answered < w.spawned) {
		t.Fatal("STOPPED with processes left")
	}
	if m.State != Running && m.Reason == "" || m.State == Running && (m.Healthy && m.Ready) != (m.Reason == "") {
		t.Fatalf("%v with reason %q", m.State, m.Reason)
	}
	if m.Ready && m.State != Running || m.State == Running && m.Ready != (m.unready == "") {
		t.Fatalf("%v, ready %v, withdrawn %q", m.State, m.Ready, m.unready)
	}
	if m.State == Running && !w.leader {
		t.Fatal("RUNNING without a leader")
	}
	if m.Completed && (m.State != Exited || m.spec.Type == Service) {
		t.Fatalf("%v %v completed", m.spec.Type, m.State)
	}
	if m.State == Backoff && m.Deadline.IsZero() {
		t.Fatal("BACKOFF without an end")
	}
}
