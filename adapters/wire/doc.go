// Package wire owns the client side of the HTTP format that boxes and hosts
// speak to each other: requests with the call's metadata and credentials,
// limits on every wait and every answer, retries, a circuit breaker, typed
// errors out of foreign answers, the version handshake, and server-sent event
// streams that resume.
//
// All external adapters share it, so that a peer that is slow, half closed,
// lying or hostile is met in one place. It must never know the paths or bodies
// of a slot, keep a credential beyond the request it belongs to, or send one
// to another origin than the one it was configured for.
package wire
