package resttest

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// Memory speaks the memory routes of the box at a base URL. It is safe for
// concurrent use.
type Memory struct{ remote }

var _ adapters.Memory = (*Memory)(nil)

// NewMemory makes the client without any I/O.
func NewMemory(base string, auth wire.Authorizer) (*Memory, error) {
	m := new(Memory)
	return m, m.open(adapters.SlotMemory, "embedded-ruvector", base, auth)
}

func entryPath(ns, key string) string { return nsPath(ns) + "/" + url.PathEscape(key) }
func nsPath(ns string) string         { return "/v1/memory/" + url.PathEscape(ns) }

// Store implements adapters.Memory.
func (m *Memory) Store(ctx context.Context, key, value, ns string, opt adapters.StoreOpt) (out adapters.Stored, err error) {
	body := rest.StoreBody{Value: &value, Metadata: opt.Metadata, Embedding: opt.Embedding}
	if opt.TTL != 0 {
		s := int64(opt.TTL / time.Second)
		body.TTLS = &s
	}
	err = m.json(ctx, wire.Request{Method: http.MethodPut, Path: entryPath(ns, key)}, body, &out)
	return out, err
}

// Retrieve implements adapters.Memory: 404 is an answer.
func (m *Memory) Retrieve(ctx context.Context, key, ns string) (out adapters.MemoryEntry, ok bool, err error) {
	err = m.json(ctx, wire.Request{Method: http.MethodGet, Path: entryPath(ns, key)}, nil, &out)
	if errors.Is(err, adapters.ErrNotFound) {
		return adapters.MemoryEntry{}, false, nil
	}
	return out, err == nil, err
}

// Search implements adapters.Memory.
func (m *Memory) Search(ctx context.Context, query string, opt adapters.SearchOpt) ([]adapters.Hit, error) {
	body := rest.SearchBody{Query: query, MinScore: opt.MinScore, Filter: opt.Filter, Embedding: opt.Embedding, Mode: opt.Mode}
	if opt.Limit != 0 {
		body.Limit = &opt.Limit
	}
	var out adapters.Page[adapters.Hit]
	err := m.json(ctx, wire.Request{Method: http.MethodPost, Path: nsPath(opt.Namespace) + "/search"}, body, &out)
	return out.Items, err
}

// Del implements adapters.Memory.
func (m *Memory) Del(ctx context.Context, key, ns string) (bool, error) {
	var out rest.Deleted
	err := m.json(ctx, wire.Request{Method: http.MethodDelete, Path: entryPath(ns, key)}, nil, &out)
	return out.Deleted, err
}

// List implements adapters.Memory.
func (m *Memory) List(ctx context.Context, ns string, page adapters.PageOpt) (out adapters.Page[adapters.MemoryKey], err error) {
	q := url.Values{}
	if page.Limit != 0 {
		q.Set("limit", strconv.Itoa(page.Limit))
	}
	if page.Cursor != "" {
		q.Set("cursor", page.Cursor)
	}
	err = m.json(ctx, wire.Request{Method: http.MethodGet, Path: nsPath(ns), Query: q}, nil, &out)
	return out, err
}

// Namespaces implements adapters.Memory.
func (m *Memory) Namespaces(ctx context.Context) ([]adapters.Namespace, error) {
	var out adapters.Page[adapters.Namespace]
	err := m.json(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/memory"}, nil, &out)
	return out.Items, err
}
