package program

import (
	"testing"
	"time"
)

func TestParseSchedule(t *testing.T) {
	for _, c := range []struct {
		schedule, zone string
		want           string // the first run after 2026-07-01 12:00 UTC
		every          bool
	}{
		{schedule: "30 3 * * 1", zone: "Europe/Berlin", want: "2026-07-06T01:30:00Z"},
		{schedule: "*/5 0-3 * * mon", zone: "UTC", want: "2026-07-06T00:00:00Z"},
		{schedule: "@hourly", zone: "UTC", want: "2026-07-01T13:00:00Z"},
		{schedule: "@every 10m", want: "2026-07-01T12:10:00Z", every: true},
		{schedule: "@every 1s", want: "2026-07-01T12:00:01Z", every: true},
		{schedule: "0 0 30 2 *", zone: "UTC", want: "0001-01-01T00:00:00Z"},
	} {
		got, err := ParseSchedule(c.schedule, c.zone)
		if err != nil {
			t.Errorf("%q: %v", c.schedule, err)
			continue
		}
		next := got.Next(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)).UTC().Format(time.RFC3339)
		if next != c.want || got.Every != c.every {
			t.Errorf("%q: %s, every %v; want %s", c.schedule, next, got.Every, c.want)
		}
	}
	for _, bad := range [][2]string{
		{"", ""}, {"* * * *", ""}, {"* * * * * *", ""}, {"@never", ""}, {"61 * * * *", ""}, {"* * * * *", "Mars/Phobos"},
		{"TZ=0", ""}, {"TZ=UTC * * * * *", ""}, {"CRON_TZ=UTC * * * * *", ""},
		{"@every", ""}, {"@every 5", ""}, {"@every 999ms", ""}, {"@every -10m", ""},
	} {
		if _, err := ParseSchedule(bad[0], bad[1]); err == nil {
			t.Errorf("%q in %q is accepted", bad[0], bad[1])
		}
	}
}
