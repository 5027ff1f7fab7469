package logs

import (
	"context"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
)

// programLog is what is kept about one program over all its runs.
type programLog struct {
	name string

	bytes, dropped, suppressed [2]atomic.Uint64

	limit limiter

	// held is how many pipes of the program a goroutine waits for that its reactor has replaced.
	held atomic.Int32

	mu      sync.Mutex
	rings   [2]ring
	subs    []*Subscription
	readers int  // how many know the program and may not have all its lines yet
	removed bool // by Plane.Remove

	files [2]*fileSink // the newest of each stream; Plane.mu guards it
}

// program returns the log of a program. It makes one if there is none.
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
		p.made.Add(1)
	}
	return pl
}

// Held tells how many pipes of the program cannot be read or closed, because a process holds them. Each
// occupies a thread.
func (p *Plane) Held(program string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.programs[program]; pl != nil {
		return int(pl.held.Load())
	}
	return 0
}

// leavingShare is the share of the budget that the lines of removed programs may take.
const leavingShare = 8

// Remove forgets a program: its rings, counters and subscriptions. Followers that are busy still get
// its last lines, as far as there is room for them. A capture that still runs goes on delivering to
// the console or the file.
func (p *Plane) Remove(program string) {
	p.mu.Lock()
	pl := p.programs[program]
	delete(p.programs, program)
	if pl != nil && !pl.remove() {
		p.leaving = append(p.leaving, pl)
		for used := p.leavingBytes(); used > p.budget.max.Load()/leavingShare; used = p.leavingBytes() {
			p.leaving[0].close()
			p.leaving = slices.Delete(p.leaving, 0, 1)
		}
	}
	p.mu.Unlock()
	p.wakeFollowers()
}

// leavingBytes is the size of the rings of removed programs. The caller holds mu.
func (p *Plane) leavingBytes() (n int64) {
	for _, pl := range p.leaving {
		pl.mu.Lock()
		n += int64(pl.rings[0].bytes + pl.rings[1].bytes)
		pl.mu.Unlock()
	}
	return n
}

// remove ends the storing of lines. It forgets them and returns true if no reader may want them.
func (pl *programLog) remove() bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.removed, pl.subs = true, nil
	for i := range pl.rings {
		pl.rings[i].closed = true
	}
	if pl.readers > 0 {
		return false
	}
	pl.forget()
	return true
}

func (pl *programLog) close() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.forget()
}

// forget forgets all lines. A reader that wants them counts them as lost. The caller holds mu.
func (pl *programLog) forget() {
	for i := range pl.rings {
		pl.rings[i].close()
	}
}

// enter tells the program that a reader knows it. It returns false if the program was removed.
func (pl *programLog) enter() bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.removed {
		return false
	}
	pl.readers++
	return true
}

// leave is the opposite of enter. The last reader of a removed program frees its memory.
func (p *Plane) leave(pl *programLog) {
	pl.mu.Lock()
	pl.readers--
	last := pl.removed && pl.readers == 0
	if last {
		pl.forget()
	}
	pl.mu.Unlock()
	if last {
		p.mu.Lock()
		p.leaving = slices.DeleteFunc(p.leaving, func(o *programLog) bool { return o == pl })
		p.mu.Unlock()
	}
}

// show offers a stored chunk to the subscriptions. The caller holds mu.
func (pl *programLog) show(kind Stream, c chunk, text []byte) {
	if len(pl.subs) == 0 {
		return
	}
	pl.subs = slices.DeleteFunc(pl.subs, func(s *Subscription) bool {
		return s.offer(pl.name, kind, c, text)
	})
}

// tail returns the newest n lines of a run, oldest first; if n < 0, it returns all. See Query.Cut for
// cut.
func (pl *programLog) tail(kind Stream, run uint64, n, cut int) []Line {
	r := &reader{ctx: context.Background(), query: Query{Run: run, Cut: cut}}
	defer r.files.close()
	pl.mu.Lock()
	ring := &pl.rings[kind-1]
	s := &chunkSource{reader: r, program: pl.name, kind: kind, to: ring.next}
	s.take(ring)
	pl.mu.Unlock()
	if n >= 0 {
		s.trim(n)
	}
	var lines []Line
	for ln := range merge(r.ctx, []source{s}) {
		if lines = append(lines, ln); n >= 0 && len(lines) > n {
			lines = slices.Delete(lines, 0, len(lines)-n)
		}
	}
	return lines
}

// Subscription waits for the first line of a run that matches. Each line is tested when it arrives,
// so the line is not missed even if much output follows.
type Subscription struct {
	// C receives one matching line.
	C <-chan Line

	log   *programLog
	c     chan Line
	run   uint64
	match *regexp.Regexp
}

// subscribedText is how much of a line is tested, because the test runs on the goroutine that reads
// all programs.
const subscribedText = 16 << 10

// Subscribe looks for a line of the program's run, on either stream, that matches. Earlier lines of
// the run that are still in the ring count too; Subscribe reads those in a log file before it
// returns. Only the first 16 KiB of a line are tested. Close ends the subscription.
func (p *Plane) Subscribe(program string, run uint64, match *regexp.Regexp) *Subscription {
	pl := p.program(program)
	c := make(chan Line, 1)
	s := &Subscription{C: c, c: c, log: pl, run: run, match: match}
	pl.mu.Lock()
	pl.subs = append(pl.subs, s) // lines that come from now on are offered to s
	var earlier [2][]chunk
	for i := range pl.rings {
		earlier[i] = slices.DeleteFunc(pl.rings[i].chunks(0), func(c chunk) bool { return c.run != run })
	}
	pl.mu.Unlock()
	if s.search(earlier) {
		s.Close()
	}
	return s
}

// search tests the lines of chunks. It may wait for a disk, so the caller holds no lock.
func (s *Subscription) search(earlier [2][]chunk) bool {
	var files generationFiles
	defer files.close()
	for i, chunks := range earlier {
		for _, c := range chunks {
			text, err := c.read(&files)
			if err == nil && s.offer(s.log.name, Stream(i+1), c, text) {
				return true
			}
		}
	}
	return false
}

// offer tests the lines of a chunk and reports whether one matches.
func (s *Subscription) offer(program string, kind Stream, c chunk, text []byte) (matched bool) {
	if c.run != s.run {
		return false
	}
	lines, i := c.block(text)
	lines.eachLine(func(ln rawLine) bool {
		shown := ln.display()
		if matched = s.match.Match(shown[:min(len(shown), subscribedText)]); matched {
			found := c.line(program, kind, i)
			found.Text, found.Truncated = string(shown), ln.cut
			select {
			case s.c <- found:
			default: // Subscribe has found an earlier line, or a later line has just come
			}
		}
		i++
		return !matched
	})
	return matched
}

// Close ends the subscription. It may be called more than once.
func (s *Subscription) Close() {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.subs = slices.DeleteFunc(s.log.subs, func(o *Subscription) bool { return o == s })
}
