// Package rdf reads and writes RDF documents (Turtle, N-Triples, JSON-LD), renames the IRIs of JSON-LD,
// and changes sets of triples by patches (Solid N3 Patch, SPARQL Update). It is pure: bytes and triples come in and go out.
//
// Its documents come from adversaries. So each reader bounds how deeply a document nests, how many
// triples it has, and how long the IRIs become that prefixes and bases abbreviate; a patch has a
// number of steps that it may take. Beyond these limits there is an error.
//
// The package must never fetch anything, also not a JSON-LD context that a document names. It must
// never leave out in silence what Parse does not understand, and never write a document that its own
// readers would read as other triples.
package rdf
