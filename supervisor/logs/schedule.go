package logs

import "time"

// nextRotation tells when a file with that begin must be rotated, by its age or the time of day;
// the zero time means never. An invalid time of day means never.
func nextRotation(o *Options, begun time.Time) (due time.Time) {
	if at, err := time.Parse("15:04", o.At); err == nil {
		due = nextTimeOfDay(begun, at.Hour(), at.Minute())
	}
	if o.Every > 0 {
		if aged := begun.Add(o.Every); due.IsZero() || aged.Before(due) {
			due = aged
		}
	}
	return due
}

// nextTimeOfDay returns the first such moment after t, in t's zone. If the clock skips that moment on a day, it is
// as much later as the clock is put forward. So time.Date may compute it, or the moment as much earlier, which
// can be over before that day begins: in some zones the clock skips midnight.
func nextTimeOfDay(t time.Time, hour, minute int) time.Time {
	for year, month, day := t.Date(); ; day++ {
		due := time.Date(year, month, day, hour, minute, 0, 0, t.Location())
		const most = 12 * 60 // minutes
		if early := (hour*60 + minute - due.Hour()*60 - due.Minute() + 24*60) % (24 * 60); early < most {
			due = due.Add(time.Duration(early) * time.Minute)
		}
		if due.After(t) {
			return due
		}
	}
}
