package memory

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
)

// Capabilities that a class may have.
const (
	CapANN    = "ann"    // large namespaces are searched by an approximate index
	CapHybrid = "hybrid" // modes text and hybrid
	CapTTL    = "ttl"
)

// maintainEvery is how often expired entries are removed. Reads leave out an entry as soon as it
// has expired.
const (
	maintainEvery = time.Minute
	maintainAgain = 5 * time.Second  // after a failure: until a round succeeds, the slot is degraded
	maintainLimit = 10 * time.Minute // for one round: it may build an index
)

// DefaultCacheBytes limits the vectors in memory. It is enough for 200,000 vectors of 256
// dimensions.
const DefaultCacheBytes = 256 << 20

// Memory implements adapters.Memory over a backend. Make one with NewEmbedded
// or NewPostgres. All methods are safe for concurrent use.
type Memory struct {
	impl       string
	class      adapters.Class
	embedder   Embedder
	cacheBytes int64
	open       func(ctx context.Context, m *Memory) (backend, error)

	turn    chan struct{} // serialises Connect and Disconnect
	current atomic.Pointer[session]
}

var _ adapters.Memory = (*Memory)(nil)

// session is the state of a Memory from one Connect to the next Disconnect.
type session struct {
	backend backend
	cache   *cache
	cursors *adapters.Cursors
	caps    []string
	ctx     context.Context
	stop    context.CancelFunc
	ended   chan struct{}                  // closed when the maintenance goroutine has ended
	trouble atomic.Pointer[adapters.Error] // of the last maintenance, nil if it went well
}

func newMemory(impl string, class adapters.Class, e Embedder, cacheBytes int64,
	open func(context.Context, *Memory) (backend, error)) (*Memory, error) {
	if e == nil {
		return nil, adapters.Missing(keyEmbedder, "memory needs one")
	}
	if cacheBytes <= 0 {
		cacheBytes = DefaultCacheBytes
	}
	return &Memory{impl: impl, class: class, embedder: e, cacheBytes: cacheBytes, open: open, turn: make(chan struct{}, 1)}, nil
}

// Slot, Impl, Class, Enabled and ContractVersion are constant.

func (m *Memory) Slot() adapters.Slot   { return adapters.SlotMemory }
func (m *Memory) Impl() string          { return m.impl }
func (m *Memory) Class() adapters.Class { return m.class }
func (m *Memory) Enabled() bool         { return true }
func (m *Memory) ContractVersion() string {
	c, _ := adapters.ContractOf(adapters.SlotMemory)
	return c.Version
}

// Capabilities are hybrid and ttl, and ann while a PostgreSQL with pgvector is connected.
func (m *Memory) Capabilities() []string {
	if s := m.current.Load(); s != nil {
		return append([]string{}, s.caps...)
	}
	return []string{CapHybrid, CapTTL}
}

// Connect opens the backend and begins its maintenance.
func (m *Memory) Connect(ctx context.Context) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.leave()
	if m.current.Load() != nil {
		return nil
	}
	b, err := m.open(ctx, m)
	if err != nil {
		return err
	}
	s := &session{
		backend: b, cache: newCache(m.cacheBytes), cursors: adapters.NewCursors(b.secret()),
		caps: []string{CapHybrid, CapTTL}, ended: make(chan struct{}),
	}
	if p, ok := b.(proposer); ok && p.approximate() {
		s.caps = []string{CapANN, CapHybrid, CapTTL}
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	m.current.Store(s)
	go s.maintain()
	return nil
}

// Disconnect ends the running calls and closes the backend.
func (m *Memory) Disconnect(ctx context.Context) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.leave()
	s := m.current.Swap(nil)
	if s == nil {
		return nil
	}
	s.stop()
	if c, ok := m.embedder.(interface{ Close() }); ok {
		c.Close()
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		return adapters.AsError(context.Cause(ctx))
	}
	return s.backend.close(ctx)
}

