// Package relay owns the relay inside the box: NIP-01, 11, 40, 42 and 70 over a
// SQLite file.
//
// Who may do what (policy.go) is pure: events, keys and times in, a refusal out.
// The package must never store an event that it has not verified, take the word of
// an event for who sent it (the session's key is judged), or wait for a reader that
// is slow.
package relay
