package memory

import (
	"context"
	"slices"
	"sync"
)

// slabRows is how many vectors are in one piece: enough for a fast scan, and few enough that
// growing copies little.
const slabRows = 1024

// slab has the vectors of one namespace and their sketches for the exact scan: row by row, in
// pieces of contiguous float32. Scans share it. A change waits for them.
type slab struct {
	mu      sync.RWMutex
	at      revision
	vectors [][]float32 // pieces of slabRows rows, but for the last
	codes   [][]uint64  // of the sketches, the same pieces, group by group
	rows    []slabRow
	scratch []uint8       // codes of one vector on their way into a group
	index   map[int64]int // id → row
	keys    int64         // bytes of all keys
}

type slabRow struct {
	id, rev, expires int64
	key              string
	sketch           sketch
}

// rowOverhead is about how many bytes a row takes in addition to its vector, codes and key: the row
// itself and its place in the index.
const rowOverhead = 112

func newSlab(at revision) *slab { return &slab{at: at, index: make(map[int64]int)} }

// estimate is about how many bytes the slab of a namespace takes.
func estimate(sp space) int64 {
	return sp.rows * int64(4*sp.pin.dim+groupWords(sp.pin.dim)+rowOverhead+32)
}

func (s *slab) bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := int64(cap(s.rows))*rowOverhead + s.keys
	for _, piece := range s.vectors {
		n += 4 * int64(cap(piece))
	}
	for _, piece := range s.codes {
		n += 8 * int64(cap(piece))
	}
	return n
}

func (s *slab) vector(i int) []float32 {
	d := s.at.pin.dim
	from := i % slabRows * d
	return s.vectors[i/slabRows][from : from+d]
}

func (s *slab) upsert(v vectorRow) {
	if len(v.vec) != s.at.pin.dim {
		return // not comparable with anything here: the backend's pin forbids it
	}
	if i, known := s.index[v.id]; known {
		copy(s.vector(i), v.vec)
		s.rows[i].rev, s.rows[i].expires = v.rev, v.expires
		s.draw(i)
		return
	}
	i := len(s.rows)
	if i%slabRows == 0 {
		s.vectors, s.codes = append(s.vectors, nil), append(s.codes, nil)
	}
	last := len(s.vectors) - 1
	s.vectors[last] = append(s.vectors[last], v.vec...)
	if i%groupRows == 0 {
		s.codes[last] = append(s.codes[last], make([]uint64, groupWords(len(v.vec)))...)
	}
	s.rows = append(s.rows, slabRow{id: v.id, rev: v.rev, expires: v.expires, key: v.key})
	s.index[v.id] = i
	s.keys += int64(len(v.key))
	s.draw(i)
}

// group returns the codes of the rows that share their words with row i.
func (s *slab) group(i int) []uint64 {
	n := groupWords(s.at.pin.dim)
	from := i % slabRows / groupRows * n
	return s.codes[i/slabRows][from : from+n]
}

// draw makes the sketch of row i.
func (s *slab) draw(i int) {
	v := s.vector(i)
	s.scratch = slices.Grow(s.scratch[:0], len(v))[:len(v)]
	s.rows[i].sketch = quantize(s.scratch, v)
	group, shift := s.group(i), i%groupRows*8
	for j, c := range s.scratch {
		group[j] = group[j]&^(0xff<<shift) | uint64(c)<<shift
	}
}

// drop moves the last row into the place of the removed one.
func (s *slab) drop(id int64) {
	i, known := s.index[id]
	if !known {
		return
	}
	last := len(s.rows) - 1
	s.keys -= int64(len(s.rows[i].key))
	if i != last {
		copy(s.vector(i), s.vector(last))
		s.rows[i] = s.rows[last]
		s.index[s.rows[i].id] = i
		s.draw(i)
	}
	delete(s.index, id)
	s.rows[last] = slabRow{}
	s.rows = s.rows[:last]
	piece := last / slabRows
	s.vectors[piece] = s.vectors[piece][:last%slabRows*s.at.pin.dim]
	if last%groupRows == 0 {
		s.codes[piece] = s.codes[piece][:last%slabRows/groupRows*groupWords(s.at.pin.dim)]
	}
	if last%slabRows == 0 {
		s.vectors = slices.Delete(s.vectors, piece, piece+1)
		s.codes = slices.Delete(s.codes, piece, piece+1)
	}
}

// query is one vector search.
type query struct {
	vec  []float32
	k    int
	now  int64
	only map[int64]struct{} // nil = all
}

func (q query) admits(id, expires int64) bool {
	if expires != 0 && expires <= q.now {
		return false
	}
	if q.only == nil {
		return true
	}
	_, ok := q.only[id]
	return ok
}

// top scans the sketches of all rows, and scores those rows that may be among the best.
func (s *slab) top(ctx context.Context, q query) ([]candidate, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.at.pin.dim != len(q.vec) {
		return nil, nil
	}
	b, p := newBest(q.k), newProbe(q.vec)
	var bounds [groupRows]float64
	for from := 0; from < len(s.rows); from += groupRows {
		if from%slabRows == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		rows := s.rows[from:min(from+groupRows, len(s.rows))]
		p.bounds(s.group(from), rows, &bounds)
		for i := range rows {
			if b.refuses(bounds[i]) {
				continue
			}
			r := &rows[i]
			score := cosine(q.vec, s.vector(from+i))
			if b.wants(score) && q.admits(r.id, r.expires) {
				b.offer(candidate{r.id, r.rev, r.key, score})
			}
		}
	}
	return b.list, nil
}

