package program

import (
	"time"
)

// killAgain is how long a KILL may have no effect before it is repeated. A process in an
// uninterruptible sleep dies only when that sleep ends, and a process forked at the moment of the
// KILL must not survive.
const killAgain = time.Second

// hookGrace is how long after its timeout the machine still waits for a hook that does not return.
const hookGrace = time.Second

// step is what a machine waits for inside a state.
type step uint8

const (
	idle       step = iota
	clearing        // STARTING: the previous run still has processes
	preparing       // STARTING: pre_start
	forking         // STARTING: Spawn has not returned
	warming         // STARTING: alive, not yet RUNNING
	unforked        // STOPPING: Spawn has not returned
	unhooking       // STOPPING: a cancelled pre_start has not returned
	announcing      // STOPPING: pre_stop
	commanding      // STOPPING: stop_command
	descending      // STOPPING: a rung of the ladder
	killing         // STOPPING: KILL sent
	cleaning        // STOPPING: post_exit
)

var stepNames = [...]string{
	idle: "", clearing: "clearing", preparing: "preparing", forking: "forking", warming: "warming",
	unforked: "unforked", unhooking: "unhooking", announcing: "announcing", commanding: "commanding",
	descending: "descending", killing: "killing", cleaning: "cleaning",
}

func (s step) String() string { return stepNames[s] }

// sequel is what follows a finished stop.
type sequel uint8

const (
	thenRest        sequel = iota // STOPPED
	thenStart                     // a queued Start
	thenFailedStart               // the run was stopped because it did not become RUNNING
	thenRestart                   // the run was stopped because it was unhealthy
)

// Machine is the life of one program as a value. The exported fields are what others may read; only
// Step changes them.
type Machine struct {
	State State
	// Run is the number of the current or latest run, 0 before the first.
	Run       uint64
	Since     time.Time // when State was entered
	Ready     bool
	Healthy   bool
	Completed bool
	// Reason says in words why the program is not running. While it runs, Reason says why it is
	// unready or unhealthy.
	Reason   string
	PID      int
	Restarts uint64 // total number of starts by the restart policy

	StartedAt time.Time // when the latest run was requested
	RunningAt time.Time // when it became RUNNING
	EndedAt   time.Time // when its leader ended
	LastExit  *Exit     // never changed once set
	// Code is what a shell would report for the latest end or for a failed start.
	Code int

	// Deadline is when a Tick is due; zero means that no Tick is needed.
	Deadline time.Time

	spec *Spec
	next *Spec // in force from the next run on

	step     step
	spawning bool // Spawn has not returned
	leader   bool // the leader lives
	tree     bool // processes of the run may still live
	probing  bool
	hook     HookKind // the hook that has not returned; post_ready is not waited for
	hookBy   time.Time
	forced   bool // a Kill came: the ladder and the hooks are skipped

	sequel sequel
	cause  string // why the run is stopped or started again; "" for a start that was asked for
	ladder []StopStep
	rung   int
	scale  float64
	rungBy time.Time // the program can extend the rung until then

	startBy time.Time // if it is not RUNNING by then, the start has failed
	aliveAt time.Time // when it counts as RUNNING

	unready string // why the program has withdrawn its readiness
	ailment string // why it is unhealthy

	failures int         // failures that count for the back-off and for StartRetries
	restarts []time.Time // restarts within RestartLimit.Window
	missed   int         // failed starts since the program was last RUNNING, for RestartLimit
	seed     uint64
}

// NewMachine returns a program that has never run. The seed determines the jitter of its back-off;
// machines should have different seeds.
func NewMachine(spec *Spec, seed uint64, now time.Time) Machine {
	return Machine{State: Stopped, Since: now, Reason: "not started", spec: spec, seed: seed}
}

// Spec returns the specification in force.
func (m Machine) Spec() *Spec { return m.spec }

// Newest returns the specification that the next run will have.
func (m Machine) Newest() *Spec {
	if m.next != nil {
		return m.next
	}
	return m.spec
}

// WithSpec puts another specification in force at once, for changes that need no new run. A stop
// that has begun keeps its ladder.
func (m Machine) WithSpec(spec *Spec) Machine {
	m.spec, m.next = spec, nil
	return m
}

// WithNext puts another specification in force from the next run on.
func (m Machine) WithNext(spec *Spec) Machine {
	m.next = spec
	return m
}

// ToRest tells whether a requested stop is under way that no start follows.
func (m Machine) ToRest() bool {
	return m.State == Stopping && m.cause == byRequest && m.sequel == thenRest
}

// Forking tells whether Spawn has not returned yet.
func (m Machine) Forking() bool { return m.spawning }

// Stopping tells whether agentinit is stopping the run, and why: "" if the stop was requested.
func (m Machine) Stopping() (why string, on bool) {
	if m.cause == byRequest {
		return "", m.State == Stopping
	}
	return m.cause, m.State == Stopping
}

// FailedStarts is how many starts in a row have failed since the program was last RUNNING.
func (m Machine) FailedStarts() int {
	if m.spec.StartRetries >= 0 {
		return m.failures
	}
	return m.missed
}

