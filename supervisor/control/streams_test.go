package control

import (
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// The latest run that has ended is the one before the present run, also while that has no process yet or
// no longer.
func TestPreviousRuns(t *testing.T) {
	now := new(time.Now())
	for name, tc := range map[string]struct {
		program supervisor.Status
		want    uint64
	}{
		"never started":              {supervisor.Status{State: program.Stopped}, 0},
		"the first run":              {supervisor.Status{State: program.Running, Run: 1, PID: 7}, 0},
		"the third run":              {supervisor.Status{State: program.Running, Run: 3, PID: 7}, 2},
		"pre_start of the first run": {supervisor.Status{State: program.Starting, Run: 1}, 0},
		"pre_start of the third run": {supervisor.Status{State: program.Starting, Run: 3}, 2},
		"its processes must go":      {supervisor.Status{State: program.Starting, Run: 3, EndedAt: now}, 3},
		"a start is given up":        {supervisor.Status{State: program.Stopping, Run: 3}, 2},
		"post_exit":                  {supervisor.Status{State: program.Stopping, Run: 3, EndedAt: now}, 3},
		"waits for its restart":      {supervisor.Status{State: program.Backoff, Run: 3, EndedAt: now}, 3},
		"stopped":                    {supervisor.Status{State: program.Stopped, Run: 3, EndedAt: now}, 3},
	} {
		tc.program.Name = "web"
		if got := previousRuns([]supervisor.Status{tc.program})["web"]; got != tc.want {
			t.Errorf("%s: run %d, want %d", name, got, tc.want)
		}
	}
}
