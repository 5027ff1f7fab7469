package logs

import (
	"container/heap"
	"context"
	"errors"
	"iter"
	"math"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/plural"
)

// Query selects lines. The zero value selects all lines in the rings.
type Query struct {
	Programs []string // exact names; empty means all programs, later ones too
	// Also, if not nil, chooses further programs by name: an apply may add or rename programs while a
	// reader follows.
	Also    func(program string) bool
	Streams []Stream // empty means both
	Run     uint64   // 0 means every run
	// Runs, if not nil, names the wanted run of each program; other programs are left out.
	Runs  map[string]uint64
	Since time.Time // lines read at or after; zero means all
	Until time.Time // lines read before; zero means all
	// Resume is the time of a line that an earlier agentinit has read. It leaves out the files that
	// ended before it did. It selects every line of this agentinit, because the clock may have been
	// set back since.
	Resume time.Time
	// After selects lines with a larger Seq: a reader resumes where it stopped. If a ring has
	// forgotten lines after it, a Line with Dropped set comes first. Its number is an upper bound.
	// Such a Line also stands for lines whose file was removed, here, with Follow, and if the file was
	// removed after the reader had begun.
	After uint64
	// Files adds the lines that only the log files have: those from before agentinit started, and
	// those that the rings have forgotten. Their Seq, Run and PID are 0. Their time is the latest
	// possible one: when their file was rotated.
	Files bool
	// Lines is how many of the newest matching lines to return first. 0 means all, a negative
	// number none.
	Lines  int
	Grep   *regexp.Regexp // applied to the whole text
	Cut    int            // most bytes of a Line's text, which is cut there and marked as truncated; 0 means all
	Follow bool           // continue with new lines until the context ends
}

// wants tells whether a program's chunk may hold selected lines.
func (q *Query) wants(program string, c *chunk) bool {
	return c.lastSeq() > q.After && (q.Run == 0 || c.run == q.Run) && (q.Runs == nil || c.run == q.Runs[program])
}

// times returns the numbers of a chunk's lines that were read in the wanted time.
func (q *Query) times(c *chunk) (from, to int) {
	if !q.Since.IsZero() {
		from = c.before(q.Since)
	}
	if to = int(c.lines); !q.Until.IsZero() {
		to = c.before(q.Until)
	}
	return from, to
}

func (q *Query) inTime(t int64) bool {
	return (q.Since.IsZero() || t >= unixNano(q.Since)) && (q.Until.IsZero() || t < unixNano(q.Until))
}

