package probes

import (
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Limits of what one address may ask without a valid credential: a burst, and
// then so many a second. Whoever has a credential is not concerned.
const (
	anonymousBurst  = 20
	anonymousPerSec = 20
	// anonymousAddresses bounds how many addresses are remembered; beyond it the
	// table starts anew, which forgives rather than grows.
	anonymousAddresses = 4096
)

// anonymousLimit is a bucket of tokens per address that refills with time.
type anonymousLimit struct {
	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

// empty tells whether the address has no token left.
func (l *anonymousLimit) empty(address string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[address]
	return known && b.refilled(now) < 1
}

// take takes a token of the address; false when it has none.
func (l *anonymousLimit) take(address string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[address]
	if !known {
		if l.buckets == nil || len(l.buckets) >= anonymousAddresses {
			l.buckets = make(map[string]bucket)
		}
		b = bucket{tokens: anonymousBurst, at: now}
	}
	left := b.refilled(now)
	ok := left >= 1
	if ok {
		left--
	}
	l.buckets[address] = bucket{tokens: left, at: now}
	return ok
}

func (b bucket) refilled(now time.Time) float64 {
	return min(anonymousBurst, b.tokens+now.Sub(b.at).Seconds()*anonymousPerSec)
}

// limitAnonymous bounds how often a handler that needs no credential is asked
// from one address. Whoever shows a valid key is let through all the same: a
// program of the box must not shut out the operator who shares its address.
func (s *Server) limitAnonymous(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hasBearer(r) {
			if p, err := s.cfg.Auth.Authenticate(r); err == nil {
				next.ServeHTTP(w, r.WithContext(withPrincipal(r.Context(), p)))
				return
			}
		}
		if !s.anonymous.take(bucketOf(s.client(r)), time.Now()) {
			s.tooMany(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) tooMany(w http.ResponseWriter) {
	retryProblem(w, http.StatusTooManyRequests, codeRateLimited, "too many requests without a valid credential from this address")
}

// bucketOf is what an address is counted by. Who has one address of an IPv6
// network has 2^64 (RFC 6177): they count as one. A peer without an address,
// that of a unix socket, is counted by whatever it is called.
func bucketOf(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil || a.Is4() {
		return address
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}
