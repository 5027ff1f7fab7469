package control

import "net"

// Admit is the listener from which the server accepts at most two connections.
func Admit(socket *Socket, accepted, failed func(error)) net.Listener {
	nobody := func(int) (string, bool) { return "", false }
	return admit(socket, Limits{Connections: 2, Guests: 2}, nobody, func(string) bool { return false }, accepted, failed)
}

// RouteList is the route table for tests outside the package.
func RouteList() []route { return routes() }

// API reports whether the client has a method for the route.
func (rt route) API() bool { return !rt.probe || rt.Path == "/v1/meta" }
