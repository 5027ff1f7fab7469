package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const (
	// maxRounds is how often a search starts again because an entry was changed after it was scored
	// and before it was read.
	maxRounds = 4
	// fuseDepth is how many entries of each ranking a hybrid search joins.
	fuseDepth = 200
	// fuseK is the constant of reciprocal rank fusion. Cormack, Clarke and Büttcher (SIGIR 2009)
	// found that 60 works well and that the exact value is not important.
	fuseK = 60
	// maxPostings bounds how many entries are read for each word, in the order they were stored. A
	// word in more entries does not distinguish them.
	maxPostings = 200_000
	// maxTies limits how many entries with equal text scores are sorted by key.
	maxTies = 20_000
)

// The usual constants of BM25 (Robertson and Zaragoza, 2009).
const (
	bm25K = 1.2
	bm25B = 0.75
)

// search is one Search call.
type search struct {
	m     *Memory
	s     *session
	text  string
	opt   adapters.SearchOpt
	now   int64
	vec   []float32 // nil in mode text
	pin   pin       // of vec
	pairs []term    // of the filter
}

// Search ranks the entries of a namespace.
//
// Mode vector scores by cosine similarity. Mode text scores by BM25 over words,
// s/(1+s) so that it lies in [0, 1). Mode hybrid fuses the first 200 of both by
// reciprocal rank, scaled so that first in both is 1. Ties go by key in all
// three.
func (m *Memory) Search(ctx context.Context, text string, opt adapters.SearchOpt) ([]adapters.Hit, error) {
	opt.Mode = cmp.Or(opt.Mode, adapters.ModeVector)
	if opt.Limit <= 0 {
		opt.Limit = adapters.DefaultSearchLimit
	}
	if text == "" && (opt.Embedding == nil || opt.Mode != adapters.ModeVector) {
		return nil, adapters.Invalid("query", "is required")
	}
	return with(ctx, m, func(ctx context.Context, s *session) ([]adapters.Hit, error) {
		q := &search{m: m, s: s, text: text, opt: opt, now: s.backend.now().UnixMilli()}
		return q.run(ctx)
	})
}

func (q *search) run(ctx context.Context) ([]adapters.Hit, error) {
	var err error
	if q.pairs, err = pairTerms(q.opt.Filter); err != nil {
		return nil, adapters.Invalid("filter", "is not a JSON object")
	}
	for round := 1; ; round++ {
		sp, ok, err := q.s.backend.space(ctx, q.opt.Namespace)
		if err != nil {
			return nil, err
		}
		if !ok || sp.pin.embedder == "" {
			return []adapters.Hit{}, nil
		}
		if err := q.embed(ctx, sp); err != nil {
			return nil, err
		}
		list, err := q.rank(ctx, sp)
		if err != nil {
			return nil, err
		}
		hits, changed, err := q.read(ctx, sp, list, round == maxRounds)
		if err != nil || !changed {
			return hits, err
		}
	}
}

// embed makes the vector of the query once, and compares it with the pin of the namespace.
func (q *search) embed(ctx context.Context, sp space) error {
	if q.opt.Mode == adapters.ModeText {
		return nil
	}
	brought := q.opt.Embedding != nil
	if !brought && sp.pin.embedder != q.m.embedder.ID() {
		return pinned(sp, pin{q.m.embedder.ID(), q.m.embedder.Dim()})
	}
	if q.vec == nil {
		var err error
		if q.vec, q.pin, err = q.m.vector(ctx, q.text, q.opt.Embedding); err != nil {
			return err
		}
	}
	if q.pin.dim != sp.pin.dim {
		return pinned(sp, q.pin)
	}
	return nil
}

