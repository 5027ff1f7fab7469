package nip98

import (
	"sync"
	"time"
)

// memory is how long after the time in it a token is remembered, by the clock that its time is checked
// with. That is Window longer than it is valid, so a token stays used also if the clock is set back by up
// to Window.
const memory = 2 * Window

// ForgetEvery is how often a full Replay looks for ids that it can forget.
const ForgetEvery = memory / 8

// maxSeen bounds the ids that are remembered, and maxOfKey those of one key among them, where keys have shares.
const (
	maxSeen  = 100_000
	maxOfKey = 10_000
)

// Replay remembers the ids of tokens that were used. The zero value is ready. One
// Replay serves all listeners; it may be used by any goroutine.
type Replay struct {
	mu   sync.Mutex
	seen map[string]used // by id
	held map[string]int  // ids of a key; "" = those outside of shares
	next time.Time       // when to look for those that can be forgotten
}

type used struct {
	until time.Time
	by    string // the key, or ""
}

// Use marks a token as used. The second time, and when nothing more can be
// remembered, the error is a *Refusal.
func (r *Replay) Use(t Token, now time.Time) error { return r.use(t, now, "") }

// UseShared is Use where many keys that do not trust each other have rights: each has a share of the memory, and all
// together leave the room of Use free.
func (r *Replay) UseShared(t Token, now time.Time) error { return r.use(t, now, t.Pubkey) }

func (r *Replay) use(t Token, now time.Time, by string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen, r.held = make(map[string]used), make(map[string]int)
	}
	if _, again := r.seen[t.ID]; again {
		return refuse(ReasonReplay, "the token was used before")
	}
	if r.full(by) || now.After(r.next) {
		r.forget(now)
	}
	if r.full(by) {
		return refuse(ReasonFull, "too many signed requests within two minutes")
	}
	r.seen[t.ID] = used{t.Created.Add(memory), by}
	r.held[by]++
	return nil
}

// full tells whether a key has no room left.
func (r *Replay) full(by string) bool {
	if by == "" {
		return r.held[""] >= maxSeen
	}
	return r.held[by] >= maxOfKey || len(r.seen)-r.held[""] >= maxSeen
}

// forget drops what no token can use any more; at most once in a while, or a
// flood would make every request walk the whole map.
func (r *Replay) forget(now time.Time) {
	if now.Before(r.next) {
		return
	}
	r.next = now.Add(ForgetEvery)
	for id, u := range r.seen {
		if now.Before(u.until) {
			continue
		}
		delete(r.seen, id)
		if r.held[u.by]--; r.held[u.by] == 0 {
			delete(r.held, u.by)
		}
	}
}
