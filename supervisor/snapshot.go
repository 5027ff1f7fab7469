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

// Status is one program as seen from outside.
type Status = program.Status
