package logs

import (
	"bytes"
	"math"
	"slices"
	"sort"
	"sync/atomic"
	"time"
	"unsafe"
)

// budget is the number of bytes that something may take for all streams of a plane together.
type budget struct {
	max  atomic.Int64
	used atomic.Int64
}

func (b *budget) add(n int)          { b.used.Add(int64(n)) }
func (b *budget) exceeds(n int) bool { return b.used.Load()+int64(n) > b.max.Load() }

// chunk is text of one run's stream: whole lines, or one piece of a line. It is divided into lines
// only when it is read. The text is in memory or in a log file, and never changes.
type chunk struct {
	first uint64 // index in the ring of the first line
	seq   uint64 // Line.Seq of the first line; each further line has one more, until the next arrival
	time  int64  // of the first line, in Unix nanoseconds
	run   uint64
	pid   int32
	lines int32
	cut   bool
	cont  bool

	text []byte      // nil when the text is in a file
	file *generation // the file with the text, if text is nil
	off  int64
	n    int

	arrivals []arrival // of lines that did not come together with the first one, in order
}

// arrival is where lines of a chunk begin that came later than those before them. It takes a ninth
// of the memory of a chunk of their own.
type arrival struct {
	line  uint32 // number in the chunk
	seq   uint32 // Line.Seq, less chunk.seq
	later uint32 // time, less chunk.time, in microseconds
}

const (
	chunkSize   = int(unsafe.Sizeof(chunk{}))
	arrivalSize = int(unsafe.Sizeof(arrival{}))
)

// segment is the unit that a ring forgets at once.
type segment struct {
	text     []byte // memory that its chunks share, as they share arrivals
	chunks   []chunk
	arrivals []arrival
	shared   bool // a reader may use text and arrivals, so they must not be overwritten
}

func (s *segment) size() int {
	return len(s.text) + len(s.chunks)*chunkSize + len(s.arrivals)*arrivalSize
}

// ring keeps the newest lines of one stream. It holds at most max bytes plus one long line of any
// length. The long line is forgotten only when newer lines fill the ring, not with the next line.
// For text in a file, it keeps only the place. A silent stream uses no memory. The caller must hold
// the lock.
type ring struct {
	max    int
	budget *budget
	segs   []*segment
	spare  *segment
	bytes  int
	next   uint64        // index of the next line; the indexes in a ring have no gaps
	forgot atomic.Uint64 // Line.Seq of the newest line that was forgotten; it is read without the lock too
	closed bool
}

const (
	segmentsPerRing = 8
	// starvedLine is how much of a long line is kept when the plane's budget is used up.
	starvedLine = 4 << 10
	// mergeBytes and mergeTime bound what counts as one arrival in a file: a reader has the whole
	// chunk in memory, and these lines share one time.
	mergeBytes = 256 << 10
	mergeTime  = int64(10 * time.Millisecond)
	// arrivalBytes bounds a chunk of several arrivals: a reader that follows reads the chunk again
	// at each of them.
	arrivalBytes = 8 << 10
)

func (r *ring) segmentMax() int { return r.max / segmentsPerRing }

// append stores a copy of a block. c holds the fields that the ring cannot fill in itself.
func (r *ring) append(text []byte, c chunk) {
	for rest := text; len(rest) > 0 && !r.closed; {
		text, rest = r.piece(rest)
		c.lines = 1
		if !c.cut {
			c.lines = int32(max(bytes.Count(text, newline), 1))
		}
		need := len(text) + chunkSize
		r.evict(need)
		stored := c
		if r.budget.exceeds(need) && len(text) > starvedLine {
			// piece has returned one line here.
			text, stored.cut = text[:runeBorder(text[:starvedLine])], true
		}
		r.store(stored, text)
		c.seq += uint64(c.lines)
		c.cont = false
	}
}

// piece takes from text as much as fits a segment: whole lines, or one line.
func (r *ring) piece(text []byte) (piece, rest []byte) {
	most := max(r.segmentMax()-chunkSize, 1)
	if r.budget.exceeds(len(text)) {
		most = min(most, starvedLine)
	}
	if len(text) <= most {
		return text, nil
	}
	if i := bytes.LastIndexByte(text[:most], '\n'); i >= 0 {
		return text[:i+1], text[i+1:]
	}
	if i := bytes.IndexByte(text[most:], '\n'); i >= 0 {
		return text[:most+i+1], text[most+i+1:]
	}
	return text, nil
}

// refer stores the place of a text in a file.
func (r *ring) refer(c chunk) {
	if !r.closed {
		r.evict(chunkSize)
		r.store(c, nil)
	}
}

// store adds c, whose text is given if it is not in a file. There is room for it.
func (r *ring) store(c chunk, text []byte) {
	c.first = r.next
	r.next += uint64(c.lines)
	if !r.join(&c, text) {
		need := len(text) + chunkSize
		r.segmentFor(need).add(c, text)
		r.grow(need)
	}
}

