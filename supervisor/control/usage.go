package control

import (
	"net/http"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Reading the use of all programs costs some microseconds of /proc for each
// process. Whoever watches a large box must not notice that at its programs: the
// next reading waits usageShare times as long as the last one took, and never less
// than usagePause.
const (
	usagePause = time.Second
	usageShare = 200 // at most half a per cent of one processor
)

// sampler keeps the last reading for all who ask before the next one is due.
type sampler struct {
	mu   sync.Mutex
	last api.Usage
	due  time.Time
}

// sample reads again when that is due.
func (u *sampler) sample(read func() []api.ProgramUsage) api.Usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	began := time.Now()
	if began.Before(u.due) {
		return u.last
	}
	programs := read()
	took := time.Since(began)
	u.due = began.Add(max(usagePause, usageShare*took))
	u.last = api.Usage{Time: began, NextMS: max(usagePause, usageShare*took).Milliseconds(), Programs: programs}
	return u.last
}

func getUsage(s *Server, _ *http.Request) (any, error) {
	if s.cfg.Usage == nil {
		return nil, unsupported("accounting of programs")
	}
	return s.usage.sample(s.cfg.Usage), nil
}
