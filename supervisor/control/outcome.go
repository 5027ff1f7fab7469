package control

import (
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// goal is the wait condition for the change of one program. From the program before the request and
// now, it tells whether there is an outcome and whether that is a failure. It is called only after
// the supervisor has taken the request. So a state that contradicts the request comes from a later
// request.
type goal func(before, now supervisor.Status) (done bool, failure *api.Error)

// started: the program is RUNNING or has completed; a schedule was resumed. A new run that ended
// otherwise is a failure, even if another attempt follows: the client is told at once.
func started(before, now supervisor.Status) (bool, *api.Error) {
	if now.Schedule != nil {
		return now.Scheduled(), nil
	}
	return ran(before, now)
}

// ran is like started, but for a run that starts now, also of a schedule.
func ran(before, now supervisor.Status) (bool, *api.Error) {
	if now.State == program.Running {
		return true, nil
	}
	return restarted(before, now)
}

// halted decides for a program without a new run that waits for nothing: another request may have
// stopped it before the run began.
func halted(now supervisor.Status) (bool, *api.Error) {
	if !resting(now) {
		return false, nil
	}
	return true, about(api.CodeConflict, now, "%s: overtaken by a stop: it is %s: %s", now.Name, now.Shown(), reasonOf(now))
}

// begun: a start was already requested and is under way or done.
func begun(p supervisor.Status) bool { return under(p) || p.Scheduled() }

// under: a run is under way.
func under(p supervisor.Status) bool {
	return p.State == program.Starting || p.State == program.Running
}

// restarted is started for a new run.
func restarted(before, now supervisor.Status) (bool, *api.Error) {
	switch {
	case now.Run <= before.Run && now.Queued:
		return false, nil // all programs stop first, or it waits for its needs
	case now.Run <= before.Run && now.Blocked:
		return true, about(api.CodeConflict, now, "%s: %s", now.Name, reasonOf(now))
	case now.Run <= before.Run && now.State == program.Running && !now.Halting:
		// Of several programs, it was to stop later; another request has cancelled that stop.
		return true, about(api.CodeConflict, now, "%s: overtaken by a stop and a start: its run goes on", now.Name)
	case now.Run <= before.Run:
		return halted(now)
	}
	if now.State == program.Running || passed(now) {
		return true, nil
	}
	if now.Schedule != nil && now.Run > before.Run+1 && !resting(now) {
		// It does not rest between two runs if overlap = "kill" stops one of them for the next.
		return true, about(api.CodeConflict, now, "%s: the run has ended, and the next one has begun: it is %s: %s", now.Name, now.Shown(), reasonOf(now))
	}
	return ended(now)
}

// passed: the run was RUNNING and has ended. With start_seconds = 0, both can happen before the waiter
// looks.
func passed(p supervisor.Status) bool {
	switch p.State {
	case program.Exited, program.Backoff, program.Fatal:
		return p.RunningAt != nil
	}
	return false
}

// returned is restarted and, if the program declares a readiness, ready.
func returned(before, now supervisor.Status) (bool, *api.Error) {
	done, failure := restarted(before, now)
	switch {
	case !done || failure != nil || now.Completed:
		return done, failure
	case passed(now):
		return ended(now)
	}
	return now.Ready, nil
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

// stopped: no process is left and none will come. After a stop was taken, only another request can
// start the program.
func stopped(_, now supervisor.Status) (bool, *api.Error) {
	if now.Halting {
		return false, nil // other programs stop first
	}
	switch now.State {
	case program.Starting, program.Running, program.Backoff:
		return true, about(api.CodeConflict, now, "%s: overtaken by a start: it is %s", now.Name, now.State)
	}
	return resting(now), nil
}

// resting tells whether the program is in a lasting state without a run.
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
		return p.LastExit.String()
	}
	return "no reason is known"
}

// about is an error about one program, with the program's state.
func about(code api.Code, p supervisor.Status, format string, args ...any) *api.Error {
	e := api.Errorf(code, format, args...)
	e.Program, e.State = p.Name, p.State.String()
	return e
}

// over tells whether the program starts again only if a request comes. A schedule that has EXITED has
// further runs.
func over(p supervisor.Status) bool {
	return p.State == program.Fatal || p.State == program.Exited && p.Schedule == nil && !p.Queued
}

// condition is what Wait waits for in one program. impossible says that the condition cannot hold
// any more unless a request changes something.
type condition func(p supervisor.Status) (holds, impossible bool)

var conditions = map[string]condition{
	api.ForReady: func(p supervisor.Status) (bool, bool) {
		return p.State == program.Running && p.Ready || p.Completed && resting(p), over(p)
	},
	api.ForRunning: func(p supervisor.Status) (bool, bool) {
		return p.State == program.Running || p.Completed && resting(p), over(p)
	},
	api.ForStopped: func(p supervisor.Status) (bool, bool) { return resting(p), false },
	api.ForCompleted: func(p supervisor.Status) (bool, bool) {
		return p.Completed && resting(p), over(p)
	},
	api.ForStarting: in(program.Starting),
	api.ForStopping: in(program.Stopping),
	api.ForExited:   in(program.Exited),
	api.ForBackoff:  in(program.Backoff),
	api.ForFatal:    in(program.Fatal),
}

// in is the condition that a program is in the state. The waiter checks after each event, so it may
// miss a state that lasts only some milliseconds.
func in(state program.State) condition {
	return func(p supervisor.Status) (bool, bool) { return p.State == state, p.State == program.Fatal }
}