// join makes c a part of the newest chunk, if each line keeps its number and, but for mergeTime, its
// time.
func (r *ring) join(c *chunk, text []byte) bool {
	last := r.newest()
	if last == nil || !last.precedes(c) {
		return false
	}
	seq, at := last.at(int(last.lines) - 1)
	together := c.file != nil && c.seq == seq+1 && c.time-at < mergeTime
	need, most := len(text), mergeBytes
	if !together {
		need, most = need+arrivalSize, arrivalBytes
	}
	seg := r.segs[len(r.segs)-1]
	if last.size()+max(len(text), c.n) > most || seg.size()+need > r.segmentMax() {
		return false
	}
	if !together {
		seg.arrivals = append(seg.arrivals, arrival{
			line: uint32(last.lines), seq: uint32(c.seq - last.seq), later: uint32((c.time - last.time) / 1e3),
		})
		last.arrivals = tail(seg.arrivals, len(last.arrivals)+1)
	}
	if c.file == nil {
		seg.text = append(seg.text, text...)
		last.text = tail(seg.text, len(last.text)+len(text))
	}
	last.n += c.n
	last.lines += c.lines
	r.grow(need)
	return true
}

// precedes tells whether the text of c begins where that of l ends, and l can say where the lines of
// c came from.
func (l *chunk) precedes(c *chunk) bool {
	adjacent := l.file == c.file && l.off+int64(l.n) == c.off && (l.file != nil || bytes.HasSuffix(l.text, newline))
	seq, at := l.at(int(l.lines) - 1)
	return adjacent && l.run == c.run && l.pid == c.pid && !l.cut && !c.cut && !c.cont &&
		c.seq > seq && c.seq-l.seq <= math.MaxUint32 && c.time >= at && (c.time-l.time)/1e3 <= math.MaxUint32
}

// tail returns the last n elements, with room for no more.
func tail[T any](s []T, n int) []T { return s[len(s)-n : len(s) : len(s)] }

func (s *segment) add(c chunk, text []byte) {
	if c.file == nil {
		s.text = append(s.text, text...)
		c.text = tail(s.text, len(text))
	}
	s.arrivals = append(s.arrivals, c.arrivals...)
	c.arrivals = tail(s.arrivals, len(c.arrivals))
	s.chunks = append(s.chunks, c)
}

func (r *ring) grow(n int) {
	r.bytes += n
	r.budget.add(n)
}

func (r *ring) newest() *chunk {
	if len(r.segs) == 0 {
		return nil
	}
	chunks := r.segs[len(r.segs)-1].chunks
	if len(chunks) == 0 {
		return nil
	}
	return &chunks[len(chunks)-1]
}

// evict forgets the oldest segments until need more bytes fit. If the plane is over its budget, the
// ring that grows must forget more, down to one segment.
func (r *ring) evict(need int) {
	for len(r.segs) > 0 && r.counted()+need > r.max {
		r.dropOldest()
	}
	for len(r.segs) > 1 && r.budget.exceeds(need) {
		r.dropOldest()
	}
}

// counted is the size that counts towards max: all text except a long line at the old end. A
// segment over its normal size holds only one such line.
func (r *ring) counted() int {
	if oldest := r.segs[0].size(); oldest > r.segmentMax() {
		return r.bytes - oldest
	}
	return r.bytes
}

func (r *ring) dropOldest() {
	seg := r.segs[0]
	if n := len(seg.chunks); n > 0 {
		r.forgot.Store(seg.chunks[n-1].lastSeq())
		if c := &seg.chunks[0]; c.file != nil && !c.cont { // a mark within a line would divide it
			c.file.mark(c)
		}
	}
	r.segs[0] = nil // the array behind the slice stays in memory; the long line must not
	r.segs = r.segs[1:]
	r.bytes -= seg.size()
	r.budget.add(-seg.size())
	if !seg.shared && cap(seg.text) <= 2*r.segmentMax() {
		r.spare = seg
	}
}

// segmentFor returns the segment that takes need more bytes. Its text has room, or is copied into a
// larger array; readers keep the old array.
func (r *ring) segmentFor(need int) *segment {
	if n := len(r.segs); n > 0 {
		seg := r.segs[n-1]
		if seg.size()+need <= r.segmentMax() {
			return seg
		}
	}
	seg := r.spare
	r.spare = nil
	if seg == nil {
		seg = &segment{}
	}
	*seg = segment{text: seg.text[:0], chunks: seg.chunks[:0], arrivals: seg.arrivals[:0]}
	if cap(seg.text) == 0 && len(r.segs) > 0 && need > chunkSize {
		// The stream has filled a segment before, so it will probably fill this one.
		seg.text = make([]byte, 0, max(need-chunkSize, r.segmentMax()))
	}
	r.segs = append(r.segs, seg)
	return seg
}

