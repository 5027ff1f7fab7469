package control

// RouteList is the route table for tests outside the package.
func RouteList() []route { return routes() }

// API reports whether the client has a method for the route.
func (rt route) API() bool { return !rt.probe || rt.Path == "/v1/meta" }
