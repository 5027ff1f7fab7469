package program

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Timetable is a schedule that was parsed.
type Timetable struct {
	Next  func(after time.Time) time.Time // the first run after a time; the zero time if there is none
	Zone  *time.Location
	Every bool // it counts elapsed time and ignores the clock
}

// ParseSchedule reads five-field cron, a descriptor such as @hourly, or "@every 10m" (at least a
// second), in an IANA timezone; "" is local time.
func ParseSchedule(schedule, timezone string) (Timetable, error) {
	zone := time.Local
	if timezone != "" {
		var err error
		if zone, err = LoadZone(timezone); err != nil {
			return Timetable{}, fmt.Errorf("timezone: %w", err)
		}
	}
	table, every, err := parseTable(schedule)
	if err != nil {
		return Timetable{}, err
	}
	return Timetable{Next: func(after time.Time) time.Time { return nextIn(zone, table, after) }, Zone: zone, Every: every}, nil
}

// farthest is how far ahead a run is looked for, as in cron.
const farthest = 5 * 366 * 24 * time.Hour

// nextIn looks for the next run in one stretch after the other in which the zone's offset from UTC is
// the same. With the zone itself, cron would never return where the zone has skipped a whole day, such
// as 30 December 2011 in Pacific/Apia, and would miss runs where the clock changes by half an hour.
func nextIn(zone *time.Location, table cron.Schedule, after time.Time) time.Time {
	for begin, at := after.In(zone), after; ; {
		next := table.Next(at.In(time.FixedZone(begin.Zone())))
		_, end := begin.ZoneBounds()
		if end.IsZero() || !next.IsZero() && next.Before(end) {
			return in(zone, next)
		}
		if end.Sub(after) > farthest {
			return time.Time{}
		}
		begin, at = end, end.Add(-time.Second) // the first moment of the stretch may be a run
	}
}

// in is t.In, but the zero time stays what it is.
func in(zone *time.Location, t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.In(zone)
}

func parseTable(schedule string) (table cron.Schedule, every bool, err error) {
	// The parser of cron would read a time zone here, and panics at "TZ=0".
	if strings.Contains(schedule, "TZ=") {
		return nil, false, errors.New("a time zone inside the expression; use the key timezone")
	}
	if text, ok := strings.CutPrefix(schedule, "@every "); ok {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Second { // cron would make a shorter one a second
			return nil, false, errors.New(`@every takes a duration of at least a second, such as "10m"`)
		}
		return cron.Every(d), true, nil
	}
	table, err = cron.ParseStandard(withSunday(schedule))
	switch {
	case err != nil && strings.HasPrefix(schedule, "@"): // cron does not name the words that it knows
		err = errors.New(`it must be @hourly, @daily, @weekly, @monthly, @yearly or "@every 10m"; to run once at boot, write type = "oneshot"`)
	case err != nil:
		err = badField(schedule, err)
	}
	if days, ok := table.(*cron.SpecSchedule); ok {
		markStars(days, strings.Fields(schedule))
	}
	return table, false, err
}

// star marks a field of days that may be any day. If neither field of days has the mark, a day fits that
// fits one of them; otherwise it must fit both. It is the library's own mark, which has no exported name.
const star = 1 << 63

// markStars marks fields such as "*/2", which the library does not: in crontab(5), a field of days
// does not restrict the days if it begins with a star.
func markStars(days *cron.SpecSchedule, fields []string) {
	if len(fields) != 5 { // "@daily"
		return
	}
	if strings.HasPrefix(fields[2], "*") {
		days.Dom |= star
	}
	if strings.HasPrefix(fields[4], "*") {
		days.Dow |= star
	}
}

// badField names the first field that is wrong, and what it takes: cron only says "end of range (25)
// above maximum (23)".
func badField(schedule string, err error) error {
	fields := strings.Fields(schedule)
	if len(fields) != 5 {
		return fmt.Errorf("%d fields instead of 5: minute, hour, day of the month, month, day of the week", len(fields))
	}
	for i, takes := range []string{
		"the minute %q: it takes 0 to 59", "the hour %q: it takes 0 to 23", "the day of the month %q: it takes 1 to 31",
		"the month %q: it takes 1 to 12 or JAN to DEC", "the day of the week %q: it takes 0 (Sunday) to 7 or SUN to SAT",
	} {
		alone := []string{"*", "*", "*", "*", "*"}
		alone[i] = fields[i]
		if _, wrong := cron.ParseStandard(withSunday(strings.Join(alone, " "))); wrong != nil {
			return fmt.Errorf(takes, fields[i])
		}
	}
	return err
}

// withSunday writes the weekday 7 as 0: in cron both are Sunday, and the parser knows only 0.
func withSunday(schedule string) string {
	fields := strings.Fields(schedule)
	if len(fields) != 5 {
		return schedule
	}
	days := strings.Split(fields[4], ",")
	for i, part := range days {
		span, step, stepped := strings.Cut(part, "/")
		from, to, ranged := strings.Cut(span, "-")
		first, err := strconv.Atoi(from)
		stride := 1
		if stepped && err == nil {
			stride, err = strconv.Atoi(step)
		}
		switch {
		case part == "7":
			days[i] = "0"
		case ranged && to == "7" && err == nil && 0 <= first && first <= 7 && 0 < stride && stride <= 7:
			var list []string
			for day := first; day <= 7; day += stride {
				list = append(list, strconv.Itoa(day%7))
			}
			days[i] = strings.Join(list, ",")
		}
	}
	fields[4] = strings.Join(days, ",")
	return strings.Join(fields, " ")
}
