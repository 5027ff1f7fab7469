package bootstrap

import (
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Run is the first run of one program, as shown in the timeline. A zero time means that the event
// has not occurred yet.
type Run struct {
	Name     string
	Required bool
	Priority int
	Needs    []program.Need
	Started  time.Time // exec'ed
	Running  time.Time
	Ready    time.Time // for a oneshot: completed
}

// CriticalChain names the programs that the seal waited for, in start order. The last one is
// the required program that was ready last (or any program, if none is required). A
// program has as candidates the programs that it needs, and those with an earlier priority. Its
// predecessor is the candidate that was ready last before the program started.
func CriticalChain(runs []Run) []string {
	last := lastReady(runs)
	var chain []string
	seen := make(map[string]bool)
	for last != nil && !seen[last.Name] {
		seen[last.Name] = true
		chain = append(chain, last.Name)
		last = predecessor(*last, runs)
	}
	slices.Reverse(chain)
	return chain
}

func lastReady(runs []Run) *Run {
	var last *Run
	for _, required := range []bool{true, false} {
		for i := range runs {
			r := &runs[i]
			if r.Required == required && !r.Ready.IsZero() && (last == nil || r.Ready.After(last.Ready)) {
				last = r
			}
		}
		if last != nil {
			return last
		}
	}
	return nil
}

func predecessor(of Run, runs []Run) *Run {
	if of.Started.IsZero() {
		return nil
	}
	needed := make(map[string]bool, len(of.Needs))
	for _, n := range of.Needs {
		needed[n.Program] = true
	}
	var best *Run
	for i := range runs {
		r := &runs[i]
		earlier := needed[r.Name] || r.Priority < of.Priority
		if r.Name == of.Name || !earlier || r.Ready.IsZero() || r.Ready.After(of.Started) {
			continue
		}
		if best == nil || r.Ready.After(best.Ready) {
			best = r
		}
	}
	return best
}