// stream is the sink for the scan of a namespace that has no slab in memory.
type stream struct {
	q    query
	best *best
}

func (s *stream) begin(space, bool) { s.best = newBest(s.q.k) }
func (s *stream) drop(int64)        {}
func (s *stream) upsert(v vectorRow) {
	if len(v.vec) != len(s.q.vec) {
		return
	}
	score := cosine(s.q.vec, v.vec)
	if s.best.wants(score) && s.q.admits(v.id, v.expires) {
		s.best.offer(candidate{v.id, v.rev, v.key, score})
	}
}

// delta collects changes, so that they are applied in one short step. A whole namespace goes
// directly into a new slab.
type delta struct {
	to    space
	fresh *slab
	ups   []vectorRow
	drops []int64
}

func (d *delta) begin(sp space, all bool) {
	d.to = sp
	if all {
		d.fresh = newSlab(sp.revision())
	}
}

func (d *delta) upsert(v vectorRow) {
	if d.fresh != nil {
		d.fresh.upsert(v)
		return
	}
	v.vec = slices.Clone(v.vec)
	d.ups = append(d.ups, v)
}

func (d *delta) drop(id int64) {
	if d.fresh == nil {
		d.drops = append(d.drops, id)
	}
}

// apply returns the slab that holds the changes: s, or a new one.
func (d *delta) apply(s *slab) *slab {
	if d.fresh != nil {
		return d.fresh
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range d.ups {
		s.upsert(v)
	}
	for _, id := range d.drops {
		s.drop(id)
	}
	s.at = d.to.revision()
	return s
}

// cache keeps slabs up to a number of bytes. It drops the least recently used first.
type cache struct {
	limit int64

	mu      sync.Mutex
	held    map[string]*held
	clock   int64 // counts uses
	counted map[string]counted
}

// counted are the stats of one revision of a namespace. Counting takes as long as a scan, and most
// searches find no change.
type counted struct {
	at revision
	stats
}

// maxCounted bounds for how many namespaces stats are kept.
const maxCounted = 1024

// held is the slot for one namespace's slab. turn serialises updates, so that many parallel
// searches load it only once.
type held struct {
	turn chan struct{}
	slab *slab // nil until loaded; only the holder of turn changes it
	size int64
	used int64
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, held: make(map[string]*held), counted: make(map[string]counted)}
}

// current returns the slab of a namespace, not older than sp; nil if it does not fit into the
// cache.
func (c *cache) current(ctx context.Context, b backend, sp space) (*slab, error) {
	if estimate(sp) > c.limit {
		c.forget(sp.name)
		return nil, nil
	}
	h := c.place(sp.name)
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	have := revision{rev: -1}
	if h.slab != nil {
		have = h.slab.at
	}
	if h.slab != nil && sp.continues(have) && have.rev == sp.rev {
		return h.slab, nil
	}
	if h.slab != nil && have.pin == sp.pin && have.rev > sp.rev {
		return h.slab, nil // another search has seen later changes already
	}
	d := &delta{}
	if err := b.changes(ctx, sp.name, have, d); err != nil {
		return nil, err
	}
	s := d.apply(h.slab)
	if !c.keep(sp.name, h, s) {
		return nil, nil
	}
	return s, nil
}

func (c *cache) place(name string) *held {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[name]
	if h == nil {
		h = &held{turn: make(chan struct{}, 1)}
		c.held[name] = h
	}
	c.clock++
	h.used = c.clock
	return h
}

// keep records a slab's size, drops other slabs until all fit, and tells whether this one may stay.
func (c *cache) keep(name string, h *held, s *slab) bool {
	size := s.bytes()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[name] != h {
		return true // forgotten meanwhile: good for this one search
	}
	if size > c.limit {
		delete(c.held, name)
		return false
	}
	h.slab, h.size = s, size
	for c.total() > c.limit {
		c.evict(name)
	}
	return true
}

func (c *cache) total() (n int64) {
	for _, h := range c.held {
		n += h.size
	}
	return n
}

// evict drops the least recently used slab except that of keep.
func (c *cache) evict(keep string) {
	var oldest string
	for name, h := range c.held {
		if name != keep && h.size > 0 && (oldest == "" || h.used < c.held[oldest].used) {
			oldest = name
		}
	}
	delete(c.held, oldest)
}

// forget drops the slab of a namespace.
func (c *cache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.counted, name)
	delete(c.held, name)
}

// stats returns the stats of a namespace at sp.
func (c *cache) stats(ctx context.Context, b backend, sp space, now int64) (stats, error) {
	c.mu.Lock()
	known, ok := c.counted[sp.name]
	c.mu.Unlock()
	if ok && known.at == sp.revision() && (known.until == 0 || now < known.until) {
		return known.stats, nil
	}
	s, err := b.stats(ctx, sp, now)
	if err != nil {
		return s, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.counted) >= maxCounted {
		clear(c.counted)
	}
	c.counted[sp.name] = counted{sp.revision(), s}
	return s, nil
}
