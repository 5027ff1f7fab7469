package program

import "time"

// The defaults that the supervisor and the manifest share. The schema makes the
// defaults of its keys of these, and the code uses them for a Spec that has no value.
const (
	// DefaultStopGrace is the budget of the whole shutdown: below the 30 s of
	// Kubernetes.
	DefaultStopGrace = 25 * time.Second
	// DefaultSealTimeout is how long the required programs may take. SealTimeout
	// makes it longer where they need longer to give up.
	DefaultSealTimeout = 2 * time.Minute
	// DefaultStopWait is how long a program has to follow its first stop signal.
	DefaultStopWait = 10 * time.Second
	// DefaultHookTimeout bounds a hook.
	DefaultHookTimeout = 10 * time.Second

	// Of a readiness or health probe: one try, and the pause between two.
	DefaultProbeTimeout   = 5 * time.Second
	DefaultHealthInterval = 10 * time.Second
	// DefaultHealthFailures is how many bad answers in a row lead to the action.
	DefaultHealthFailures = 3
)
