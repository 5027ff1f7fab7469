package adapters

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
)

// WrapMemory wraps one implementation in mw (nil = guard and limits); see WrapBeads.
func WrapMemory(a Memory, mw Middleware) Memory {
	return memoryPort{wrapped(SlotMemory, a, mw)}
}

type memoryPort struct{ *port }

var _ Memory = memoryPort{}

func (p memoryPort) Store(ctx context.Context, key, value, namespace string, opt StoreOpt) (Stored, error) {
	namespace = cmp.Or(namespace, DefaultNamespace)
	if opt.Metadata == nil {
		opt.Metadata = json.RawMessage("{}")
	}
	opt.Metadata = slices.Clone(opt.Metadata)
	opt.Embedding = slices.Clone(opt.Embedding)
	c := Call{
		Method: "store", Write: true,
		Check: func() error { return opt.check(key, value, namespace) },
		Text:  []Text{{String: &value}, {JSON: &opt.Metadata}},
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Memory) (Stored, error) {
		return a.Store(ctx, key, value, namespace, opt)
	})
}

func (p memoryPort) Retrieve(ctx context.Context, key, namespace string) (MemoryEntry, bool, error) {
	type found struct {
		entry MemoryEntry
		ok    bool
	}
	namespace = cmp.Or(namespace, DefaultNamespace)
	f, err := via(ctx, p.port, Call{Method: "retrieve", Check: func() error { return checkMemoryKey(key, namespace) }},
		func(ctx context.Context, a Memory) (found, error) {
			e, ok, err := a.Retrieve(ctx, key, namespace)
			return found{e, ok}, err
		})
	return f.entry, f.ok, err
}

func (p memoryPort) Search(ctx context.Context, query string, opt SearchOpt) ([]Hit, error) {
	opt.Namespace = cmp.Or(opt.Namespace, DefaultNamespace)
	opt.Mode = cmp.Or(opt.Mode, ModeVector)
	opt.Limit = cmp.Or(opt.Limit, DefaultSearchLimit)
	hits, err := via(ctx, p.port, Call{Method: "search", Check: func() error { return opt.check(query) }},
		func(ctx context.Context, a Memory) ([]Hit, error) { return a.Search(ctx, query, opt) })
	if hits == nil && err == nil {
		hits = []Hit{}
	}
	return hits, err
}

func (p memoryPort) Del(ctx context.Context, key, namespace string) (bool, error) {
	namespace = cmp.Or(namespace, DefaultNamespace)
	return via(ctx, p.port, Call{Method: "del", Write: true, Check: func() error { return checkMemoryKey(key, namespace) }},
		func(ctx context.Context, a Memory) (bool, error) { return a.Del(ctx, key, namespace) })
}

func (p memoryPort) List(ctx context.Context, namespace string, page PageOpt) (Page[MemoryKey], error) {
	namespace = cmp.Or(namespace, DefaultNamespace)
	return via(ctx, p.port, Call{Method: "list", Check: func() error { return cmp.Or(checkNamespace(namespace), page.Check()) }},
		func(ctx context.Context, a Memory) (Page[MemoryKey], error) { return a.List(ctx, namespace, page) })
}

func (p memoryPort) Namespaces(ctx context.Context) ([]Namespace, error) {
	list, err := via(ctx, p.port, Call{Method: "namespaces"},
		func(ctx context.Context, a Memory) ([]Namespace, error) { return a.Namespaces(ctx) })
	if list == nil && err == nil {
		list = []Namespace{}
	}
	return list, err
}
