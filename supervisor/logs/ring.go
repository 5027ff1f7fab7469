package logs

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// budget is the number of bytes all rings of a plane may hold together.
type budget struct {
	max  int64
	used atomic.Int64
}

func (b *budget) add(n int)          { b.used.Add(int64(n)) }
func (b *budget) exceeds(n int) bool { return b.used.Load()+int64(n) > b.max }

// record is what a ring knows of a line beside its text.
type record struct {
	seq  uint64
	time int64 // Unix nanoseconds
	run  uint64
	off  uint32
	n    uint32
	pid  int32
	cut  bool
}

const recordSize = int(unsafe.Sizeof(record{}))

// segment is the unit in which a ring forgets.
type segment struct {
	first uint64 // index in the ring of recs[0]
	data  []byte
	recs  []record
}

func (s *segment) size() int { return len(s.data) + len(s.recs)*recordSize }

// ring keeps the newest lines of one stream. It holds at most max bytes besides
// one long line, however long: that one goes only when what came after it fills
// the ring, and not with the next line. A silent stream costs nothing. The owner
// locks.
type ring struct {
	max    int
	budget *budget
	segs   []*segment
	spare  *segment
	bytes  int
	next   uint64 // index of the next line; indices of a ring have no gaps
	closed bool
}

const (
	segmentsPerRing = 8
	// starvedLine is what of a long line is kept when the plane's budget is used up.
	starvedLine = 4 << 10
)

func (r *ring) segmentMax() int { return r.max / segmentsPerRing }

// append stores a line.
func (r *ring) append(text []byte, rec record) {
	if r.closed {
		return
	}
	need := len(text) + recordSize
	r.evict(need)
	if r.budget.exceeds(need) && len(text) > starvedLine {
		text, rec.cut = text[:runeBorder(text[:starvedLine])], true
		need = len(text) + recordSize
	}
	seg := r.segmentFor(need)
	rec.off, rec.n = uint32(len(seg.data)), uint32(len(text))
	seg.data = append(seg.data, text...)
	seg.recs = append(seg.recs, rec)
	r.next++
	r.bytes += need
	r.budget.add(need)
}

// evict forgets the oldest segments until need more bytes fit. A plane over its
// budget makes the ring that grows pay, down to one segment.
func (r *ring) evict(need int) {
	for len(r.segs) > 0 && r.counted()+need > r.max {
		r.dropOldest()
	}
	for len(r.segs) > 1 && r.budget.exceeds(need) {
		r.dropOldest()
	}
}

// counted is what counts towards max: all but a long line at the old end. A
// segment over its size is one such line alone.
func (r *ring) counted() int {
	if oldest := r.segs[0].size(); oldest > r.segmentMax() {
		return r.bytes - oldest
	}
	return r.bytes
}

func (r *ring) dropOldest() {
	seg := r.segs[0]
	r.segs[0] = nil // the array behind it lives on, a long line must not
	r.segs = r.segs[1:]
	r.bytes -= seg.size()
	r.budget.add(-seg.size())
	if cap(seg.data) <= 2*r.segmentMax() {
		r.spare = seg
	}
}

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
		if len(r.segs) > 0 {
			// The stream has filled a segment before, so it will fill this one.
			seg.data = make([]byte, 0, max(need, r.segmentMax()*3/4))
		}
	}
	*seg = segment{first: r.next, data: seg.data[:0], recs: seg.recs[:0]}
	r.segs = append(r.segs, seg)
	return seg
}

// close forgets everything and stores nothing more.
func (r *ring) close() {
	r.budget.add(-r.bytes)
	r.segs, r.spare, r.bytes, r.closed = nil, nil, 0, true
}

// first is the index of the oldest line that is still there.
func (r *ring) first() uint64 {
	if len(r.segs) == 0 {
		return r.next
	}
	return r.segs[0].first
}

// backward calls f from the newest line to the oldest until f returns false. The
// text is valid only during the call.
func (r *ring) backward(f func(record, []byte) bool) {
	for i := len(r.segs) - 1; i >= 0; i-- {
		seg := r.segs[i]
		for j := len(seg.recs) - 1; j >= 0; j-- {
			if rec := seg.recs[j]; !f(rec, seg.data[rec.off:rec.off+rec.n]) {
				return
			}
		}
	}
}

// forward calls f from the line with index from to the newest until f returns
// false.
func (r *ring) forward(from uint64, f func(record, []byte) bool) {
	for _, seg := range r.segs {
		if seg.first+uint64(len(seg.recs)) <= from {
			continue
		}
		skip := uint64(0)
		if from > seg.first {
			skip = from - seg.first
		}
		for _, rec := range seg.recs[skip:] {
			if !f(rec, seg.data[rec.off:rec.off+rec.n]) {
				return
			}
		}
	}
}

// line makes the public form of a record.
func (r record) line(program string, stream Stream, text []byte) Line {
	return Line{
		Seq: r.seq, Time: time.Unix(0, r.time), Program: program, Stream: stream,
		PID: int(r.pid), Run: r.run, Text: string(text), Truncated: r.cut,
	}
}
