package bootstrap

import (
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Run is the first run of one program, as the timeline shows it. A zero time
// has not come yet.
type Run struct {
	Name     string
	Required bool
	Priority int
	Needs    []program.Need
	Started  time.Time // exec'ed
	Running  time.Time
	Ready    time.Time // of a oneshot: completed
}

// Link is one program of the critical chain.
type Link struct {
	Name string
	// Since is when it could start: the time its predecessor was ready, or the
	// start of the boot's phase 9.
	Since time.Time
	Ready time.Time
}

// CriticalChain is the chain of programs that the seal waited for, in the order
// of their start. The last is the required program that was ready last (any
// program, when none is required); before each stands whichever it needs, or
// comes before it by priority, that was ready last before it started.
func CriticalChain(runs []Run) []Link {
	last := lastReady(runs)
	var chain []Link
	seen := make(map[string]bool)
	for last != nil && !seen[last.Name] {
		seen[last.Name] = true
		before := predecessor(*last, runs)
		link := Link{Name: last.Name, Ready: last.Ready}
		if before != nil {
			link.Since = before.Ready
		}
		chain = append(chain, link)
		last = before
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
