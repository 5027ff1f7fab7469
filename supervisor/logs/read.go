package logs

import (
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

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
// ctx ends or Query.Ending is closed. If a follower is so slow that a ring has overwritten lines, it gets a Line with Dropped
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
		for ending := false; q.Follow && !ending && (q.Until.IsZero() || time.Now().Before(q.Until)); {
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
			case <-q.Ending:
				ending = true
			}
			if !r.yieldNews(yield) {
				return
			}
		}
	}
}

// yieldNews yields the lines that are new since the last call. It returns false if the caller wants no
// more lines.
func (r *reader) yieldNews(yield func(Line) bool) bool {
	for more := true; more; {
		var sources []source
		sources, more = r.news()
		for ln := range merge(r.ctx, sources) {
			if !yield(ln) {
				return false
			}
		}
		more = more && r.ctx.Err() == nil
	}
	return true
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
			s.lost, s.why = ring.forgotten(r.query.After), "or fewer are not in memory any more; since shows them if the program has a log file"
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

// show records that text of a log was read: what is missing after it is a hole.
func (r *reader) show(log string) {
	if r.shown != nil {
		r.shown[log] = true
	}
}