// Health asks the backend. If the maintenance fails, the slot is degraded: calls work, but expired
// entries remain stored, and entries of other programs are not found by a search.
func (m *Memory) Health(ctx context.Context) adapters.Health {
	trouble, err := with(ctx, m, func(ctx context.Context, s *session) (*adapters.Error, error) {
		return s.trouble.Load(), s.backend.ping(ctx)
	})
	switch {
	case err != nil:
		return adapters.Unhealthy(err)
	case trouble != nil:
		return adapters.Health{State: adapters.StateDegraded, Message: "maintenance: " + trouble.Error()}
	}
	return adapters.Healthy()
}

func (m *Memory) enter(ctx context.Context) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return adapters.AsError(context.Cause(ctx))
	}
}

func (m *Memory) leave() { <-m.turn }

func (s *session) maintain() {
	defer close(s.ended)
	for {
		s.round()
		pause := maintainEvery
		if s.trouble.Load() != nil {
			pause = maintainAgain
		}
		if !sleep.For(s.ctx, pause) {
			return
		}
	}
}

// round is one run of the maintenance. Health reports a failure; the next round tries again.
func (s *session) round() {
	ctx, cancel := context.WithTimeout(s.ctx, maintainLimit)
	defer cancel()
	err := s.backend.maintain(ctx, s.backend.now().UnixMilli())
	if s.ctx.Err() == nil {
		s.trouble.Store(adapters.AsError(err))
	}
}

// with runs one call on the connected session. The call ends with ctx of the caller, and with
// UNAVAILABLE if the adapter is disconnected meanwhile.
func with[T any](ctx context.Context, m *Memory, f func(context.Context, *session) (T, error)) (T, error) {
	var zero T
	s := m.current.Load()
	if s == nil {
		return zero, adapters.Closed(adapters.SlotMemory)
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	out, err := f(inner, s)
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil:
		return zero, adapters.AsError(context.Cause(ctx))
	case s.ctx.Err() != nil:
		return zero, adapters.Closed(adapters.SlotMemory)
	}
	return zero, err
}

// Store embeds the value, unless the caller gives a vector, and upserts it.
func (m *Memory) Store(ctx context.Context, key, value, namespace string, opt adapters.StoreOpt) (adapters.Stored, error) {
	return with(ctx, m, func(ctx context.Context, s *session) (adapters.Stored, error) {
		e, err := m.entry(ctx, key, value, namespace, opt)
		if err != nil {
			return adapters.Stored{}, err
		}
		now := s.backend.now()
		e.stored = now.UnixMilli()
		if opt.TTL > 0 {
			e.expires = now.Add(opt.TTL).UnixMilli()
		}
		created, under, err := s.backend.put(ctx, e, e.stored)
		if err != nil {
			return adapters.Stored{}, err
		}
		return adapters.Stored{
			Key: key, Namespace: namespace, Created: created, StoredAt: adapters.AtMillis(e.stored),
			Embedder: under.embedder, Dim: under.dim, ExpiresAt: adapters.AtMillis(e.expires),
		}, nil
	})
}

// entry makes the entry that put stores, except for the times.
func (m *Memory) entry(ctx context.Context, key, value, namespace string, opt adapters.StoreOpt) (entry, error) {
	e := entry{namespace: namespace, key: key, value: value, metadata: "{}"}
	if len(opt.Metadata) > 0 {
		var b bytes.Buffer
		if err := json.Compact(&b, opt.Metadata); err != nil {
			return e, adapters.Invalid("metadata", "is not a JSON object")
		}
		e.metadata = b.String()
	}
	pairs, err := pairTerms(json.RawMessage(e.metadata))
	if err != nil {
		return e, adapters.Invalid("metadata", "is not a JSON object")
	}
	e.terms, e.words = entryTerms(value, pairs)
	e.given = opt.Embedding != nil
	e.vec, e.pin, err = m.vector(ctx, value, opt.Embedding)
	return e, err
}

