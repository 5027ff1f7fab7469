// Package memory owns the implementations of the memory slot: values with
// vectors, kept for retrieval.
//
// Two classes, embedded-ruvector (one SQLite file) and external-pg (PostgreSQL),
// differ only in their backend: where rows lie and how a transaction is made.
// Everything that decides an answer is shared: the embedder, the tokenizer, the
// exact cosine scan over slabs of float32 held in memory, BM25 over posting
// lists, the fusion of both. The same corpus and the same embedder therefore
// give the same order in both classes. The one exception is stated where it is
// made: beyond Config.ExactRows a PostgreSQL with pgvector proposes candidates
// by HNSW, which are then ranked exactly.
//
// Memory is bounded: vectors are held up to Config.CacheBytes over all
// namespaces, the least recently searched go first, and a namespace that does
// not fit alone is streamed from its backend at every search: exact, slower.
//
// The package must never keep a value outside its backend, log or print a value
// or a password, replace a file it cannot read, or answer from one namespace
// what was stored in another.
package memory
