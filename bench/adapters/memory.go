// Command adapters measures the adapter slots against their service levels and
// prints what it saw beside them. It owns no product code and asserts nothing.
//
//	go run ./bench/adapters
//	go run ./bench/adapters -conninfo "host=… dbname=…"   # external-pg as well
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/memory"
)

// The service levels of the memory slot: p95 and nominal calls a second.
const (
	storeLevel   = 500 * time.Millisecond
	storeFloor   = 10
	searchLevel  = 250 * time.Millisecond
	searchFloor  = 50
	loadPerStore = 32 // writers while the corpus is loaded
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type settings struct {
	rows, dim int
	seconds   int
	conninfo  string
	out       io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s := settings{out: out}
	flags := flag.NewFlagSet("adapters", flag.ContinueOnError)
	flags.IntVar(&s.rows, "rows", 100_000, "`entries` in the namespace")
	flags.IntVar(&s.dim, "dim", 256, "`dimensions` of their vectors")
	flags.IntVar(&s.seconds, "seconds", 10, "`seconds` of nominal load per call")
	flags.StringVar(&s.conninfo, "conninfo", "", "PostgreSQL to measure external-pg on, an empty database")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	hash, err := memory.NewEmbedder(memory.EmbedderConfig{})
	if err != nil {
		return err
	}
	local, err := memory.NewEmbedded(memory.EmbeddedConfig{Dir: dir, Embedder: hash})
	if err != nil {
		return err
	}
	if err := s.measure(ctx, local); err != nil {
		return err
	}
	if s.conninfo == "" {
		return nil
	}
	external, err := memory.NewPostgres(memory.PostgresConfig{Conninfo: s.conninfo, Embedder: hash})
	if err != nil {
		return err
	}
	return s.measure(ctx, external)
}

func (s settings) measure(ctx context.Context, a adapters.Memory) error {
	if err := a.Connect(ctx); err != nil {
		return err
	}
	defer a.Disconnect(context.WithoutCancel(ctx))
	m := adapters.WrapMemory(a, nil)
	fmt.Fprintf(s.out, "\nmemory, %s %v: %d entries of %d dimensions\n", a.Impl(), a.Capabilities(), s.rows, s.dim)
	start := time.Now()
	if err := s.load(ctx, m); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  loaded in %v\n", time.Since(start).Round(time.Millisecond))
	start = time.Now()
	r := rand.New(rand.NewPCG(7, 7))
	if _, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: vector(r, s.dim)}); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "  first search, with the vectors still to be read: %v, heap then %d MiB\n", time.Since(start).Round(time.Millisecond), heap())
	if err := s.recall(ctx, m, r); err != nil {
		return err
	}
	var mu sync.Mutex // of r
	draw := func() []float32 {
		mu.Lock()
		defer mu.Unlock()
		return vector(r, s.dim)
	}
	s.row("search vector", searchLevel, searchFloor, func() error {
		_, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: draw()})
		return err
	})
	for _, mode := range []string{adapters.ModeText, adapters.ModeHybrid} {
		s.row("search "+mode, searchLevel, searchFloor, func() error {
			o := adapters.SearchOpt{Namespace: "n", Mode: mode}
			if mode == adapters.ModeHybrid {
				o.Embedding = draw()
			}
			_, err := m.Search(ctx, fmt.Sprintf("word%d word%d", rand.IntN(5000), rand.IntN(5000)), o)
			return err
		})
	}
	s.row("retrieve", searchLevel, searchFloor, func() error {
		_, _, err := m.Retrieve(ctx, fmt.Sprint(rand.IntN(s.rows)), "n")
		return err
	})
	s.row("store, embedded by hash-v1", storeLevel, storeFloor, func() error {
		_, err := m.Store(ctx, fmt.Sprint(rand.IntN(1000)), sentence(), "stores", adapters.StoreOpt{})
		return err
	})
	return ctx.Err()
}

// load fills the namespace with the same corpus for every class.
func (s settings) load(ctx context.Context, m adapters.Memory) error {
	work := make(chan int)
	errs := make(chan error, loadPerStore)
	for range loadPerStore {
		go func() {
			var err error
			for i := range work {
				if err == nil {
					_, err = m.Store(ctx, fmt.Sprint(i), sentence(), "n", adapters.StoreOpt{Embedding: corpus(i, s.dim)})
				}
			}
			errs <- err
		}()
	}
	for i := range s.rows {
		work <- i
	}
	close(work)
	var first error
	for range loadPerStore {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// recall compares with the plainest exact search there is.
func (s settings) recall(ctx context.Context, m adapters.Memory, r *rand.Rand) error {
	const k, queries = 10, 5
	same := 0
	for range queries {
		q := vector(r, s.dim)
		type scored struct {
			key   string
			score float64
		}
		all := make([]scored, s.rows)
		for i := range all {
			all[i] = scored{fmt.Sprint(i), cosine(q, corpus(i, s.dim))}
		}
		slices.SortFunc(all, func(a, b scored) int {
			if a.score != b.score {
				if a.score > b.score {
					return -1
				}
				return 1
			}
			return strings.Compare(a.key, b.key)
		})
		hits, err := m.Search(ctx, "", adapters.SearchOpt{Namespace: "n", Embedding: q, Limit: k})
		if err != nil {
			return err
		}
		for _, h := range hits {
			if slices.ContainsFunc(all[:k], func(x scored) bool { return x.key == h.Key }) {
				same++
			}
		}
	}
	fmt.Fprintf(s.out, "  recall@%d against an exact search in float64: %.3f\n", k, float64(same)/(k*queries))
	return nil
}

// row calls at the nominal rate, whether earlier calls have ended or not, and
// prints how long they took.
func (s settings) row(name string, level time.Duration, floor int, call func() error) {
	n := s.seconds * floor
	took := make([]time.Duration, n)
	failed := make([]bool, n)
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(floor))
	defer tick.Stop()
	for i := range n {
		<-tick.C
		wg.Go(func() {
			start := time.Now()
			failed[i] = call() != nil
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	slices.Sort(took)
	errors := 0
	for _, f := range failed {
		if f {
			errors++
		}
	}
	verdict := "met"
	if took[n*95/100] > level {
		verdict = "MISSED"
	}
	fmt.Fprintf(s.out, "  %-28s p50 %-10v p95 %-10v max %-10v errors %d/%d   level: p95 ≤ %v at %d/s: %s\n", name,
		took[n/2].Round(10*time.Microsecond), took[n*95/100].Round(10*time.Microsecond), took[n-1].Round(10*time.Microsecond), errors, n, level, floor, verdict)
}

func corpus(i, dim int) []float32 { return vector(rand.New(rand.NewPCG(uint64(i), 1)), dim) }

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

func sentence() string {
	words := make([]string, 12)
	for i := range words {
		words[i] = fmt.Sprintf("word%d", rand.IntN(5000))
	}
	return strings.Join(words, " ")
}

func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc >> 20
}
