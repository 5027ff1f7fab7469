// Package orchestrator owns the implementations of the orchestrator slot:
// local-process-manager, whose agents are children of the box's one owner of
// processes, and stdio-bridge, which shares the slot with a host over a channel
// of JSON-RPC 2.0 lines, in both directions.
//
// The package must never fork, signal or wait by itself: it asks a Spawner. It
// must never give an agent the box's own environment, hold more than a bounded
// number of bytes of what agents print, or use the box's standard streams as a
// channel.
package orchestrator
