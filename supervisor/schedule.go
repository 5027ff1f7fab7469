package supervisor

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// lookAgain is how often a schedule looks whether the clock has been set forward
// or the machine has slept: what waits in between does not notice.
const lookAgain = time.Minute

// farBack is how far the clock must be set back for a schedule to follow it. By
// less, a run that has been does not come again (as with cron(8)); by more, the
// clock was wrong before, and waiting for it could take years.
const farBack = 3 * time.Hour

// timetable says when a scheduled program runs.
type timetable struct {
	next  func(time.Time) time.Time
	zone  *time.Location
	every bool // it counts the time that passes, whatever the clock says

	from, at time.Time // the next run is due at at, as was found out at from
}

// ParseSchedule reads five-field cron, a descriptor such as @hourly, or
// "@every 10m" (at least a second), in an IANA timezone; "" is local time. It
// returns what gives the first instant after another; that one is zero when the
// schedule never comes.
func ParseSchedule(schedule, timezone string) (next func(time.Time) time.Time, err error) {
	t, err := newTimetable(schedule, timezone)
	if err != nil {
		return nil, err
	}
	return t.next, nil
}

func newTimetable(schedule, timezone string) (t *timetable, err error) {
	zone := time.Local
	if timezone != "" {
		if zone, err = time.LoadLocation(timezone); err != nil {
			return nil, fmt.Errorf("timezone: %w", err)
		}
	}
	parser := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	table, err := parser.Parse(schedule)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", schedule, err)
	}
	_, every := table.(cron.ConstantDelaySchedule)
	return &timetable{next: func(t time.Time) time.Time { return table.Next(t.In(zone)) }, zone: zone, every: every}, nil
}

// plan finds the first run after now.
func (t *timetable) plan(now time.Time) {
	t.from, t.at = now.Round(0), t.next(now) // both by the clock alone
	if t.every {
		t.from, t.at = now, now.Add(t.at.Sub(t.from))
	}
}

// left is how long to wait for the next run, and at most for the next look at
// the clock; it is not positive when the run is due.
func (t *timetable) left(now time.Time) time.Duration {
	left := t.at.Sub(now)
	if !t.every {
		left = min(left, lookAgain)
	}
	return left
}

// timetable puts a scheduled program on the agenda.
func (l *loop) timetable(e *entry) {
	t, err := newTimetable(e.spec().Schedule, e.spec().Timezone)
	if err != nil {
		// Every specification was checked before it was taken.
		panic(err)
	}
	e.cron = t
	l.planNext(e)
}

func (l *loop) planNext(e *entry) {
	e.cron.plan(l.clock())
	e.status.Store(e.makeStatus())
	l.awaitNext(e)
}

// pause keeps a schedule from starting runs until it is resumed.
func (l *loop) pause(e *entry) {
	e.paused, e.again, e.cron = true, false, nil
	l.agenda.set(&e.cronD, time.Time{})
	l.show(e)
	l.touch(e)
}

// resume puts a paused schedule back on the agenda. Before the boot has come to
// it, its wave does.
func (l *loop) resume(e *entry) {
	e.paused = false
	if l.booting {
		e.released = true
		l.timetable(e)
	}
	l.show(e)
	l.touch(e)
}

// agendaText is the reason of a schedule that rests.
func (e *entry) agendaText() string {
	text := "waits for its turn"
	switch {
	case e.paused:
		text = "paused: no run comes before a start of the program"
	case e.cron != nil && e.cron.at.IsZero():
		text = "its schedule has no further run"
	case e.cron != nil:
		text = "waits for its next run at " + e.cron.at.In(e.cron.zone).Format(time.RFC3339)
	}
	if e.outcome != "" {
		text += "; its latest run: " + e.outcome
	}
	return text
}

// awaitNext puts the next look at the clock on the agenda.
func (l *loop) awaitNext(e *entry) {
	if e.cron.at.IsZero() {
		l.agenda.set(&e.cronD, time.Time{})
		return
	}
	// Not the instant itself: the agenda is in order only as long as none of its
	// instants moves against the others when the clock is set.
	l.agenda.set(&e.cronD, time.Now().Add(e.cron.left(l.clock())))
}

// lookAtClock starts the run if it is due by the clock, as that goes now.
func (l *loop) lookAtClock(e *entry) {
	now := l.clock()
	switch {
	case e.cron.from.Sub(now) > farBack:
		l.planNext(e)
	case e.cron.left(now) <= 0:
		l.scheduled(e)
	default:
		l.awaitNext(e)
	}
}

// scheduled starts the run that is due, or does what overlap says.
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
		l.step(e, program.Event{Kind: program.Stop})
		l.step(e, program.Event{Kind: program.Start})
	case program.OverlapSkip, "":
		l.tell(event.ScheduleSkipped, e.name, map[string]any{"reason": "the run before still goes on"})
	}
}
