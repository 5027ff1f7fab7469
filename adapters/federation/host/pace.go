package host

import "time"

// Limits of the pause before the next attempt of a box to register.
const (
	minPause = time.Second
	maxPause = 3 * time.Minute
	// firstRate is how many registrations a second are assumed to be possible before one was
	// served. leastRate and mostRate bound the measured rate.
	firstRate = 200.0
	leastRate = 10.0
	mostRate  = 5000.0
	// share is the part of the rate for boxes that come back as requested; the rest is for boxes
	// that come for the first time.
	share = 0.75
	// memory is how many registrations the average goes back.
	memory = 128
)

// pace is the queue of boxes that must come back later. The times in it are as far apart as a
// registration takes, so each box can register when it comes.
type pace struct {
	each float64   // seconds between the ends of two registrations, on average; 0: none was measured
	last time.Time // when the last one ended
	next time.Time // for the next box
}

// served takes a registration that began then and has ended now into the average. The time
// before it began does not count: the host may have been idle.
func (p pace) served(begun, now time.Time) pace {
	if begun.Before(p.last) {
		begun = p.last
	}
	p.last = now
	took := max(now.Sub(begun).Seconds(), 0)
	if p.each == 0 {
		p.each = took
		return p
	}
	p.each += (took - p.each) / memory
	return p
}

// rate is how many registrations a second the host can serve.
func (p pace) rate() float64 {
	if p.each == 0 {
		return firstRate
	}
	return min(max(1/p.each, leastRate), mostRate)
}

// later is the pause of one more box. If the queue is longer than maxPause, the boxes are spread
// over the second half of that time; random, below 1, chooses the place.
func (p pace) later(now time.Time, random float64) (time.Duration, pace) {
	at := p.next
	if soonest := now.Add(minPause); at.Before(soonest) {
		at = soonest
	}
	wait := at.Sub(now)
	if wait > maxPause {
		return maxPause/2 + time.Duration(random*float64(maxPause/2)), p
	}
	p.next = at.Add(time.Duration(float64(time.Second) / (share * p.rate())))
	return wait, p
}
