package rest

import (
	"sync"
	"time"
)

// maxPrincipals bounds how many callers are remembered; beyond it the table
// starts anew, which forgives rather than grows.
const maxPrincipals = 10000

// limiter is one bucket of tokens per principal: rate a second, twice that at
// once.
type limiter struct {
	rate float64 // <= 0: no limit

	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

// take takes a token of who, or tells how long until there is one.
func (l *limiter) take(who string, now time.Time) (wait time.Duration, ok bool) {
	if l.rate <= 0 {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[who]
	if !known {
		if l.buckets == nil || len(l.buckets) >= maxPrincipals {
			l.buckets = make(map[string]bucket)
		}
		b = bucket{tokens: 2 * l.rate, at: now}
	}
	b.tokens = min(2*l.rate, b.tokens+now.Sub(b.at).Seconds()*l.rate)
	b.at = now
	if ok = b.tokens >= 1; ok {
		b.tokens--
	} else {
		wait = time.Duration((1 - b.tokens) / l.rate * float64(time.Second))
	}
	l.buckets[who] = b
	return wait, ok
}
