package contract

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func ones(n int) []float32 { return slices.Repeat([]float32{1}, n) }

func memoryStoreLimits(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	meta := func(n int) json.RawMessage {
		return json.RawMessage(`{"a":"` + strings.Repeat("x", n-len(`{"a":""}`)) + `"}`)
	}
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
}

func memorySearchLimits(t *testing.T, class MemoryClass) {
	ctx, m := openMemory(t, class.New(t))
	none, bad := adapters.Code(""), adapters.CodeValidation
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
		_, err := m.List(ctx, "a", adapters.PageOpt{Cursor: cursor})
		want(t, "cursor "+cursor, err, adapters.CodeValidation)
	}
}
