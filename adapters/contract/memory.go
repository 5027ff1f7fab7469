package contract

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// MemoryClass makes adapters of one class of the memory slot.
type MemoryClass struct {
	// New makes an unconnected adapter with the embedder hash-v1. Its store is empty and no other
	// test uses it.
	New func(t *testing.T) adapters.Memory
	// Deaf makes an adapter like New, but its embedder always fails.
	Deaf func(t *testing.T) adapters.Memory
}

// openMemory connects a until the test ends, and wraps it.
func openMemory(t *testing.T, a adapters.Memory) (context.Context, adapters.Memory) {
	t.Helper()
	return connect(t, a), adapters.WrapMemory(a, nil)
}

// Memory runs the suite of the memory slot against one class.
func Memory(t *testing.T, class MemoryClass) {
	for name, test := range map[string]func(*testing.T, MemoryClass){
		"life":          memoryLife,
		"upsert":        memoryUpsert,
		"limits":        memoryStoreLimits,
		"search limits": memorySearchLimits,
		"namespaces":    memoryNamespaces,
		"pages":         memoryPages,
		"search":        memorySearch,
		"given":         memoryGiven,
		"filter":        memoryFilter,
		"text":          memoryText,
		"expiry":        memoryExpiry,
		"embedder":      memoryEmbedder,
		"cancel":        memoryCancel,
		"crowd":         memoryCrowd,
		"whole entry":   memoryWhole,
		"model":         memoryModel,
		"pages change":  memoryPagesChange,
	} {
		t.Run(name, func(t *testing.T) { test(t, class) })
	}
}

// MemoryOff checks the class off: all calls are DISABLED.
func MemoryOff(t *testing.T) {
	m := adapters.WrapMemory(nil, nil)
	describe(t, m, adapters.SlotMemory)
	ctx := connect(t, m)
	for name, err := range memoryCalls(ctx, m) {
		want(t, name, err, adapters.CodeDisabled)
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

// search searches in opt.Namespace, or else in namespace n, and returns the hits.
func search(ctx context.Context, t *testing.T, m adapters.Memory, query string, opt adapters.SearchOpt) []adapters.Hit {
	t.Helper()
	opt.Namespace = cmp.Or(opt.Namespace, "n")
	return ok[[]adapters.Hit](t, "search "+query)(m.Search(ctx, query, opt))
}

// absent checks that a namespace does not have a key.
func absent(ctx context.Context, t *testing.T, m adapters.Memory, key, ns string) {
	t.Helper()
	e, found, err := m.Retrieve(ctx, key, ns)
	succeed(t, "retrieve "+key, err)
	equal(t, fmt.Sprintf("%q is there: %+v", key, e), found, false)
}

func hitKeys(hits []adapters.Hit) []string {
	keys := make([]string, len(hits))
	for i, h := range hits {
		keys[i] = h.Key
	}
	return keys
}

// modes lists all search modes.
func modes() []string { return []string{adapters.ModeVector, adapters.ModeText, adapters.ModeHybrid} }
