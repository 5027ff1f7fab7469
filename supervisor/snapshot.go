// Package supervisor owns the one loop that runs all programs.
//
// One goroutine owns every program.Machine: it feeds them events, carries out
// the actions they return and publishes what changed. It must never block on a
// file, a socket, a subscriber, a slow program or DNS; whatever can block runs
// beside it and reports back as an event.
package supervisor

import (
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Snapshot is the state of all programs at one event number. A reader goes on
// from it with event.Bus.Watch(Seq): events after Seq may already be contained,
// none is missing.
type Snapshot struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"`
	Phase    Phase     `json:"phase"`
	Programs []Status  `json:"programs"` // in start order
}

// Phase is what the supervisor as a whole is doing.
type Phase string

// The phases of a supervisor.
const (
	Idle     Phase = "idle"     // nothing started yet
	Running  Phase = "running"  // programs are being started or run
	Draining Phase = "draining" // shutdown asked for, drain hold
	Stopping Phase = "stopping"
	Done     Phase = "done"
)

// Status is one program as seen from outside. It is a value; Spec is shared and
// must not be changed.
type Status struct {
	Name      string        `json:"name"`
	Group     string        `json:"group"`
	State     program.State `json:"state"`
	Ready     bool          `json:"ready"`
	Healthy   bool          `json:"healthy"`
	Completed bool          `json:"completed"`
	Required  bool          `json:"required"`
	// Reason says in words why the program is not running or, while it is, why it
	// is unhealthy; else it is empty.
	Reason string `json:"reason,omitempty"`
	// Text is what the program said of itself (sd_notify STATUS=).
	Text     string `json:"text,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Run      uint64 `json:"run"`      // number of the current or latest run; 0 = never started
	Restarts uint64 `json:"restarts"` // starts made by the restart policy, ever

	Since     time.Time  `json:"since"` // when State was entered
	StartedAt *time.Time `json:"started_at,omitempty"`
	RunningAt *time.Time `json:"running_at,omitempty"` // when the latest run became RUNNING
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Deadline is when the machine acts next by itself (restart, timeout).
	Deadline *time.Time    `json:"deadline,omitempty"`
	LastExit *program.Exit `json:"last_exit,omitempty"`

	Spec *program.Spec `json:"-"`
}
