package logs

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/plural"
)

// Rate bounds what a program may print. A zero value sets no bound.
type Rate struct {
	Lines    int           // in Interval
	Bytes    int64         // in Interval
	Interval time.Duration // default 1 s
}

func (r Rate) limits() bool { return r.Lines > 0 || r.Bytes > 0 }

// limiter counts the output of one program in windows of time. Output above the limit is suppressed
// everywhere; a line reports how much it was.
type limiter struct {
	mu     sync.Mutex
	rate   Rate
	begun  time.Time // start of the window
	lines  int
	bytes  int64
	lost   suppressed
	timing bool // a timer will ask for the summary at the end of the window
}

// suppressed is how much output was suppressed.
type suppressed struct {
	lines int
	bytes int64
}

func (l *limiter) set(rate Rate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rate.Interval <= 0 {
		rate.Interval = time.Second
	}
	l.rate = rate
}

// admit tells how many bytes of a block may pass: whole lines from its start. last is what was
// suppressed before and must be reported first. If wait > 0, the caller must ask for the summary
// after that time.
func (l *limiter) admit(blk block, now time.Time) (n int, last suppressed, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := now.Sub(l.begun); age < 0 || age >= l.rate.Interval {
		l.begun, l.lines, l.bytes = now, 0, 0
		last, l.lost = l.lost, suppressed{}
	}
	text := blk.text
	for n < len(text) {
		end := len(text)
		if i := bytes.IndexByte(text[n:], '\n'); i >= 0 {
			end = n + i + 1
		}
		if l.rate.Lines > 0 && l.lines >= l.rate.Lines || l.rate.Bytes > 0 && l.bytes+int64(end-n) > l.rate.Bytes {
			break
		}
		l.lines++
		l.bytes += int64(end - n)
		n = end
	}
	if rest := text[n:]; len(rest) > 0 {
		lines, _ := linesOf(rest)
		l.lost.lines += int(lines)
		l.lost.bytes += int64(len(rest))
		if !l.timing {
			l.timing = true
			wait = max(l.rate.Interval-now.Sub(l.begun), time.Millisecond)
		}
	}
	return n, last, wait
}

// summary returns what was suppressed until now, and resets it.
func (l *limiter) summary() suppressed {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := l.lost
	l.lost, l.timing = suppressed{}, false
	return lost
}

func (l *limiter) text(s suppressed) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := plural.Of(l.rate.Lines, "line")
	if l.rate.Lines == 0 {
		limit = plural.Of(l.rate.Bytes, "byte")
	} else if l.rate.Bytes > 0 {
		limit += " or " + plural.Of(l.rate.Bytes, "byte")
	}
	return fmt.Appendf(nil, "agentinit: %s (%s) suppressed: more than %s in %v\n",
		plural.Of(s.lines, "line"), plural.Of(s.bytes, "byte"), limit, l.rate.Interval)
}

// limited passes on as much of a block as the program's rate allows.
func (s *stream) limited(blk block, now time.Time) {
	if blk = s.endsCut(blk, now); len(blk.text) == 0 {
		return
	}
	n, last, wait := s.program.limit.admit(blk, now)
	if last.lines > 0 {
		s.tellSuppressed(last, now)
	}
	if n == 0 {
		s.breakOff(now)
	}
	if wait > 0 {
		time.AfterFunc(wait, func() { s.reactor.post(command{op: opSummary, stream: s}) })
	}
	if lost := len(blk.text) - n; lost > 0 {
		s.program.suppressed[s.kind-1].Add(uint64(lost))
	}
	if n > 0 {
		part := block{text: blk.text[:n], cut: blk.cut && n == len(blk.text), cont: blk.cont}
		lines, _ := linesOf(part.text)
		part.lines = int(lines)
		s.pass(part, now)
		s.midLine = part.cut
	}
}

// endsCut takes from a block the newline of a line that was cut before. That is no line to count: the
// newline follows what it ends, whether that has passed or was suppressed.
func (s *stream) endsCut(blk block, now time.Time) block {
	n := ending(blk.text)
	if !blk.cont || n == 0 {
		return blk
	}
	if s.midLine {
		s.midLine = false
		s.pass(block{text: blk.text[:n], lines: 1, cont: true}, now)
	} else {
		s.program.suppressed[s.kind-1].Add(uint64(n))
	}
	return block{text: blk.text[n:], lines: blk.lines - 1, cut: blk.cut}
}

// breakOff ends a line of which only the start has passed. In a file, whatever comes next would
// otherwise belong to that line.
func (s *stream) breakOff(now time.Time) {
	if s.midLine {
		s.midLine = false
		s.pass(block{text: newline, lines: 1, cont: true}, now)
	}
}

// summarize reports what was suppressed, at the end of the window or of the stream.
func (s *stream) summarize() {
	if s.rated {
		if lost := s.program.limit.summary(); lost.lines > 0 {
			s.tellSuppressed(lost, time.Now())
		}
	}
}

func (s *stream) tellSuppressed(lost suppressed, now time.Time) {
	s.breakOff(now)
	s.pass(block{text: s.program.limit.text(lost), lines: 1}, now)
}
