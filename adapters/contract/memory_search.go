package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func memorySearch(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	texts := map[string]string{
		"cat":  "the cat sat on the mat",
		"cats": "two cats sat on a mat",
		"dog":  "a dog barked at the moon",
		"go":   "goroutines and channels in Go",
	}
	for k, v := range texts {
		remember(ctx, t, m, k, v, "n")
	}
	const query = "the cat sat on the mat"
	hits := search(ctx, t, m, query, adapters.SearchOpt{})
	equal(t, "hits", len(hits), 4)
	equal(t, "the best hits", hitKeys(hits[:2]), []string{"cat", "cats"})
	equal(t, "the score of the text itself is 1", math.Abs(hits[0].Score-1) <= 1e-6, true)
	for i, h := range hits {
		holds(t, h, facts{
			"score in range": h.Score >= -1 && h.Score <= 1, "falling score": i == 0 || h.Score <= hits[i-1].Score,
			"value": h.Value == texts[h.Key], "metadata": string(h.Metadata) == "{}",
		})
	}
	least := hits[1].Score
	equal(t, "hits with a least score", len(search(ctx, t, m, query, adapters.SearchOpt{MinScore: &least, Limit: 3})), 2)
	// Hits with equal scores are sorted by key before the limit applies.
	for i := range 40 {
		remember(ctx, t, m, fmt.Sprintf("tie %02d", (i*17)%40), "exactly this", "ties")
	}
	for _, mode := range modes() {
		ties := search(ctx, t, m, "exactly this", adapters.SearchOpt{Namespace: "ties", Limit: 3, Mode: mode})
		equal(t, "ties in mode "+mode, hitKeys(ties), []string{"tie 00", "tie 01", "tie 02"})
	}
}

func memoryGiven(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	vectors := map[string][]float32{"x": {10, 0, 0}, "y": {0, 0.5, 0}, "xy": {1, 1, 0}, "-x": {-3, 0, 0}}
	for k, v := range vectors {
		mine := slices.Clone(v)
		s := ok[adapters.Stored](t, "store "+k)(m.Store(ctx, k, "value of "+k, "n", adapters.StoreOpt{Embedding: mine}))
		holds(t, s, facts{"dimension": s.Dim == 3, "embedder": s.Embedder != "hash-v1"})
		mine[0], mine[1] = 77, 77 // the adapter must have copied the vector
	}
	hits := search(ctx, t, m, "", adapters.SearchOpt{Embedding: []float32{2, 0, 0}})
	equal(t, "hits", hitKeys(hits), []string{"x", "xy", "y", "-x"})
	for i, score := range []float64{1, math.Sqrt(0.5), 0, -1} {
		holds(t, hits[i], facts{fmt.Sprintf("score %v", score): math.Abs(hits[i].Score-score) <= 1e-6})
	}
	memoryNotMixed(t, ctx, m)
	for k := range vectors {
		gives(t, "delete "+k, true)(m.Del(ctx, k, "n"))
	}
	remember(ctx, t, m, "z", "a text", "n")
	equal(t, "an emptied namespace takes another embedder", hitKeys(search(ctx, t, m, "a text", adapters.SearchOpt{})), []string{"z"})
	// A namespace of embedder vectors also accepts a given vector of the same dimension.
	fits := ok[adapters.Stored](t, "a given vector that fits")(m.Store(ctx, "g", "v", "n", adapters.StoreOpt{Embedding: ones(256)}))
	equal(t, "its embedder", fits.Embedder, "hash-v1")
}

// memoryNotMixed checks that a namespace of given vectors accepts neither texts nor vectors of
// another dimension.
func memoryNotMixed(t *testing.T, ctx context.Context, m adapters.Memory) {
	store := func(opt adapters.StoreOpt) error { _, err := m.Store(ctx, "z", "v", "n", opt); return err }
	ask := func(query string, opt adapters.SearchOpt) error { _, err := m.Search(ctx, query, opt); return err }
	for name, err := range map[string]error{
		"a vector of another dimension":    store(adapters.StoreOpt{Embedding: []float32{1, 2}}),
		"a text among given vectors":       store(adapters.StoreOpt{}),
		"a text query among given vectors": ask("text", adapters.SearchOpt{Namespace: "n"}),
		"a query of another dimension":     ask("", adapters.SearchOpt{Namespace: "n", Embedding: []float32{1}}),
	} {
		equal(t, name+" is worth a retry", want(t, name, err, adapters.CodeConflict).Retryable, false)
	}
	absent(ctx, t, m, "z", "n")
}

