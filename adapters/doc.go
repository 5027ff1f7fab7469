// Package adapters defines the five slots through which the box reaches durable data and agents:
// beads, pods, memory, events and orchestrator.
//
// It holds the contract of each slot (an interface and its value types) and the typed errors with
// their one table. Do passes every call through the middleware. Each slot has a wrapped type, which
// is the only way to reach an adapter. The package also holds the class off, and the Set, which
// resolves, connects, watches and disconnects the five slots.
//
// A consumer gets a wrapped slot, never nil, and calls Enabled before it offers a feature:
//
//	set.Beads().Claim(ctx, "ab-7k2m3x", "agent-1")
//
// The package must not import an implementation, a logger, a metrics library or the manifest. It
// must not open a file or a socket itself. It must never let an error without a code leave a slot.
package adapters
