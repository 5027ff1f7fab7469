package memory

import (
	"context"
	"hash/fnv"
	"math/bits"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Embedder turns texts into vectors. Safe for concurrent use.
type Embedder interface {
	// ID names the model; a namespace pins it.
	ID() string
	// Dim is the length of the vectors; 0 while it is not known.
	Dim() int
	// Embed returns one vector for each text, in order. The code of its errors is EMBEDDING_ERROR,
	// or ADAPTER_TIMEOUT if ctx has ended.
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

// The embedder kinds of the manifest.
const (
	EmbedderHash = "hash-v1"
	EmbedderHTTP = "http"
)

// EmbedderConfig is [slots.memory.embedder] of the manifest.
type EmbedderConfig struct {
	Kind   string // "" = hash-v1
	URL    string // of http: base, "/v1/embeddings" is appended
	Model  string // of http: required
	KeyEnv string // of http: environment variable that holds the bearer key, "" = none
}

// NewEmbedder makes the configured embedder. It performs no I/O. The error is an
// *adapters.ConfigError.
func NewEmbedder(c EmbedderConfig) (Embedder, error) {
	switch c.Kind {
	case "", EmbedderHash:
		return hashV1{}, nil
	case EmbedderHTTP:
		return newHTTPEmbedder(c)
	}
	return nil, &adapters.ConfigError{Key: keyEmbedder + ".kind", Message: "must be hash-v1 or http"}
}

const keyEmbedder = "slots.memory.embedder"

// hashV1 is the built-in embedder. It is lexical: texts are near each other if they share words or
// parts of words. It does not know meanings. Words and their trigrams are hashed (FNV-1a) with a
// sign into 256 places, weighted by 1 + log2 of their count. It computes with integers only, so
// every machine gets the same vector. If any of this changes, it needs a new name, hash-v2.
type hashV1 struct{}

const (
	hashDim       = 256
	wordWeight    = 4
	trigramWeight = 1
)

func (hashV1) ID() string { return EmbedderHash }
func (hashV1) Dim() int   { return hashDim }

func (hashV1) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	out := make([][]float32, len(texts))
	for i, t := range texts {
		if err := ctx.Err(); err != nil {
			return nil, adapters.AsError(err)
		}
		out[i] = hashVector(t)
	}
	return out, nil
}

func hashVector(text string) []float32 {
	counts := make(map[string]int)
	words(text, func(w string) bool {
		counts[w]++
		return true
	})
	var sum [hashDim]int64
	for w, n := range counts {
		tf := int64(bits.Len(uint(n)))
		add(&sum, "w"+w, wordWeight*tf)
		padded := []rune("^" + w + "$")
		for i := 0; i+3 <= len(padded); i++ {
			add(&sum, "t"+string(padded[i:i+3]), trigramWeight*tf)
		}
	}
	if sum == ([hashDim]int64{}) {
		// The text has no word, or its words cancel each other out: but a vector needs a direction.
		add(&sum, "x"+text, 1)
	}
	out := make([]float32, hashDim)
	for i, x := range sum {
		out[i] = float32(x)
	}
	return out
}

func add(sum *[hashDim]int64, feature string, w int64) {
	f := fnv.New64a()
	f.Write([]byte(feature))
	h := f.Sum64()
	h ^= h >> 29 // without this, the low bits of FNV mix poorly for short features
	if h&hashDim != 0 {
		w = -w
	}
	sum[h%hashDim] += w
}