// close forgets all lines and stores no more. It may be called again.
func (r *ring) close() {
	r.budget.add(-r.bytes)
	r.segs, r.spare, r.bytes, r.closed = nil, nil, 0, true
	r.forgot.Store(math.MaxUint64)
}

// first is the index of the oldest line in the ring.
func (r *ring) first() uint64 {
	for _, seg := range r.segs {
		if len(seg.chunks) > 0 {
			return seg.chunks[0].first
		}
	}
	return r.next
}

// after is the index of the first line whose Line.Seq is larger than seq.
func (r *ring) after(seq uint64) uint64 {
	for _, seg := range slices.Backward(r.segs) {
		for _, c := range slices.Backward(seg.chunks) {
			if c.seq <= seq {
				return c.first + uint64(c.upTo(seq))
			}
		}
	}
	return r.first()
}

// chunks returns the chunks that hold lines at or after index from.
func (r *ring) chunks(from uint64) []chunk {
	var out []chunk
	for _, seg := range r.segs {
		for _, c := range seg.chunks {
			if c.first+uint64(c.lines) > from {
				out = append(out, c)
				seg.shared = true
			}
		}
	}
	return out
}

// relocate replaces text in a file that is about to be removed by its copy in memory; the key is
// chunk.first. A chunk without a copy and all older ones are forgotten.
func (r *ring) relocate(gen *generation, texts map[uint64][]byte) {
	var kept []chunk
	for _, c := range r.chunks(0) {
		if c.file == gen {
			text, ok := texts[c.first]
			if !ok {
				kept = kept[:0]
				r.forgot.Store(c.lastSeq())
				continue
			}
			c.text, c.file, c.off, c.n = text, nil, 0, 0
		}
		kept = append(kept, c)
	}
	r.budget.add(-r.bytes)
	r.segs, r.bytes = nil, 0
	for _, c := range kept {
		size := len(c.text) + chunkSize + len(c.arrivals)*arrivalSize
		r.segmentFor(size).add(c, c.text)
		r.grow(size)
	}
}

// size is the number of bytes of the text.
func (c *chunk) size() int { return max(len(c.text), c.n) }

// at returns the Line.Seq and the time of the i-th line.
func (c *chunk) at(i int) (seq uint64, t int64) {
	seq, t = c.seq, c.time
	n := sort.Search(len(c.arrivals), func(j int) bool { return int(c.arrivals[j].line) > i })
	if n > 0 {
		a := c.arrivals[n-1]
		i -= int(a.line)
		seq, t = seq+uint64(a.seq), t+int64(a.later)*1e3
	}
	return seq + uint64(i), t
}

// lastSeq is the Line.Seq of the last line.
func (c *chunk) lastSeq() uint64 {
	seq, _ := c.at(int(c.lines) - 1)
	return seq
}

// upTo counts the lines with a Seq of at most seq.
func (c *chunk) upTo(seq uint64) int {
	return sort.Search(int(c.lines), func(i int) bool { s, _ := c.at(i); return s > seq })
}

// before counts the lines that came before a time.
func (c *chunk) before(t time.Time) int {
	return sort.Search(int(c.lines), func(i int) bool { _, at := c.at(i); return at >= unixNano(t) })
}

// after counts the lines with a Seq above seq and an index of at least from.
func (c *chunk) after(seq, from uint64) uint64 {
	skip := max(uint64(c.upTo(seq)), max(from, c.first)-c.first)
	return uint64(c.lines) - min(skip, uint64(c.lines))
}

// forgotten is an upper bound of how many lines with a Seq above after were forgotten: some of
// these numbers belong to other streams.
func (r *ring) forgotten(after uint64) uint64 {
	forgot := r.forgot.Load()
	if after == 0 || forgot <= after {
		return 0
	}
	return min(forgot-after, r.first())
}

// block returns the lines of the chunk, whose text is given, and the number of the first one in the
// chunk.
func (c *chunk) block(text []byte) (b block, first int) {
	if c.cont && int(c.lines) > 0 && ending(text) > 0 {
		first = 1 // the newline of a line that was cut before takes a number, but is not a line
	}
	return block{text: text, cut: c.cut, cont: c.cont}, first
}

// ending is the length of the newline at the start of text. After a line that was cut, that newline
// only ends it.
func ending(text []byte) int {
	switch {
	case bytes.HasPrefix(text, newline):
		return 1
	case bytes.HasPrefix(text, []byte("\r\n")):
		return 2
	}
	return 0
}

// line makes a Line of the i-th line of a chunk, without its text.
func (c *chunk) line(program string, stream Stream, i int) Line {
	seq, at := c.at(i)
	return Line{
		Seq: seq, Time: time.Unix(0, at), Program: program, Stream: stream,
		PID: int(c.pid), Run: c.run,
	}
}
