// Package pods owns the Solid client behind the pods slot: documents and
// containers (LDP) in Turtle and JSON-LD, conditional requests, the three patch
// dialects, the answers of Web Access Control, and notifications.
//
// One client serves both classes: local-solid-rs is the pod server of this box,
// external any Solid server. Both are reached over HTTP at a base URL; a pod
// server inside this process takes the same place by giving the local class a
// Transport that ends in its handler.
//
// It must never send a path it has not checked, follow what a server says to an
// address outside the configured base, or keep a body in memory that it was
// asked to stream.
package pods
