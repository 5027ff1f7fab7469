// Package events owns the implementations of the events slot: local-jsonl, a
// directory of JSON lines, and external, a spool that is delivered to an HTTP
// sink at least once.
//
// Both stand on the same journal: one append a line, numbered, recovered after
// any crash. The package must never answer a dispatch before the line is
// written, wait for a subscriber, or let a reader see half a line.
package events
