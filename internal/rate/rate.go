// Package rate owns the token bucket with which servers limit the rate of requests and messages: one
// bucket for a connection, or one for each of many callers. It does not read a clock: the time is an argument.
// It must never decide what happens after a refusal.
package rate

import (
	"sync"
	"time"
)

// Limit is the refill rate of a bucket in tokens a second, and its capacity.
type Limit struct{ PerSecond, Burst float64 }

// Bucket holds the tokens of one caller. Make it with Full.
type Bucket struct {
	limit  Limit
	tokens float64
	at     time.Time
}

// Full returns a full bucket.
func Full(l Limit, now time.Time) Bucket { return Bucket{limit: l, tokens: l.Burst, at: now} }

// Take takes a token. If there is none, wait is the time until the next one.
func (b *Bucket) Take(now time.Time) (wait time.Duration, ok bool) {
	b.tokens, b.at = b.left(now), now
	if b.tokens < 1 {
		return time.Duration((1 - b.tokens) / b.limit.PerSecond * float64(time.Second)), false
	}
	b.tokens--
	return 0, true
}

// left returns the number of tokens at the time now.
func (b *Bucket) left(now time.Time) float64 {
	return min(b.limit.Burst, b.tokens+now.Sub(b.at).Seconds()*b.limit.PerSecond)
}

// Callers holds a bucket for each caller, which K names. Its methods may be called from any goroutine.
type Callers[K comparable] struct {
	limit Limit
	most  int

	mu      sync.Mutex
	buckets map[K]Bucket
}

// NewCallers returns the buckets of at most most callers. If there are more, the table is emptied,
// so that its size stays bounded. A limit of 0 tokens a second lets every request through.
func NewCallers[K comparable](l Limit, most int) *Callers[K] {
	return &Callers[K]{limit: l, most: most}
}

// Take takes a token of the caller. If there is none, wait is the time until the next one.
func (c *Callers[K]) Take(who K, now time.Time) (wait time.Duration, ok bool) {
	if c.limit.PerSecond <= 0 {
		return 0, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b, known := c.buckets[who]
	if !known {
		if c.buckets == nil || len(c.buckets) >= c.most {
			c.buckets = make(map[K]Bucket)
		}
		b = Full(c.limit, now)
	}
	wait, ok = b.Take(now)
	c.buckets[who] = b
	return wait, ok
}

// Empty reports whether the caller has no token left.
func (c *Callers[K]) Empty(who K, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, known := c.buckets[who]
	return known && b.left(now) < 1
}
