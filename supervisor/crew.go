package supervisor

import (
	"sync"
	"time"
)

// crewSize is how many programs are started or signalled at the same time.
const crewSize = 4

// stuckAfter is when a job no longer counts towards crewSize: a start that hangs
// on a dead file system must not hold up the others.
const stuckAfter = time.Second

// crew does the work that may block. Jobs of one lane run in their order and
// never at the same time; lanes take turns in the order in which they asked. It
// has goroutines only while there is work.
type crew struct {
	mu    sync.Mutex
	ready []*lane // have work and nobody at it
	busy  int
}

// lane is the jobs of one program.
type lane struct {
	jobs   []func()
	active bool // in ready, or being worked on
}

func (c *crew) submit(l *lane, job func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.jobs = append(l.jobs, job)
	if !l.active {
		l.active = true
		c.ready = append(c.ready, l)
		c.hire()
	}
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

// stuck does the job and tells whether it took so long that the worker's place
// has been given to another.
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
		l.active = false
		return
	}
	c.ready = append(c.ready, l)
	c.hire()
}
