package probes

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of failed authentication from one address: a burst, and then so many a
// second. Whoever has the key is not concerned.
const (
	failureBurst  = 20
	failurePerSec = 20
	// failureAddresses bounds how many addresses are remembered; beyond it the
	// table starts anew, which forgives rather than grows.
	failureAddresses = 4096
)

// failureLimit counts failed authentications by address, each with a bucket of
// tokens that refills with time.
type failureLimit struct {
	mu      sync.Mutex
	buckets map[string]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

// blocked tells whether the address has failed too often.
func (l *failureLimit) blocked(address string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[address]
	return known && b.refilled(now) < 1
}

// failed takes a token.
func (l *failureLimit) failed(address string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.buckets[address]
	if !known {
		if l.buckets == nil || len(l.buckets) >= failureAddresses {
			l.buckets = make(map[string]bucket)
		}
		b = bucket{tokens: failureBurst, at: now}
	}
	l.buckets[address] = bucket{tokens: max(0, b.refilled(now)-1), at: now}
}

func (b bucket) refilled(now time.Time) float64 {
	return min(failureBurst, b.tokens+now.Sub(b.at).Seconds()*failurePerSec)
}

// remoteAddress is the socket's peer without its port. A forwarded address is
// not believed: anyone can send one. Peers of a unix socket have none and share
// one bucket.
func remoteAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
