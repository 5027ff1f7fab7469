package control

import (
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// subject is a program as its request met it, and what has been seen of it
// since.
type subject struct {
	supervisor.Status
	// went: it has been under way, when the request met it or since. A program that
	// then rests without a new run was stopped by somebody else; one that has
	// rested all the while may still wait for what it needs.
	went bool
}

// goal is what a change of one program is waited for: given the program before
// the request and now, whether the outcome is there and, if so, whether it is
// a failure. It is asked only after the supervisor has taken the request, so
// that what contradicts the request came later and has overtaken it.
type goal func(before subject, now supervisor.Status) (done bool, failure *api.Error)

// started: RUNNING or completed; a schedule: resumed. A new run that ended
// otherwise has failed, also when another attempt follows: whoever asked wants to
// hear of it now.
func started(before subject, now supervisor.Status) (bool, *api.Error) {
	if now.Schedule != nil {
		return now.Scheduled(), nil
	}
	return ran(before, now)
}

// ran is started by a run now, of a schedule too.
func ran(before subject, now supervisor.Status) (bool, *api.Error) {
	switch {
	case now.State == program.Running:
		return true, nil
	case now.Run <= before.Run && now.Blocked:
		return true, about(api.CodeConflict, now, "%s: %s", now.Name, reasonOf(now))
	case now.Run <= before.Run:
		return halted(before, now)
	}
	return ended(now)
}

// halted: a program without a new run, which somebody may have stopped before it
// came to one.
func halted(before subject, now supervisor.Status) (bool, *api.Error) {
	if !before.went || !resting(now) {
		return false, nil
	}
	return true, about(api.CodeConflict, now, "%s: overtaken by a stop: it is %s: %s", now.Name, now.Shown(), reasonOf(now))
}

// begun: a start has been asked for already and is under way or done.
func begun(p supervisor.Status) bool { return under(p) || p.Scheduled() }

// under: a run is under way.
func under(p supervisor.Status) bool {
	return p.State == program.Starting || p.State == program.Running
}

// restarted is started by a run that is new.
func restarted(before subject, now supervisor.Status) (bool, *api.Error) {
	switch {
	case now.Run <= before.Run && now.Queued:
		return false, nil // all stop first, or it waits for what it needs
	case now.Run <= before.Run && now.Blocked:
		return true, about(api.CodeConflict, now, "%s: %s", now.Name, reasonOf(now))
	case now.Run <= before.Run:
		return halted(before, now)
	}
	if now.State == program.Running {
		return true, nil
	}
	return ended(now)
}

// returned is restarted and, where the program declares it, ready.
func returned(before subject, now supervisor.Status) (bool, *api.Error) {
	done, failure := restarted(before, now)
	if done && failure == nil && !now.Completed {
		done = now.Ready
	}
	return done, failure
}

func ended(now supervisor.Status) (bool, *api.Error) {
	switch now.State {
	case program.Starting, program.Stopping, program.Running:
		return false, nil
	case program.Exited:
		if now.Completed {
			return true, nil
		}
	}
	if now.Schedule != nil && now.Schedule.LastResult != "" {
		return true, about(api.CodeFailed, now, "%s: %s", now.Name, now.Schedule.LastResult)
	}
	return true, about(api.CodeFailed, now, "%s: %s: %s", now.Name, now.Shown(), reasonOf(now))
}

// stopped: no process is left and none is about to come. A stop that has been
// taken leads to rest and nowhere else, unless somebody asks for a start.
func stopped(_ subject, now supervisor.Status) (bool, *api.Error) {
	if now.Halting {
		return false, nil // its turn comes
	}
	switch now.State {
	case program.Starting, program.Running, program.Backoff:
		return true, about(api.CodeConflict, now, "%s: overtaken by a start: it is %s", now.Name, now.State)
	}
	return resting(now), nil
}

// resting reports whether the program is in a state that lasts without a run.
func resting(p supervisor.Status) bool {
	switch p.State {
	case program.Stopped, program.Exited, program.Fatal:
		return p.PID == 0
	}
	return false
}

func reasonOf(p supervisor.Status) string {
	switch {
	case p.Reason != "":
		return p.Reason
	case p.LastExit != nil:
		return api.Exit{Code: p.LastExit.Code, Signal: p.LastExit.Signal, Core: p.LastExit.Core, Cause: p.LastExit.Cause}.String()
	}
	return "no reason is known"
}

// about is an error about one program in the state it was met in.
func about(code api.Code, p supervisor.Status, format string, args ...any) *api.Error {
	e := api.Errorf(code, format, args...)
	e.Program, e.State = p.Name, p.State.String()
	return e
}

// condition is what Wait waits for in one program; impossible says that it
// cannot come to hold unless somebody asks for a change.
type condition func(p supervisor.Status) (holds, impossible bool)

var conditions = map[string]condition{
	api.ForReady: func(p supervisor.Status) (bool, bool) {
		return p.State == program.Running && p.Ready || p.Completed && resting(p), p.State == program.Fatal
	},
	api.ForRunning: func(p supervisor.Status) (bool, bool) {
		return p.State == program.Running || p.Completed && resting(p), p.State == program.Fatal
	},
	api.ForStopped: func(p supervisor.Status) (bool, bool) { return resting(p), false },
	api.ForCompleted: func(p supervisor.Status) (bool, bool) {
		return p.Completed && resting(p), p.State == program.Fatal
	},
	api.ForStarting: in(program.Starting),
	api.ForStopping: in(program.Stopping),
	api.ForExited:   in(program.Exited),
	api.ForBackoff:  in(program.Backoff),
	api.ForFatal:    in(program.Fatal),
}

// in is the condition that a program is in the state. Who waits looks after each
// event, so that a state of some milliseconds may pass unseen.
func in(state program.State) condition {
	return func(p supervisor.Status) (bool, bool) { return p.State == state, p.State == program.Fatal }
}
