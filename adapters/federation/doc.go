// Package federation is a box's session with the host of its mesh (federation.mode = "client"). It
// registers, sends heartbeats, and notices that the host is unreachable or has evicted the box. It
// gives the slots their endpoints.
//
// Step decides: it computes with a Session, an Event and a time. A Runner carries out its actions,
// in one goroutine that owns the Session. The package does not use a slot itself, and decides only
// about the session.
package federation
