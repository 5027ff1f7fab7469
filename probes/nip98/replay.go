package nip98

import (
	"sync"
	"time"
)

// memory is how long after the time in it a token is remembered, by the clock that its time is checked
// with. That is Window longer than it is valid, so a token stays used also if the clock is set back by up
// to Window.
const memory = 2 * Window

// maxSeen bounds the ids that are remembered; 32 bytes and a time each.
const maxSeen = 100_000

// Replay remembers the ids of tokens that were used. The zero value is ready. One
// Replay serves all listeners; it may be used by any goroutine.
type Replay struct {
	mu   sync.Mutex
	seen map[string]time.Time // id → until when
	next time.Time            // when to look for those that can be forgotten
}

// Use marks a token as used. The second time, and when nothing more can be
// remembered, the error is a *Refusal.
func (r *Replay) Use(t Token, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = make(map[string]time.Time)
	}
	if _, used := r.seen[t.ID]; used {
		return refuse(ReasonReplay, "the token was used before")
	}
	if len(r.seen) >= maxSeen || now.After(r.next) {
		r.forget(now)
	}
	if len(r.seen) >= maxSeen {
		return refuse(ReasonFull, "too many signed requests within two minutes")
	}
	r.seen[t.ID] = t.Created.Add(memory)
	return nil
}

// forget drops what no token can use any more; at most once in a while, or a
// flood would make every request walk the whole map.
func (r *Replay) forget(now time.Time) {
	if now.Before(r.next) {
		return
	}
	r.next = now.Add(memory / 8)
	for id, until := range r.seen {
		if !now.Before(until) {
			delete(r.seen, id)
		}
	}
}
