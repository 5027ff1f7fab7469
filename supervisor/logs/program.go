package logs

import (
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
)

// programLog is what is kept of one program over all its runs.
type programLog struct {
	name string

	bytes, lines, dropped [2]atomic.Uint64

	mu    sync.Mutex
	rings [2]ring
	subs  []*Subscription
}

// program returns the log of a program, making it if need be.
func (p *Plane) program(name string) *programLog {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl := p.programs[name]
	if pl == nil {
		pl = &programLog{name: name}
		for i := range pl.rings {
			pl.rings[i] = ring{max: p.cfg.RingBytes, budget: &p.budget}
		}
		p.programs[name] = pl
	}
	return pl
}

// Remove forgets a program: its rings, counters and subscriptions. A capture that
// still runs keeps delivering to console or file.
func (p *Plane) Remove(program string) {
	p.mu.Lock()
	pl := p.programs[program]
	delete(p.programs, program)
	p.mu.Unlock()
	if pl == nil {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for i := range pl.rings {
		pl.rings[i].close()
	}
	pl.subs = nil
}

// store puts a line into its ring and shows it to subscriptions. The caller
// holds mu.
func (pl *programLog) store(kind Stream, text []byte, rec record) {
	pl.rings[kind-1].append(text, rec)
	if len(pl.subs) == 0 {
		return
	}
	pl.subs = slices.DeleteFunc(pl.subs, func(s *Subscription) bool {
		return s.offer(pl.name, kind, rec, text)
	})
}

// tail returns the newest n lines that keep accepts, oldest first; n < 0 is all.
func (pl *programLog) tail(kind Stream, n int, keep func(record, []byte) bool) []Line {
	var lines []Line
	pl.mu.Lock()
	pl.rings[kind-1].backward(func(r record, text []byte) bool {
		if n >= 0 && len(lines) >= n {
			return false
		}
		if keep(r, text) {
			lines = append(lines, r.line(pl.name, kind, text))
		}
		return true
	})
	pl.mu.Unlock()
	slices.Reverse(lines)
	return lines
}

// Subscription waits for the first line of a run that matches. The match is made
// as the line passes, so a program that prints much after the line cannot hide
// it.
type Subscription struct {
	// C receives the matching line, at most one.
	C <-chan Line

	log   *programLog
	c     chan Line
	run   uint64
	match *regexp.Regexp
}

// subscribedText is how much of a line a subscription looks at: matching happens
// on the goroutine that reads all programs.
const subscribedText = 16 << 10

// Subscribe looks for the first line of the program's run, on either stream, that
// matches. Lines of the run that came before and are still in the ring count.
// Only the first 16 KiB of a line are looked at. Close ends it.
func (p *Plane) Subscribe(program string, run uint64, match *regexp.Regexp) *Subscription {
	pl := p.program(program)
	c := make(chan Line, 1)
	s := &Subscription{C: c, c: c, log: pl, run: run, match: match}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if !s.searchRing() {
		pl.subs = append(pl.subs, s)
	}
	return s
}

func (s *Subscription) searchRing() (found bool) {
	for i := range s.log.rings {
		ring := &s.log.rings[i]
		ring.forward(ring.first(), func(rec record, text []byte) bool {
			found = s.offer(s.log.name, Stream(i+1), rec, text)
			return !found
		})
		if found {
			break
		}
	}
	return found
}

// offer reports whether the line was the one waited for.
func (s *Subscription) offer(program string, kind Stream, rec record, text []byte) bool {
	if rec.run != s.run || !s.match.Match(text[:min(len(text), subscribedText)]) {
		return false
	}
	s.c <- rec.line(program, kind, text) // room for one; a subscription ends with it
	return true
}

// Close ends the subscription. It may be called more than once.
func (s *Subscription) Close() {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.subs = slices.DeleteFunc(s.log.subs, func(o *Subscription) bool { return o == s })
}
