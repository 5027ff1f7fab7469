package solid

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A read beside clients that write all the time, almost as many as are served at once.
func BenchmarkReadBesideWriters(b *testing.B) {
	s := opened(b)
	var writers sync.WaitGroup
	var stop atomic.Bool
	for i := range maxGuests - 4 {
		writers.Go(func() {
			for n := 0; !stop.Load(); n++ {
				if got := s.answered(b, http.MethodPut, fmt.Sprintf("/d/%d-%d", i, n%100), "application/ld+json", `{"@id":"#it"}`); got/100 != 2 {
					b.Errorf("PUT: %d", got)
					return
				}
			}
		})
	}
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if got := s.answered(b, http.MethodGet, "/d/kept", "", ""); got != http.StatusOK {
			b.Errorf("GET: %d", got)
		}
		took = append(took, time.Since(start))
	}
	stop.Store(true)
	writers.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
}
