package probes

import (
	"net/http"
	"net/netip"
	"strings"
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

// maxHops bounds how far a chain of proxies is followed.
const maxHops = 32

// client is the address that a request comes from: the socket's, unless that is
// a trusted proxy's. Then it is the last address of X-Forwarded-For that is not
// a trusted proxy: everything before it may be the client's own invention.
func (s *Server) client(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := peer.Addr().Unmap().WithZone("")
	chain := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	for hops := 0; chain != "" && hops < maxHops && s.trusts(address); hops++ {
		at := strings.LastIndexByte(chain, ',')
		next, ok := forwardedAddress(chain[at+1:])
		if !ok {
			break // the proxy does not say for whom it asks: it answers for it
		}
		address = next
		chain = chain[:max(at, 0)]
	}
	return address.String()
}

func (s *Server) trusts(address netip.Addr) bool {
	for _, p := range s.cfg.TrustedProxies {
		if p.Contains(address) {
			return true
		}
	}
	return false
}

// forwardedAddress reads one entry: an address, which some proxies write with
// its port.
func forwardedAddress(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		a = ap.Addr()
	}
	return a.Unmap().WithZone(""), true
}
