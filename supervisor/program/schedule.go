package program

import (
	"errors"
	"fmt"
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
		if zone, err = time.LoadLocation(timezone); err != nil {
			return Timetable{}, fmt.Errorf("timezone: %w", err)
		}
	}
	table, every, err := parseTable(schedule)
	if err != nil {
		return Timetable{}, err
	}
	next := func(after time.Time) time.Time { return table.Next(after.In(zone)) }
	return Timetable{Next: next, Zone: zone, Every: every}, nil
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
	table, err = cron.ParseStandard(schedule)
	return table, false, err
}