func memoryFilter(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	for key, meta := range map[string]string{
		"a": `{"lang":"go","n":1,"tags":["x","y"],"deep":{"p":1,"q":null}}`,
		"b": `{"lang":"go","n":2}`,
		"c": `{"lang":"rust","n":1.0}`,
		"d": `{"lang":["go"]}`,
		"e": `{}`,
		"f": `{"n":9007199254740993}`,
	} {
		if _, err := m.Store(ctx, key, "same text", "n", adapters.StoreOpt{Metadata: json.RawMessage(meta)}); err != nil {
			t.Fatal(err)
		}
	}
	for filter, want := range map[string][]string{
		`{"lang":"go"}`:                   {"a", "b"},
		`{"lang":"go","n":1}`:             {"a"},
		`{"n":1}`:                         {"a", "c"},
		`{"n":1e0}`:                       {"a", "c"},
		`{"n":"1"}`:                       {},
		`{"deep":{"q":null,"p":1}}`:       {"a"},
		`{"tags":["y","x"]}`:              {},
		`{"n":9007199254740992}`:          {},
		`{"n":9007199254740993}`:          {"f"},
		`{"lang":null}`:                   {},
		`{}`:                              {"a", "b", "c", "d", "e", "f"},
		`{"lang":"go","lang2":"nothing"}`: {},
	} {
		for _, mode := range modes() {
			hits := search(ctx, t, m, "same text", adapters.SearchOpt{Filter: json.RawMessage(filter), Mode: mode})
			equal(t, "filter "+filter+" in mode "+mode, hitKeys(hits), want)
		}
	}
	// After an upsert without metadata, the filter does not match the entry.
	remember(ctx, t, m, "a", "same text", "n")
	equal(t, "after an upsert", hitKeys(search(ctx, t, m, "same text", adapters.SearchOpt{Filter: json.RawMessage(`{"lang":"go"}`)})), []string{"b"})
}

func memoryText(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	for key, value := range map[string]string{
		"both":   "Über den Wolken muß die Freiheit wohl grenzenlos sein",
		"one":    "die Wolken",
		"often":  "Wolken Wolken Wolken, und sonst nur noch viele andere lange Worte in diesem Satz",
		"none":   "nothing of the kind",
		"han":    "東京都に住む",
		"accent": "cafe\u0301 au lait",
		"quote":  `"; DROP TABLE entries; -- % _ * NEAR(`,
	} {
		remember(ctx, t, m, key, value, "n")
	}
	for query, keys := range map[string][]string{
		"FREIHEIT grenzenlos":  {"both"},
		"uber":                 {"both"},
		"Café":                 {"accent"},
		"京":                    {"han"},
		"drop table":           {"quote"},
		"absent":               {},
		`" OR key:* NEAR( - %`: {"quote"},
	} {
		equal(t, "query "+query, hitKeys(search(ctx, t, m, query, adapters.SearchOpt{Mode: adapters.ModeText})), keys)
	}
	wolken := search(ctx, t, m, "wolken", adapters.SearchOpt{Mode: adapters.ModeText})
	for i, h := range wolken {
		holds(t, h, facts{"score": h.Score > 0 && h.Score < 1, "falling score": i == 0 || h.Score <= wolken[i-1].Score})
	}
	keys := hitKeys(wolken)
	slices.Sort(keys)
	equal(t, "query wolken, in any order", keys, []string{"both", "often", "one"})
	best := search(ctx, t, m, "die Wolken", adapters.SearchOpt{Mode: adapters.ModeHybrid})[:1]
	equal(t, "the best hit of a hybrid search", hitKeys(best), []string{"one"})
	equal(t, "its score", best[0].Score, 1)
	remember(ctx, t, m, "one", "something else", "n")
	equal(t, "hits of a word that an upsert removed", len(search(ctx, t, m, "wolken", adapters.SearchOpt{Mode: adapters.ModeText})), 2)
}
