// Package beads owns the implementations of the beads slot: local-sqlite, a
// SQLite file of our own, and external, a host or another box over HTTP.
//
// A bead is a receipt of agent work; the contract is adapters.Beads, and the
// suite in adapters/contract holds both to it. The package must never check
// who may call (the edge does), and must never answer a write as done before
// it is on disk.
package beads
