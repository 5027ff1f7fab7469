package memory

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// BenchmarkText searches 50,000 entries in a file. Each entry has twelve words out of 5000.
func BenchmarkText(b *testing.B) {
	const n, chunk = 50_000, 10_000
	ctx := context.Background()
	m := embedded(b, b.TempDir(), hashV1{}, 0)
	if err := m.Connect(ctx); err != nil {
		b.Fatal(err)
	}
	defer m.Disconnect(ctx)
	r := rand.New(rand.NewPCG(6, 6))
	file := m.current.Load().backend.(*file)
	for from := 0; from < n; from += chunk {
		err := file.db.Write(ctx, func(tx *sql.Tx) error {
			for i := from; i < from+chunk; i++ {
				var value strings.Builder
				for range 12 {
					fmt.Fprintf(&value, "word%d ", r.IntN(5000))
				}
				e, err := m.entry(ctx, fmt.Sprint(i), value.String(), "n", adapters.StoreOpt{Embedding: []float32{1, 2}})
				if err == nil {
					_, _, err = putFile(ctx, tx, e, 1)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, words := range []int{1, 2, 5} {
		b.Run(fmt.Sprint(words, " words"), func(b *testing.B) {
			for b.Loop() {
				var query strings.Builder
				for range words {
					fmt.Fprintf(&query, "word%d ", r.IntN(5000))
				}
				hits, err := m.Search(ctx, query.String(), adapters.SearchOpt{Namespace: "n", Mode: adapters.ModeText})
				if err != nil || len(hits) == 0 {
					b.Fatalf("%d hits, %v", len(hits), err)
				}
			}
		})
	}
}
