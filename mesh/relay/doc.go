// Package relay is the relay inside the box: NIP-01, 11, 40, 42 and 70 on a SQLite file.
//
// The decisions about rights (policy.go) are pure: they take events, keys and times, and return a
// refusal. The package must never store an event that it has not verified. It must judge the sender
// by the session's key, never by the event's own claim. It must never wait for a slow reader.
package relay
