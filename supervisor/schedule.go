package supervisor

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// timetable says when a scheduled program runs.
type timetable struct{ next func(time.Time) time.Time }

// ParseSchedule reads five-field cron, a descriptor such as @hourly, or
// "@every 10m" (at least a second), in an IANA timezone; "" is local time. It
// returns what gives the first instant after another; that one is zero when the
// schedule never comes.
func ParseSchedule(schedule, timezone string) (next func(time.Time) time.Time, err error) {
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
	return func(t time.Time) time.Time { return table.Next(t.In(zone)) }, nil
}

// timetable puts a scheduled program on the agenda.
func (l *loop) timetable(e *entry) {
	next, err := ParseSchedule(e.spec().Schedule, e.spec().Timezone)
	if err != nil {
		// Every specification was checked before it was taken.
		panic(err)
	}
	e.cron = &timetable{next: next}
	l.planNext(e)
}

func (l *loop) planNext(e *entry) {
	at := e.cron.next(time.Now())
	l.agenda.set(&e.cronD, at)
	e.waiting = ""
	if !at.IsZero() {
		e.waiting = "waits for its next run at " + at.Format(time.RFC3339)
	}
	e.status.Store(e.makeStatus())
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
		l.tell("ScheduleSkipped", e.name, map[string]any{"reason": "the run before still goes on"})
	}
}
