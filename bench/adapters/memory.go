package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/memory"
	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

const (
	loaders     = 32 // parallel writers that load the corpus
	vocabulary  = 5000
	wordsStored = 12 // in one value
	recallDepth = 10
	recallTries = 5
)

// store is one class of memory under measurement.
type store struct {
	*lab
	name string
	rows int
	// make returns an adapter that is not connected.
	make func(context.Context) (adapters.Memory, error)
	// settle waits until the backend has built its index for the loaded corpus.
	settle func(context.Context) error
	m      adapters.Memory
}

func (l *lab) memory() []target {
	local := &store{lab: l, name: "embedded", rows: l.rows}
	local.make = func(context.Context) (adapters.Memory, error) {
		e, err := memory.NewEmbedder(memory.EmbedderConfig{})
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp(l.dir, "memory")
		if err != nil {
			return nil, err
		}
		return memory.NewEmbedded(memory.EmbeddedConfig{Dir: dir, Embedder: e})
	}
	exact := &store{lab: l, name: "external-pg, PostgreSQL 15, exact", rows: l.rows}
	exact.make = func(ctx context.Context) (adapters.Memory, error) {
		conninfo, err := l.keep(foreign.PostgreSQL(ctx))
		if err != nil {
			return nil, err
		}
		return newPostgres(conninfo, 0)
	}
	ann := &store{lab: l, name: "external-pg, PGlite with pgvector, HNSW", rows: l.annRows}
	var conninfo string
	ann.make = func(ctx context.Context) (adapters.Memory, error) {
		var err error
		if conninfo, err = l.keep(foreign.PGlite(ctx)); err != nil {
			return nil, err
		}
		return newPostgres(conninfo, int64(l.annRows)/2)
	}
	ann.settle = func(ctx context.Context) error {
		// A new connection begins with maintenance, which builds the index.
		if err := ann.m.Disconnect(ctx); err != nil {
			return err
		}
		if err := ann.m.Connect(ctx); err != nil {
			return err
		}
		return awaitIndex(ctx, conninfo, l.dim)
	}
	return []target{local.target(), exact.target(), ann.target()}
}

func newPostgres(conninfo string, exactRows int64) (adapters.Memory, error) {
	e, err := memory.NewEmbedder(memory.EmbedderConfig{})
	if err != nil {
		return nil, err
	}
	return memory.NewPostgres(memory.PostgresConfig{Conninfo: conninfo, Embedder: e, ExactRows: exactRows})
}

// indexLimit bounds the time to build an index.
const indexLimit = 10 * time.Minute

func awaitIndex(ctx context.Context, conninfo string, dim int) error {
	ctx, cancel := context.WithTimeout(ctx, indexLimit)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		var valid bool
		query := fmt.Sprintf("SELECT coalesce(bool_and(indisvalid), false) FROM pg_index WHERE indexrelid = to_regclass('memory_entries_hnsw_%d')", dim)
		if err := ask(ctx, conninfo, query, &valid); err != nil || valid {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the index was not built: %w", ctx.Err())
		}
	}
}

func (s *store) target() target {
	const searchLevel, searchShare = 250 * time.Millisecond, 0.005
	search := func(mode string) row {
		return row{"search " + mode, searchLevel, 50, searchShare, at(func(ctx context.Context, i int) error {
			o := adapters.SearchOpt{Namespace: "n", Mode: mode}
			text := ""
			if mode != adapters.ModeText {
				o.Embedding = query(i, s.dim)
			}
			if mode != adapters.ModeVector {
				text = fmt.Sprintf("%s %s", word(rand.IntN(vocabulary)), word(rand.IntN(vocabulary)))
			}
			_, err := s.m.Search(ctx, text, o)
			return err
		})}
	}
	return target{
		slot: "memory", class: s.name, open: s.open,
		close: func() {
			if s.m != nil {
				// An error here must not stop the measurement of the next class.
				_ = s.m.Disconnect(context.Background())
			}
		},
		rows: []row{
			search(adapters.ModeVector), search(adapters.ModeText), search(adapters.ModeHybrid),
			{"retrieve", searchLevel, 50, searchShare, at(func(ctx context.Context, _ int) error {
				_, ok, err := s.m.Retrieve(ctx, fmt.Sprint(rand.IntN(s.rows)), "n")
				if err == nil && !ok {
					return fmt.Errorf("an entry is not there")
				}
				return err
			})},
			{"store, embedded by hash-v1", 500 * time.Millisecond, 10, 0.01, at(func(ctx context.Context, i int) error {
				_, err := s.m.Store(ctx, fmt.Sprint(i%1000), sentence(rand.New(rand.NewPCG(uint64(i), 3))), "stores", adapters.StoreOpt{})
				return err
			})},
		},
	}
}

