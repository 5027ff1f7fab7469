package program

import (
	"fmt"
	"time"
)

// EventKind is what happened to a program.
type EventKind uint8

// The events of a Machine. All but Start, Stop, Kill and Tick carry the run
// they belong to; one of another run changes nothing.
const (
	// Start asks for a run. While the program is being stopped it is queued.
	// With a Spec, that one is in force from the next run on.
	Start EventKind = iota
	// Stop asks for the end: hooks, then the stop ladder. Scale below 1 shrinks
	// every wait; a stop under way is only ever shortened.
	Stop
	// Kill asks for the end now: KILL without hooks or ladder. It is for the end
	// of a shutdown's budget, never for an ordinary stop.
	Kill
	// Began says that the run has been exec'ed as PID.
	Began
	// Failed says that the run could not be started: Reason, and in Status what
	// a shell would report (126, 127).
	Failed
	// Ready says that the declared readiness holds.
	Ready
	// Ended says how the leader of the run ended: Exit.
	Ended
	// Emptied says that no process of the run is left. It follows Ended.
	Emptied
	// HookDone says that Hook has ended; Reason is empty when it succeeded.
	HookDone
	// Healthy says that the health checks hold again.
	Healthy
	// Unhealthy says that the health checks failed often enough: Reason.
	Unhealthy
	// Extend moves the limit that runs now to at least Extend from now
	// (EXTEND_TIMEOUT_USEC of sd_notify).
	Extend
	// Tick says that the time has reached Deadline. Reason is what is known of why
	// the program is not ready yet.
	Tick
)

var eventNames = [...]string{
	Start: "Start", Stop: "Stop", Kill: "Kill", Began: "Began", Failed: "Failed", Ready: "Ready",
	Ended: "Ended", Emptied: "Emptied", HookDone: "HookDone", Healthy: "Healthy",
	Unhealthy: "Unhealthy", Extend: "Extend", Tick: "Tick",
}

// EventKinds lists every kind of event.
var EventKinds = func() []EventKind {
	kinds := make([]EventKind, len(eventNames))
	for i := range kinds {
		kinds[i] = EventKind(i)
	}
	return kinds
}()

// String returns the kind's name.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is one thing that happened; which fields count is said at its kind.
type Event struct {
	Kind   EventKind
	Run    uint64
	PID    int
	Exit   Exit
	Reason string
	Status int
	Hook   HookKind
	Extend time.Duration
	// Scale of a Stop: the share of every declared wait that is left, in (0, 1];
	// 0 counts as 1.
	Scale float64
	// SkipHooks of a Stop goes to the ladder at once.
	SkipHooks bool
	Spec      *Spec
}

// HookKind names a command that runs beside a program's life.
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
	// Spawn starts the run and answers with Began or Failed, once, however long
	// it takes.
	Spawn ActionKind = iota
	// Signal sends Action.Signal to the processes that the kill scope covers.
	Signal
	// KillAll sends KILL to them, to whatever they left behind too.
	KillAll
	// RunHook runs the hook for at most Timeout and answers with HookDone.
	RunHook
	// CancelHook ends the hook that runs; it still answers.
	CancelHook
	// StartReadiness watches the declared readiness and answers with Ready.
	StartReadiness
	// StartHealth checks the health and answers with Unhealthy and Healthy.
	StartHealth
	// StopProbes ends both.
	StopProbes
	// ShutDown ends the box because the health checks of the program say so.
	ShutDown
)

var actionNames = [...]string{
	Spawn: "Spawn", Signal: "Signal", KillAll: "KillAll", RunHook: "RunHook", CancelHook: "CancelHook",
	StartReadiness: "StartReadiness", StartHealth: "StartHealth", StopProbes: "StopProbes", ShutDown: "ShutDown",
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
	Signal  string // of Signal, without "SIG"
	Hook    HookKind
	Timeout time.Duration // of RunHook
	Reason  string        // of ShutDown
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

// Hook returns the command declared for kind, nil when there is none.
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
