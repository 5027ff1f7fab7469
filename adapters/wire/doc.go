// Package wire is the client side of the HTTP format between boxes and hosts. It sends requests
// with the call's metadata and credentials, and limits every wait and every answer. It retries, has
// a circuit breaker, turns answers of peers into typed errors, checks the version, and follows
// server-sent event streams that resume.
//
// All external adapters use it, so that a slow, broken or hostile peer is handled in one place. It
// must not know the paths or bodies of a slot. It must not keep a credential beyond its request, or
// send a credential to another origin than the configured one.
package wire