// Hook is the hook that runs, if the next step waits for its end.
func (m Machine) Hook() HookKind { return m.hook }

// Live tells whether processes of the program exist or may come into being.
func (m Machine) Live() bool { return m.spawning || m.tree || m.hook == PreStart || m.hook == PostExit }

// Succeeded tells whether the program rests because it ended as expected.
func (m Machine) Succeeded() bool {
	// EndedAt is checked because a run that was never exec'ed keeps the LastExit of the run before.
	return m.State == Exited && !m.EndedAt.IsZero() && m.LastExit != nil && Expected(m.spec, *m.LastExit)
}

// Resting tells whether the program stays in its state until a start is requested.
func (m Machine) Resting() bool {
	return m.State == Stopped || m.State == Exited || m.State == Fatal
}

// Step takes one event. It returns the next machine and the actions to carry out. An event that has
// no meaning in the present state, or that belongs to another run, does not change the machine.
func (m Machine) Step(now time.Time, ev Event) (Machine, []Action) {
	if ev.Kind != Start && ev.Kind != Stop && ev.Kind != Kill && ev.Kind != Tick && ev.Run != m.Run {
		return m, nil
	}
	t := transition{Machine: m, now: now, unmet: ev.Unmet}
	switch ev.Kind {
	case Start:
		t.start(ev)
	case Stop:
		t.stop(ev)
	case Kill:
		t.kill()
	case Began:
		t.began(ev.PID)
	case Failed:
		t.failed(ev)
	case Ready:
		t.ready()
	case Ended:
		t.ended(ev.Exit)
	case Emptied:
		t.emptied()
	case HookDone:
		t.hookDone(ev)
	case Healthy:
		t.healthy()
	case Unhealthy:
		t.unhealthy(ev.Reason)
	case Withdrawn:
		t.withdrawn(ev.Reason)
	case Extend:
		t.extend(ev.Extend)
	case Moved:
		if t.leader {
			t.PID = ev.PID
		}
	case Tick:
		t.tick(ev.Reason)
	}
	return t.Machine, t.actions
}

// transition is one Step that is being computed.
type transition struct {
	Machine
	now     time.Time
	unmet   bool // see Event.Unmet
	actions []Action
}

func (t *transition) do(a Action) {
	a.Run = t.Run
	t.actions = append(t.actions, a)
}

func (t *transition) enter(s State, st step, reason string) {
	if t.State != s {
		t.State, t.Since = s, t.now
	}
	t.step, t.Reason, t.Deadline = st, reason, time.Time{}
}

// rest enters a state that only a Start can leave.
func (t *transition) rest(s State, reason string) {
	t.enter(s, idle, reason)
	t.sequel, t.cause = thenRest, ""
}

func (t *transition) stopProbes() {
	t.Ready, t.Healthy = false, false
	if t.probing {
		t.probing = false
		t.do(Action{Kind: StopProbes})
	}
}

// runHook starts the hook if it is declared and sets the deadline for it.
func (t *transition) runHook(kind HookKind) bool {
	h := t.spec.Hook(kind)
	if h == nil {
		return false
	}
	limit := h.Limit()
	if kind == PreStop || kind == StopCommand || kind == PostExit {
		limit = t.scaled(limit)
	}
	t.do(Action{Kind: RunHook, Hook: kind, Timeout: limit})
	if kind == PostReady {
		return true
	}
	t.hook, t.hookBy = kind, t.now.Add(limit+hookGrace)
	t.Deadline = t.hookBy
	return true
}

// dropHook cancels the running hook and does not wait for it any more.
func (t *transition) dropHook() {
	if t.hook != "" {
		t.do(Action{Kind: CancelHook, Hook: t.hook})
		t.hook = ""
	}
}

func (t *transition) scaled(d time.Duration) time.Duration {
	if t.scale <= 0 || t.scale >= 1 {
		return d
	}
	return time.Duration(float64(d) * t.scale)
}

func (t *transition) tick(detail string) {
	if t.Deadline.IsZero() || t.now.Before(t.Deadline) {
		return
	}
	switch t.step {
	case idle: // of these, only BACKOFF has a deadline
		t.begin(t.cause)
	case clearing:
		t.pressClearing()
	case preparing:
		t.dropHook()
		t.failStart("its pre_start hook did not end in time")
	case forking:
		t.failStart("could not be started within " + t.spec.StartTimeout.String())
	case warming:
		t.warm(detail)
	case unhooking:
		t.hook = ""
		t.finish()
	case announcing, commanding:
		t.dropHook()
		t.afterHook()
	case descending:
		t.rung++
		t.descend()
	case killing:
		t.killTree()
	case cleaning:
		t.dropHook()
		t.finish()
	}
}

func (t *transition) extend(by time.Duration) {
	until := t.now.Add(by)
	switch {
	case t.step == warming && !t.startBy.IsZero() && until.After(t.startBy):
		t.startBy = until
		t.warm("")
	case t.step == descending:
		if until.After(t.rungBy) {
			until = t.rungBy
		}
		if until.After(t.Deadline) {
			t.Deadline = until
		}
	}
}
