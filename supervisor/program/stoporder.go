package program

import (
	"slices"
	"time"
)

// StopTime is the longest that a stop of s takes before KILL: the timeouts of
// pre_stop and stop_command and every wait of its ladder.
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

// CriticalStop returns the chain of programs whose declared stops, one after
// the other, take longest when all of specs are stopped, in the order of the
// stop, and how long that is. The errors are those of Waves.
func CriticalStop(specs []Spec) ([]string, time.Duration, error) {
	g, err := newGraph(specs)
	if err != nil {
		return nil, 0, err
	}
	var path []string
	var total time.Duration
	waves := g.waves()
	slices.Reverse(waves)
	cost, before := g.stopCosts()
	for _, wave := range waves {
		last := wave[0]
		for _, i := range wave {
			if cost[i] > cost[last] {
				last = i
			}
		}
		total += cost[last]
		var chain []int
		for i := last; i >= 0; i = before[i] {
			chain = append(chain, i)
		}
		slices.Reverse(chain)
		path = append(path, g.names(chain)...)
	}
	return path, total, nil
}

// stopCosts returns for each program how long it takes until it is stopped,
// counted from the begin of its wave's stop, and which dependent it waits for
// longest (-1: none).
func (g *graph) stopCosts() (cost []time.Duration, before []int) {
	cost = make([]time.Duration, len(g.specs))
	before = make([]int, len(g.specs))
	for i := range before {
		before[i] = -1
	}
	for _, i := range slices.Backward(g.topo) {
		if before[i] >= 0 {
			cost[i] = cost[before[i]]
		}
		cost[i] += StopTime(&g.specs[i])
		for _, j := range g.needs[i] {
			if g.wave[j] == g.wave[i] && (before[j] < 0 || cost[i] > cost[before[j]]) {
				before[j] = i
			}
		}
	}
	return cost, before
}

// StopScale is the share of every declared wait that is left when the stop of
// all of specs has to fit into budget: 1 when it fits as declared. It is never
// 0, so that each rung still comes before the next. The errors are those of
// Waves.
func StopScale(specs []Spec, budget time.Duration) (float64, error) {
	_, total, err := CriticalStop(specs)
	if err != nil {
		return 0, err
	}
	if total <= budget {
		return 1, nil
	}
	return max(float64(budget)/float64(total), 1e-6), nil
}

// DefaultStopGrace is the whole shutdown's budget where nothing is declared: below
// the 30 s of Kubernetes' terminationGracePeriodSeconds.
const DefaultStopGrace = 25 * time.Second

// KillReserve is the end of the budget that belongs to KILL and to flushing logs:
// two seconds, and of a short budget a fifth.
func KillReserve(grace time.Duration) time.Duration { return min(2*time.Second, grace/5) }

// StopBudget is what a shutdown within grace leaves for stopping programs: without
// the drain before it and the reserve for KILL after it. It is not below 0.
func StopBudget(grace, drain time.Duration) time.Duration {
	return max(grace-drain-KillReserve(grace), 0)
}

// GraceFor is the shortest budget of a shutdown that leaves stop for the programs.
func GraceFor(stop, drain time.Duration) time.Duration {
	// The reserve is a fifth up to 10 s, which is 8 s without it; see KillReserve.
	if need := stop + drain; need > 8*time.Second {
		return need + 2*time.Second
	}
	return (stop + drain) * 5 / 4
}
