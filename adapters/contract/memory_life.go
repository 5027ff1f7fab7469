package contract

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func memoryLife(t *testing.T, class MemoryClass) {
	other := class.New(t)
	describe(t, other, adapters.SlotMemory)
	calls := adapters.WrapMemory(other, nil)
	life(t, other, func(ctx context.Context) error { _, _, err := calls.Retrieve(ctx, "k", "n"); return err })

	a := class.New(t)
	ctx := t.Context()
	m := adapters.WrapMemory(a, nil)
	closed := func(when string) {
		t.Helper()
		for name, err := range memoryCalls(ctx, m) {
			want(t, name+" "+when, err, adapters.CodeUnavailable)
		}
		equal(t, "health "+when, a.Health(ctx).State, adapters.StateUnhealthy)
	}
	closed("before Connect")
	succeed(t, "Connect", a.Connect(ctx))
	for name, err := range memoryCalls(ctx, m) {
		succeed(t, name, err)
	}
	remember(ctx, t, m, "kept", "over a disconnect", "n")
	remember(ctx, t, m, "kept too", "so that there is a second page", "n")
	page := ok[adapters.Page[adapters.MemoryKey]](t, "list")(m.List(ctx, "n", adapters.PageOpt{Limit: 1}))
	succeed(t, "Disconnect", a.Disconnect(ctx))
	closed("after Disconnect")
	succeed(t, "Connect again", a.Connect(ctx))
	equal(t, "after a reconnect", recall(ctx, t, m, "kept", "n"), "over a disconnect")
	ok[adapters.Page[adapters.MemoryKey]](t, "a cursor of before the reconnect")(m.List(ctx, "n", adapters.PageOpt{Cursor: string(page.NextCursor)}))
	succeed(t, "Disconnect at the end", a.Disconnect(ctx))
}

func memoryExpiry(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	store := func(key, value string, opt adapters.StoreOpt) adapters.Stored {
		t.Helper()
		return ok[adapters.Stored](t, "store "+key)(m.Store(ctx, key, value, "n", opt))
	}
	brief := store("brief", "soon gone", adapters.StoreOpt{TTL: time.Second, Metadata: json.RawMessage(`{"a":1}`)})
	equal(t, "expires after", brief.ExpiresAt.Sub(brief.StoredAt.Time), time.Second)
	store("long", "soon gone not", adapters.StoreOpt{TTL: time.Hour})
	store("forever", "soon gone never", adapters.StoreOpt{})
	store("renewed", "gone?", adapters.StoreOpt{TTL: time.Second})
	store("renewed", "gone? no", adapters.StoreOpt{})
	awaitExpiry(ctx, t, m, brief)
	for _, mode := range modes() {
		keys := hitKeys(search(ctx, t, m, "soon gone", adapters.SearchOpt{Mode: mode}))
		slices.Sort(keys)
		equal(t, mode+" search", keys, []string{"forever", "long", "renewed"})
	}
	equal(t, "a filter that an expired entry fits", hitKeys(search(ctx, t, m, "soon gone", adapters.SearchOpt{Filter: json.RawMessage(`{"a":1}`)})), []string{})
	equal(t, "listed", len(ok[adapters.Page[adapters.MemoryKey]](t, "list")(m.List(ctx, "n", adapters.PageOpt{})).Items), 3)
	gives(t, "namespaces", []adapters.Namespace{{Name: "n", Entries: 3, Embedder: "hash-v1", Dim: 256}})(m.Namespaces(ctx))
	gives(t, "delete of an expired entry", false)(m.Del(ctx, "brief", "n"))
	equal(t, "a store over an expired entry creates", store("brief", "back", adapters.StoreOpt{}).Created, true)
}

// awaitExpiry retrieves an entry until it is gone. It fails the test if a call that begins after the
// expiry time still finds the entry.
func awaitExpiry(ctx context.Context, t *testing.T, m adapters.Memory, s adapters.Stored) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		late := time.Now().After(s.ExpiresAt.Time)
		_, found, err := m.Retrieve(ctx, s.Key, s.Namespace)
		succeed(t, "retrieve", err)
		if !found {
			return
		}
		if late {
			t.Fatal("an expired entry was retrieved")
		}
		<-tick.C
	}
}

func memoryEmbedder(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.Deaf(t))
	_, err := m.Store(ctx, "k", "v", "n", adapters.StoreOpt{})
	want(t, "store", err, adapters.CodeEmbedding)
	absent(ctx, t, m, "k", "n")
	ok[adapters.Stored](t, "a given vector needs no embedder")(m.Store(ctx, "k", "v", "n", adapters.StoreOpt{Embedding: []float32{1, 0}}))
	equal(t, "a search with a vector", hitKeys(search(ctx, t, m, "", adapters.SearchOpt{Embedding: []float32{1, 1}})), []string{"k"})
	equal(t, "a text search", hitKeys(search(ctx, t, m, "v", adapters.SearchOpt{Mode: adapters.ModeText})), []string{"k"})
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
			want(t, name+" with "+c.Err().Error(), err, adapters.CodeTimeout)
		}
	}
	equal(t, "after cancelled calls", recall(ctx, t, m, "k", "n"), "v")
}
