// Package ready finds out whether a program that runs is ready and healthy: by
// what it says (sd_notify, a newline on a descriptor, a line in its log) and by
// asking it (http, tcp, unix, grpc, exec, file).
//
// It reports facts with a reason in words; what follows from them is decided
// elsewhere. It must never signal or start a process itself, never believe a
// message whose sender the kernel has not vouched for, and never wait without
// bound for anything a program controls.
package ready

import (
	"context"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// Config is what a Watcher needs from its surroundings.
type Config struct {
	// Notifier receives sd_notify messages; nil makes notify probes and watchdogs
	// fail with a reason.
	Notifier *Notifier
	// Logs is where log probes look; nil makes them fail with a reason.
	Logs *logs.Plane
	// Exec runs the command of an exec probe for t's program and returns its exit
	// status and the beginning of its output. It must end what it started when
	// ctx ends. nil makes exec probes fail with a reason.
	Exec func(ctx context.Context, t Target, argv []string) (status int, output []byte, err error)
}

// Target is the run of a program that is watched.
type Target struct {
	Program string
	Run     uint64
	PID     int
	Env     []string
	Dir     string // relative paths of file and unix probes start here

	// ReadyFD is the read end of the pipe that an fd probe waits on, as os.Pipe
	// gives it (deadlines must work). Watch closes it when it returns.
	ReadyFD ReadFD
}

// ReadFD is the part of *os.File that an fd probe uses.
type ReadFD interface {
	Read([]byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// Result is what is known of a target.
type Result struct {
	Program string
	Run     uint64
	// Ready is the answer: of Watch, whether the readiness condition holds; of
	// Check, whether the program is healthy.
	Ready bool
	// Final is set in the last result of a Watch: ready, or never will be.
	Final bool
	// Reason says in words what was found: "http http://…: connection refused
	// (attempt 5)".
	Reason string
	// Failures is how many attempts of the probe behind Reason failed in a row.
	Failures int
	// Output is the beginning of what the probe got to read, at most 512 bytes,
	// printable.
	Output string
}

// Watcher watches targets. Its methods may be called from any goroutine.
type Watcher struct{ cfg Config }

// New makes a Watcher.
func New(cfg Config) *Watcher { return &Watcher{cfg: cfg} }

// Times used where the manifest says nothing.
const (
	// firstInterval is the pause after the first failed attempt of a readiness
	// probe; it doubles up to maxInterval, so that a quick program is seen at once
	// and a slow one costs little.
	firstInterval = 50 * time.Millisecond
	maxInterval   = time.Second
	minInterval   = 10 * time.Millisecond
)
