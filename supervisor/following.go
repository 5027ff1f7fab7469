package supervisor

import (
	"fmt"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/ready"
)

// following is what a System knows of the main process of a run: the one that was
// started, or the one that the program has named (MAINPID= of sd_notify(3)). System.mu.
type following struct {
	notifies bool        // it was given the notification socket
	main     int         // its pid
	ends     []proc.Exit // held back, and the latest that was not of the main process
	flushing bool        // they wait for what the program has said before
	told     bool        // the end of the main process was passed on

	// Only the goroutine that receives messages uses the fields below.
	withdrawn string // why the program is not ready any more, by its own words
	changes   int    // how often the program has named a main process or withdrawn its readiness since changesAt
	changesAt time.Time
}

// A program may name another main process or withdraw its readiness this often in changesEvery. Each
// time is an event, and events beyond that would push all others out of the ring.
const (
	changesMost  = 20
	changesEvery = time.Minute
)

// mayChange tells whether the program may change what is known of it, and whether a refusal is to be
// told.
func (f *following) mayChange(now time.Time) (ok, tell bool) {
	if now.Sub(f.changesAt) >= changesEvery {
		f.changes, f.changesAt = 0, now
	}
	f.changes++
	return f.changes <= changesMost, f.changes == changesMost+1
}

// mayChange is that of the run. It tells the refusal.
func (s *System) mayChange(r *systemRun, m ready.Message) bool {
	ok, tell := r.mayChange(time.Now())
	if tell {
		s.refused(m.Sender, fmt.Sprintf("%s names main processes or withdraws its readiness more than %d times a minute", m.Program, changesMost))
	}
	return ok
}

// follow makes the process that a message names the main process of the run. It is
// called on the goroutine that receives, so that messages count in their order.
func (s *System) follow(r *systemRun, m ready.Message) {
	s.mu.Lock()
	same, id := r.main == m.MainPID, r.proc.ID
	s.mu.Unlock()
	if same || !s.mayChange(r, m) {
		return
	}
	if err := s.cfg.Owner.Follow(id, m.MainPID); err != nil {
		s.refused(m.Sender, fmt.Sprintf("MAINPID %d of %s cannot be followed: %v", m.MainPID, m.Program, err))
		return
	}
	s.mu.Lock()
	r.main = m.MainPID
	name, run := r.key.name, r.key.run
	s.mu.Unlock()
	s.cfg.Bus.Publish(event.Event{
		Level: event.Info, Stage: stage, Name: event.MainProcessChanged, Program: name, Run: run,
		Fields: map[string]any{"pid": m.MainPID, "by": m.Sender},
	})
	s.tell(r, Report{Kind: ReportMain, PID: m.MainPID})
}

// withdraw takes back the readiness of a program that says so, and gives it back when it says that
// it is ready again.
func (s *System) withdraw(r *systemRun, m ready.Message) {
	if r.withdrawn == m.Withdrawn || m.Withdrawn != "" && !s.mayChange(r, m) {
		return
	}
	r.withdrawn = m.Withdrawn
	s.tell(r, Report{Kind: ReportWithdrawn, Reason: m.Withdrawn})
}

// holdBack keeps the ends of a run whose program may have named another main process
// just before, until that is known. systemd reads its notification socket before it reaps,
// for the same reason. The caller holds mu.
func (s *System) holdBack(r *systemRun, e proc.Exit) bool {
	if !r.notifies || !r.flushing && e.Kind == proc.Emptied && r.told {
		return false
	}
	r.ends = append(r.ends, e)
	if !r.flushing {
		r.flushing = true
		s.draining.Go(func() {
			s.notifier.Flush()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.letGo(r)
		})
	}
	return true
}

// letGo passes on the end of the main process, and drops that of a process that is the
// main one no longer; unless no other process turns out to be left. The caller holds mu.
func (s *System) letGo(r *systemRun) {
	ends := r.ends
	r.ends, r.flushing = nil, false
	for i, e := range ends {
		switch {
		case e.Kind == proc.Exited && r.told:
			continue
		case e.Kind == proc.Exited && e.PID != r.main:
			r.ends = ends[i : i+1 : i+1]
			continue
		case e.Kind == proc.Emptied && !r.told && len(r.ends) > 0:
			s.note(r, r.ends[0])
		}
		r.told = true
		s.note(r, e)
	}
}
