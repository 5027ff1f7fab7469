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
	mu    sync.Mutex
	lanes map[string]*lane // of the programs that have work
	ready []*lane          // lanes that no worker serves
	busy  int
}

// lane is the job queue of one program. It belongs to the program's name: if a program is removed
// and added again, its start comes after the old one was forgotten.
type lane struct {
	name string
	jobs []func()
}

func (c *crew) submit(program string, job func()) {
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
	l.jobs = append(l.jobs, job)
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
		l := c.ready[0]
		c.ready[0] = nil
		c.ready = c.ready[1:]
		job := l.jobs[0]
		l.jobs[0] = nil
		l.jobs = l.jobs[1:]
		c.mu.Unlock()
		replaced := c.stuck(job)
		c.done(l)
		if replaced {
			return
		}
	}
}

// stuck does the job and tells whether it took so long that another worker has replaced this one.
func (c *crew) stuck(job func()) bool {
	guard := time.AfterFunc(stuckAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy--
		c.hire()
	})
	job()
	return !guard.Stop()
}

func (c *crew) done(l *lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
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
