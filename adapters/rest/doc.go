// Package rest owns the HTTP API of a box. It serves the slots to external adapters of other boxes,
// serves the management API to clients, and generates the OpenAPI document and the JSON Schemas of
// the slots. One table of routes lists each operation and the roles that may use it.
//
// It must never call an adapter except through its wrapped slot. It must never authenticate a caller:
// Config.Principal does that. It must never trust a name that a caller gives itself. It must never
// hold data without a limit: request bodies, streams, callers and actions all have one.
package rest
