package events

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// oldest is the number of the oldest readable event, or seq+1 if there is none.
func (j *journal) oldest() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.oldestLocked()
}

// oldestLocked is oldest for a caller that holds mu.
func (j *journal) oldestLocked() uint64 {
	for _, s := range j.segments {
		if s.first != 0 {
			return s.first
		}
	}
	return j.seq + 1
}

// read calls f for the events after a number, in order, until f returns false, ctx ends, about
// limit bytes were read, or there are no more. It returns the number of the last event that was
// read, and whether it reached the end.
func (j *journal) read(ctx context.Context, after uint64, limit int64, f func(adapters.Event) bool) (last uint64, end bool, err error) {
	last = after
	for limit > 0 {
		s, offset, size, more := j.locate(last)
		if s == nil {
			return last, true, nil
		}
		next, n, stop, err := j.readSegment(ctx, s, offset, size, last, limit, f)
		limit -= n
		last = next
		if err != nil || stop {
			return last, false, err
		}
		if limit <= 0 {
			return last, false, nil
		}
		if !more {
			// These are all lines that existed when locate ran; later lines are for the next read.
			return last, true, nil
		}
		last = max(last, j.before(s))
	}
	return last, false, nil
}

// before is the number before the segment that follows s.
func (j *journal) before(s *segment) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.Index(j.segments, s)
	for _, next := range j.segments[i+1:] {
		if next.first != 0 {
			return next.first - 1
		}
	}
	return 0
}

// locate finds the segment with the event after a number, the offset at which to begin, its size,
// and whether another segment follows.
func (j *journal) locate(after uint64) (s *segment, offset, size int64, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if after >= j.seq {
		return nil, 0, 0, false
	}
	for i, x := range j.segments {
		if x.first == 0 {
			continue
		}
		if s != nil && x.first > after+1 {
			return s, offset, size, true
		}
		s, offset, size = x, 0, x.size
		for _, m := range x.index {
			if m.seq > after+1 {
				break
			}
			offset = m.offset
		}
		if x.first > after {
			return s, offset, size, i < len(j.segments)-1
		}
	}
	return s, offset, size, false
}

func (j *journal) readSegment(ctx context.Context, s *segment, offset, size int64, after uint64, limit int64, f func(adapters.Event) bool) (last uint64, n int64, stop bool, err error) {
	last = after
	file, err := safeopen.OpenFile(filepath.Join(j.dir, s.name()), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return last, 0, false, nil // retention has removed it meanwhile
	}
	if err != nil {
		return last, 0, false, adapters.Unavailable(err, "cannot read the journal")
	}
	defer file.Close()
	lines := newLines(ctx, io.NewSectionReader(file, offset, size-offset))
	for lines.next() {
		if err := ctx.Err(); err != nil {
			return last, lines.offset, false, adapters.AsError(err)
		}
		e, err := parseEvent(lines.bytes)
		if err != nil || e.Seq <= last {
			continue
		}
		last = e.Seq
		if !f(e) {
			return last, lines.offset, true, nil
		}
		if lines.offset > limit {
			return last, lines.offset, true, nil
		}
	}
	if lines.err != nil {
		return last, lines.offset, false, adapters.Unavailable(lines.err, "cannot read the journal")
	}
	return last, lines.offset, false, nil
}

// lines iterates over whole lines and gives the offset of each. A line longer than maxLine is
// skipped.
type lines struct {
	r      *bufio.Reader
	bytes  []byte
	offset int64 // of bytes, then of what follows at the end
	pos    int64
	err    error
}

// newLines ends with ctx: a program can leave a segment of terabytes without a line.
func newLines(ctx context.Context, r io.Reader) *lines {
	return &lines{r: bufio.NewReaderSize(adapters.UntilDone(ctx, r), 64<<10)}
}

func (l *lines) next() bool {
	for {
		l.offset = l.pos
		l.bytes = l.bytes[:0]
		long := false
		for {
			part, err := l.r.ReadSlice('\n')
			l.pos += int64(len(part))
			if len(l.bytes)+len(part) <= maxLine {
				l.bytes = append(l.bytes, part...)
			} else {
				long = true
			}
			if err == nil {
				break
			}
			if err == bufio.ErrBufferFull {
				continue
			}
			if err != io.EOF {
				l.err = err
			}
			l.offset = l.pos
			return false
		}
		if !long && len(l.bytes) > 1 {
			return true
		}
	}
}
