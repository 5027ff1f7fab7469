// Package events implements the events slot in two classes: local-jsonl is a directory of JSON
// lines; external is a spool that is delivered to an HTTP sink at least once.
//
// Both use the same journal: one append for each line, numbered, recovered after any crash. The
// package must never return from a dispatch before the line is written, wait for a subscriber, or
// let a reader see an incomplete line.
package events
