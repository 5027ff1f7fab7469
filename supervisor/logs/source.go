package logs

import (
	"container/heap"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/plural"
)

// rank is the position of a line in the order of all lines.
type rank struct {
	order uint64
	ring  bool // lines of a ring come after those of a gap with the same order
	time  int64
}

func (p rank) before(q rank) bool {
	switch {
	case p.order != q.order:
		return p.order < q.order
	case p.ring != q.ring:
		return q.ring
	}
	return p.time < q.time
}

// source yields the lines of one stream, or of one file, in order. It reads text only in next: sources
// whose turn has not come have almost nothing in memory, however many there are and however long the
// lines of programs are.
type source interface {
	// due returns the place of the next line, which may not be one that the query wants. It returns
	// false at the end.
	due() (rank, bool)
	// next reads on from that place, a little at a time. It returns false if that has led to no line yet.
	next() (Line, bool)
}

// chunkSource yields the lines of chunks. It makes a Line of each line only when the reader takes it: a
// chunk may be nothing but newlines, and a Line takes a hundred times as much memory as a newline.
type chunkSource struct {
	reader  *reader
	program string
	kind    Stream
	chunks  []chunk
	from    uint64      // index of the first wanted line
	to      uint64      // index after the last wanted line
	lost    uint64      // lines that are missing before the next line
	why     string      // why these lines are missing
	current *generation // the file with the newest chunk, if it was the current one when the reader began

	open  chunk // the chunk that is being read
	lines block // what is left of it
	line  int   // number of the next line in the chunk
}

// take adds the wanted chunks of a locked ring and returns how many lines they have at least.
func (s *chunkSource) take(ring *ring) (lines int) {
	for _, c := range ring.chunks(s.from) {
		if c.first >= s.to {
			break
		}
		c.lines = int32(min(uint64(c.lines), s.to-c.first))
		if !s.reader.query.wants(s.program, &c) {
			continue
		}
		if from, to := s.reader.query.times(&c); from < to {
			c.lines = int32(to)
			s.chunks = append(s.chunks, c)
			lines += s.sure(&c)
		}
	}
	if n := len(s.chunks); n > 0 && s.chunks[n-1].file != nil && s.chunks[n-1].file.isOpen() {
		s.current = s.chunks[n-1].file
	}
	return lines
}

// empty tells, before the source is read, whether it has no lines.
func (s *chunkSource) empty() bool { return s.lost == 0 && len(s.chunks) == 0 }

// trim keeps the newest chunks with at least n lines.
func (s *chunkSource) trim(n int) {
	for i := len(s.chunks) - 1; i >= 0; i-- {
		if n -= s.sure(&s.chunks[i]); n <= 0 {
			s.chunks = s.chunks[i:]
			return
		}
	}
}

// sure is how many lines of a chunk the reader certainly gets. The first of its numbers may be that of
// the newline of a line that was cut before (see chunk.block), which its text would tell.
func (s *chunkSource) sure(c *chunk) int {
	from, _ := s.reader.query.times(c)
	if c.cont {
		from = max(from, 1)
	}
	return int(c.lines) - from
}

func (s *chunkSource) due() (rank, bool) {
	switch {
	case s.lost > 0:
		return rank{ring: true}, true
	case len(s.lines.text) > 0:
		seq, _ := s.open.at(s.line)
		return rank{order: seq, ring: true}, true
	case len(s.chunks) > 0:
		return rank{order: s.chunks[0].seq, ring: true}, true
	}
	return rank{}, false
}

func (s *chunkSource) next() (Line, bool) {
	ln, ok := s.lines.line()
	if !ok {
		return s.load()
	}
	i := s.line
	s.line++
	seq, at := s.open.at(i)
	index := s.open.first + uint64(i)
	if q := &s.reader.query; index >= s.from && index < s.to && q.matches(seq, at, ln.display()) {
		line := s.open.line(s.program, s.kind, i)
		line.Text, line.Truncated = q.text(ln)
		return line, true
	}
	return Line{}, false
}

// load opens the next chunk, or returns the mark of the lines that are missing before it.
func (s *chunkSource) load() (mark Line, ok bool) {
	if len(s.chunks) > 0 {
		c := s.chunks[0]
		text, err := c.read(&s.reader.files)
		if err != nil {
			s.chunks = s.chunks[1:]
			s.miss(&c, err)
			return Line{}, false
		}
		if c.file != nil {
			s.reader.show(c.file.log)
		}
		if s.lost == 0 {
			s.open, s.chunks = c, s.chunks[1:]
			s.lines, s.line = c.block(text)
			return Line{}, false
		}
	}
	if s.lost > 0 {
		mark, ok = lost(s.program, s.kind, s.lost, s.why), true
		s.lost = 0
	}
	return mark, ok
}

// miss counts the lines of a chunk that cannot be read. That the oldest files are removed is usual, but
// not that one is missing after those that were read or was the current one when the reader began, or is
// there and damaged.
func (s *chunkSource) miss(c *chunk, err error) {
	gone := errors.Is(err, errGone)
	if q := &s.reader.query; q.Follow || q.After > 0 || !gone || s.reader.shown[c.file.log] || c.file == s.current {
		s.lost += c.after(q.After, s.from)
		s.why = "lost: the log file is gone"
		if !gone {
			s.why = "lost: the log file cannot be read"
		}
	}
}

func lost(program string, kind Stream, n uint64, why string) Line {
	return Line{
		Time: time.Now(), Program: program, Stream: kind, Dropped: n,
		Text: plural.Of(n, "line") + " " + why,
	}
}

// merge yields the lines of all sources in order, until ctx ends. The mark of a loss comes at the place
// of the loss.
func merge(ctx context.Context, sources []source) iter.Seq[Line] {
	return func(yield func(Line) bool) {
		var heads heads
		for _, s := range sources {
			if place, ok := s.due(); ok {
				heads = append(heads, head{place, s})
			}
		}
		heap.Init(&heads)
		for len(heads) > 0 && ctx.Err() == nil {
			s := heads[0].source
			if ln, ok := s.next(); ok && !yield(ln) {
				return
			}
			place, ok := s.due()
			if !ok {
				heap.Pop(&heads)
				continue
			}
			heads[0].place = place
			heap.Fix(&heads, 0)
		}
	}
}

type head struct {
	place  rank
	source source
}

// heads is a heap of sources with more lines.
type heads []head

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].place.before(h[j].place) }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(head)) }
func (h *heads) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = head{}
	*h = old[:len(old)-1]
	return last
}
