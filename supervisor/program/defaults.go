package program

import "time"

// The defaults that the supervisor and the manifest share. The schema uses them as the defaults of
// its keys; the code uses them if a Spec has no value.
const (
	// DefaultStopGrace is the budget of the whole shutdown. It is below the 30 s of Kubernetes.
	DefaultStopGrace = 25 * time.Second
	// DefaultSealTimeout is how long the required programs may take to be ready. SealTimeout raises
	// it if they need longer until they give up.
	DefaultSealTimeout = 2 * time.Minute
	// DefaultStopWait is how long a program has to end after its first stop signal.
	DefaultStopWait = 10 * time.Second
	// DefaultHookTimeout bounds a hook.
	DefaultHookTimeout = 10 * time.Second

	// For a readiness or health probe: the time for one try, and the pause between two.
	DefaultProbeTimeout   = 5 * time.Second
	DefaultHealthInterval = 10 * time.Second
	// DefaultHealthFailures is how many bad answers in a row lead to the action.
	DefaultHealthFailures = 3
)
