package probes

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// Limits for requests of one address without a valid credential: the burst, and the requests a
// second after it. Callers with a credential have no such limit.
const (
	anonymousBurst  = 20
	anonymousPerSec = 20
	// anonymousAddresses bounds how many addresses are remembered. Above that, the table is
	// cleared, which allows some more requests but bounds the memory.
	anonymousAddresses = 4096
)

func newAnonymous() *rate.Callers[string] {
	return rate.NewCallers[string](rate.Limit{PerSecond: anonymousPerSec, Burst: anonymousBurst}, anonymousAddresses)
}

// limitAnonymous limits how often one address may call a handler without a credential. A caller
// with a valid key is always admitted: a program of the box must not block the operator who has the
// same address.
func (s *Server) limitAnonymous(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hasBearer(r) {
			if p, err := s.cfg.Auth.Authenticate(r); err == nil {
				next.ServeHTTP(w, r.WithContext(withPrincipal(r.Context(), p)))
				return
			}
		}
		if _, ok := s.anonymous.Take(bucketOf(s.client(r)), time.Now()); !ok {
			s.tooMany(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) tooMany(w http.ResponseWriter) {
	busy(w, http.StatusTooManyRequests, problem.RateLimited, 1, "too many requests without a valid credential from this address")
}

// bucketOf is the key under which an address is counted. An owner of one address of an IPv6 network
// has 2^64 of them (RFC 6177), so they count as one. A peer without an address, as on a unix
// socket, is counted by its text.
func bucketOf(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil || a.Is4() {
		return address
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}
