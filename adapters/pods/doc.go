// Package pods is the Solid client behind the pods slot. It handles documents and containers (LDP)
// in Turtle and JSON-LD, conditional requests, three patch dialects, the answers of Web Access
// Control, and notifications.
//
// One client serves both classes: local-solid-rs is the pod server of this box; external is any
// Solid server. Both are reached over HTTP at a base URL. For a pod server inside this process, the
// local class gets a Transport that calls its handler.
//
// It must never send a path that it has not checked, follow an address of the server outside the
// configured base, or keep a body in memory that should be streamed.
package pods
