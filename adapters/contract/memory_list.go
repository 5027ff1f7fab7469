package contract

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func memoryNamespaces(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	gives(t, "namespaces of an empty store", []adapters.Namespace{})(m.Namespaces(ctx))
	for _, c := range [][2]string{{"k", "b"}, {"k", "a/x"}, {"l", "a/x"}, {"k", ""}} {
		remember(ctx, t, m, c[0], "the same words", c[1])
	}
	ax := adapters.Namespace{Name: "a/x", Entries: 2, Embedder: "hash-v1", Dim: 256}
	b := adapters.Namespace{Name: "b", Entries: 1, Embedder: "hash-v1", Dim: 256}
	other := adapters.Namespace{Name: "default", Entries: 1, Embedder: "hash-v1", Dim: 256}
	gives(t, "namespaces", []adapters.Namespace{ax, b, other})(m.Namespaces(ctx))
	for _, mode := range modes() {
		for ns, keys := range map[string][]string{"b": {"k"}, "a/x": {"k", "l"}, "a": {}, "a/": {}, "": {"k"}} {
			hits := ok[[]adapters.Hit](t, "search")(m.Search(ctx, "same words", adapters.SearchOpt{Namespace: ns, Mode: mode}))
			equal(t, fmt.Sprintf("%s search in %q", mode, ns), hitKeys(hits), keys)
		}
	}
	gives(t, "delete", true)(m.Del(ctx, "k", "b"))
	recall(ctx, t, m, "k", "a/x") // the delete did not affect another namespace
	gives(t, "namespaces after one is empty", []adapters.Namespace{ax, other})(m.Namespaces(ctx))
}

func memoryPages(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	var keys []string
	for i := range 23 {
		key := fmt.Sprintf("%s%d", strings.Repeat("long", 100), (i*7)%23)
		remember(ctx, t, m, key, "v", "n")
		keys = append(keys, key)
	}
	remember(ctx, t, m, "k", "v", "other")
	for _, size := range []int{1, 5, 22, 23, 24} {
		var got []string
		pagesOf(ctx, t, m, size, func(p adapters.Page[adapters.MemoryKey]) {
			for _, k := range p.Items {
				got = append(got, k.Key)
				holds(t, k, facts{"size": k.Size == 1, "stored_at": !k.StoredAt.IsZero()})
			}
			if p.NextCursor != "" {
				_, err := m.List(ctx, "other", adapters.PageOpt{Cursor: string(p.NextCursor)})
				want(t, "a cursor of another list", err, adapters.CodeValidation)
			}
		})
		equal(t, fmt.Sprintf("pages of %d", size), got, keys)
	}
}

// pagesOf calls each with every page of namespace n, in pages of at most size rows.
func pagesOf(ctx context.Context, t *testing.T, m adapters.Memory, size int, each func(adapters.Page[adapters.MemoryKey])) {
	t.Helper()
	opt := adapters.PageOpt{Limit: size}
	for {
		p := ok[adapters.Page[adapters.MemoryKey]](t, "list")(m.List(ctx, "n", opt))
		if len(p.Items) > size {
			t.Fatalf("a page of %d has %d rows", size, len(p.Items))
		}
		each(p)
		if p.NextCursor == "" {
			return
		}
		opt.Cursor = string(p.NextCursor)
	}
}

// memoryPagesChange adds and removes rows while it pages. A row that is there the whole time must
// appear exactly once.
func memoryPagesChange(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	for i := range 30 {
		remember(ctx, t, m, fmt.Sprintf("%02d", i), "v", "n")
	}
	seen := make(map[string]int)
	round := 0
	pagesOf(ctx, t, m, 4, func(p adapters.Page[adapters.MemoryKey]) {
		for _, k := range p.Items {
			seen[k.Key]++
		}
		if p.NextCursor == "" {
			return
		}
		// Delete the row of the cursor, a row before it and a row after it.
		for _, k := range []string{p.Items[len(p.Items)-1].Key, "01", "28"} {
			ok[bool](t, "delete")(m.Del(ctx, k, "n"))
		}
		if round < 3 {
			remember(ctx, t, m, fmt.Sprintf("new %d", round), "v", "n")
			remember(ctx, t, m, "05", "again", "n")
		}
		round++
	})
	seen["28"]++ // it was deleted before the cursor reached it
	for i := range 30 {
		key := fmt.Sprintf("%02d", i)
		equal(t, "key "+key+" appeared", seen[key], 1)
	}
}
