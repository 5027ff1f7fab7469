package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// memoryModel compares a class with a simple model: a map, searched by comparing all vectors.
func memoryModel(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	round := 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		ns := fmt.Sprintf("model-%d", round)
		model := make(map[string][]float32)
		for range rapid.IntRange(1, 25).Draw(r, "steps") {
			key := rapid.StringMatching(`[a-e]`).Draw(r, "key")
			switch rapid.IntRange(0, 3).Draw(r, "what") {
			case 0, 1:
				v := rapid.SliceOfN(rapid.Float32Range(-1, 1), 4, 4).Draw(r, "vector")
				v[0]++ // never all zeros
				v[0] += 0.5
				if _, err := m.Store(ctx, key, key, ns, adapters.StoreOpt{Embedding: v}); err != nil {
					r.Fatal(err)
				}
				model[key] = v
			case 2:
				_, want := model[key]
				if ok, err := m.Del(ctx, key, ns); ok != want || err != nil {
					r.Fatalf("delete %s: %v, %v, want %v", key, ok, err, want)
				}
				delete(model, key)
			case 3:
				compareSearch(ctx, r, m, ns, model, rapid.IntRange(1, 6).Draw(r, "limit"))
			}
		}
		compareSearch(ctx, r, m, ns, model, 10)
	})
}

func compareSearch(ctx context.Context, r *rapid.T, m adapters.Memory, ns string, model map[string][]float32, k int) {
	q := []float32{1, 2, 3, 4}
	hits, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: ns, Embedding: q, Limit: k})
	if err != nil {
		r.Fatal(err)
	}
	if want := min(k, len(model)); len(hits) != want {
		r.Fatalf("%d hits of %d entries", len(hits), len(model))
	}
	left := make(map[string]float64)
	for key, v := range model {
		left[key] = cosine64(q, v)
	}
	for i, h := range hits {
		want, ok := left[h.Key]
		if !ok || math.Abs(h.Score-want) > 1e-5 {
			r.Fatalf("hit %d: %s with %v, want %v", i, h.Key, h.Score, want)
		}
		delete(left, h.Key)
		if i > 0 && (h.Score > hits[i-1].Score || h.Score == hits[i-1].Score && h.Key < hits[i-1].Key) {
			r.Fatalf("order %v", hits)
		}
	}
	for key, s := range left {
		if len(hits) == k && s > hits[k-1].Score+1e-5 {
			r.Fatalf("%s with %v was missed", key, s)
		}
	}
}

func cosine64(a, b []float32) float64 {
	var dot, aa, bb float64
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return dot / math.Sqrt(aa*bb)
}

// SameMemory runs the same random scripts with two classes and compares every answer. Even the scores
// must be exactly equal.
func SameMemory(t *testing.T, one, other MemoryClass) {
	ctx, a := openMemory(t, one.New(t))
	_, b := openMemory(t, other.New(t))
	word := rapid.SampledFrom([]string{"red", "green", "blue", "boat", "moon", "Mond", "über", "42", "東京", "reds"})
	text := rapid.Custom(func(r *rapid.T) string {
		return strings.Join(rapid.SliceOfN(word, 1, 12).Draw(r, "words"), " ")
	})
	mode := rapid.SampledFrom([]string{adapters.ModeVector, adapters.ModeText, adapters.ModeHybrid})
	filter := rapid.SampledFrom([]string{"", `{}`, `{"n":1}`, `{"n":1,"s":"x"}`, `{"none":true}`})
	meta := rapid.SampledFrom([]string{`{}`, `{"n":1}`, `{"s": "x", "n": 1.0}`, `{"n":2}`})
	round := 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		ns := fmt.Sprintf("same-%d", round)
		for range rapid.IntRange(1, 20).Draw(r, "steps") {
			key := rapid.StringMatching(`[a-zA-Zä]{1,2}`).Draw(r, "key")
			var step func(adapters.Memory) (any, error)
			switch rapid.IntRange(0, 6).Draw(r, "what") {
			case 0, 1, 2:
				value, m := text.Draw(r, "value"), json.RawMessage(meta.Draw(r, "metadata"))
				step = func(x adapters.Memory) (any, error) {
					s, err := x.Store(ctx, key, value, ns, adapters.StoreOpt{Metadata: m})
					s.StoredAt = adapters.Time{}
					return s, err
				}
			case 3:
				step = func(x adapters.Memory) (any, error) { return x.Del(ctx, key, ns) }
			case 4:
				step = func(x adapters.Memory) (any, error) {
					e, ok, err := x.Retrieve(ctx, key, ns)
					e.StoredAt = adapters.Time{}
					return []any{e, ok}, err
				}
			case 5:
				step = func(x adapters.Memory) (any, error) {
					p, err := x.List(ctx, ns, adapters.PageOpt{})
					for i := range p.Items {
						p.Items[i].StoredAt = adapters.Time{}
					}
					return p.Items, err
				}
			case 6:
				q, o := text.Draw(r, "query"), adapters.SearchOpt{Namespace: ns, Mode: mode.Draw(r, "mode"), Limit: rapid.IntRange(1, 12).Draw(r, "limit")}
				if f := filter.Draw(r, "filter"); f != "" {
					o.Filter = json.RawMessage(f)
				}
				step = func(x adapters.Memory) (any, error) { return x.Search(ctx, q, o) }
			}
			gotA, errA := step(a)
			gotB, errB := step(b)
			if errA != nil || errB != nil {
				r.Fatalf("errors %v and %v", errA, errB)
			}
			if !bytes.Equal(asJSON(r, gotA), asJSON(r, gotB)) {
				r.Fatalf("answers differ:\n%s\n%s", asJSON(r, gotA), asJSON(r, gotB))
			}
		}
	})
}

func asJSON(r *rapid.T, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		r.Fatal(err)
	}
	return b
}