func (q *search) rank(ctx context.Context, sp space) ([]candidate, error) {
	only, err := q.filter(ctx, sp)
	if err != nil || only != nil && len(only) == 0 {
		return nil, err
	}
	switch q.opt.Mode {
	case adapters.ModeText:
		return q.byText(ctx, sp, q.opt.Limit, only)
	case adapters.ModeHybrid:
		v, err := q.byVector(ctx, sp, fuseDepth, only)
		if err != nil {
			return nil, err
		}
		t, err := q.byText(ctx, sp, fuseDepth, only)
		if err != nil {
			return nil, err
		}
		return fuse(v, t, q.opt.Limit), nil
	}
	return q.byVector(ctx, sp, q.opt.Limit, only)
}

// filter returns the entries that have all pairs of the filter; nil if there is no filter.
func (q *search) filter(ctx context.Context, sp space) (map[int64]struct{}, error) {
	if len(q.pairs) == 0 {
		return nil, nil
	}
	var only map[int64]struct{}
	for _, t := range q.pairs {
		have := make(map[int64]struct{})
		err := q.s.backend.postings(ctx, sp, t, math.MaxInt, q.now, func(p posting) {
			if _, ok := only[p.id]; ok || only == nil {
				have[p.id] = struct{}{}
			}
		})
		if err != nil {
			return nil, err
		}
		if only = have; len(only) == 0 {
			break
		}
	}
	return only, nil
}

// byVector scans all entries, in memory if the namespace fits there. In a large namespace of a
// backend with an index, it ranks exactly only what the index proposes.
func (q *search) byVector(ctx context.Context, sp space, k int, only map[int64]struct{}) ([]candidate, error) {
	if p, ok := q.s.backend.(proposer); ok && only == nil {
		ids, ok, err := p.propose(ctx, sp, q.vec, k, q.now)
		if err != nil {
			return nil, err
		}
		if ok {
			return q.judge(ctx, sp, ids, k)
		}
	}
	scan := query{q.vec, k, q.now, only}
	slab, err := q.s.cache.current(ctx, q.s.backend, sp)
	if err != nil {
		return nil, err
	}
	if slab != nil {
		return slab.top(ctx, scan)
	}
	all := &stream{q: scan}
	if err := q.s.backend.changes(ctx, sp.name, revision{rev: -1}, all); err != nil {
		return nil, err
	}
	return all.best.list, nil
}

// judge scores proposed entries like the exact scan.
func (q *search) judge(ctx context.Context, sp space, ids []int64, k int) ([]candidate, error) {
	rows, err := q.s.backend.fetch(ctx, sp, ids, q.now)
	if err != nil {
		return nil, err
	}
	b := newBest(k)
	for _, r := range rows {
		if len(r.vec) == len(q.vec) {
			b.offer(candidate{r.id, r.rev, r.key, cosine(q.vec, r.vec)})
		}
	}
	return b.list, nil
}

// byText ranks by BM25. The sums depend only on the order of the query's words, so every backend
// gets exactly the same number.
func (q *search) byText(ctx context.Context, sp space, k int, only map[int64]struct{}) ([]candidate, error) {
	terms := queryTerms(q.text)
	if len(terms) == 0 {
		return nil, nil
	}
	all, err := q.s.cache.stats(ctx, q.s.backend, sp, q.now)
	if err != nil || all.entries == 0 {
		return nil, err
	}
	mean := max(float64(all.words)/float64(all.entries), 1)
	scores := make(map[int64]float64)
	for _, t := range terms {
		var list []posting
		err := q.s.backend.postings(ctx, sp, t, maxPostings, q.now, func(p posting) { list = append(list, p) })
		if err != nil {
			return nil, err
		}
		n := float64(len(list))
		idf := math.Log(1 + (max(float64(all.entries), n)-n+0.5)/(n+0.5))
		for _, p := range list {
			if _, ok := only[p.id]; !ok && only != nil {
				continue
			}
			tf := float64(p.tf)
			scores[p.id] += idf * tf * (bm25K + 1) / (tf + bm25K*(1-bm25B+bm25B*float64(p.words)/mean))
		}
	}
	return q.topText(ctx, sp, scores, k)
}

