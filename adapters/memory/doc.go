// Package memory implements the memory slot: values with vectors, stored for retrieval.
//
// The two classes, embedded-ruvector (one SQLite file) and external-pg (PostgreSQL), differ only in
// their backend: how rows are stored and how a transaction is made. All code that decides an answer
// is shared: the embedder, the tokenizer, the exact cosine scan over slabs of float32 in memory,
// BM25 over posting lists, and the fusion of both. So the same corpus and the same embedder give
// the same order in both classes. There is one exception: above PostgresConfig.ExactRows, a PostgreSQL with
// pgvector proposes candidates by HNSW, which are then ranked exactly.
//
// The use of memory is limited: slabs of all namespaces together take at most CacheBytes of the configuration,
// and the least recently searched are dropped first. A namespace that alone is too large is read
// from its backend at every search, which is exact but slower.
//
// The package must never keep a value outside its backend, log or print a value or a password,
// replace a file that it cannot read, or return an entry of another namespace.
package memory
