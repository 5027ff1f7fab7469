package logs

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Query selects lines. The zero value selects everything that is in the rings.
type Query struct {
	Programs []string  // exact names; empty means all, later ones included
	Streams  []Stream  // empty means both
	Run      uint64    // 0 means every run
	Since    time.Time // lines read at or after; zero means all
	After    uint64    // only lines with a larger Seq: resume where a reader stopped
	// Lines is how many of the newest matching lines to begin with: 0 means all,
	// a negative number none.
	Lines  int
	Grep   *regexp.Regexp // on the text
	Follow bool           // go on with new lines until the context ends
}

// match is all but Grep: it runs while the ring is locked.
func (q *Query) match(r record) bool {
	return r.seq > q.After &&
		(q.Run == 0 || r.run == q.Run) &&
		(q.Since.IsZero() || r.time >= q.Since.UnixNano())
}

// grep applies Grep to copies, so that a dear pattern delays nobody else.
func (q *Query) grep(lines []Line) []Line {
	if q.Grep == nil {
		return lines
	}
	return slices.DeleteFunc(lines, func(l Line) bool { return l.Dropped == 0 && !q.Grep.MatchString(l.Text) })
}

// newest returns the last n lines as Lines means it.
func (q *Query) newest(lines []Line) []Line {
	if q.Lines > 0 && len(lines) > q.Lines {
		return lines[len(lines)-q.Lines:]
	}
	return lines
}

func (q *Query) wantsProgram(name string) bool {
	return len(q.Programs) == 0 || slices.Contains(q.Programs, name)
}

func (q *Query) wantsStream(s Stream) bool {
	return len(q.Streams) == 0 || slices.Contains(q.Streams, s)
}

// followers are the readers that wait for new lines.
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

// wakeFollowers never waits: a follower that is busy will look again.
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

// Read returns the selected lines in the order they were read. With Query.Follow
// it goes on until ctx ends; a follower that is so slow that a ring went round
// gets a Line with Dropped set in place of what it missed. Reading never delays
// a program.
func (p *Plane) Read(ctx context.Context, q Query) iter.Seq[Line] {
	return func(yield func(Line) bool) {
		r := &reader{plane: p, query: q, next: map[*programLog]*[2]uint64{}}
		var wake chan struct{}
		if q.Follow {
			wake = p.follow.add()
			defer p.follow.remove(wake)
		}
		for _, ln := range r.history() {
			if ctx.Err() != nil || !yield(ln) {
				return
			}
		}
		for q.Follow {
			select {
			case <-ctx.Done():
				return
			case <-wake:
			}
			for _, ln := range r.news() {
				if ctx.Err() != nil || !yield(ln) {
					return
				}
			}
		}
	}
}

// reader is one reader's place in every ring.
type reader struct {
	plane *Plane
	query Query
	next  map[*programLog]*[2]uint64
}

// each collects lines from every ring the query wants. take runs with the ring
// locked.
func (r *reader) each(take func(pl *programLog, kind Stream, next *uint64) []Line) []Line {
	var lines []Line
	for _, pl := range r.plane.list() {
		if !r.query.wantsProgram(pl.name) {
			continue
		}
		next := r.next[pl]
		if next == nil {
			next = new([2]uint64)
			r.next[pl] = next
		}
		for _, kind := range []Stream{Stdout, Stderr} {
			if r.query.wantsStream(kind) {
				pl.mu.Lock()
				taken := take(pl, kind, &next[kind-1])
				pl.mu.Unlock()
				lines = append(lines, r.query.grep(taken)...)
			}
		}
	}
	bySeq(lines)
	return lines
}

// history returns the newest lines and puts the reader behind them.
func (r *reader) history() []Line {
	limit := r.query.Lines
	if limit == 0 || limit > 0 && r.query.Grep != nil {
		limit = math.MaxInt
	}
	return r.query.newest(r.each(func(pl *programLog, kind Stream, next *uint64) []Line {
		var taken []Line
		ring := &pl.rings[kind-1]
		*next = ring.next
		ring.backward(func(rec record, text []byte) bool {
			if len(taken) >= limit || rec.seq <= r.query.After {
				return false
			}
			if r.query.match(rec) {
				taken = append(taken, rec.line(pl.name, kind, text))
			}
			return true
		})
		return taken
	}))
}

// news returns the lines since the last call.
func (r *reader) news() []Line {
	return r.each(func(pl *programLog, kind Stream, next *uint64) []Line {
		var taken []Line
		ring := &pl.rings[kind-1]
		if first := ring.first(); first > *next {
			taken = append(taken, lost(pl.name, kind, first-*next))
			*next = first
		}
		ring.forward(*next, func(rec record, text []byte) bool {
			if r.query.match(rec) {
				taken = append(taken, rec.line(pl.name, kind, text))
			}
			return true
		})
		*next = ring.next
		return taken
	})
}

func lost(program string, kind Stream, n uint64) Line {
	return Line{
		Time: time.Now(), Program: program, Stream: kind, Dropped: n,
		Text: fmt.Sprintf("%d lines dropped: this reader is too slow", n),
	}
}

// bySeq sorts lines; marks of a loss (Seq 0) come first, where the loss is.
func bySeq(lines []Line) {
	slices.SortStableFunc(lines, func(a, b Line) int { return cmp.Compare(a.Seq, b.Seq) })
}
