// Package orchestrator implements the orchestrator slot in two classes. The agents of
// local-process-manager are children of the box's one owner of processes. stdio-bridge shares the
// slot with a host, in both directions, over a channel of JSON-RPC 2.0 lines.
//
// The package must never fork, signal or wait itself: it uses a Spawner. It must never give an
// agent the box's own environment, or use the box's standard streams as a channel. It must keep
// only a limited number of bytes of agents' output.
package orchestrator
