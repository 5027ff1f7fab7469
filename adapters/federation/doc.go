// Package federation is a box's session with the host of its mesh
// (federation.mode = "client"): it registers, sends heartbeats, notices that the
// host is gone or has evicted the box, and tells the slots where their endpoints
// are.
//
// Step decides, as arithmetic on a Session, an Event and a time; a Runner carries
// its actions out, in one goroutine that owns the Session. The package never
// touches a slot itself and decides nothing about the box beyond the session.
package federation
