// Package rest owns the HTTP face of a box: the wire that external adapters
// speak (so that one box can serve another), the API for clients beside it, and
// the documents that are generated from both, OpenAPI and the JSON Schemas of
// the slots. One table of routes says what there is and who may use it.
//
// It must never reach an adapter but through its wrapped slot, decide who a
// caller is (it is told), trust a name a caller gives itself, or hold anything
// without a bound: bodies, streams, callers and remembered events are counted.
package rest
