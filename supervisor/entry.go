package supervisor

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// entry is one program of the loop. Only the loop uses it; others may read status.
type entry struct {
	name   string // changes with the number of instances; see loop.rename
	former []string
	lane   string // of the crew; never changes
	m      program.Machine
	status atomic.Pointer[Status]
	due    item // the machine's deadline

	text    string // what the program reports about itself
	unready string // why it is not ready yet
	unwatch []func()
	hooks   map[program.HookKind]context.CancelFunc
	early   []program.Event // events of a run whose start has not returned yet

	dependents []*entry
	wave       int
	required   bool   // by the latest apply; false once it is being removed
	released   bool   // its wave has been started
	asked      bool   // start --all includes it, and its wave is not released yet
	wanted     bool   // starts as soon as its needs hold
	blocked    bool   // wanted, but a need will not hold without a request
	waiting    string // why it is not started yet
	restarts   string // why the restart policy wants it; "" if a request does
	halt       halt
	revive     bool // a restart of the box starts it when all programs have stopped
	firstStart time.Time
	dirty      bool // in the loop's list
	removing   bool // is forgotten once it is gone

	visited   uint64 // the latest walk that has wanted it; see loop.look
	looked    uint64 // the walk in which blocked found isBlocked
	isBlocked bool
	timed     uint64 // the walk in which givesUp found gaveUp
	gaveUp    time.Time

	cron    *timetable // nil while the schedule is paused
	cronD   item
	paused  bool   // by a stop, or by autostart = false
	outcome string // of the latest finished run of a schedule
	again   bool   // overlap = queue: one more run is due

	stopAsked bool // the shutdown has asked it to stop
	counted   bool // one of those the shutdown waits for
	waitsFor  int  // how many dependents must be gone before the shutdown stops it
}

func (e *entry) spec() *program.Spec { return e.m.Spec() }

// needs are the edges in force: those of the newest specification. These were checked together for
// cycles.
func (e *entry) needs() []program.Need { return e.m.Newest().Needs }

// active tells whether something runs or will run without a request.
func (e *entry) active() bool { return !e.m.Resting() }

// awaitsTurn tells whether its wave will start e, in the boot or by start --all.
func (e *entry) awaitsTurn() bool {
	return !e.released && !e.scheduled() && e.m.Resting() && (e.asked || e.spec().Autostart && e.m.Run == 0)
}

// declined tells whether a request has stopped e, which never ran, before its wave could start it.
func (e *entry) declined() bool {
	return e.released && !e.scheduled() && e.spec().Autostart && !e.wanted && e.m.Run == 0
}

// queued tells whether e starts without another request.
func (e *entry) queued() bool { return e.revive || e.awaitsTurn() || e.wanted && !e.blocked }

// gone tells whether no process is left and none will come.
func (e *entry) gone() bool { return e.m.Resting() && !e.m.Live() }

// dropWatches ends the probes of the run.
func (e *entry) dropWatches() {
	for _, stop := range e.unwatch {
		stop()
	}
	e.unwatch = nil
}

// reason is the machine's reason, or why the program was not started.
func (e *entry) reason() string {
	if e.halting() {
		return "stops after the programs that depend on it"
	}
	if e.m.Resting() && e.revive {
		return "starts again when all programs have stopped"
	}
	if e.m.Resting() && e.waiting != "" {
		return e.waiting
	}
	if e.m.Resting() && e.scheduled() {
		return e.agendaText()
	}
	if e.m.State == program.Starting && e.unready != "" {
		return e.m.Reason + ": " + e.unready
	}
	return e.m.Reason
}

// ownReason is reason without the needs that the program waits for. Otherwise, in a chain of needs,
// each text would contain the next, and one change would rewrite all of them.
func (e *entry) ownReason() string {
	if e.m.Resting() && e.wanted {
		return "it waits itself"
	}
	return e.reason()
}

func (e *entry) makeStatus() *Status {
	m, spec := &e.m, e.spec()
	s := &Status{
		Name: e.name, Group: spec.Group, Former: e.former, State: m.State,
		Ready: m.Ready, Healthy: m.Healthy, Completed: m.Completed, Required: e.required,
		Blocked: e.blocked && e.wanted, Halting: e.halting(), Queued: e.queued(),
		Reason: e.reason(), Text: e.text, PID: m.PID, Run: m.Run, Restarts: m.Restarts,
		Since: m.Since, StartedAt: instant(m.StartedAt), RunningAt: instant(m.RunningAt),
		EndedAt: instant(m.EndedAt), Deadline: instant(m.Deadline), Hook: m.Hook(), LastExit: m.LastExit, Spec: spec,
	}
	if e.scheduled() {
		s.Schedule = &program.ScheduleStatus{Paused: e.paused, LastRun: s.StartedAt, LastResult: e.outcome}
		if e.cron != nil {
			s.Schedule.NextRun = instant(e.cron.at)
		}
	}
	return s
}

// scheduled tells whether the program is a schedule.
func (e *entry) scheduled() bool { return e.spec().Type == program.Schedule }

func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t)
}

// show stores the status for readers. If a state or fact has changed, it publishes that afterwards:
// a reader that sees the event must find the change.
func (l *loop) show(e *entry) {
	before, now := e.status.Load(), e.makeStatus()
	e.status.Store(now)
	if before == nil || sameFacts(before, now) {
		return
	}
	l.sup.cfg.Bus.Publish(event.Event{
		Level: levelOf(e), Stage: stage, Name: event.ProgramStateChanged, Program: e.name, Run: now.Run,
		Change: &event.Change{
			From: before.State.String(), To: now.State.String(), PID: now.PID,
			Ready: now.Ready, Completed: now.Completed, Reason: now.Reason,
			PIDBefore: before.PID, FailedStarts: e.m.FailedStarts(), Exit: exitBetween(before, now),
		},
	})
}

// exitBetween tells how the run of the first status ended, if the change to the second one is its end.
func exitBetween(before, now *Status) event.Exit {
	switch {
	case now.LastExit == before.LastExit || before.State == program.Stopping:
		return ""
	case before.State == program.Starting && !program.Ran(before.Spec, *now.LastExit):
		return ""
	case program.Expected(before.Spec, *now.LastExit):
		return event.ExitExpected
	}
	return event.ExitUnexpected
}

// sameFacts tells whether the difference needs no event. The end of the leader during a stop needs
// none, because the state that follows tells it.
func sameFacts(a, b *Status) bool {
	if a.State == program.Stopping && b.State == program.Stopping {
		return true
	}
	return a.State == b.State && a.Run == b.Run && a.PID == b.PID &&
		a.Ready == b.Ready && a.Healthy == b.Healthy && a.Completed == b.Completed &&
		a.Blocked == b.Blocked && paused(a) == paused(b)
}

func paused(s *Status) bool { return s.Schedule != nil && s.Schedule.Paused }

func levelOf(e *entry) event.Level {
	switch {
	case e.m.State == program.Fatal:
		return event.Error
	case e.m.State == program.Backoff, e.wanted && (e.blocked || e.restarts != ""),
		e.m.State == program.Exited && !e.m.Succeeded(),
		e.m.State == program.Running && !e.m.Healthy:
		return event.Warn
	}
	return event.Info
}

// stage is the name of the supervisor in its events.
const stage = "supervisor"
