// Package adapters owns the frame of the five slots through which the box
// reaches durable things: beads, pods, memory, events and orchestrator.
//
// It holds the contract of each slot (an interface and its value types), the
// typed errors and their one table, the call that carries every crossing
// through the middleware (Do), the wrapped type of each slot (the only way to
// reach an adapter), the class off, and the Set that resolves, connects,
// watches and disconnects the five of them.
//
// A consumer is handed a wrapped slot, never nil, and asks Enabled before it
// offers a feature:
//
//	set.Beads().Claim(ctx, "ab-7k2m3x", "agent-1")
//
// The package is a leaf. It must never import an implementation, a logger, a
// metrics library or the manifest; it must never open a file or a socket by
// itself; and it must never let an error without a code leave a slot.
package adapters
