package events

import (
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// maxSeen bounds how many ids are remembered; the oldest are forgotten first.
const maxSeen = 200_000

// seen remembers the receipts of recent events by id. A second dispatch of an id gets the first
// receipt. It is not safe for concurrent use.
type seen struct {
	byID  map[string]adapters.Receipt
	order []string // ring of ids, oldest at head
	head  int
}

func newSeen() *seen { return &seen{byID: make(map[string]adapters.Receipt)} }

func (s *seen) get(id string) (adapters.Receipt, bool) {
	r, ok := s.byID[id]
	if !ok || time.Since(r.TS.Time) >= adapters.IdempotencyLife {
		return adapters.Receipt{}, false
	}
	return r, true
}

func (s *seen) add(e adapters.Event) {
	if time.Since(e.TS.Time) >= adapters.IdempotencyLife {
		return
	}
	s.forgetOld()
	if _, ok := s.byID[e.ID]; !ok {
		if len(s.order) < maxSeen {
			s.order = append(s.order, e.ID)
		} else {
			delete(s.byID, s.order[s.head])
			s.order[s.head] = e.ID
			s.head = (s.head + 1) % len(s.order)
		}
	}
	s.byID[e.ID] = receipt(e, false)
}

// forgetOld removes up to two entries in each call, so that no single call takes long.
func (s *seen) forgetOld() {
	if s.head != 0 || len(s.order) == maxSeen {
		return // the ring is full, so each new entry replaces an old one
	}
	for range 2 {
		if len(s.order) == 0 || time.Since(s.byID[s.order[0]].TS.Time) < adapters.IdempotencyLife {
			return
		}
		delete(s.byID, s.order[0])
		s.order = s.order[1:]
	}
}
