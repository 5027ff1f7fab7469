package adapters

import (
	"cmp"
	"context"
	"encoding/json"
	"time"
)

// Memory holds values and their vectors for retrieval.
type Memory interface {
	Adapter

	// Store is an upsert, and the last writer wins. Value, metadata and vector become visible
	// together.
	Store(ctx context.Context, key, value, namespace string, opt StoreOpt) (Stored, error)
	// Retrieve returns false, not an error, if there is no value.
	Retrieve(ctx context.Context, key, namespace string) (MemoryEntry, bool, error)
	// Search returns the best hits, with descending score; equal scores are ordered by key. It is
	// never nil.
	Search(ctx context.Context, query string, opt SearchOpt) ([]Hit, error)
	// Del returns false, not an error, if there was no value.
	Del(ctx context.Context, key, namespace string) (bool, error)
	List(ctx context.Context, namespace string, page PageOpt) (Page[MemoryKey], error)
	// Namespaces lists at most MaxNamespaces, by name.
	Namespaces(ctx context.Context) ([]Namespace, error)
}

// Limits of memory, in bytes unless said.
const (
	MaxMemoryKey       = 512
	MaxMemoryNamespace = 128
	MaxNamespaces      = 10000 // namespaces in a list
	MaxMemoryValue     = 1 << 20
	MaxMemoryMetadata  = 16 << 10
	MaxMemoryQuery     = 1 << 20
	MaxEmbeddingDim    = 2000 // numbers: the index limit of pgvector's vector
	MaxSearchLimit     = 100  // hits
	DefaultSearchLimit = 10
	DefaultNamespace   = "default"
	MaxMemoryTTL       = 10 * 365 * 24 * time.Hour
)

// The search modes.
const (
	ModeVector = "vector"
	ModeText   = "text"
	ModeHybrid = "hybrid"
)

// StoreOpt adjusts a store.
type StoreOpt struct {
	Metadata  json.RawMessage `json:"metadata,omitempty"`  // an object, nil = {}
	TTL       time.Duration   `json:"-"`                   // 0 = for ever, else 1 s - 10 y
	Embedding []float32       `json:"embedding,omitempty"` // if it is set, the embedder is not called
}

// Stored is the receipt of a store.
type Stored struct {
	Key       string `json:"key"`
	Namespace string `json:"namespace"`
	Created   bool   `json:"created"` // false: it replaced an earlier value
	StoredAt  Time   `json:"stored_at"`
	Embedder  string `json:"embedder"`
	Dim       int    `json:"dim"`
	ExpiresAt Time   `json:"expires_at"`
}

// MemoryEntry is one value with its properties.
type MemoryEntry struct {
	Key       string          `json:"key"`
	Namespace string          `json:"namespace"`
	Value     string          `json:"value"`
	Metadata  json.RawMessage `json:"metadata"`
	StoredAt  Time            `json:"stored_at"`
	ExpiresAt Time            `json:"expires_at"`
	Embedder  string          `json:"embedder"`
	Dim       int             `json:"dim"`
}

// SearchOpt adjusts a search. The zero value searches namespace "default" by
// vector for DefaultSearchLimit hits.
type SearchOpt struct {
	Namespace string          `json:"namespace,omitempty"`
	Limit     int             `json:"limit,omitempty"` // 1-100
	MinScore  *float64        `json:"min_score,omitempty"`
	Filter    json.RawMessage `json:"filter,omitempty"` // an object: the metadata must have these values
	Embedding []float32       `json:"embedding,omitempty"`
	Mode      string          `json:"mode,omitempty"`
}

// Hit is one result of a search.
type Hit struct {
	Score    float64         `json:"score"` // cosine similarity, -1 - 1, for mode vector
	Key      string          `json:"key"`
	Value    string          `json:"value"`
	Metadata json.RawMessage `json:"metadata"`
}

// MemoryKey is one row of List.
type MemoryKey struct {
	Key       string `json:"key"`
	StoredAt  Time   `json:"stored_at"`
	ExpiresAt Time   `json:"expires_at"`
	Size      int64  `json:"size"` // bytes of the value
}

// Namespace describes the content of a namespace.
type Namespace struct {
	Name     string `json:"name"`
	Entries  int64  `json:"entries"`
	Embedder string `json:"embedder"`
	Dim      int    `json:"dim"`
}

func checkMemoryKey(key, namespace string) error {
	return cmp.Or(CheckName("key", key, MaxMemoryKey), checkNamespace(namespace))
}

func checkNamespace(ns string) error {
	if len(ns) < 1 || len(ns) > MaxMemoryNamespace {
		return Invalid("namespace", "must be 1-%d bytes", MaxMemoryNamespace).With("limit", MaxMemoryNamespace)
	}
	for i := range len(ns) {
		if !idByte(ns[i]) && ns[i] != '/' {
			return Invalid("namespace", "may hold only letters, digits and . _ : / -")
		}
	}
	return nil
}

func (o StoreOpt) check(key, value, namespace string) error {
	if err := checkMemoryKey(key, namespace); err != nil {
		return err
	}
	if len(value) > MaxMemoryValue {
		return TooLarge("value", MaxMemoryValue, int64(len(value))).With("field", "value")
	}
	if err := cmp.Or(CheckText("value", value, MaxMemoryValue), CheckObject("metadata", o.Metadata, MaxMemoryMetadata)); err != nil {
		return err
	}
	if o.TTL != 0 && (o.TTL < time.Second || o.TTL > MaxMemoryTTL) {
		return Invalid("ttl_s", "must be 1 s - 10 y")
	}
	if o.Embedding == nil {
		return nil
	}
	return CheckEmbedding(o.Embedding)
}

func (o SearchOpt) check(query string) error {
	if query == "" && o.Embedding == nil {
		return Invalid("query", "is required")
	}
	if err := cmp.Or(CheckText("query", query, MaxMemoryQuery), checkNamespace(o.Namespace)); err != nil {
		return err
	}
	if o.Limit < 0 || o.Limit > MaxSearchLimit {
		return Invalid("limit", "must be 1-%d", MaxSearchLimit).With("limit", MaxSearchLimit)
	}
	if m := o.MinScore; m != nil && !(*m >= -1 && *m <= 1) {
		return Invalid("min_score", "must be -1 - 1")
	}
	if err := CheckObject("filter", o.Filter, MaxMemoryMetadata); err != nil {
		return err
	}
	switch o.Mode {
	case ModeVector, ModeText, ModeHybrid:
	default:
		return Invalid("mode", "must be vector, text or hybrid")
	}
	if o.Embedding == nil {
		return nil
	}
	return CheckEmbedding(o.Embedding)
}
