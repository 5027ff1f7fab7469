package memory

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// families are kinds of vectors whose sketches have different errors.
var families = map[string]func(r *rand.Rand, i, dim int) []float32{
	"normal": func(r *rand.Rand, _, dim int) []float32 {
		v := make([]float32, dim)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	},
	"one large number": func(r *rand.Rand, _, dim int) []float32 {
		v := make([]float32, dim)
		for i := range v {
			v[i] = float32(r.NormFloat64() / 1000)
		}
		v[r.IntN(dim)] = 1
		return v
	},
	"many equal": func(_ *rand.Rand, i, dim int) []float32 {
		v := make([]float32, dim)
		v[i%3%dim] = 1
		return v
	},
	"nearly parallel": func(r *rand.Rand, _, dim int) []float32 {
		v := make([]float32, dim)
		for i := range v {
			v[i] = 1 + float32(r.NormFloat64()*1e-6)
		}
		return v
	},
	"tiny and huge": func(r *rand.Rand, i, dim int) []float32 {
		v := make([]float32, dim)
		for j := range v {
			v[j] = float32(r.NormFloat64() * math.Pow(10, float64(i%60-30)))
		}
		return v
	},
}

// everyRow returns the result that top must have: it scores all rows exactly.
func everyRow(s *slab, q query) []candidate {
	b := newBest(q.k)
	for i, r := range s.rows {
		if score := cosine(q.vec, s.vector(i)); b.wants(score) && q.admits(r.id, r.expires) {
			b.offer(candidate{r.id, r.rev, r.key, score})
		}
	}
	return b.list
}

// The scan with sketches gives exactly the result of the full scan, including ties, also after
// insertions, replacements and removals.
func TestSketchScanIsExact(t *testing.T) {
	for name, vector := range families {
		for _, dim := range []int{1, 7, 16, 50, 256} {
			if testing.Short() && dim > 50 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", name, dim), func(t *testing.T) {
				r := rand.New(rand.NewPCG(3, uint64(dim)))
				s := newSlab(revision{pin: pin{"given", dim}})
				one := func(i int) []float32 {
					for {
						if v, ok := unit(vector(r, i, dim)); ok {
							return v
						}
					}
				}
				for step := range 3000 {
					id := int64(r.IntN(2500))
					if r.IntN(4) == 0 {
						s.drop(id)
						continue
					}
					s.upsert(vectorRow{id: id, rev: int64(step), expires: int64(r.IntN(3)), key: fmt.Sprint(id), vec: one(step)})
				}
				full := 0
				for i := range 40 {
					q := query{vec: one(i), k: 1 + r.IntN(30), now: 2}
					got, err := s.top(context.Background(), q)
					if err != nil {
						t.Fatal(err)
					}
					want := everyRow(s, q)
					if !slices.Equal(got, want) {
						t.Fatalf("query %d:\n got %v\nwant %v", i, got, want)
					}
					full += len(want)
				}
				if full == 0 {
					t.Error("nothing was found at all")
				}
			})
		}
	}
}

// No row has a higher score than its bound. For ordinary vectors, the bound is close enough to be
// useful.
func TestSketchBound(t *testing.T) {
	for name, vector := range families {
		for _, dim := range []int{1, 15, 16, 17, 256, 2000} {
			r := rand.New(rand.NewPCG(4, uint64(dim)))
			s := newSlab(revision{pin: pin{"given", dim}})
			for i := range 100 {
				if v, ok := unit(vector(r, i, dim)); ok {
					s.upsert(vectorRow{id: int64(i), vec: v})
				}
			}
			q, ok := unit(vector(r, 0, dim))
			if !ok {
				t.Fatal("a query without direction")
			}
			p := newProbe(q)
			var bounds [groupRows]float64
			for from := 0; from < len(s.rows); from += groupRows {
				rows := s.rows[from:min(from+groupRows, len(s.rows))]
				p.bounds(s.group(from), rows, &bounds)
				for i := range rows {
					score := cosine(q, s.vector(from+i))
					if bounds[i] < score {
						t.Fatalf("%s, %d dimensions: bound %v of score %v", name, dim, bounds[i], score)
					}
					if name == "normal" && bounds[i] > score+0.15 {
						t.Errorf("%d dimensions: bound %v is far from score %v", dim, bounds[i], score)
					}
				}
			}
		}
	}
}

// A vector with NaN or infinity is scored exactly and does not affect other vectors.
func TestSketchOfNoNumber(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		codes := make([]uint8, 4)
		quantize(codes, []float32{1, bad, -1, 0})
		for _, c := range codes {
			if c < codeZero-codeMax || c > codeZero+codeMax {
				t.Errorf("%v has code %d", bad, c)
			}
		}
	}
	full := &best{k: 1, list: []candidate{{score: 1}}}
	if full.refuses(math.NaN()) || !full.refuses(0.5) || full.refuses(1) {
		t.Error("refuses")
	}
}

// BenchmarkScan searches 100,000 vectors of 256 dimensions.
func BenchmarkScan(b *testing.B) {
	const n, dim = 100_000, 256
	s := newSlab(revision{pin: pin{"given", dim}})
	r := rand.New(rand.NewPCG(5, 5))
	for i := range n {
		v, _ := unit(families["normal"](r, i, dim))
		s.upsert(vectorRow{id: int64(i), key: fmt.Sprint(i), vec: v})
	}
	for _, k := range []int{10, fuseDepth} {
		b.Run(fmt.Sprint("top ", k), func(b *testing.B) {
			for b.Loop() {
				q, _ := unit(families["normal"](r, 0, dim))
				if _, err := s.top(context.Background(), query{vec: q, k: k}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("in full", func(b *testing.B) {
		for b.Loop() {
			q, _ := unit(families["normal"](r, 0, dim))
			everyRow(s, query{vec: q, k: 10})
		}
	})
}
