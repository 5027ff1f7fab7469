package logs

import (
	"math"
	"regexp"
	"slices"
	"time"
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
	// Ending, if not nil, ends Follow when it is closed. The reader still gets the lines that were read by then.
	Ending <-chan struct{}
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