// vector returns the unit vector of a text, or of the vector from the caller, and the pin that it
// would give a namespace.
func (m *Memory) vector(ctx context.Context, text string, brought []float32) ([]float32, pin, error) {
	if brought != nil {
		v, ok := unit(brought)
		if !ok {
			return nil, pin{}, adapters.Invalid("embedding", "has no direction: all numbers are 0")
		}
		id := embedderGiven
		if d := m.embedder.Dim(); d == 0 || d == len(v) {
			id = m.embedder.ID()
		}
		return v, pin{id, len(v)}, nil
	}
	list, err := m.embedder.Embed(ctx, []string{text})
	if err != nil {
		return nil, pin{}, err
	}
	v, ok := unit(list[0])
	if !ok {
		return nil, pin{}, adapters.Errorf(adapters.CodeEmbedding, "the embedder gave a vector of zeros")
	}
	return v, pin{m.embedder.ID(), len(v)}, nil
}

// Retrieve reads one entry.
func (m *Memory) Retrieve(ctx context.Context, key, namespace string) (adapters.MemoryEntry, bool, error) {
	type found struct {
		row row
		ok  bool
	}
	f, err := with(ctx, m, func(ctx context.Context, s *session) (found, error) {
		r, ok, err := s.backend.get(ctx, namespace, key, s.backend.now().UnixMilli())
		return found{r, ok}, err
	})
	if err != nil || !f.ok {
		return adapters.MemoryEntry{}, false, err
	}
	r := f.row
	return adapters.MemoryEntry{
		Key: key, Namespace: namespace, Value: r.value, Metadata: json.RawMessage(r.metadata),
		StoredAt: adapters.AtMillis(r.stored), ExpiresAt: adapters.AtMillis(r.expires), Embedder: r.pin.embedder, Dim: r.pin.dim,
	}, true, nil
}

// Del removes one entry.
func (m *Memory) Del(ctx context.Context, key, namespace string) (bool, error) {
	return with(ctx, m, func(ctx context.Context, s *session) (bool, error) {
		return s.backend.del(ctx, namespace, key, s.backend.now().UnixMilli())
	})
}

// List returns a page of a namespace, in the order in which the keys were first stored. A position
// in that order fits into a cursor, however long the keys are.
func (m *Memory) List(ctx context.Context, namespace string, page adapters.PageOpt) (adapters.Page[adapters.MemoryKey], error) {
	return with(ctx, m, func(ctx context.Context, s *session) (adapters.Page[adapters.MemoryKey], error) {
		var out adapters.Page[adapters.MemoryKey]
		scope := "memory.list:" + namespace
		after, err := position(s.cursors, scope, page.Cursor)
		if err != nil {
			return out, err
		}
		rows, err := s.backend.list(ctx, namespace, after, page.Rows()+1, s.backend.now().UnixMilli())
		if err != nil {
			return out, err
		}
		if len(rows) > page.Rows() {
			rows = rows[:page.Rows()]
			out.NextCursor = s.cursors.Seal(scope, strconv.FormatInt(rows[len(rows)-1].id, 10))
		}
		out.Items = make([]adapters.MemoryKey, len(rows))
		for i, r := range rows {
			out.Items[i] = adapters.MemoryKey{Key: r.key, StoredAt: adapters.AtMillis(r.stored), ExpiresAt: adapters.AtMillis(r.expires), Size: r.size}
		}
		return out, nil
	})
}

func position(c *adapters.Cursors, scope, cursor string) (int64, error) {
	at, err := c.Open(scope, cursor, 1)
	if err != nil || at == nil {
		return 0, err
	}
	id, err := strconv.ParseInt(at[0], 10, 64)
	if err != nil {
		return 0, adapters.Invalid("cursor", "is not one of ours, or is for another list")
	}
	return id, nil
}

// Namespaces lists the namespaces that have live entries, by name.
func (m *Memory) Namespaces(ctx context.Context) ([]adapters.Namespace, error) {
	return with(ctx, m, func(ctx context.Context, s *session) ([]adapters.Namespace, error) {
		return s.backend.namespaces(ctx, s.backend.now().UnixMilli())
	})
}