// topText sorts by score. Among scores at the limit, it sorts by key.
func (q *search) topText(ctx context.Context, sp space, scores map[int64]float64, k int) ([]candidate, error) {
	list := make([]candidate, 0, len(scores))
	for id, s := range scores {
		list = append(list, candidate{id: id, rev: -1, score: s / (1 + s)})
	}
	slices.SortFunc(list, func(a, b candidate) int {
		if c := better(a, b); c != 0 {
			return c
		}
		return int(min(max(a.id-b.id, -1), 1))
	})
	end := len(list)
	if end > k {
		for end = k; end < len(list) && end < maxTies && list[end].score == list[k-1].score; end++ {
		}
	}
	list = list[:end]
	ids := make([]int64, len(list))
	for i, c := range list {
		ids[i] = c.id
	}
	keys, err := q.s.backend.keys(ctx, sp, ids)
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].key = keys[list[i].id]
	}
	slices.SortFunc(list, better)
	return list[:min(k, len(list))], nil
}

// fuse joins two rankings. The score is the sum of 1/(fuseK+rank), scaled so that the first of both
// rankings has 1.
func fuse(a, b []candidate, k int) []candidate {
	at := make(map[int64]int)
	var list []candidate
	for _, ranking := range [][]candidate{a, b} {
		for rank, c := range ranking {
			i, known := at[c.id]
			if !known {
				i = len(list)
				at[c.id] = i
				c.score = 0
				list = append(list, c)
			}
			list[i].score += (fuseK + 1) / 2.0 / float64(fuseK+rank+1)
		}
	}
	slices.SortFunc(list, better)
	return list[:min(k, len(list))]
}

// A value has up to 1 MiB, and JSON makes up to six bytes of each. So the hits end as soon as they
// have maxHitBytes of values and metadata, and the entries are read a few at a time.
const (
	maxHitBytes = 4 << 20
	readAtOnce  = 16
)

// fetch reads the entries of candidates.
func (q *search) fetch(ctx context.Context, sp space, list []candidate) (map[int64]row, error) {
	ids := make([]int64, len(list))
	for i, c := range list {
		ids[i] = c.id
	}
	rows, err := q.s.backend.fetch(ctx, sp, ids, q.now)
	byID := make(map[int64]row, len(rows))
	for _, r := range rows {
		byID[r.id] = r
	}
	return byID, err
}

// read turns candidates into hits. changed says that an entry has changed since it was scored, and
// that the search should start again. In the last round such an entry is scored again, or left out.
func (q *search) read(ctx context.Context, sp space, list []candidate, last bool) (hits []adapters.Hit, changed bool, err error) {
	hits = make([]adapters.Hit, 0, len(list))
	var byID map[int64]row // of the candidates that were read last
	for i, size := 0, 0; i < len(list) && size < maxHitBytes; i++ {
		if i%readAtOnce == 0 {
			if byID, err = q.fetch(ctx, sp, list[i:min(i+readAtOnce, len(list))]); err != nil {
				return nil, false, err
			}
		}
		c := list[i]
		r, ok := byID[c.id]
		if !ok || c.rev >= 0 && r.rev != c.rev {
			if !last {
				q.s.stale(sp, ok)
				return nil, true, nil
			}
			if !ok || q.opt.Mode != adapters.ModeVector || len(r.vec) != len(q.vec) {
				continue
			}
			c.score = cosine(q.vec, r.vec)
		}
		if q.opt.MinScore != nil && c.score < *q.opt.MinScore {
			continue
		}
		hits = append(hits, adapters.Hit{Score: c.score, Key: r.key, Value: r.value, Metadata: json.RawMessage(r.metadata)})
		size += len(r.value) + len(r.metadata)
	}
	slices.SortStableFunc(hits, func(a, b adapters.Hit) int {
		return better(candidate{key: a.Key, score: a.Score}, candidate{key: b.Key, score: b.Score})
	})
	return hits, false, nil
}

// stale makes the next round read the entries again. A changed entry has a later revision, which
// the slab finds itself. An entry that is missing without a new revision was removed by a program
// that does not know revisions.
func (s *session) stale(sp space, present bool) {
	if !present {
		s.cache.forget(sp.name)
	}
}
