package supervisor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// A change tells how the run ended that it ends, and how many starts have failed.
func TestChangesTellHowARunEnded(t *testing.T) {
	retries := func(s *program.Spec) { s.StartRetries = 1 }
	once := func(s *program.Spec) { s.Restart = program.RestartNever }
	for name, c := range map[string]struct {
		habit habit
		spec  func(*program.Spec)
		want  string // the states after the first STARTING
	}{
		"crash":           {habit{lives: 2 * time.Second, code: 3, good: 1}, retries, "RUNNING BACKOFF:unexpected STARTING RUNNING"},
		"crash for good":  {habit{lives: 2 * time.Second, code: 3}, once, "RUNNING EXITED:unexpected"},
		"expected exit":   {habit{lives: 2 * time.Second}, once, "RUNNING EXITED:expected"},
		"too short":       {habit{lives: time.Millisecond, code: 3}, retries, "BACKOFF+1 STARTING+1 FATAL+2"},
		"too short, once": {habit{lives: time.Millisecond, code: 3}, once, "FATAL"},
		"cannot start":    {habit{fail: errors.New("no such file")}, retries, "BACKOFF+1 STARTING+1 FATAL+2"},
		"without a limit": {habit{lives: time.Millisecond, code: 3, good: 1}, func(*program.Spec) {}, "BACKOFF+1 STARTING+1 RUNNING"},
		"job":             {habit{lives: time.Millisecond}, oneshot, "EXITED:expected"},
		"failing job": {habit{lives: time.Millisecond, code: 3, good: 1}, func(s *program.Spec) { oneshot(s); s.Restart = program.RestartOnFailure },
			"BACKOFF:unexpected+1 STARTING+1"},
	} {
		inBox(t, func(b *box) {
			b.k.habits["p"] = c.habit
			b.boot(Config{}, spec("p", c.spec))
			b.pass(time.Minute)
			var got []string
			was := program.Starting.String()
			for _, e := range b.events(event.ProgramStateChanged) {
				if e.Change.To == was {
					continue
				}
				was = e.Change.To
				text := e.Change.To
				if e.Change.Exit != "" {
					text += ":" + string(e.Change.Exit)
				}
				if e.Change.FailedStarts > 0 && e.Change.To != program.Running.String() {
					text += fmt.Sprint("+", e.Change.FailedStarts)
				}
				got = append(got, text)
				if ended := e.Change.Exit != ""; ended && e.Change.PIDBefore == 0 {
					t.Errorf("%s: the change to %s does not tell the pid", name, e.Change.To)
				}
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("%s: %s, want %s", name, text, c.want)
			}
		})
	}
}
