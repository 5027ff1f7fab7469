// Package ready finds out whether a running program is ready and healthy. The program reports it
// (sd_notify, a newline on a descriptor, a line in its log), or a probe asks (http, tcp, unix,
// grpc, exec, file).
//
// It reports facts with a reason in words; other packages decide what follows. It must never signal
// or start a process itself. It must never believe a message whose sender the kernel has not
// confirmed. It must never wait without limit for anything that a program controls.
package ready

import (
	"context"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// Config is what a Watcher needs from other packages.
type Config struct {
	// Notifier receives sd_notify messages. If it is nil, notify probes and watchdogs fail with a
	// reason.
	Notifier *Notifier
	// Logs is what log probes read; nil makes them fail with a reason.
	Logs *logs.Plane
	// Exec runs the command of an exec probe for t's program and returns its exit status and the
	// lines that it printed first, without secrets. When ctx ends, it must end what it started. nil
	// makes exec probes fail with a reason.
	Exec func(ctx context.Context, t Target, argv []string) (status int, output []byte, err error)
	// Unasked, if it is set, gets the reason of each health check that agentinit could not make. It must
	// not block.
	Unasked func(t Target, reason string)
}

// Target is the run that is watched.
type Target struct {
	Program string
	Run     uint64
	Dir     string // relative paths of file and unix probes start here

	// ReadyFD is the read end of the pipe for an fd probe. It must support deadlines, as a file of
	// os.Pipe does. Watch closes it when it returns.
	ReadyFD ReadFD
}

// ReadFD is the part of *os.File that an fd probe uses.
type ReadFD interface {
	Read([]byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// Result is the present result for a target.
type Result struct {
	// Ready is the answer. For Watch, it tells whether the readiness condition holds; for Check,
	// whether the program is healthy.
	Ready bool
	// Final is set in the last result of a Watch: the target is ready, or will never be.
	Final bool
	// Reason describes the result in words: "http http://…: connection refused (attempt 5)".
	Reason string
}

// Watcher watches targets. Its methods may be called from any goroutine.
type Watcher struct {
	cfg    Config
	strays *lateclose.Strays
}

// New makes a Watcher.
func New(cfg Config) *Watcher { return &Watcher{cfg: cfg, strays: lateclose.NewStrays(1)} }

// The times used if the manifest sets none.
const (
	// firstInterval is the pause after the first failed attempt of a readiness probe. It doubles up
	// to maxInterval. So a quick program is ready at once, and a slow one causes little work.
	firstInterval = 50 * time.Millisecond
	maxInterval   = time.Second
	minInterval   = 10 * time.Millisecond
)
