// Package supervisor owns the one loop that runs all programs.
//
// One goroutine owns every program.Machine. It gives events to the machines, carries out the
// actions that they return, and publishes the changes. It must never block on a file, a socket, a
// subscriber, a slow program or DNS. Work that can block runs outside the loop and reports back as
// an event.
package supervisor

import (
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Snapshot is the state of all programs at one event number. A reader continues with
// event.Bus.Watch(Seq). The snapshot may already contain later events, but misses none.
type Snapshot struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"`
	Phase    Phase     `json:"phase"`
	Awaited  string    `json:"awaited,omitempty"` // a program that the next wave of the boot waits for
	Programs []Status  `json:"programs"`          // in start order
}

// Phase is what the supervisor as a whole is doing.
type Phase string

// The phases of a supervisor.
const (
	Idle     Phase = "idle"     // no program was started yet
	Running  Phase = "running"  // programs are being started or run
	Draining Phase = "draining" // shutdown requested, the drain is under way
	Stopping Phase = "stopping"
	Done     Phase = "done"
)

// Status is one program as seen from outside.
type Status = program.Status
