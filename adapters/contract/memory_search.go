package contract

import (
	"encoding/json"
	"errors"
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
	hits, err := m.Search(ctx, "the cat sat on the mat", adapters.SearchOpt{Namespace: "n"})
	if err != nil {
		t.Fatal(err)
	}
	if len(hits) != 4 || hits[0].Key != "cat" || hits[1].Key != "cats" || math.Abs(hits[0].Score-1) > 1e-6 {
		t.Errorf("hits %+v", hits)
	}
	for i, h := range hits {
		if h.Score < -1 || h.Score > 1 || i > 0 && h.Score > hits[i-1].Score || h.Value != texts[h.Key] || string(h.Metadata) != "{}" {
			t.Errorf("hit %d: %+v", i, h)
		}
	}
	least := hits[1].Score
	hits, err = m.Search(ctx, "the cat sat on the mat", adapters.SearchOpt{Namespace: "n", MinScore: &least, Limit: 3})
	if err != nil || len(hits) != 2 {
		t.Errorf("with a least score: %v, %v", hits, err)
	}
	// Equal scores go by key, and the limit cuts after that.
	for i := range 40 {
		remember(ctx, t, m, fmt.Sprintf("tie %02d", (i*17)%40), "exactly this", "ties")
	}
	for _, mode := range []string{adapters.ModeVector, adapters.ModeText, adapters.ModeHybrid} {
		hits, err = m.Search(ctx, "exactly this", adapters.SearchOpt{Namespace: "ties", Limit: 3, Mode: mode})
		if want := []string{"tie 00", "tie 01", "tie 02"}; err != nil || !slices.Equal(hitKeys(hits), want) {
			t.Errorf("ties in mode %s: %v, %v", mode, hitKeys(hits), err)
		}
	}
}

func memoryGiven(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	vectors := map[string][]float32{"x": {10, 0, 0}, "y": {0, 0.5, 0}, "xy": {1, 1, 0}, "-x": {-3, 0, 0}}
	for k, v := range vectors {
		mine := slices.Clone(v)
		s, err := m.Store(ctx, k, "value of "+k, "n", adapters.StoreOpt{Embedding: mine})
		if err != nil || s.Dim != 3 || s.Embedder == "hash-v1" {
			t.Fatalf("store %s: %+v, %v", k, s, err)
		}
		mine[0], mine[1] = 77, 77 // not the adapter's any more
	}
	hits, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: []float32{2, 0, 0}})
	if want := []string{"x", "xy", "y", "-x"}; err != nil || !slices.Equal(hitKeys(hits), want) {
		t.Fatalf("hits %v, %v", hits, err)
	}
	for i, want := range []float64{1, math.Sqrt(0.5), 0, -1} {
		if math.Abs(hits[i].Score-want) > 1e-6 {
			t.Errorf("score of %s is %v, want %v", hits[i].Key, hits[i].Score, want)
		}
	}
	_, err = m.Store(ctx, "z", "v", "n", adapters.StoreOpt{Embedding: []float32{1, 2}})
	notMixed(t, "a vector of another dimension", err)
	_, err = m.Store(ctx, "z", "v", "n", adapters.StoreOpt{})
	notMixed(t, "a text among given vectors", err)
	_, err = m.Search(ctx, "text", adapters.SearchOpt{Namespace: "n"})
	notMixed(t, "a text query among given vectors", err)
	_, err = m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: []float32{1}})
	notMixed(t, "a query of another dimension", err)
	if _, ok, err := m.Retrieve(ctx, "z", "n"); ok || err != nil {
		t.Errorf("a refused store left something: %v, %v", ok, err)
	}
	for k := range vectors {
		if _, err := m.Del(ctx, k, "n"); err != nil {
			t.Fatal(err)
		}
	}
	remember(ctx, t, m, "z", "a text", "n")
	hits, err = m.Search(ctx, "a text", adapters.SearchOpt{Namespace: "n"})
	if err != nil || !slices.Equal(hitKeys(hits), []string{"z"}) {
		t.Errorf("an emptied namespace keeps its pin: %v, %v", hits, err)
	}
	// A given vector that fits the embedder goes among its own.
	if s, err := m.Store(ctx, "g", "v", "n", adapters.StoreOpt{Embedding: slices.Repeat([]float32{1}, 256)}); err != nil || s.Embedder != "hash-v1" {
		t.Errorf("a given vector that fits: %+v, %v", s, err)
	}
}

func notMixed(t *testing.T, what string, err error) {
	t.Helper()
	e := adapters.AsError(err)
	if !errors.Is(err, adapters.ErrConflict) || e.Retryable {
		t.Errorf("%s: %v, want CONFLICT that is not retryable", what, err)
	}
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
		for _, mode := range []string{adapters.ModeVector, adapters.ModeText, adapters.ModeHybrid} {
			hits, err := m.Search(ctx, "same text", adapters.SearchOpt{Namespace: "n", Filter: json.RawMessage(filter), Mode: mode})
			if err != nil || !slices.Equal(hitKeys(hits), want) {
				t.Errorf("filter %s in mode %s: %v, %v; want %v", filter, mode, hitKeys(hits), err, want)
			}
		}
	}
	// An upsert moves an entry out of the filter's reach.
	remember(ctx, t, m, "a", "same text", "n")
	hits, err := m.Search(ctx, "same text", adapters.SearchOpt{Namespace: "n", Filter: json.RawMessage(`{"lang":"go"}`)})
	if err != nil || !slices.Equal(hitKeys(hits), []string{"b"}) {
		t.Errorf("after an upsert: %v, %v", hitKeys(hits), err)
	}
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
	for query, want := range map[string][]string{
		"wolken":               {"often", "one", "both"},
		"FREIHEIT grenzenlos":  {"both"},
		"uber":                 {"both"},
		"Café":                 {"accent"},
		"京":                    {"han"},
		"drop table":           {"quote"},
		"absent":               {},
		`" OR key:* NEAR( - %`: {"quote"},
	} {
		hits, err := m.Search(ctx, query, adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText})
		if err != nil {
			t.Errorf("query %q: %v", query, err)
			continue
		}
		got := hitKeys(hits)
		if query == "wolken" {
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("query %q: %v, want %v", query, got, want)
		}
		for i, h := range hits {
			if h.Score <= 0 || h.Score >= 1 || i > 0 && h.Score > hits[i-1].Score {
				t.Errorf("query %q: score %v", query, h.Score)
			}
		}
	}
	hits, err := m.Search(ctx, "die Wolken", adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeHybrid})
	if err != nil || len(hits) == 0 || hits[0].Key != "one" || hits[0].Score != 1 {
		t.Errorf("hybrid: %v, %v", hits, err)
	}
	remember(ctx, t, m, "one", "something else", "n")
	if hits, err := m.Search(ctx, "wolken", adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText}); err != nil || len(hits) != 2 {
		t.Errorf("an upsert left its old words: %v, %v", hitKeys(hits), err)
	}
}
