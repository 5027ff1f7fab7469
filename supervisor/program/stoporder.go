package program

import (
	"slices"
	"time"
)

// StopTime is the longest that a stop of s takes before KILL: the timeouts of
// pre_stop and stop_command and every wait of its ladder, without what s asks for (EXTEND_TIMEOUT_USEC).
func StopTime(s *Spec) time.Duration {
	var d time.Duration
	for _, kind := range []HookKind{PreStop, StopCommand} {
		if h := s.Hook(kind); h != nil {
			d += h.Limit()
		}
	}
	for _, rung := range StopLadder(s) {
		if rung.Signal != killSignal {
			d += max(rung.Wait, 0)
		}
	}
	return d
}

// PlannedStop stops all of specs and returns the chain of programs whose declared stops take
// longest one after the other, in the order of the stop, and how long that is, for a box that runs
// as declared. If another program needs the completion of a oneshot, the oneshot is over when that
// program runs. So the two are never stopped one after the other. The errors are those of Waves.
func PlannedStop(specs []*Spec) ([]string, time.Duration, error) {
	return criticalStop(specs, true)
}

// criticalStop is PlannedStop if planned is true. Otherwise every program counts as running, also a
// oneshot whose completion another program needs.
func criticalStop(specs []*Spec, planned bool) ([]string, time.Duration, error) {
	g, err := newGraph(specs)
	if err != nil {
		return nil, 0, err
	}
	var path []string
	var total time.Duration
	waves := g.waves()
	slices.Reverse(waves)
	stops := g.stops(planned)
	for _, wave := range waves {
		last := wave[0]
		for _, i := range wave {
			if stops[i].cost > stops[last].cost {
				last = i
			}
		}
		total += stops[last].cost
		var chain []int
		for i := last; i >= 0; i = stops[i].after {
			if !stops[i].over {
				chain = append(chain, i)
			}
		}
		slices.Reverse(chain)
		path = append(path, g.names(chain)...)
	}
	return path, total, nil
}

// stopOf is the stop of one program.
type stopOf struct {
	cost  time.Duration // until it is stopped, counted from the start of its wave's stop
	after int           // the dependent that it waits for longest; -1: none
	over  bool          // it has completed before the stop
}

// stops computes the stop of each program.
func (g *graph) stops(planned bool) []stopOf {
	// For each program: all is the dependent in its wave whose stop takes longest, and beside the
	// longest of those that run at the same time. beyond is the longest stop of a program that runs
	// only after this one.
	all, beside := make([]int, len(g.specs)), make([]int, len(g.specs))
	beyond := make([]time.Duration, len(g.specs))
	for i := range g.specs {
		all[i], beside[i], beyond[i] = -1, -1, -1
	}
	out := make([]stopOf, len(g.specs))
	longer := func(found *int, i int) {
		if *found < 0 || out[i].cost > out[*found].cost {
			*found = i
		}
	}
	for _, i := range slices.Backward(g.topo) {
		own := StopTime(g.specs[i])
		if beyond[i] >= own {
			out[i] = stopOf{after: all[i], over: true}
		} else {
			out[i] = stopOf{cost: own, after: beside[i]}
		}
		if before := out[i].after; before >= 0 {
			out[i].cost += out[before].cost
		}
		for k, j := range g.needs[i] {
			completes := planned && g.specs[j].Type == Oneshot && g.specs[i].Needs[k].Condition != NeedStarted
			if completes {
				beyond[j] = max(beyond[j], out[i].cost)
			}
			if g.wave[j] != g.wave[i] {
				continue
			}
			longer(&all[j], i)
			if !completes {
				longer(&beside[j], i)
			}
		}
	}
	return out
}

// StopScale is the fraction of every declared wait that is left if the stop of all of specs must
// fit into budget: 1 if it fits as declared. It is never 0, so that the rungs keep their order. The
// errors are those of Waves.
func StopScale(specs []*Spec, budget time.Duration) (float64, error) {
	_, total, err := criticalStop(specs, false)
	if err != nil {
		return 0, err
	}
	if total <= budget {
		return 1, nil
	}
	return max(float64(budget)/float64(total), 1e-6), nil
}

// KillReserve is the last part of the budget, for KILL and for flushing logs: two seconds, or a
// fifth of a budget below ten seconds.
func KillReserve(grace time.Duration) time.Duration { return min(2*time.Second, grace/5) }

// StopBudget is the part of grace that is left for stopping programs, without the drain before it
// and the reserve for KILL after it. It is not below 0.
func StopBudget(grace, drain time.Duration) time.Duration {
	return max(grace-drain-KillReserve(grace), 0)
}

// GraceFor is the shortest budget of a shutdown that leaves stop for the programs.
func GraceFor(stop, drain time.Duration) time.Duration {
	// The reserve is a fifth of a budget up to 10 s, of which 8 s are left; see KillReserve.
	if need := stop + drain; need > 8*time.Second {
		return need + 2*time.Second
	}
	return (stop + drain) * 5 / 4
}
