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
	// Former are the names that this instance had before, as the number of instances
	// changed. Output from then has them.
	Former    []string `json:"former,omitempty"`
	State     State    `json:"state"`
	Ready     bool     `json:"ready"`
	Healthy   bool     `json:"healthy"`
	Completed bool     `json:"completed"`
	Required  bool     `json:"required"`
	// Blocked says that the program wants to start and cannot: a program that it
	// needs will not come without a request. Reason says which.
	Blocked bool `json:"blocked,omitempty"`
	// Halting says that a stop was asked for and waits until the programs that
	// depend on this one have stopped.
	Halting bool `json:"halting,omitempty"`
	// Queued says that the program starts without another request: when its turn
	// comes, or what it needs.
	Queued bool `json:"queued,omitempty"`
	// Reason says in words why the program is not running or, while it is, why it
	// is unhealthy; else it is empty.
	Reason string `json:"reason,omitempty"`
	// Text is what the running program said of itself (sd_notify STATUS=).
	Text     string `json:"text,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Run      uint64 `json:"run"`      // number of the current or latest run; 0 = never started
	Restarts uint64 `json:"restarts"` // starts made by the restart policy, ever

	Since     time.Time  `json:"since"` // when State was entered
	StartedAt *time.Time `json:"started_at,omitempty"`
	RunningAt *time.Time `json:"running_at,omitempty"` // when the latest run became RUNNING
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Deadline is when the machine acts next by itself (restart, timeout).
	Deadline *time.Time `json:"deadline,omitempty"`
	LastExit *Exit      `json:"last_exit,omitempty"`
	// Schedule is set for programs of the type schedule.
	Schedule *ScheduleStatus `json:"schedule,omitempty"`

	Spec *Spec `json:"-"`
}

// ScheduleStatus is when a scheduled program runs and how its latest run ended.
type ScheduleStatus struct {
	// Paused: no run comes by itself until a start resumes the schedule.
	Paused bool `json:"paused"`
	// NextRun is nil while the schedule is paused, and for one that never comes.
	NextRun *time.Time `json:"next_run,omitempty"`
	// LastRun is when the latest run was started; nil before the first.
	LastRun *time.Time `json:"last_run,omitempty"`
	// LastResult is how the latest finished run ended, in words; empty before.
	LastResult string `json:"last_result,omitempty"`
}

// Names are all names that the program has had.
func (s *Status) Names() []string { return append([]string{s.Name}, s.Former...) }

// Scheduled tells whether the program is a schedule that will start a run by
// itself.
func (s *Status) Scheduled() bool { return s.Schedule != nil && !s.Schedule.Paused }

// Words for what a State alone does not say; see Status.Shown.
const (
	ShownCompleted = "COMPLETED" // ended as expected, and was meant to end
	ShownScheduled = "SCHEDULED" // waits for its next run
	ShownPaused    = "PAUSED"    // a schedule that was stopped
)

// Shown is the state as people read it, the same word in every command and
// message: the name of State, or one of the Shown constants.
func (s *Status) Shown() string {
	rests := s.State == Stopped || s.State == Exited
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

// StartsWithBox tells whether a start of the whole box starts the program: it
// starts by itself at boot, and it is no oneshot whose work is done.
func (s *Status) StartsWithBox() bool {
	return s.Spec.Autostart && !(s.Completed && s.Spec.Type == Oneshot)
}

// Succeeded tells whether the program rests because it ended as expected.
func (s *Status) Succeeded() bool {
	return s.State == Exited && s.EndedAt != nil && s.LastExit != nil && Expected(s.Spec, *s.LastExit)
}

// Counts tells whether a required program fulfils what the seal and /ready ask
// of it: RUNNING and ready, or completed. A schedule waits for its time, which is
// no fault; one that has given up is.
func (s *Status) Counts() bool {
	return s.Completed || s.Schedule != nil && s.State != Fatal || s.State == Running && s.Ready
}

// GaveUp says why the program cannot fulfil Counts any more without a request;
// empty while it can.
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

// Met tells whether the needed program fulfils the condition. It is the one
// place that says what a need means.
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
	// Status returns one program. Who has seen an event about it finds at least what
	// that says.
	Status(name string) (Status, bool)
}
