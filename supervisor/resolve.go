package supervisor

import "time"

// fresh is how long after its beginning a start may still belong to a program that already sends
// messages.
const fresh = time.Second

// maxStrangers bounds how many processes without a program are remembered.
const maxStrangers = 1024

// resolve tells which run the process belongs to that had the pid at the time sent.
func (s *System) resolve(pid int, sent time.Time) (name string, run uint64, ok bool) {
	r, _ := s.runOf(func() (uint64, bool) { return s.cfg.Owner.Sender(pid, sent) })
	if r == nil {
		return "", 0, false
	}
	return r.born.name, r.born.run, true
}

// runOf returns the run of a process that find finds. A program may send a message, or connect, before
// its start has returned. So while a start is fresh, runOf checks a stranger again after that start has
// returned. All other messages wait meanwhile. So a process that is known to belong to no program (an
// agent's, a probe's) must not cause this wait again. ours tells whether the process descends from
// agentinit, also if it is of no run.
func (s *System) runOf(find func() (id uint64, ours bool)) (r *systemRun, ours bool) {
	came := time.Now()
	for {
		id, ours := find()
		if !ours {
			return nil, false
		}
		s.mu.Lock()
		r, left := s.byID[id], s.patience(id, came, time.Now())
		switch {
		case r != nil:
		case left <= 0:
			s.addStranger(id)
		case s.answered == nil:
			s.answered = make(chan struct{})
		}
		answered := s.answered
		s.mu.Unlock()
		if r != nil || left <= 0 {
			return r, true
		}
		select {
		case <-answered:
		case <-time.After(left):
		case <-s.stop:
			return nil, true
		}
	}
}

// patience is how long a message may still turn out to come from a start. The start must have been
// under way when the message came, and the wait is bounded. The caller holds mu.
func (s *System) patience(id uint64, came, now time.Time) (left time.Duration) {
	if id == 0 || s.strangers[id] {
		return 0 // it is already known that no start has this process
	}
	for _, began := range s.starting {
		if !began.After(came) {
			left = max(left, fresh-now.Sub(began))
		}
	}
	return left
}

// addStranger remembers that a process belongs to no program. The caller holds mu.
func (s *System) addStranger(id uint64) {
	if len(s.strangers) >= maxStrangers {
		clear(s.strangers) // this happens rarely and bounds the memory
	}
	s.strangers[id] = true
}

// nameOf returns the present name of the program with this process, or "".
func (s *System) nameOf(id uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.byID[id]; r != nil {
		return r.key.name
	}
	return ""
}

// Owner tells to which program's tree a process belongs. The name is "" if the process descends
// from agentinit but its program is not known.
func (s *System) Owner(pid int) (name string, ok bool) {
	r, ours := s.runOf(func() (uint64, bool) { return s.cfg.Owner.Owns(pid) })
	if r == nil {
		return "", ours
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.key.name, true
}

// Whose is like Owner. If the process has ended, so that its program cannot be found out, gone is
// true and ours is false.
func (s *System) Whose(pid int) (name string, ours, gone bool) {
	id, ours, err := s.cfg.Owner.Whose(pid)
	return s.nameOf(id), ours, err != nil
}
