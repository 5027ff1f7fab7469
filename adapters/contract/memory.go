// Package contract owns one suite of tests per slot, which every class of the
// slot runs. It must never know an implementation: a class is handed in.
package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// MemoryClass makes adapters of one class of the memory slot.
type MemoryClass struct {
	// New makes an adapter with the embedder hash-v1 over a store that is empty
	// and not used by any other test. It is not connected yet.
	New func(t *testing.T) adapters.Memory
	// Deaf makes one whose embedder always fails.
	Deaf func(t *testing.T) adapters.Memory
}

// limit bounds one case: a call that hangs fails the test instead of it.
const limit = 2 * time.Minute

func connect(t *testing.T, a adapters.Memory) (context.Context, adapters.Memory) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	if err := a.Connect(ctx); err != nil {
		t.Fatalf("Connect: %v", err)
	}
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Disconnect(end); err != nil {
			t.Errorf("Disconnect: %v", err)
		}
	})
	return ctx, adapters.WrapMemory(a, nil)
}

// Memory runs the suite of the memory slot against one class.
func Memory(t *testing.T, class MemoryClass) {
	for name, test := range map[string]func(*testing.T, MemoryClass){
		"life":         memoryLife,
		"upsert":       memoryUpsert,
		"limits":       memoryLimits,
		"namespaces":   memoryNamespaces,
		"pages":        memoryPages,
		"search":       memorySearch,
		"given":        memoryGiven,
		"filter":       memoryFilter,
		"text":         memoryText,
		"expiry":       memoryExpiry,
		"embedder":     memoryEmbedder,
		"cancel":       memoryCancel,
		"crowd":        memoryCrowd,
		"whole entry":  memoryWhole,
		"model":        memoryModel,
		"pages change": memoryPagesChange,
	} {
		t.Run(name, func(t *testing.T) { test(t, class) })
	}
}

// MemoryOff checks class off.
func MemoryOff(t *testing.T) {
	a, ok := adapters.Off(adapters.SlotMemory).(adapters.Memory)
	if !ok {
		t.Fatal("class off of memory is no Memory")
	}
	ctx, m := connect(t, a)
	for name, err := range memoryCalls(ctx, m) {
		if !errors.Is(err, adapters.ErrDisabled) {
			t.Errorf("%s: %v, want ADAPTER_DISABLED", name, err)
		}
	}
}

func memoryCalls(ctx context.Context, m adapters.Memory) map[string]error {
	calls := make(map[string]error)
	_, calls["store"] = m.Store(ctx, "k", "v", "n", adapters.StoreOpt{})
	_, _, calls["retrieve"] = m.Retrieve(ctx, "k", "n")
	_, calls["search"] = m.Search(ctx, "q", adapters.SearchOpt{Namespace: "n"})
	_, calls["del"] = m.Del(ctx, "k", "n")
	_, calls["list"] = m.List(ctx, "n", adapters.PageOpt{})
	_, calls["namespaces"] = m.Namespaces(ctx)
	return calls
}

func memoryLife(t *testing.T, class MemoryClass) {
	a := class.New(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	m := adapters.WrapMemory(a, nil)
	closed := func(when string) {
		t.Helper()
		for name, err := range memoryCalls(ctx, m) {
			if !errors.Is(err, adapters.ErrUnavailable) {
				t.Errorf("%s %s: %v, want UNAVAILABLE", name, when, err)
			}
		}
		if h := a.Health(ctx); h.State != adapters.StateUnhealthy {
			t.Errorf("health %s: %+v", when, h)
		}
	}
	closed("before Connect")
	for range 2 {
		if err := a.Connect(ctx); err != nil {
			t.Fatalf("Connect: %v", err)
		}
	}
	for name, err := range memoryCalls(ctx, m) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if h := a.Health(ctx); h.State != adapters.StateHealthy {
		t.Errorf("health: %+v", h)
	}
	if caps := a.Capabilities(); caps == nil || !slices.IsSorted(caps) {
		t.Errorf("capabilities %v are not sorted", caps)
	}
	put(ctx, t, m, "kept", "over a disconnect", "n")
	page, err := m.List(ctx, "n", adapters.PageOpt{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Disconnect(ctx); err != nil {
			t.Fatalf("Disconnect: %v", err)
		}
	}
	closed("after Disconnect")
	if err := a.Connect(ctx); err != nil {
		t.Fatalf("Connect again: %v", err)
	}
	if got := get(ctx, t, m, "kept", "n"); got != "over a disconnect" {
		t.Errorf("after a reconnect: %q", got)
	}
	if page.NextCursor != "" {
		if _, err := m.List(ctx, "n", adapters.PageOpt{Cursor: string(page.NextCursor)}); err != nil {
			t.Errorf("a cursor did not outlive a reconnect: %v", err)
		}
	}
	if err := a.Disconnect(ctx); err != nil {
		t.Errorf("Disconnect: %v", err)
	}
}

func put(ctx context.Context, t testing.TB, m adapters.Memory, key, value, ns string) adapters.Stored {
	t.Helper()
	s, err := m.Store(ctx, key, value, ns, adapters.StoreOpt{})
	if err != nil {
		t.Fatalf("store %q: %v", key, err)
	}
	return s
}

func get(ctx context.Context, t testing.TB, m adapters.Memory, key, ns string) string {
	t.Helper()
	e, ok, err := m.Retrieve(ctx, key, ns)
	if err != nil || !ok {
		t.Fatalf("retrieve %q: found %v, error %v", key, ok, err)
	}
	return e.Value
}

func keysOf(hits []adapters.Hit) []string {
	keys := make([]string, len(hits))
	for i, h := range hits {
		keys[i] = h.Key
	}
	return keys
}

func memoryUpsert(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	if _, ok, err := m.Retrieve(ctx, "a", "n"); ok || err != nil {
		t.Fatalf("an absent key: found %v, error %v", ok, err)
	}
	before := adapters.At(time.Now())
	first, err := m.Store(ctx, "a", "one", "n", adapters.StoreOpt{Metadata: json.RawMessage(` {"x": [1, 2]} `)})
	if err != nil {
		t.Fatal(err)
	}
	want := adapters.Stored{Key: "a", Namespace: "n", Created: true, StoredAt: first.StoredAt, Embedder: "hash-v1", Dim: 256}
	if first != want || first.StoredAt.Before(before.Time) {
		t.Errorf("stored %+v, want %+v, not before %v", first, want, before)
	}
	e, ok, err := m.Retrieve(ctx, "a", "n")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if !reflect.DeepEqual(e, adapters.MemoryEntry{
		Key: "a", Namespace: "n", Value: "one", Metadata: json.RawMessage(`{"x":[1,2]}`),
		StoredAt: first.StoredAt, Embedder: "hash-v1", Dim: 256,
	}) {
		t.Errorf("retrieved %+v", e)
	}
	second := put(ctx, t, m, "a", "two", "n")
	if second.Created || second.StoredAt.Before(first.StoredAt.Time) {
		t.Errorf("the second store of a key: %+v", second)
	}
	e, _, err = m.Retrieve(ctx, "a", "n")
	if err != nil || e.Value != "two" || string(e.Metadata) != "{}" {
		t.Errorf("after an upsert: %+v, %v", e, err)
	}
	for i, want := range []bool{true, false} {
		if ok, err := m.Del(ctx, "a", "n"); ok != want || err != nil {
			t.Errorf("delete %d: %v, %v", i, ok, err)
		}
	}
	if ok, err := m.Del(ctx, "a", "no such"[:2]); ok || err != nil {
		t.Errorf("delete in a namespace that is not there: %v, %v", ok, err)
	}
	if hits, err := m.Search(ctx, "two", adapters.SearchOpt{Namespace: "n"}); err != nil || len(hits) != 0 {
		t.Errorf("a deleted entry is found: %v, %v", hits, err)
	}
	if !put(ctx, t, m, "a", "three", "n").Created {
		t.Error("a store after a delete did not create")
	}
}

func memoryLimits(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	meta := func(n int) json.RawMessage {
		return json.RawMessage(`{"a":"` + strings.Repeat("x", n-len(`{"a":""}`)) + `"}`)
	}
	ones := func(n int) []float32 { return slices.Repeat([]float32{1}, n) }
	nan := []float32{1, float32(math.NaN())}
	none, bad, big := adapters.Code(""), adapters.CodeValidation, adapters.CodePayloadTooLarge
	for _, c := range []struct {
		name, key, value, ns string
		opt                  adapters.StoreOpt
		want                 adapters.Code
	}{
		{"key of 512", strings.Repeat("k", 512), "v", "a", adapters.StoreOpt{}, none},
		{"key of 513", strings.Repeat("k", 513), "v", "a", adapters.StoreOpt{}, bad},
		{"key of any text", "ключ / %2F ?# ключ", "v", "a", adapters.StoreOpt{}, none},
		{"no key", "", "v", "a", adapters.StoreOpt{}, bad},
		{"key with NUL", "a\x00b", "v", "a", adapters.StoreOpt{}, bad},
		{"key that is not UTF-8", "a\xff", "v", "a", adapters.StoreOpt{}, bad},
		{"namespace of 128", "k", "v", strings.Repeat("n", 128), adapters.StoreOpt{}, none},
		{"namespace of 129", "k", "v", strings.Repeat("n", 129), adapters.StoreOpt{}, bad},
		{"namespace with a space", "k", "v", "a b", adapters.StoreOpt{}, bad},
		{"namespace of all signs", "k", "v", "aZ0._:/-", adapters.StoreOpt{}, none},
		{"value of 1 MiB", "k", strings.Repeat("v", 1<<20), "a", adapters.StoreOpt{}, none},
		{"value over 1 MiB", "k", strings.Repeat("v", 1<<20+1), "a", adapters.StoreOpt{}, big},
		{"empty value", "k", "", "a", adapters.StoreOpt{}, none},
		{"value with NUL", "k", "\x00", "a", adapters.StoreOpt{}, bad},
		{"metadata of 16 KiB", "k", "v", "a", adapters.StoreOpt{Metadata: meta(16 << 10)}, none},
		{"metadata over 16 KiB", "k", "v", "a", adapters.StoreOpt{Metadata: meta(16<<10 + 1)}, big},
		{"metadata that is a list", "k", "v", "a", adapters.StoreOpt{Metadata: json.RawMessage(`[]`)}, bad},
		{"metadata with NUL", "k", "v", "a", adapters.StoreOpt{Metadata: json.RawMessage(`{"a":"\u0000"}`)}, bad},
		{"ttl below 1 s", "k", "v", "a", adapters.StoreOpt{TTL: time.Second - 1}, bad},
		{"ttl of 10 y", "k", "v", "a", adapters.StoreOpt{TTL: adapters.MaxMemoryTTL}, none},
		{"ttl above 10 y", "k", "v", "a", adapters.StoreOpt{TTL: adapters.MaxMemoryTTL + 1}, bad},
		{"embedding of 1", "k", "v", "d1", adapters.StoreOpt{Embedding: ones(1)}, none},
		{"embedding of 2000", "k", "v", "d2000", adapters.StoreOpt{Embedding: ones(2000)}, none},
		{"embedding of 2001", "k", "v", "d2001", adapters.StoreOpt{Embedding: ones(2001)}, bad},
		{"embedding of 0", "k", "v", "d0", adapters.StoreOpt{Embedding: []float32{}}, bad},
		{"embedding not finite", "k", "v", "d2", adapters.StoreOpt{Embedding: nan}, bad},
		{"embedding of zeros", "k", "v", "d2", adapters.StoreOpt{Embedding: []float32{0, 0}}, bad},
	} {
		s, err := m.Store(ctx, c.key, c.value, c.ns, c.opt)
		if adapters.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want code %q", c.name, err, c.want)
			continue
		}
		if err == nil && get(ctx, t, m, c.key, c.ns) != c.value {
			t.Errorf("%s: another value came back", c.name)
		}
		if err == nil && s.ExpiresAt.IsZero() != (c.opt.TTL == 0) {
			t.Errorf("%s: expires at %v", c.name, s.ExpiresAt)
		}
	}
	for _, c := range []struct {
		name, query string
		opt         adapters.SearchOpt
		want        adapters.Code
	}{
		{"empty query", "", adapters.SearchOpt{}, bad},
		{"empty text query beside a vector", "", adapters.SearchOpt{Mode: adapters.ModeText, Embedding: ones(256)}, bad},
		{"limit 100", "q", adapters.SearchOpt{Limit: 100}, none},
		{"limit 101", "q", adapters.SearchOpt{Limit: 101}, bad},
		{"limit -1", "q", adapters.SearchOpt{Limit: -1}, bad},
		{"unknown mode", "q", adapters.SearchOpt{Mode: "magic"}, bad},
		{"filter that is no object", "q", adapters.SearchOpt{Filter: json.RawMessage(`1`)}, bad},
		{"query with NUL", "\x00", adapters.SearchOpt{}, bad},
		{"query without a word", "?!", adapters.SearchOpt{Mode: adapters.ModeText}, none},
	} {
		if _, err := m.Search(ctx, c.query, c.opt); adapters.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want code %q", c.name, err, c.want)
		}
	}
	for _, cursor := range []string{"x", strings.Repeat("A", 513), "AAAAAAAAAAAAAAAAAAAAAAAAWyIxIl0"} {
		if _, err := m.List(ctx, "a", adapters.PageOpt{Cursor: cursor}); !errors.Is(err, adapters.ErrValidation) {
			t.Errorf("cursor %.10q: %v", cursor, err)
		}
	}
}

func memoryNamespaces(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	if list, err := m.Namespaces(ctx); err != nil || len(list) != 0 || list == nil {
		t.Errorf("namespaces of an empty store: %v, %v", list, err)
	}
	put(ctx, t, m, "k", "the same words", "b")
	put(ctx, t, m, "k", "the same words", "a/x")
	put(ctx, t, m, "l", "the same words", "a/x")
	put(ctx, t, m, "k", "the same words", "")
	want := []adapters.Namespace{
		{Name: "a/x", Entries: 2, Embedder: "hash-v1", Dim: 256},
		{Name: "b", Entries: 1, Embedder: "hash-v1", Dim: 256},
		{Name: "default", Entries: 1, Embedder: "hash-v1", Dim: 256},
	}
	if list, err := m.Namespaces(ctx); err != nil || !slices.Equal(list, want) {
		t.Errorf("namespaces %+v, %v", list, err)
	}
	for _, mode := range []string{adapters.ModeVector, adapters.ModeText, adapters.ModeHybrid} {
		for ns, want := range map[string][]string{"b": {"k"}, "a/x": {"k", "l"}, "a": {}, "a/": {}, "": {"k"}} {
			hits, err := m.Search(ctx, "same words", adapters.SearchOpt{Namespace: ns, Mode: mode})
			if err != nil || hits == nil || !slices.Equal(keysOf(hits), want) {
				t.Errorf("%s search in %q: %v, %v; want %v", mode, ns, keysOf(hits), err, want)
			}
		}
	}
	if ok, err := m.Del(ctx, "k", "b"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if get(ctx, t, m, "k", "a/x") == "" {
		t.Error("a delete reached another namespace")
	}
	list, err := m.Namespaces(ctx)
	if err != nil || len(list) != 2 {
		t.Errorf("an emptied namespace is still listed: %v, %v", list, err)
	}
}

func memoryPages(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	var want []string
	for i := range 23 {
		key := fmt.Sprintf("%s%d", strings.Repeat("long", 100), (i*7)%23)
		put(ctx, t, m, key, "v", "n")
		want = append(want, key)
	}
	put(ctx, t, m, "k", "v", "other")
	for _, size := range []int{1, 5, 22, 23, 24} {
		var got []string
		cursor := ""
		for {
			p, err := m.List(ctx, "n", adapters.PageOpt{Limit: size, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Items) > size {
				t.Fatalf("a page of %d has %d rows", size, len(p.Items))
			}
			for _, k := range p.Items {
				got = append(got, k.Key)
				if k.Size != 1 || k.StoredAt.IsZero() {
					t.Fatalf("row %+v", k)
				}
			}
			if cursor = string(p.NextCursor); cursor == "" {
				break
			}
			if _, err := m.List(ctx, "other", adapters.PageOpt{Cursor: cursor}); !errors.Is(err, adapters.ErrValidation) {
				t.Fatalf("a cursor of another list: %v", err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v", size, got)
		}
	}
}

// memoryPagesChange adds and removes rows while it pages: what was there all
// the time appears exactly once.
func memoryPagesChange(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	for i := range 30 {
		put(ctx, t, m, fmt.Sprintf("%02d", i), "v", "n")
	}
	seen := make(map[string]int)
	cursor, round := "", 0
	for {
		p, err := m.List(ctx, "n", adapters.PageOpt{Limit: 4, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range p.Items {
			seen[k.Key]++
		}
		if cursor = string(p.NextCursor); cursor == "" {
			break
		}
		// The row the cursor stands on goes, one before it and one after it too.
		last := p.Items[len(p.Items)-1].Key
		for _, k := range []string{last, "01", "28"} {
			if _, err := m.Del(ctx, k, "n"); err != nil {
				t.Fatal(err)
			}
		}
		if round < 3 {
			put(ctx, t, m, fmt.Sprintf("new %d", round), "v", "n")
			put(ctx, t, m, "05", "again", "n")
		}
		round++
	}
	for i := range 30 {
		key := fmt.Sprintf("%02d", i)
		if n := seen[key]; n > 1 || n == 0 && key != "28" {
			t.Errorf("key %s appeared %d times", key, n)
		}
	}
}

func memorySearch(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	texts := map[string]string{
		"cat":  "the cat sat on the mat",
		"cats": "two cats sat on a mat",
		"dog":  "a dog barked at the moon",
		"go":   "goroutines and channels in Go",
	}
	for k, v := range texts {
		put(ctx, t, m, k, v, "n")
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
		put(ctx, t, m, fmt.Sprintf("tie %02d", (i*17)%40), "exactly this", "ties")
	}
	for _, mode := range []string{adapters.ModeVector, adapters.ModeText, adapters.ModeHybrid} {
		hits, err = m.Search(ctx, "exactly this", adapters.SearchOpt{Namespace: "ties", Limit: 3, Mode: mode})
		if want := []string{"tie 00", "tie 01", "tie 02"}; err != nil || !slices.Equal(keysOf(hits), want) {
			t.Errorf("ties in mode %s: %v, %v", mode, keysOf(hits), err)
		}
	}
}

func memoryGiven(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
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
	if want := []string{"x", "xy", "y", "-x"}; err != nil || !slices.Equal(keysOf(hits), want) {
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
	put(ctx, t, m, "z", "a text", "n")
	hits, err = m.Search(ctx, "a text", adapters.SearchOpt{Namespace: "n"})
	if err != nil || !slices.Equal(keysOf(hits), []string{"z"}) {
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
	ctx, m := connect(t, class.New(t))
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
			if err != nil || !slices.Equal(keysOf(hits), want) {
				t.Errorf("filter %s in mode %s: %v, %v; want %v", filter, mode, keysOf(hits), err, want)
			}
		}
	}
	// An upsert moves an entry out of the filter's reach.
	put(ctx, t, m, "a", "same text", "n")
	hits, err := m.Search(ctx, "same text", adapters.SearchOpt{Namespace: "n", Filter: json.RawMessage(`{"lang":"go"}`)})
	if err != nil || !slices.Equal(keysOf(hits), []string{"b"}) {
		t.Errorf("after an upsert: %v, %v", keysOf(hits), err)
	}
}

func memoryText(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	for key, value := range map[string]string{
		"both":   "Über den Wolken muß die Freiheit wohl grenzenlos sein",
		"one":    "die Wolken",
		"often":  "Wolken Wolken Wolken, und sonst nur noch viele andere lange Worte in diesem Satz",
		"none":   "nothing of the kind",
		"han":    "東京都に住む",
		"accent": "cafe\u0301 au lait",
		"quote":  `"; DROP TABLE entries; -- % _ * NEAR(`,
	} {
		put(ctx, t, m, key, value, "n")
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
		got := keysOf(hits)
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
	put(ctx, t, m, "one", "something else", "n")
	if hits, err := m.Search(ctx, "wolken", adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText}); err != nil || len(hits) != 2 {
		t.Errorf("an upsert left its old words: %v, %v", keysOf(hits), err)
	}
}

func memoryExpiry(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	s, err := m.Store(ctx, "brief", "soon gone", "n", adapters.StoreOpt{TTL: time.Second, Metadata: json.RawMessage(`{"a":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.ExpiresAt.Sub(s.StoredAt.Time); d != time.Second {
		t.Errorf("expires after %v", d)
	}
	if _, err := m.Store(ctx, "long", "soon gone not", "n", adapters.StoreOpt{TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	put(ctx, t, m, "forever", "soon gone never", "n")
	if _, err := m.Store(ctx, "renewed", "gone?", "n", adapters.StoreOpt{TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	put(ctx, t, m, "renewed", "gone? no", "n")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		// Asked after its expiry, it must be gone; before, it may be either way
		// only in the instant between.
		late := time.Now().After(s.ExpiresAt.Time)
		_, ok, err := m.Retrieve(ctx, "brief", "n")
		if err != nil {
			t.Fatal(err)
		}
		if late && ok {
			t.Fatal("an expired entry was retrieved")
		}
		if !ok {
			break
		}
		<-tick.C
	}
	for _, mode := range []string{adapters.ModeVector, adapters.ModeText, adapters.ModeHybrid} {
		hits, err := m.Search(ctx, "soon gone", adapters.SearchOpt{Namespace: "n", Mode: mode})
		keys := keysOf(hits)
		slices.Sort(keys)
		if err != nil || !slices.Equal(keys, []string{"forever", "long", "renewed"}) {
			t.Errorf("%s search: %v, %v", mode, keys, err)
		}
	}
	if hits, err := m.Search(ctx, "soon gone", adapters.SearchOpt{Namespace: "n", Filter: json.RawMessage(`{"a":1}`)}); err != nil || len(hits) != 0 {
		t.Errorf("a filter found an expired entry: %v, %v", hits, err)
	}
	if p, err := m.List(ctx, "n", adapters.PageOpt{}); err != nil || len(p.Items) != 3 {
		t.Errorf("list: %v, %v", p.Items, err)
	}
	if ns, err := m.Namespaces(ctx); err != nil || len(ns) != 1 || ns[0].Entries != 3 {
		t.Errorf("namespaces: %v, %v", ns, err)
	}
	if ok, err := m.Del(ctx, "brief", "n"); ok || err != nil {
		t.Errorf("delete of an expired entry: %v, %v", ok, err)
	}
	if !put(ctx, t, m, "brief", "back", "n").Created {
		t.Error("a store over an expired entry did not create")
	}
}

func memoryEmbedder(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.Deaf(t))
	if _, err := m.Store(ctx, "k", "v", "n", adapters.StoreOpt{}); !errors.Is(err, adapters.ErrEmbedding) {
		t.Errorf("store: %v, want EMBEDDING_ERROR", err)
	}
	if _, ok, err := m.Retrieve(ctx, "k", "n"); ok || err != nil {
		t.Errorf("something was stored: %v, %v", ok, err)
	}
	if _, err := m.Store(ctx, "k", "v", "n", adapters.StoreOpt{Embedding: []float32{1, 0}}); err != nil {
		t.Errorf("a given vector needs no embedder: %v", err)
	}
	if hits, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: []float32{1, 1}}); err != nil || len(hits) != 1 {
		t.Errorf("a search with a vector needs no embedder: %v, %v", hits, err)
	}
	if hits, err := m.Search(ctx, "v", adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText}); err != nil || len(hits) != 1 {
		t.Errorf("a text search needs no embedder: %v, %v", hits, err)
	}
}

func memoryCancel(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	put(ctx, t, m, "k", "v", "n")
	gone, cancel := context.WithCancel(ctx)
	cancel()
	late, cancelLate := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancelLate()
	for _, c := range []context.Context{gone, late} {
		for name, err := range memoryCalls(c, m) {
			if !errors.Is(err, adapters.ErrTimeout) {
				t.Errorf("%s with %v: %v", name, c.Err(), err)
			}
		}
	}
	if got := get(ctx, t, m, "k", "n"); got != "v" {
		t.Errorf("a cancelled call changed something: %q", got)
	}
}

// memoryCrowd lets many callers work at once: nothing is lost, no error.
func memoryCrowd(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	const workers, each = 16, 8
	errs := make(chan error, workers*each*3)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				_, err := m.Store(ctx, fmt.Sprintf("%d-%d", w, i), fmt.Sprintf("worker %d wrote %d", w, i), "n", adapters.StoreOpt{})
				errs <- err
				_, err = m.Search(ctx, "worker wrote", adapters.SearchOpt{Namespace: "n", Limit: 5})
				errs <- err
				_, err = m.Store(ctx, "shared", fmt.Sprint(w), "n", adapters.StoreOpt{})
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := m.List(ctx, "n", adapters.PageOpt{Limit: 1000})
	if err != nil || len(p.Items) != workers*each+1 {
		t.Errorf("%d entries, %v", len(p.Items), err)
	}
	hits, err := m.Search(ctx, "worker 3 wrote 7", adapters.SearchOpt{Namespace: "n", Limit: 1})
	if err != nil || len(hits) != 1 || hits[0].Key != "3-7" {
		t.Errorf("hits %v, %v", hits, err)
	}
}

// memoryWhole searches while one entry flips between two contents: value,
// metadata and score belong together at all times.
func memoryWhole(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
	faces := []adapters.StoreOpt{
		{Embedding: []float32{1, 0}, Metadata: json.RawMessage(`{"f":0}`)},
		{Embedding: []float32{0, 1}, Metadata: json.RawMessage(`{"f":1}`)},
	}
	flip := func(i int) error {
		_, err := m.Store(ctx, "k", fmt.Sprint(i), "n", faces[i])
		return err
	}
	if err := flip(0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for i := range 200 {
			if err := flip(i % 2); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		hits, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: []float32{1, 0}})
		if err != nil {
			t.Fatal(err)
		}
		if len(hits) != 1 {
			t.Fatalf("hits %v", hits)
		}
		h := hits[0]
		want := map[string]float64{"0": 1, "1": 0}[h.Value]
		if h.Score != want || string(h.Metadata) != `{"f":`+h.Value+`}` {
			t.Fatalf("a mixed entry: %+v", h)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// memoryModel holds a class against the simplest thing that could work.
func memoryModel(t *testing.T, class MemoryClass) {
	ctx, m := connect(t, class.New(t))
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

// SameMemory lets two classes live through the same random script and compares
// every answer, scores to the last digit.
func SameMemory(t *testing.T, one, other MemoryClass) {
	ctx, a := connect(t, one.New(t))
	_, b := connect(t, other.New(t))
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