// unixNano is Time.UnixNano, but the nearest possible value for a time that int64 cannot hold.
func unixNano(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// text returns what a reader gets of a line, and whether it is not the whole line.
func (q *Query) text(ln rawLine) (text string, truncated bool) {
	shown := ln.display()
	if q.Cut == 0 || len(shown) <= q.Cut {
		return string(shown), ln.cut
	}
	return string(shown[:runeBorder(shown[:q.Cut])]), true
}

// matches applies the conditions that need the single line.
func (q *Query) matches(seq uint64, at int64, text []byte) bool {
	return seq > q.After && q.inTime(at) && (q.Grep == nil || q.Grep.Match(text))
}

func (q *Query) wantsProgram(name string) bool {
	return len(q.Programs) == 0 || slices.Contains(q.Programs, name) || q.Also != nil && q.Also(name)
}

func (q *Query) wantsStream(s Stream) bool {
	return len(q.Streams) == 0 || slices.Contains(q.Streams, s)
}

// followers is the set of readers that wait for new lines.
type followers struct {
	mu   sync.Mutex
	list atomic.Pointer[[]chan struct{}]
}

func (f *followers) add() chan struct{} {
	c := make(chan struct{}, 1)
	f.change(func(l []chan struct{}) []chan struct{} { return append(l, c) })
	return c
}

func (f *followers) remove(c chan struct{}) {
	f.change(func(l []chan struct{}) []chan struct{} {
		return slices.DeleteFunc(l, func(o chan struct{}) bool { return o == c })
	})
}

func (f *followers) change(edit func([]chan struct{}) []chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []chan struct{}
	if old := f.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	list = edit(list)
	f.list.Store(&list)
}

// wakeFollowers never waits: a follower that is busy checks again later.
func (p *Plane) wakeFollowers() {
	list := p.follow.list.Load()
	if list == nil {
		return
	}
	for _, c := range *list {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Read returns the selected lines in the order they were read. With Query.Follow it continues until
// ctx ends. If a follower is so slow that a ring has overwritten lines, it gets a Line with Dropped
// set in their place. Reading never delays a program.
func (p *Plane) Read(ctx context.Context, q Query) iter.Seq[Line] {
	return func(yield func(Line) bool) {
		r := &reader{ctx: ctx, plane: p, query: q, next: map[*programLog]*[2]uint64{}}
		defer r.close()
		var wake chan struct{}
		if q.Follow {
			wake = p.follow.add()
			defer p.follow.remove(wake)
		}
		if !r.history(yield) {
			return
		}
		for q.Follow && (q.Until.IsZero() || time.Now().Before(q.Until)) {
			r.files.close() // a waiting reader must not keep files open
			var end <-chan time.Time
			if !q.Until.IsZero() {
				end = time.After(time.Until(q.Until))
			}
			select {
			case <-ctx.Done():
				return
			case <-end:
			case <-wake:
			}
			for more := true; more; {
				var sources []source
				sources, more = r.news()
				for ln := range merge(ctx, sources) {
					if !yield(ln) {
						return
					}
				}
				more = more && ctx.Err() == nil
			}
		}
	}
}

// reader is one reader's place in every ring.
type reader struct {
	ctx   context.Context // of the whole read
	plane *Plane
	query Query
	files generationFiles
	// The compressed files that its gap sources are unpacking, most recently read last. One that was
	// closed meanwhile has no memory.
	unpacking []*generationReader
	shown     map[string]bool // the logs of which text was read, by their paths

	next map[*programLog]*[2]uint64
	upTo uint64 // the Line.Seq up to which it has taken all lines
	made uint64 // Plane.made when it looked for programs
}

func (r *reader) close() {
	r.files.close()
	for pl := range r.next {
		r.plane.leave(pl)
	}
}

// each calls take for every ring that the query wants. The ring is locked meanwhile. It takes the
// lines up to the number upTo from all rings. Otherwise a program that was visited early could print
// a line before a program that is visited late: the reader would get only the later line, and a
// client that resumes after that line would miss the earlier one.
func (r *reader) each(upTo uint64, take func(s *chunkSource, ring *ring, next uint64)) {
	r.upTo = upTo
	r.arrivals()
	for pl, next := range r.next {
		ended := true // the program was removed, and the reader has all its lines
		for _, kind := range []Stream{Stdout, Stderr} {
			if r.query.wantsStream(kind) {
				pl.mu.Lock()
				ring := &pl.rings[kind-1]
				s := &chunkSource{reader: r, program: pl.name, kind: kind, to: ring.after(upTo)}
				take(s, ring, next[kind-1])
				next[kind-1] = s.to
				ended = ended && pl.removed && s.to == ring.next
				pl.mu.Unlock()
			}
		}
		if ended {
			delete(r.next, pl)
			r.plane.leave(pl)
		}
	}
}

// arrivals adds the wanted programs that the reader does not know yet.
func (r *reader) arrivals() {
	made := r.plane.made.Load()
	if made == r.made {
		return // to check the names of all programs at each line would take too long
	}
	r.made = made
	names := r.query.Programs
	if r.query.Also != nil {
		names = nil
	}
	for _, pl := range r.plane.list(names) {
		if r.query.wantsProgram(pl.name) && r.next[pl] == nil && pl.enter() {
			r.next[pl] = new([2]uint64)
		}
	}
}

// history yields the newest lines and moves the reader behind them. It returns false if the caller
// wants no more lines.
func (r *reader) history(yield func(Line) bool) bool {
	sources := r.sources()
	if r.query.Lines < 0 {
		return true
	}
	lines := func(yield func(Line) bool) {
		all := sources()
		defer closeFiles(all)
		merge(r.ctx, all)(yield)
	}
	skip := 0
	if n := r.query.Lines; n > 0 {
		if kept, ok := newest(lines, n); ok {
			for _, ln := range kept {
				if r.ctx.Err() != nil || !yield(ln) {
					return false
				}
			}
			return r.ctx.Err() == nil
		}
		// They are too many to keep, so count them first.
		for range lines {
			skip++
		}
		skip = max(skip-n, 0)
	}
	for ln := range lines {
		if skip > 0 {
			skip--
			continue
		}
		if !yield(ln) {
			return false
		}
	}
	return r.ctx.Err() == nil
}

// keptLines and keptBytes bound what a reader may have in memory at once. A program can fill its
// log files with lines of MaxLine.
const (
	keptLines = 10_000
	keptBytes = 4 << 20
)

// newest returns the last n lines. It returns false if they are too many to keep.
func newest(lines iter.Seq[Line], n int) (kept []Line, ok bool) {
	if n > keptLines {
		return nil, false
	}
	at, size := 0, 0
	for ln := range lines {
		if size += len(ln.Text); len(kept) < n {
			kept = append(kept, ln)
		} else {
			size -= len(kept[at].Text)
			kept[at] = ln
			at = (at + 1) % n
		}
		if size > keptBytes {
			return nil, false
		}
	}
	return append(kept[at:], kept[:at]...), true
}

// sources records which lines there are now. Each call of the returned function yields the same
// lines again.
func (r *reader) sources() func() []source {
	var rings []*chunkSource
	held := 0
	r.each(r.plane.seq.Load(), func(s *chunkSource, ring *ring, _ uint64) {
		if r.query.Run == 0 && r.query.Runs == nil {
			s.lost, s.why = ring.forgotten(r.query.After), "not in memory any more; since shows them if the program has a log file"
		}
		held += s.take(ring)
		if !s.empty() {
			rings = append(rings, s)
		}
	})
	n := r.query.Lines
	var gaps []*gapSource
	if r.query.Files && (n == 0 || n > held || r.query.Grep != nil) {
		gaps = r.gaps()
	} else if n > 0 && r.query.Grep == nil {
		for _, s := range rings {
			s.trim(n)
		}
	}
	return func() []source {
		r.shown = map[string]bool{}
		var all []source
		for _, g := range gaps {
			again := *g
			again.files = slices.Clone(g.files) // load changes them
			all = append(all, &again)
		}
		for _, s := range rings {
			again := *s
			all = append(all, &again)
		}
		return all
	}
}

// news returns the lines that are new since the last call, and whether there are more. It returns
// only some at once: until the reader has used them, their memory stays in use, even when the rings
// forget them.
func (r *reader) news() (all []source, more bool) {
	newest := r.plane.seq.Load()
	upTo := min(newest, r.upTo+keptLines)
	r.each(upTo, func(s *chunkSource, ring *ring, next uint64) {
		s.from, s.why = next, "dropped: this reader is too slow"
		if first := ring.first(); first > next {
			s.lost, s.from = first-next, first
		}
		s.take(ring)
		if !s.empty() {
			all = append(all, s)
		}
	})
	return all, upTo < newest
}

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

// show records that text of a log was read: what is missing after it is a hole.
func (r *reader) show(log string) {
	if r.shown != nil {
		r.shown[log] = true
	}
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
