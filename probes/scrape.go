package probes

import (
	"bytes"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes bounds how many scrapes run at once, because each reads /proc. Others wait for their turn.
const maxScrapes = 4

// unsentScrapes bounds how many bytes of answers are in memory that clients have not read yet. A box of
// 1000 programs has 1 MB of metrics.
const unsentScrapes = 16 << 20

// scrapes answers /metrics. A scrape ends its turn before its answer is sent, so a client that does not
// read its answer holds up no other. If clients leave too much unread, the connection of the oldest
// answer is closed.
type scrapes struct {
	render http.Handler
	turns  chan struct{}
	max    int // bytes

	mu     sync.Mutex
	unsent []*scrapeAnswer // oldest first
	held   int             // bytes in unsent
}

func (s *Server) scrape() http.Handler {
	h := &scrapes{turns: make(chan struct{}, maxScrapes), max: unsentScrapes}
	metrics := promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{
		// One collector that fails must not hide all the others.
		ErrorHandling: promhttp.ContinueOnError,
	})
	h.render = http.TimeoutHandler(h.inTurn(metrics), readTimeout, "the metrics could not be collected in time\n")
	return h
}

func (s *scrapes) inTurn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done(): // also after readTimeout
		}
	})
}

func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := &scrapeAnswer{header: w.Header(), status: http.StatusOK, giveUp: func() {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // an error: the connection is closed
	}}
	s.render.ServeHTTP(a, r)
	s.hold(a)
	defer s.release(a)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // an error: the client is gone, or was given up
}

// hold counts an answer that is about to be sent, and gives up older ones if all together are too large.
func (s *scrapes) hold(a *scrapeAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent = append(s.unsent, a)
	s.held += a.body.Len()
	for s.held > s.max && len(s.unsent) > 1 {
		s.unsent[0].giveUp() // with mu, so that it does not meet the next request of the connection
		s.held -= s.unsent[0].body.Len()
		s.unsent = slices.Delete(s.unsent, 0, 1)
	}
}

func (s *scrapes) release(a *scrapeAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.unsent, a); i >= 0 {
		s.held -= a.body.Len()
		s.unsent = slices.Delete(s.unsent, i, i+1)
	}
}

// scrapeAnswer is an answer in memory.
type scrapeAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
	giveUp func()
}

func (a *scrapeAnswer) Header() http.Header         { return a.header }
func (a *scrapeAnswer) WriteHeader(status int)      { a.status = status }
func (a *scrapeAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }
