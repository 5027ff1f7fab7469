package contract

import (
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

// openMemory connects a for the length of the test and wraps it.
func openMemory(t *testing.T, a adapters.Memory) (context.Context, adapters.Memory) {
	t.Helper()
	return connect(t, a), adapters.WrapMemory(a, nil)
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
	m := adapters.WrapMemory(nil, nil)
	describe(t, m, adapters.SlotMemory)
	ctx := connect(t, m)
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
	other := class.New(t)
	describe(t, other, adapters.SlotMemory)
	calls := adapters.WrapMemory(other, nil)
	life(t, other, func(ctx context.Context) error { _, _, err := calls.Retrieve(ctx, "k", "n"); return err })

	a := class.New(t)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
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
	remember(ctx, t, m, "kept", "over a disconnect", "n")
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
	if got := recall(ctx, t, m, "kept", "n"); got != "over a disconnect" {
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

func remember(ctx context.Context, t testing.TB, m adapters.Memory, key, value, ns string) adapters.Stored {
	t.Helper()
	s, err := m.Store(ctx, key, value, ns, adapters.StoreOpt{})
	if err != nil {
		t.Fatalf("store %q: %v", key, err)
	}
	return s
}

func recall(ctx context.Context, t testing.TB, m adapters.Memory, key, ns string) string {
	t.Helper()
	e, ok, err := m.Retrieve(ctx, key, ns)
	if err != nil || !ok {
		t.Fatalf("retrieve %q: found %v, error %v", key, ok, err)
	}
	return e.Value
}

func hitKeys(hits []adapters.Hit) []string {
	keys := make([]string, len(hits))
	for i, h := range hits {
		keys[i] = h.Key
	}
	return keys
}

func memoryUpsert(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
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
	second := remember(ctx, t, m, "a", "two", "n")
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
	if !remember(ctx, t, m, "a", "three", "n").Created {
		t.Error("a store after a delete did not create")
	}
}

func memoryLimits(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
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
		{"key of 511", strings.Repeat("k", 511), "v", "a", adapters.StoreOpt{}, none},
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
		{"value of 1 MiB - 1", "k", strings.Repeat("v", 1<<20-1), "a", adapters.StoreOpt{}, none},
		{"value of 1 MiB that doubles as JSON", "k", strings.Repeat("\"", 1<<20), "a", adapters.StoreOpt{}, none},
		{"value over 1 MiB", "k", strings.Repeat("v", 1<<20+1), "a", adapters.StoreOpt{}, big},
		{"empty value", "k", "", "a", adapters.StoreOpt{}, none},
		{"value with NUL", "k", "\x00", "a", adapters.StoreOpt{}, bad},
		{"metadata of 16 KiB", "k", "v", "a", adapters.StoreOpt{Metadata: meta(16 << 10)}, none},
		{"metadata of 16 KiB - 1", "k", "v", "a", adapters.StoreOpt{Metadata: meta(16<<10 - 1)}, none},
		{"metadata over 16 KiB", "k", "v", "a", adapters.StoreOpt{Metadata: meta(16<<10 + 1)}, big},
		{"metadata that is a list", "k", "v", "a", adapters.StoreOpt{Metadata: json.RawMessage(`[]`)}, bad},
		{"metadata with NUL", "k", "v", "a", adapters.StoreOpt{Metadata: json.RawMessage(`{"a":"\u0000"}`)}, bad},
		{"ttl below 1 s", "k", "v", "a", adapters.StoreOpt{TTL: time.Second - 1}, bad},
		{"ttl of 10 y", "k", "v", "a", adapters.StoreOpt{TTL: adapters.MaxMemoryTTL}, none},
		{"ttl above 10 y", "k", "v", "a", adapters.StoreOpt{TTL: adapters.MaxMemoryTTL + 1}, bad},
		{"embedding of 1", "k", "v", "d1", adapters.StoreOpt{Embedding: ones(1)}, none},
		{"embedding of 1999", "k", "v", "d1999", adapters.StoreOpt{Embedding: ones(1999)}, none},
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
		if err == nil && recall(ctx, t, m, c.key, c.ns) != c.value {
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
		{"limit 99", "q", adapters.SearchOpt{Limit: 99}, none},
		{"min_score -1", "q", adapters.SearchOpt{MinScore: new(-1.0)}, none},
		{"min_score 1", "q", adapters.SearchOpt{MinScore: new(1.0)}, none},
		{"min_score above 1", "q", adapters.SearchOpt{MinScore: new(math.Nextafter(1, 2))}, bad},
		{"min_score below -1", "q", adapters.SearchOpt{MinScore: new(math.Nextafter(-1, -2))}, bad},
		{"query of 1 MiB", strings.Repeat("q ", 1<<19), adapters.SearchOpt{}, none},
		{"query over 1 MiB", strings.Repeat("q", 1<<20+1), adapters.SearchOpt{}, bad},
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
	ctx, m := openMemory(t, class.New(t))
	if list, err := m.Namespaces(ctx); err != nil || len(list) != 0 || list == nil {
		t.Errorf("namespaces of an empty store: %v, %v", list, err)
	}
	remember(ctx, t, m, "k", "the same words", "b")
	remember(ctx, t, m, "k", "the same words", "a/x")
	remember(ctx, t, m, "l", "the same words", "a/x")
	remember(ctx, t, m, "k", "the same words", "")
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
			if err != nil || hits == nil || !slices.Equal(hitKeys(hits), want) {
				t.Errorf("%s search in %q: %v, %v; want %v", mode, ns, hitKeys(hits), err, want)
			}
		}
	}
	if ok, err := m.Del(ctx, "k", "b"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if recall(ctx, t, m, "k", "a/x") == "" {
		t.Error("a delete reached another namespace")
	}
	list, err := m.Namespaces(ctx)
	if err != nil || len(list) != 2 {
		t.Errorf("an emptied namespace is still listed: %v, %v", list, err)
	}
}

func memoryPages(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	var want []string
	for i := range 23 {
		key := fmt.Sprintf("%s%d", strings.Repeat("long", 100), (i*7)%23)
		remember(ctx, t, m, key, "v", "n")
		want = append(want, key)
	}
	remember(ctx, t, m, "k", "v", "other")
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
	ctx, m := openMemory(t, class.New(t))
	for i := range 30 {
		remember(ctx, t, m, fmt.Sprintf("%02d", i), "v", "n")
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
			remember(ctx, t, m, fmt.Sprintf("new %d", round), "v", "n")
			remember(ctx, t, m, "05", "again", "n")
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

func memoryExpiry(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
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
	remember(ctx, t, m, "forever", "soon gone never", "n")
	if _, err := m.Store(ctx, "renewed", "gone?", "n", adapters.StoreOpt{TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	remember(ctx, t, m, "renewed", "gone? no", "n")
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
		keys := hitKeys(hits)
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
	if !remember(ctx, t, m, "brief", "back", "n").Created {
		t.Error("a store over an expired entry did not create")
	}
}

func memoryEmbedder(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.Deaf(t))
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
	ctx, m := openMemory(t, class.New(t))
	remember(ctx, t, m, "k", "v", "n")
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
	if got := recall(ctx, t, m, "k", "n"); got != "v" {
		t.Errorf("a cancelled call changed something: %q", got)
	}
}

// memoryCrowd lets many callers work at once: nothing is lost, no error.
func memoryCrowd(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
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
	ctx, m := openMemory(t, class.New(t))
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
