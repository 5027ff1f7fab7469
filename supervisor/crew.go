package supervisor

import (
	"sync"
	"time"
)

// crewSize is how many programs are started or signalled at the same time.
const crewSize = 4

// stuckAfter is when a job no longer counts towards crewSize: a start that hangs on a dead file
// system must not delay the others.
const stuckAfter = time.Second

// crew does the work that may block. Jobs of one program run in order and never at the same time.
// Programs take turns in the order of their requests. The crew has goroutines only while there is
// work.
type crew struct {
	signalSoon func([]SignalRequest) (sent []bool)

	mu    sync.Mutex
	lanes map[string]*lane // of the programs that have work
	ready []*lane          // lanes that no worker serves
	busy  int
}

// lane is the job queue of one program. It belongs to the program's name: if a program is removed
// and added again, its start comes after the old one was forgotten.
type lane struct {
	name string
	jobs []job
}

// job is do. If it only sends a signal, the crew first tries to send that together with those of
// other programs, and does not need do if this succeeds. At the shutdown of a thousand programs, the
// last signals would otherwise wait until most of the others have ended and were reaped.
type job struct {
	do     func()
	signal *SignalRequest
}

func (c *crew) submit(program string, j job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[program]
	if l == nil {
		if c.lanes == nil {
			c.lanes = make(map[string]*lane)
		}
		l = &lane{name: program}
		c.lanes[program] = l
		c.ready = append(c.ready, l)
	}
	l.jobs = append(l.jobs, j)
	c.hire()
}

// hire starts a worker if there is work for one more. The caller holds mu.
func (c *crew) hire() {
	if c.busy < crewSize && len(c.ready) > 0 {
		c.busy++
		go c.work()
	}
}

func (c *crew) work() {
	for {
		c.mu.Lock()
		if len(c.ready) == 0 {
			c.busy--
			c.mu.Unlock()
			return
		}
		if lanes, requests := c.takeSignals(); len(lanes) > 0 {
			c.mu.Unlock()
			c.signalled(lanes, c.signalSoon(requests))
			continue
		}
		l := c.ready[0]
		c.ready[0] = nil
		c.ready = c.ready[1:]
		do := l.next().do
		c.mu.Unlock()
		replaced := c.stuck(do)
		c.mu.Lock()
		c.rest(l)
		c.mu.Unlock()
		if replaced {
			return
		}
	}
}

func (l *lane) next() job {
	j := l.jobs[0]
	l.jobs[0] = job{}
	l.jobs = l.jobs[1:]
	return j
}

// takeSignals takes the lanes whose next job is a signal, if the first one is among them. The caller
// holds mu.
func (c *crew) takeSignals() (lanes []*lane, requests []SignalRequest) {
	if c.ready[0].jobs[0].signal == nil {
		return nil, nil
	}
	others := c.ready[:0]
	for _, l := range c.ready {
		if r := l.jobs[0].signal; r != nil {
			lanes, requests = append(lanes, l), append(requests, *r)
		} else {
			others = append(others, l)
		}
	}
	clear(c.ready[len(others):])
	c.ready = others
	return lanes, requests
}

// signalled ends the jobs whose signals were sent. The others have to be done.
func (c *crew) signalled(lanes []*lane, sent []bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, l := range lanes {
		if sent[i] {
			l.next()
		} else {
			l.jobs[0].signal = nil
		}
		c.rest(l)
	}
}

// stuck does the job and tells whether it took so long that another worker has replaced this one.
func (c *crew) stuck(do func()) bool {
	guard := time.AfterFunc(stuckAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy--
		c.hire()
	})
	do()
	return !guard.Stop()
}

// rest gives up a lane that was served. The caller holds mu.
func (c *crew) rest(l *lane) {
	if len(l.jobs) == 0 {
		delete(c.lanes, l.name)
		if len(c.lanes) == 0 {
			c.lanes, c.ready = nil, nil // a map keeps the room of the many lanes of a boot
		}
		return
	}
	c.ready = append(c.ready, l)
	c.hire()
}
