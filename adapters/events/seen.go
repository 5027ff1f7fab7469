package events

import (
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// maxSeen bounds how many ids are remembered; the oldest are forgotten first.
const maxSeen = 200_000

// seen remembers the receipts of recent events by author and id. A second dispatch of an id gets the
// first receipt. An id of another author is another event: an agent that guesses an id must not be able
// to suppress the event of another caller. It is not safe for concurrent use.
type seen struct {
	byID  map[eventID]adapters.Receipt
	order []eventID // ring of ids, oldest at head
	head  int
}

type eventID struct{ author, id string }

func idOf(e adapters.Event) eventID { return eventID{e.Author, e.ID} }

func newSeen() *seen { return &seen{byID: make(map[eventID]adapters.Receipt)} }

func (s *seen) get(e adapters.Event) (adapters.Receipt, bool) {
	r, ok := s.byID[idOf(e)]
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
	id := idOf(e)
	if _, ok := s.byID[id]; !ok {
		if len(s.order) < maxSeen {
			s.order = append(s.order, id)
		} else {
			delete(s.byID, s.order[s.head])
			s.order[s.head] = id
			s.head = (s.head + 1) % len(s.order)
		}
	}
	s.byID[id] = receipt(e, false)
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
