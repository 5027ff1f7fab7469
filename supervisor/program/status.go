package program

import (
	"fmt"
	"time"
)

// Status is one program as seen from outside. It is a value; Spec is shared and
// must not be changed.
type Status struct {
	Name  string `json:"name"`
	Group string `json:"group"`
	// Former are the earlier names of this instance: a changed number of instances can rename it.
	// Its earlier output has these names.
	Former    []string `json:"former,omitempty"`
	State     State    `json:"state"`
	Ready     bool     `json:"ready"`
	Healthy   bool     `json:"healthy"`
	Completed bool     `json:"completed"`
	Required  bool     `json:"required"`
	// Blocked says that the program wants to start but cannot: a program that it needs will not
	// start without a request. Reason names that program.
	Blocked bool `json:"blocked,omitempty"`
	// Halting says that a stop was requested and waits until the programs that depend on this one
	// have stopped.
	Halting bool `json:"halting,omitempty"`
	// Queued says that the program starts without another request: when its turn comes, or when its
	// needs hold.
	Queued bool `json:"queued,omitempty"`
	// Reason says in words why the program is not running. While it runs, Reason says why it is
	// unhealthy, or is empty.
	Reason string `json:"reason,omitempty"`
	// Text is what the running program reported about itself (sd_notify STATUS=).
	Text     string `json:"text,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Run      uint64 `json:"run"`      // number of the current or latest run; 0 = never started
	Restarts uint64 `json:"restarts"` // total number of starts by the restart policy

	Since     time.Time  `json:"since"` // when State was entered
	StartedAt *time.Time `json:"started_at,omitempty"`
	RunningAt *time.Time `json:"running_at,omitempty"` // when the latest run became RUNNING
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Deadline is when the machine acts next without an event (restart, timeout).
	Deadline *time.Time `json:"deadline,omitempty"`
	// Hook is the hook that runs, if the next step of the program waits for its end.
	Hook     HookKind `json:"hook,omitempty"`
	LastExit *Exit    `json:"last_exit,omitempty"`
	// Schedule is set for programs of the type schedule.
	Schedule *ScheduleStatus `json:"schedule,omitempty"`

	Spec *Spec `json:"-"`
}

// ScheduleStatus is when a scheduled program runs and how its latest run ended.
type ScheduleStatus struct {
	// Paused: no run starts until a start resumes the schedule.
	Paused bool `json:"paused"`
	// NextRun is nil while the schedule is paused, and for a schedule that never runs.
	NextRun *time.Time `json:"next_run,omitempty"`
	// LastRun is when the latest run was started; nil before the first.
	LastRun *time.Time `json:"last_run,omitempty"`
	// LastResult describes in words how the latest finished run ended; it is empty before that.
	LastResult string `json:"last_result,omitempty"`
}

// Names are all names that the program has had.
func (s *Status) Names() []string { return append([]string{s.Name}, s.Former...) }

// Scheduled tells whether the program is a schedule that will start a run without a request.
func (s *Status) Scheduled() bool { return s.Schedule != nil && !s.Schedule.Paused }

// The words for people where State alone does not say enough; see Status.Shown.
const (
	ShownCompleted = "COMPLETED" // ended as expected
	ShownScheduled = "SCHEDULED" // waits for its next run
	ShownPaused    = "PAUSED"    // a schedule that was stopped
)

// Shown is the state for people, the same word in every command and message: the name of State, or
// one of the Shown constants.
func (s *Status) Shown() string {
	rests := s.State == Stopped || s.State == Exited || s.State == Fatal
	switch {
	case rests && s.Schedule != nil && s.Schedule.Paused:
		return ShownPaused
	case s.State == Stopped && s.Schedule != nil:
		return ShownScheduled
	case s.State == Exited && s.Completed:
		return ShownCompleted
	}
	return s.State.String()
}

// StartsWithBox tells whether a start of the whole box starts the program. Such a program starts at
// boot without a request, and is not a completed oneshot.
func (s *Status) StartsWithBox() bool {
	return s.Spec.Autostart && !(s.Completed && s.Spec.Type == Oneshot)
}

// Succeeded tells whether the program rests because it ended as expected.
func (s *Status) Succeeded() bool {
	return s.State == Exited && s.EndedAt != nil && s.LastExit != nil && Expected(s.Spec, *s.LastExit)
}

// Counts tells whether a required program fulfils the condition of the seal and of /ready: RUNNING
// and ready, or completed. A schedule that waits for its time fulfils it; one that has given up
// does not.
func (s *Status) Counts() bool {
	return s.Completed || s.Schedule != nil && s.State != Fatal || s.State == Running && s.Ready
}

// GaveUp says why the program cannot fulfil Counts any more without a request. It is empty as long
// as it can.
func (s *Status) GaveUp() string {
	switch {
	case s.Counts():
		return ""
	case s.State == Fatal:
		return fmt.Sprintf("%s is FATAL: %s", s.Name, s.Reason)
	case s.State == Exited:
		return fmt.Sprintf("%s has ended for good: %s", s.Name, s.Reason)
	case s.Blocked:
		return fmt.Sprintf("%s cannot start: it %s", s.Name, s.Reason)
	}
	return ""
}

// Met tells whether the needed program fulfils the condition. The meaning of a need is defined only
// here.
func (c Condition) Met(needed *Status) bool {
	switch c {
	case NeedStarted:
		return needed.PID != 0 || needed.EndedAt != nil // exec'ed, alive or not
	case NeedCompleted:
		return needed.Succeeded()
	}
	return needed.Ready || needed.Completed
}

// Reader reads the programs of the box. Its methods return within milliseconds
// and may be called from any goroutine.
type Reader interface {
	// All returns every program in start order, and the number of the newest event
	// that the answer contains.
	All() (seq uint64, programs []Status)
	// Status returns one program. A caller that has seen an event about it gets that state or a
	// newer one.
	Status(name string) (Status, bool)
}
