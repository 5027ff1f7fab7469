package supervisor

import (
	"maps"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// readExits passes the owner's notices to the loop.
func (s *System) readExits() {
	for {
		select {
		case e := <-s.cfg.Owner.Exits():
			s.mu.Lock()
			s.route(e)
			s.mu.Unlock()
		case <-s.stop:
			return
		}
	}
}

// route passes a notice to its run, or keeps it until a start has returned. The caller holds mu,
// which keeps the notices of a run in order.
func (s *System) route(e proc.Exit) {
	r := s.byID[e.ID]
	switch {
	case r == nil && len(s.starting) > 0:
		s.parked = append(s.parked, e)
		return
	case r == nil || s.holdBack(r, e):
		return
	}
	s.note(r, e)
}

// note passes on an end of a run. The caller holds mu.
func (s *System) note(r *systemRun, e proc.Exit) {
	n := Notice{Program: r.key.name, Run: r.key.run}
	if e.Kind == proc.Exited {
		if r.proc.Slave != nil {
			// Until now, the output of the terminal had no end, even while the program had it closed.
			_ = r.proc.Slave.Close() // closing a terminal loses no data
		}
		exit := exitOf(e)
		// The reaper can see the end before the launcher has noted the start.
		exit.Lived = max(e.Time.Sub(r.proc.Started), 0)
		oom := ""
		if exit.Signal == "KILL" && !e.ByUs {
			oom = s.oom.verdict(e.Time, e.MemoryLimit)
		} else {
			s.oom.look(e.Time)
		}
		switch {
		case oom != "":
			exit.Cause = oom
		case r.stopWhy != "": // otherwise a TERM of ours looks as if it came from outside
			exit.Cause = exit.String() + " when agentinit stopped it: " + r.stopWhy
		case r.asked && e.ByUs && len(r.spec.Stop) > 0 && r.spec.Stop[0].Signal != "KILL": // otherwise it looks as if the memory had run out
			exit.Cause = exit.String() + " when agentinit stopped it: it did not end in time"
		}
		n.Exit = &exit
		s.crashed(r, e, exit, oom != "")
	} else {
		delete(s.byID, e.ID)
		delete(s.runs, r.key)
		if r.renamed {
			maps.DeleteFunc(s.runs, func(_ runKey, other *systemRun) bool { return other == r })
		}
		if !r.forgotten {
			s.spent[r.key.name] += e.CPU
		}
		s.dropLocked(r)
		if e.Leaked > 0 {
			s.warn(event.ProcessesLeaked, r.key.name, map[string]any{"count": e.Leaked, "pids": e.Left})
		}
	}
	s.send(n)
}

// send passes a notice on and never waits, because the caller holds mu. The supervisor takes
// notices at once. After its end no one does, so any number may wait until Close.
func (s *System) send(n Notice) {
	select {
	case <-s.stop:
		return
	default:
	}
	if len(s.waiting) == 0 {
		select {
		case s.notices <- n:
			return
		default:
		}
		s.stopped.Go(s.move)
	}
	s.waiting = append(s.waiting, n)
}

// move passes on the waiting notices. It runs as long as there are some.
func (s *System) move() {
	for {
		s.mu.Lock()
		n := s.waiting[0]
		s.mu.Unlock()
		select {
		case s.notices <- n:
		case <-s.stop:
			return
		}
		s.mu.Lock()
		s.waiting = s.waiting[1:]
		empty := len(s.waiting) == 0
		s.mu.Unlock()
		if empty {
			return
		}
	}
}

func exitOf(e proc.Exit) program.Exit {
	if e.Untold {
		return program.Exit{Code: 1, Cause: "its main process has ended; the exit status went to that process's parent"}
	}
	exit := program.Exit{Code: e.Code(), Core: e.Status.CoreDump()}
	if sig := e.Signal(); sig != 0 {
		exit.Signal, exit.SignalNumber = signame.Of(sig), int(sig)
	}
	return exit
}
