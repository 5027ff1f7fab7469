package program

import (
	"math"
	"time"
)

// GiveUpTime is how long after its first start a program is FATAL whose every run
// fails, each just before it would have been RUNNING and after the longest back-off;
// a program that declares readiness fails at once. ok is false when its restarts
// have no limit, or are too slow to reach it within the limit's window.
func GiveUpTime(s *Spec) (d time.Duration, ok bool) {
	restarts := s.RestartLimit.Count
	switch {
	case s.StartRetries >= 0:
		restarts = s.StartRetries
	case s.Restart == RestartNever:
		restarts = 0
	case restarts <= 0:
		return 0, false
	}
	attempt := s.RunningAfter
	if s.Type != Service || len(s.Readiness.Probes) > 0 {
		attempt = 0
	}
	total := float64(attempt)
	for n := range restarts {
		total += float64(attempt) + s.Backoff.base(n)*(1+s.Backoff.share())
		if total > float64(math.MaxInt64/4) {
			return 0, false
		}
	}
	counted := s.StartRetries < 0 && s.Restart != RestartNever
	if d = time.Duration(total); counted && d-attempt >= s.RestartLimit.Window {
		return 0, false
	}
	return d, true
}

// base is the wait before the restart that follows n failures, without jitter, in
// nanoseconds.
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

// share is the jitter as a share of the wait.
func (b BackoffPolicy) share() float64 { return min(max(b.Jitter, 0), 1) }

// DefaultSealTimeout is how long the required programs may take where nothing is
// declared. SealTimeout makes it longer where they need longer to give up.
const DefaultSealTimeout = 2 * time.Minute

// SealTimeout is the seal timeout that fits the required programs of specs: not
// below DefaultSealTimeout, longer than each needs until it is FATAL, and than each
// may take to start.
func SealTimeout(specs []Spec) time.Duration {
	fits := DefaultSealTimeout
	for i := range specs {
		s := &specs[i]
		if !s.Required || s.Type == Schedule {
			continue
		}
		fits = max(fits, s.StartTimeout)
		if d, ok := GiveUpTime(s); ok {
			fits = max(fits, d.Round(time.Second)+time.Second)
		}
	}
	return fits
}
