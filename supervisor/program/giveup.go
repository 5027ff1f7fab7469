package program

import (
	"math"
	"time"
)

// GiveUpTime is how long after its first start a program becomes FATAL if every start fails and
// every back-off has its longest value. Without slow, a program that declares readiness, or is a
// oneshot, fails at once. With slow, each start takes the whole time that it may take, and so does
// the stop after it. ok is false if its restarts have no limit.
func GiveUpTime(s *Spec, slow bool) (d time.Duration, ok bool) {
	restarts := s.RestartLimit.Count
	switch {
	case s.StartRetries >= 0:
		restarts = s.StartRetries
	case s.Restart == RestartNever:
		restarts = 0
	case restarts <= 0:
		return 0, false
	}
	attempt := float64(s.startTime(slow))
	total := attempt
	for n := range restarts {
		total += attempt + s.Backoff.base(n)*(1+s.Backoff.share())
		if total > float64(math.MaxInt64/4) {
			return 0, false
		}
	}
	return time.Duration(total), true
}

// startTime is how long one failed start takes; 0 if only the program decides that.
func (s *Spec) startTime(slow bool) time.Duration {
	limit := s.StartTimeout
	if probed := len(s.Readiness.Probes) > 0; !probed && s.Type == Service {
		return s.RunningAfter
	} else if d := s.Readiness.Deadline; probed && d > 0 && (limit <= 0 || d < limit) {
		limit = d
	}
	if !slow || limit <= 0 {
		return 0
	}
	return limit + StopTime(s)
}

// base is the wait before the restart after n failures, without jitter, in nanoseconds.
func (b BackoffPolicy) base(n int) float64 {
	if b.Initial <= 0 {
		return 0
	}
	base := float64(b.Initial) * math.Pow(max(b.Factor, 1), float64(n))
	if b.Max > 0 {
		base = min(base, float64(b.Max))
	}
	return min(base, float64(math.MaxInt64/4))
}

// share is the jitter as a fraction of the wait.
func (b BackoffPolicy) share() float64 { return min(max(b.Jitter, 0), 1) }

// SealTimeout is the seal timeout that fits the required programs of specs. It is at least
// DefaultSealTimeout. It is longer than any of them may take to start, and longer than any needs
// until it is FATAL, even if each of its starts takes all its time.
func SealTimeout(specs []*Spec) time.Duration {
	fits := DefaultSealTimeout
	for _, s := range specs {
		if !s.Required || s.Type == Schedule {
			continue
		}
		fits = max(fits, s.StartTimeout)
		if d, ok := GiveUpTime(s, true); ok {
			fits = max(fits, d.Round(time.Second)+time.Second)
		}
	}
	return fits
}
