package supervisor

import (
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// A removed schedule whose last run is slow to stop starts no other run. What it needed may be
// forgotten by then.
func TestARemovedScheduleStartsNoRun(t *testing.T) {
	for _, overlap := range []program.Overlap{program.OverlapQueue, program.OverlapKill, program.OverlapSkip} {
		t.Run(string(overlap), func(t *testing.T) {
			inBox(t, func(b *box) {
				b.k.habits["job"] = habit{dies: 15 * time.Minute}
				slow := func(s *program.Spec) {
					s.Overlap, s.Stop = overlap, []program.StopStep{{Signal: "TERM", Wait: time.Hour}}
				}
				b.boot(Config{}, spec("db"), spec("rest"), backup(needs("db"), slow))
				b.pass(11 * time.Minute)
				b.k.forget()
				if _, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("rest")}); err != nil {
					t.Fatal(err)
				}
				b.pass(time.Hour)
				b.askedTogether("TERM job", "TERM db", "forget db", "forget job")
				b.is("rest", program.Running, "")
			})
		})
	}
}

// A program that becomes a schedule without autostart is paused, as if it had been one at the boot.
func TestAProgramBecomesAPausedSchedule(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("job"), spec("other", manual))
		b.pass(time.Minute)
		other := backup(manual)
		other.Name, other.Group = "other", "other"
		if _, err := b.sup.Apply(b.t.Context(), []program.Spec{backup(manual), other}); err != nil {
			t.Fatal(err)
		}
		b.pass(time.Hour)
		b.is("job", program.Stopped, "paused")
		b.is("other", program.Stopped, "paused")
	})
}
