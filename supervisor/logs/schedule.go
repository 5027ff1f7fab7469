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

// nextTimeOfDay returns the first such moment after t, in t's zone. If the clock skips that moment
// on a day, it is what time.Date computes for it.
func nextTimeOfDay(t time.Time, hour, minute int) time.Time {
	year, month, day := t.Date()
	due := time.Date(year, month, day, hour, minute, 0, 0, t.Location())
	if !due.After(t) {
		due = time.Date(year, month, day+1, hour, minute, 0, 0, t.Location())
	}
	return due
}
