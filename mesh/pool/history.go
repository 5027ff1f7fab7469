package pool

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// A relay gives only its newest events for each filter, and strangers may have written many since the pool
// was connected last. So after each connection the pool asks for older ones too, page by page.
const (
	pageLimit = 500 // events that a page is asked for
	fullPage  = 50  // a relay that gives fewer has no older ones
	maxPages  = 20  // for one filter, after what the relay gives by itself
	// backdated is how far an event's date may lie before its arrival at a relay: NIP-59 allows two days.
	backdated = 49 * time.Hour
)

// page is the part of a relay's stored events for one filter that the pool reads at present.
type page struct {
	of     *Subscription
	filter nip01.Filter
	n      int   // number of the page; 0 is what the relay gives for the subscription itself
	got    int   // events so far
	oldest int64 // the oldest date of them
}

// turn makes p the next older page. It tells whether the relay may have one.
func (p *page) turn() bool {
	until := p.oldest
	if p.filter.Until != nil && until == *p.filter.Until {
		until-- // the page was full of events of one second
	}
	if p.got < fullPage || p.n == maxPages || until < 0 || p.filter.Since != nil && until < *p.filter.Since {
		return false
	}
	p.filter.Until, p.filter.Limit = &until, new(pageLimit)
	p.n, p.got, p.oldest = p.n+1, 0, math.MaxInt64
	return true
}

// pageSeparator joins the id of a subscription and the index of a filter to the id of its pages.
const pageSeparator = "-"

// openHistory begins to read the stored events for a subscription, unless this connection has done that
// for another one. The caller holds the lock.
func (l *link) openHistory(s *Subscription) {
	if s.most > 0 || l.caughtUp {
		return
	}
	for i, f := range s.filters {
		if !l.wasUp.IsZero() {
			f.Since = new(l.wasUp.Add(-backdated).Unix())
		}
		l.pages[s.id+pageSeparator+strconv.Itoa(i)] = &page{of: s, filter: f, oldest: math.MaxInt64}
	}
}

// asked returns what the pool has asked the relay for with this id; nil if it no longer wants that.
func (l *link) asked(id string) (*Subscription, []nip01.Filter) {
	of, _, older := strings.Cut(id, pageSeparator)
	s := l.pool.subscription(of)
	switch {
	case s == nil:
		return nil, nil
	case !older:
		return s, s.filters
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pages[id]; p != nil && p.n > 0 {
		return s, []nip01.Filter{p.filter}
	}
	return nil, nil
}

// pagesOf returns the ids of the pages that a request with this id reads. The caller holds the lock.
func (l *link) pagesOf(id string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l.pages)), func(key string) bool {
		p := l.pages[key]
		return key != id && (p.n > 0 || p.of.id != id)
	})
}

// count adds a verified event to the pages that a request reads.
func (l *link) count(id string, e nip01.Subject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.pagesOf(id) {
		if p := l.pages[key]; p.filter.Matches(e) {
			p.got++
			p.oldest = min(p.oldest, int64(e.CreatedAt))
		}
	}
}

// turnPages asks for the next pages after the relay has given all events of a request.
func (l *link) turnPages(id string) {
	var messages [][]byte
	l.mu.Lock()
	for _, key := range l.pagesOf(id) {
		p := l.pages[key]
		if p.turn() {
			messages = append(messages, nip01.Message(nip01.VerbReq, key, p.filter))
			continue
		}
		if p.n > 0 {
			messages = append(messages, nip01.Message(nip01.VerbClose, key))
		}
		l.dropPage(key)
	}
	l.mu.Unlock()
	for _, m := range messages {
		l.send(l.pool.ctx, m)
	}
}

// refusedPages takes note that the relay has ended a request.
func (l *link) refusedPages(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.pagesOf(id) {
		l.dropPage(key)
	}
}

// dropPage says that no older events are wanted. The caller holds the lock.
func (l *link) dropPage(key string) {
	delete(l.pages, key)
	l.caughtUp = len(l.pages) == 0
}

// closeHistory forgets the pages of a subscription that ends, and returns the ids of those that the relay
// was asked for.
func (l *link) closeHistory(s *Subscription) (asked []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, p := range l.pages {
		if p.of == s {
			delete(l.pages, key)
			if p.n > 0 {
				asked = append(asked, key)
			}
		}
	}
	return asked
}
