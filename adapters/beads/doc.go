// Package beads implements the beads slot in two classes: local-sqlite uses a SQLite file of the
// box; external uses a host or another box over HTTP.
//
// A bead is a receipt of agent work. The contract is adapters.Beads, and the suite in
// adapters/contract tests both classes. The package does not check the rights of the caller: the
// API does. It must never report a write as done before it is on disk.
package beads
