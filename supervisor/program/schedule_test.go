package program

import (
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
)

// A time that the clock skips has no run, one that comes twice has two, and a day that a zone skips
// does not hang the search.
func TestScheduleAcrossChangesOfTheClock(t *testing.T) {
	for _, c := range []struct{ schedule, zone, after, want string }{
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z 2026-03-31T00:30:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-25T01:30:00Z 2026-10-26T01:30:00Z"},
		{"0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"},
		{"*/30 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z 2026-10-25T01:30:00Z"},
		{"0 0 * * *", "Pacific/Apia", "2011-12-28T12:00:00Z", "2011-12-29T10:00:00Z 2011-12-30T10:00:00Z"},
		{"15 0 30 12 *", "Pacific/Apia", "2011-12-28T12:00:00Z", "2012-12-29T10:15:00Z"},
		{"0 0 29 2 *", "Pacific/Apia", "2011-12-28T12:00:00Z", "2012-02-28T10:00:00Z 2016-02-28T10:00:00Z"},
		{"15 2 * * sun", "Australia/Lord_Howe", "2026-03-29T12:00:00Z", "2026-04-04T15:45:00Z"}, // half an hour back; the library misses it
		{"0 0 30 2 *", "Europe/Berlin", "2026-03-28T12:00:00Z", "0001-01-01T00:00:00Z"},
	} {
		table, err := ParseSchedule(c.schedule, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.after)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range strings.Fields(c.want) {
			at = table.Next(at)
			got = append(got, at.UTC().Format(time.RFC3339))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q in %s: %q, want %q", c.schedule, c.zone, got, c.want)
		}
	}
}

// Where a zone neither skips a day nor changes by half an hour, the runs are those of the cron
// library with the zone itself.
func TestScheduleSameAsTheLibrary(t *testing.T) {
	for _, schedule := range []string{"*/7 * * * *", "30 1-3 * * *", "0 0 * * *", "15 2 * * sun", "0 12 1 */3 *", "0 0 31 * 1"} {
		for _, name := range []string{"Europe/Berlin", "America/New_York", "Asia/Kathmandu", "UTC"} {
			zone, err := time.LoadLocation(name)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := ParseSchedule(schedule, name)
			if err != nil {
				t.Fatal(err)
			}
			table, err := cron.ParseStandard(schedule)
			if err != nil {
				t.Fatal(err)
			}
			for at := time.Date(2026, 1, 1, 0, 0, 0, 0, zone); at.Year() < 2028; {
				want := table.Next(at)
				if got := ours.Next(at); !got.Equal(want) {
					t.Fatalf("%q in %s after %s: %s, want %s", schedule, name, at, got, want)
				}
				at = want.Add(3 * time.Hour)
			}
		}
	}
}

// 0 and 7 are both Sunday, as in crontab(5).
func TestScheduleOnSunday(t *testing.T) {
	week := func(schedule string) (days string) {
		table, err := ParseSchedule(schedule, "UTC")
		if err != nil {
			return err.Error()
		}
		at := time.Date(2026, 1, 4, 12, 0, 0, 0, time.UTC) // a Sunday
		for end := at.AddDate(0, 0, 7); ; {
			if at = table.Next(at); at.After(end) {
				return strings.TrimSpace(days)
			}
			days += at.Format("Mon ")
		}
	}
	for days, want := range map[string]string{
		"7": "Sun", "0": "Sun", "5-7": "Fri Sat Sun", "1-7/2": "Mon Wed Fri Sun", "7-7": "Sun", "1,7": "Mon Sun", "0-7": "Mon Tue Wed Thu Fri Sat Sun",
		"6-7,2": "Tue Sat Sun", "*": "Mon Tue Wed Thu Fri Sat Sun",
	} {
		if got := week("0 3 * * " + days); got != want {
			t.Errorf("%s: %s, want %s", days, got, want)
		}
	}
	for _, wrong := range []string{"8", "7-8", "9-7", "-7", "7-", "1-7/0", "1-7/-1", "1-7/9223372036854775807", "x-7", "77"} {
		if _, err := ParseSchedule("0 3 * * "+wrong, "UTC"); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

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
		// Both fields of days restrict: one is enough. A field that begins with "*" does not, as in crontab(5).
		{schedule: "0 0 13 * fri", zone: "UTC", want: "2026-07-03T00:00:00Z"},
		{schedule: "0 0 1-31/2 * tue", zone: "UTC", want: "2026-07-03T00:00:00Z"},
		{schedule: "0 0 */2 * tue", zone: "UTC", want: "2026-07-07T00:00:00Z"},
		{schedule: "0 0 13 * */7", zone: "UTC", want: "2026-09-13T00:00:00Z"},
		{schedule: "@daily", zone: "UTC", want: "2026-07-02T00:00:00Z"},
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

// A wrong expression: the message names the field and what it takes.
func TestABadScheduleNamesItsField(t *testing.T) {
	for schedule, want := range map[string]string{
		"60 3 * * *":     `the minute "60": it takes 0 to 59`,
		"0 25 * * *":     `the hour "25": it takes 0 to 23`,
		"0 3 0 * *":      `the day of the month "0": it takes 1 to 31`,
		"0 3 * 13 *":     `the month "13": it takes 1 to 12 or JAN to DEC`,
		"0 3 * * 8":      `the day of the week "8": it takes 0 (Sunday) to 7 or SUN to SAT`,
		"0 3 * * monday": `the day of the week "monday": it takes 0 (Sunday) to 7 or SUN to SAT`,
		"0 3 * *":        "4 fields instead of 5: minute, hour, day of the month, month, day of the week",
		"0 0 3 * * *":    "6 fields instead of 5: minute, hour, day of the month, month, day of the week",
		"@dayly":         `it must be @hourly, @daily, @weekly, @monthly, @yearly or "@every 10m"; to run once at boot, write type = "oneshot"`,
		"every minute":   "2 fields instead of 5: minute, hour, day of the month, month, day of the week",
	} {
		if _, err := ParseSchedule(schedule, ""); err == nil || err.Error() != want {
			t.Errorf("%q: %v; want %s", schedule, err, want)
		}
	}
}