// open loads the corpus and reports the recall of an exact search.
func (s *store) open(ctx context.Context) error {
	a, err := s.make(ctx)
	if err != nil {
		return err
	}
	s.m = adapters.WrapMemory(a, nil)
	if err := s.m.Connect(ctx); err != nil {
		return err
	}
	begin := time.Now()
	if err := s.load(ctx); err != nil {
		return err
	}
	loaded := time.Since(begin)
	if s.settle != nil {
		begin = time.Now()
		if err := s.settle(ctx); err != nil {
			return err
		}
		s.note("memory %s: its index was built in %v", s.name, time.Since(begin).Round(time.Millisecond))
	}
	begin = time.Now()
	if _, err := s.m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: query(0, s.dim)}); err != nil {
		return err
	}
	first := time.Since(begin)
	recall, err := s.recall(ctx)
	if err != nil {
		return err
	}
	s.note("memory %s %v: %d entries of %d dimensions, loaded in %v; the first search, which reads the vectors, took %v; recall@%d against an exact search in float64 %.3f",
		s.name, s.m.Capabilities(), s.rows, s.dim, loaded.Round(time.Millisecond), first.Round(time.Millisecond), recallDepth, recall)
	return nil
}

// load fills the namespace with the same corpus for every class.
func (s *store) load(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	var all sync.WaitGroup
	for range loaders {
		all.Go(func() {
			for i := range work {
				r := rand.New(rand.NewPCG(uint64(i), 2))
				if _, err := s.m.Store(ctx, fmt.Sprint(i), sentence(r), "n", adapters.StoreOpt{Embedding: corpus(i, s.dim)}); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < s.rows && ctx.Err() == nil; i++ {
		work <- i
	}
	close(work)
	all.Wait()
	return context.Cause(ctx)
}

// recall compares the results of the store with those of an exact search over all rows.
func (s *store) recall(ctx context.Context) (float64, error) {
	type scored struct {
		key   string
		score float64
	}
	var best [recallTries][]scored
	for i := range s.rows {
		v := corpus(i, s.dim)
		for try := range best {
			c := scored{fmt.Sprint(i), cosine(query(-1-try, s.dim), v)}
			best[try] = append(best[try], c)
		}
	}
	same := 0
	for try, all := range best {
		slices.SortFunc(all, func(a, b scored) int {
			switch {
			case a.score > b.score:
				return -1
			case a.score < b.score:
				return 1
			}
			return strings.Compare(a.key, b.key)
		})
		hits, err := s.m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: query(-1-try, s.dim), Limit: recallDepth})
		if err != nil {
			return 0, err
		}
		for _, h := range hits {
			if slices.ContainsFunc(all[:recallDepth], func(x scored) bool { return x.key == h.Key }) {
				same++
			}
		}
	}
	return float64(same) / (recallDepth * recallTries), nil
}

func corpus(i, dim int) []float32 { return vector(rand.New(rand.NewPCG(uint64(i), 1)), dim) }
func query(i, dim int) []float32  { return vector(rand.New(rand.NewPCG(uint64(i), 7)), dim) }

func vector(r *rand.Rand, dim int) []float32 {
	v := make([]float32, dim)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

func cosine(a, b []float32) float64 {
	var dot, aa, bb float64
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return dot / (math.Sqrt(aa) * math.Sqrt(bb))
}

func word(i int) string { return fmt.Sprint("word", i) }

func sentence(r *rand.Rand) string {
	words := make([]string, wordsStored)
	for i := range words {
		words[i] = word(r.IntN(vocabulary))
	}
	return strings.Join(words, " ")
}
