package supervisor

import (
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// lookAgain is how often a schedule reads the clock. A timer does not notice that the clock was set
// forward or that the machine has slept.
const lookAgain = time.Minute

// farBack is how far the clock must be set back before a schedule follows it. After a smaller step,
// past runs are not repeated (as with cron(8)). After a larger one, the clock was wrong before, and
// waiting for the old time could take years.
const farBack = 3 * time.Hour

// timetable says when a scheduled program runs.
type timetable struct {
	program.Timetable
	from, at time.Time // at is the time of the next run; from is when at was computed
}

// plan finds the first run after now; wall is the same moment by the wall clock.
func (t *timetable) plan(now, wall time.Time) {
	t.from, t.at = wall.Round(0), t.Next(wall) // both without the monotonic reading
	if t.Every {
		t.from, t.at = now, now.Add(t.at.Sub(t.from))
	}
}

// left is how long to wait for the next run, or until the next reading of the clock if that is
// sooner. It is not positive if the run is due.
func (t *timetable) left(now, wall time.Time) time.Duration {
	if t.Every {
		return t.at.Sub(now)
	}
	return min(t.at.Sub(wall), lookAgain)
}

// setBack tells whether the clock was set back so far that the schedule follows it.
func (t *timetable) setBack(wall time.Time) bool { return !t.Every && t.from.Sub(wall) > farBack }

// timetable sets the deadlines of a scheduled program.
func (l *loop) timetable(e *entry) {
	t, err := program.ParseSchedule(e.spec().Schedule, e.spec().Timezone)
	if err != nil {
		// Every specification was checked before it was accepted.
		panic(err)
	}
	e.cron = &timetable{Timetable: t}
	l.planNext(e)
}

func (l *loop) planNext(e *entry) {
	// The clock is read first: what @every computes from an earlier now would end just before a whole
	// second, and be shown as the second before.
	wall := l.clock()
	e.cron.plan(l.now(), wall)
	e.status.Store(e.makeStatus())
	l.awaitNext(e)
}

// pause prevents a schedule from starting runs until it is resumed.
func (l *loop) pause(e *entry) {
	e.paused, e.again = true, false
	l.noMoreRuns(e)
	l.show(e)
	l.touch(e)
}

// noMoreRuns takes the times of the coming runs from a schedule.
func (l *loop) noMoreRuns(e *entry) {
	e.cron = nil
	l.agenda.set(&e.cronD, time.Time{})
}

// resume lets a paused schedule run again, even if the boot has not reached its wave yet.
func (l *loop) resume(e *entry) {
	e.paused, e.released = false, true
	l.timetable(e)
	l.show(e)
	l.touch(e)
}

// agendaText is the reason of a resting schedule.
func (e *entry) agendaText() string {
	text := "waits for its turn"
	switch {
	case e.paused:
		text = "paused: no run comes before a start of the program"
	case e.cron != nil && e.cron.at.IsZero():
		text = "its schedule has no further run"
	case e.cron != nil:
		text = "waits for its next run at " + e.cron.at.In(e.cron.Zone).Format(time.RFC3339)
	}
	switch failed := e.m.State == program.Fatal || e.m.State == program.Exited && !e.m.Completed; {
	case e.outcome == "":
	case failed: // first, because a table cuts the end
		text = e.outcome + "; " + text
	default:
		text += "; its latest run: " + e.outcome
	}
	return text
}

// awaitNext sets the deadline for the next reading of the clock.
func (l *loop) awaitNext(e *entry) {
	if e.cron.at.IsZero() {
		l.agenda.set(&e.cronD, time.Time{})
		return
	}
	// Not the instant of the run: it would have no monotonic reading, and the order of the agenda
	// would be wrong after the clock is set.
	now := l.now()
	l.agenda.set(&e.cronD, now.Add(e.cron.left(now, l.clock())))
}

// lookAtClock starts the run if it is due by the present clock.
func (l *loop) lookAtClock(e *entry) {
	wall := l.clock()
	switch {
	case e.cron.setBack(wall):
		l.planNext(e)
	case e.cron.left(l.now(), wall) <= 0:
		l.scheduled(e)
	default:
		l.awaitNext(e)
	}
}

// scheduled starts the run that is due, or does what overlap demands.
func (l *loop) scheduled(e *entry) {
	defer l.planNext(e)
	if e.gone() {
		l.want(e, false)
		return
	}
	switch e.spec().Overlap {
	case program.OverlapQueue:
		e.again = true
	case program.OverlapKill:
		l.step(e, program.Event{Kind: program.Stop, Reason: "its next run is due (overlap = \"kill\")"})
		l.step(e, program.Event{Kind: program.Start})
	case program.OverlapSkip, "":
		l.tell(event.ScheduleSkipped, e.name, map[string]any{"reason": "the run before still goes on"})
	}
}
