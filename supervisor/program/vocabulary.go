package program

import (
	"fmt"
	"time"
)

// EventKind is what happened to a program.
type EventKind uint8

// The events of a Machine. All but Start, Stop, Kill and Tick carry the number of their run. An
// event of another run does not change the machine.
const (
	// Start requests a run. While the program is being stopped, the request is queued. If Start has
	// a Spec, that Spec is in force from the next run on. If Start has a Reason, it is the restart
	// after an AwaitNeeds with that Reason, and earlier failures still count.
	Start EventKind = iota
	// Stop requests the end: hooks, then the stop ladder. Scale below 1 shortens every wait. A
	// further Stop can only shorten a stop that is under way. Reason is why agentinit stops the run; it
	// is empty for a request.
	Stop
	// Kill requests the end at once: KILL without hooks or ladder. It is for the end of a
	// shutdown's budget, not for an ordinary stop.
	Kill
	// Began says that the run was exec'ed as PID.
	Began
	// Failed says that the run could not be started: Reason, and in Status what a shell would
	// report (126, 127).
	Failed
	// Ready says that the declared readiness holds.
	Ready
	// Ended says how the leader of the run ended: Exit.
	Ended
	// Emptied says that no process of the run is left. It follows Ended.
	Emptied
	// HookDone says that Hook has ended; Reason is empty if it succeeded.
	HookDone
	// Healthy says that the health checks pass again.
	Healthy
	// Unhealthy says that the health checks failed often enough: Reason.
	Unhealthy
	// Withdrawn says that the program has withdrawn its readiness: Reason. Without Reason the program
	// is ready again.
	Withdrawn
	// Extend moves the present limit to at least Extend from now (EXTEND_TIMEOUT_USEC of
	// sd_notify).
	Extend
	// Moved says that PID is the program's main process from now on.
	Moved
	// Tick says that the time has reached Deadline. Reason is why the program is not ready yet, as
	// far as known.
	Tick
)

var eventNames = [...]string{
	Start: "Start", Stop: "Stop", Kill: "Kill", Began: "Began", Failed: "Failed", Ready: "Ready",
	Ended: "Ended", Emptied: "Emptied", HookDone: "HookDone", Healthy: "Healthy",
	Unhealthy: "Unhealthy", Withdrawn: "Withdrawn", Extend: "Extend", Moved: "Moved", Tick: "Tick",
}

// String returns the kind's name.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is one thing that happened. The comment of each kind says which fields it uses.
type Event struct {
	Kind   EventKind
	Run    uint64
	PID    int
	Exit   Exit
	Reason string
	Status int
	Hook   HookKind
	Extend time.Duration
	// Scale is for Stop: the fraction of every declared wait that is left, in (0, 1]; 0 counts as
	// 1.
	Scale float64
	// SkipHooks is for Stop: begin with the ladder at once.
	SkipHooks bool
	Spec      *Spec
	// Starved is for Failed and HookDone: processes, memory or open files were lacking.
	Starved bool
	// Unmet: something that the program needs does not hold now. No run begins then.
	Unmet bool
}

// HookKind names a hook.
type HookKind string

// The hooks.
const (
	PreStart    HookKind = "pre_start"
	PostReady   HookKind = "post_ready"
	PreStop     HookKind = "pre_stop"
	StopCommand HookKind = "stop_command"
	PostExit    HookKind = "post_exit"
)

// ActionKind is something the loop has to do.
type ActionKind uint8

// The actions of a Machine.
const (
	// Spawn starts the run. It returns Began or Failed exactly once, however long that takes.
	Spawn ActionKind = iota
	// Signal sends Action.Signal to the processes that the kill scope covers.
	Signal
	// KillAll sends KILL to them, and to the processes that they left behind.
	KillAll
	// RunHook runs the hook for at most Timeout and returns HookDone.
	RunHook
	// CancelHook ends the running hook, which still returns HookDone.
	CancelHook
	// StartReadiness watches the declared readiness and returns Ready.
	StartReadiness
	// StartHealth checks the health and returns Unhealthy and Healthy.
	StartHealth
	// StopProbes ends the checks of readiness and health.
	StopProbes
	// ShutDown ends the box because the health checks of the program say so.
	ShutDown
	// AwaitNeeds: a run is due and something that the program needs does not hold.
	// The program rests; the loop starts it when its needs hold. Reason is why the
	// restart policy wants the run, "" for one that was asked for.
	AwaitNeeds
)

var actionNames = [...]string{
	Spawn: "Spawn", Signal: "Signal", KillAll: "KillAll", RunHook: "RunHook", CancelHook: "CancelHook",
	StartReadiness: "StartReadiness", StartHealth: "StartHealth", StopProbes: "StopProbes", ShutDown: "ShutDown",
	AwaitNeeds: "AwaitNeeds",
}

// String returns the kind's name.
func (k ActionKind) String() string {
	if int(k) < len(actionNames) {
		return actionNames[k]
	}
	return fmt.Sprintf("ActionKind(%d)", uint8(k))
}

// Action is one thing to do for the run it names.
type Action struct {
	Kind    ActionKind
	Run     uint64
	Signal  string // for Signal, without "SIG"
	Hook    HookKind
	Timeout time.Duration // for RunHook
	Reason  string        // for ShutDown and AwaitNeeds
}

// String describes the action in a few words, such as "Signal TERM".
func (a Action) String() string {
	switch {
	case a.Signal != "":
		return a.Kind.String() + " " + a.Signal
	case a.Hook != "":
		return a.Kind.String() + " " + string(a.Hook)
	}
	return a.Kind.String()
}

// Limit is how long the hook may take.
func (h *Hook) Limit() time.Duration {
	if h.Timeout <= 0 {
		return DefaultHookTimeout
	}
	return h.Timeout
}

// Hook returns the command declared for kind, or nil if there is none.
func (s *Spec) Hook(kind HookKind) *Hook {
	switch kind {
	case PreStart:
		return s.Hooks.PreStart
	case PostReady:
		return s.Hooks.PostReady
	case PreStop:
		return s.Hooks.PreStop
	case StopCommand:
		return s.StopCommand
	case PostExit:
		return s.Hooks.PostExit
	}
	return nil
}
