package logs

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// This file is the fast path from a stream to its log file, past the queue. As long as the disk
// keeps up, the goroutine of the file's queue reads the pipe and writes the file, with one copy
// each way. The reactor only reports that there is output. If a write hangs or fails, the stream
// returns to the reactor.

const (
	// pumpSize is how much a pump reads at once: the content of an enlarged pipe. If it read less, the
	// pipe would keep a page that is partly read, and the program could write one page less.
	pumpSize = 256 << 10
	// pumpHead is room in front of it for the start of a line that was read before.
	pumpHead = 128 << 10
)

var pumpBuffers = sync.Pool{New: func() any { return new([pumpHead + pumpSize]byte) }}

// pumpRounds is how often one stream is read before another stream is served.
const pumpRounds = 16

// offer hands a stream that has output to the queue's goroutine. It refuses while data waits in the
// queue, because that data must be written first.
func (q *queue) offer(s *stream) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pump == nil || q.stalled || q.kept || len(q.pending) > 0 {
		return false
	}
	s.pumped = true
	q.ready = append(q.ready, s)
	q.start()
	return true
}

// owns tells whether the queue's goroutine has the stream, instead of its reactor.
func (q *queue) owns(s *stream) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return s.pumped
}

// pumpOne pumps one stream and decides who goes on with it.
func (q *queue) pumpOne(s *stream) {
	state := q.pump(s)
	q.mu.Lock()
	if q.flight.gone == s {
		q.flight.gone = nil // its reactor has had the stream since look
		q.mu.Unlock()
		return
	}
	if state == pumpedMore && !q.kept && !s.abandoned.Load() {
		q.ready = append(q.ready, s)
		q.mu.Unlock()
		return
	}
	s.pumped = false
	op := opResume
	partial := s.unfinished() // before rearm lets the reactor read again
	switch {
	case state == pumpedEnded:
		op = opEnd
	case state == pumpedEmpty && s.reactor.rearm(s):
		if !partial {
			q.mu.Unlock()
			return
		}
		op = opPartial
	}
	q.mu.Unlock()
	if !s.reactor.post(command{op: op, stream: s}) {
		s.drop() // the plane has been closed
	}
}

// sendBack returns the streams that wait for the pump, so that their reactors can serve them. The
// caller holds mu.
func (q *queue) sendBack() []*stream {
	streams := q.ready
	q.ready = nil
	for _, s := range streams {
		s.pumped = false
	}
	return streams
}

// takeOff records that a block is being written. If the write hangs, its program then waits no
// longer than hold. It returns what must be written before the block: a mark of what was dropped,
// and the end of a line that another stream has left unfinished.
func (q *queue) takeOff(s *stream, blk block, now time.Time) (before []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last != s && q.midLine {
		before = newline
	}
	if q.dropped > 0 {
		before = append(slices.Clip(before), q.mark(q.dropped)...)
		q.dropped = 0
	}
	q.last, q.midLine = s, blk.text[len(blk.text)-1] != '\n'
	q.flight.stream, q.flight.blk, q.flight.begun, q.flight.detached = s, blk, now, false
	if q.flight.watch == nil {
		q.flight.watch = time.AfterFunc(q.hold, q.look)
	}
	return before
}

// land ends the write of a block and tells whether it took too long. If it did, the stream and the
// block no longer belong to the pump.
func (q *queue) land() (stored piece, detached bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if detached = q.flight.detached; detached {
		q.flight.gone = q.flight.stream
	}
	q.flight.stream, q.flight.blk, q.flight.detached = nil, block{}, false
	return q.flight.stored, detached
}

// look is called by the timer: it gives up on a write that takes longer than hold.
func (q *queue) look() {
	q.mu.Lock()
	fl := &q.flight
	fl.watch = nil
	if fl.stream == nil || fl.detached {
		q.mu.Unlock()
		return
	}
	if left := q.hold - time.Since(fl.begun); left > 0 {
		fl.watch = time.AfterFunc(left, q.look)
		q.mu.Unlock()
		return
	}
	fl.detached, q.stalled = true, true
	fl.stream.pumped = false
	streams := append(append(q.sendBack(), q.waiters...), fl.stream)
	q.waiters = nil
	if carry := &fl.stream.frame.carry; len(*carry) == 0 {
		*carry = nil // its array may have the block, which is still being written
		fl.stream.frame.count()
	}
	// The pump cannot call land before mu is free, so the block is still unchanged.
	fl.stream.store(fl.blk, fl.begun)
	fl.stored = fl.stream.stored
	q.mu.Unlock()
	resume(streams)
}

// pump moves the output of one stream into the file.
func (f *fileSink) pump(s *stream) pumped {
	f.refresh()
	buf := pumpBuffers.Get().(*[pumpHead + pumpSize]byte)
	defer pumpBuffers.Put(buf)
	for range pumpRounds {
		if s.abandoned.Load() {
			return pumpedMore
		}
		held := len(s.frame.carry)
		if held > pumpHead {
			held = 0
		}
		start := pumpHead - held
		copy(buf[start:pumpHead], s.frame.carry)
		var n int
		var open bool
		lateclose.Masked(func() { n, open = s.read(buf[pumpHead:]) })
		if n > 0 && !f.move(s, buf[start:pumpHead+n], held) {
			return pumpedMore // or its reactor has the stream already, which pumpOne checks
		}
		switch {
		case !open:
			return pumpedEnded
		case n == 0:
			s.frame.trim()
			return pumpedEmpty
		case n >= readSize:
			s.enlarge() // the pipe was full at its first size
		}
		if f.queue.waiting() {
			break
		}
	}
	return pumpedMore
}

// waiting tells whether other work must be done first.
func (q *queue) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending) > 0 || q.again || q.kept
}

// move writes the blocks in buf; its first held bytes are the carry. False means that the pump must
// give the stream back.
func (f *fileSink) move(s *stream, buf []byte, held int) bool {
	now := time.Now()
	if held > 0 || len(s.frame.carry) == 0 {
		if blk, ok := s.frame.whole(buf, held); ok {
			s.noteUnfinished(now) // during the write, the stream may go back to its reactor
			return f.moveBlock(s, blk, now)
		}
	}
	for rest := buf[held:]; len(rest) > 0; {
		blk, after, ok := s.frame.next(rest, pumpSize)
		rest = after
		s.noteUnfinished(now)
		if !ok {
			continue
		}
		// If the stream returns to its reactor now, the reactor continues with these bytes.
		s.backlog = append(s.backlog[:0], rest...)
		if !f.moveBlock(s, blk, now) {
			return false
		}
		s.backlog = s.backlog[:0]
	}
	return true
}

func (f *fileSink) moveBlock(s *stream, blk block, now time.Time) bool {
	s.plane.secrets.Load().mask(blk.text)
	var rest []byte
	var err error
	if before := f.queue.takeOff(s, blk, now); len(before) > 0 {
		// For a reader, these bytes belong to the block that follows. A part of them that the disk does
		// not take waits together with the block, so a reader must find both parts or neither.
		mark := piece{n: len(before), ring: &s.program.rings[s.kind-1], seq: s.plane.seq.Load() + 1, time: now.UnixNano()}
		rest, err = f.deliver(before)
		f.noteQueued([]piece{mark}) // also after an error, because record takes what is in parts for the block
	}
	if err != nil {
		rest = append(slices.Clip(rest), blk.text...)
	} else {
		rest, err = f.deliver(blk.text)
	}
	stored, detached := f.queue.land()
	if detached {
		stored.n = len(blk.text) // the ring has it as text; noteQueued takes as much as was written
		f.noteQueued([]piece{stored})
	} else {
		stored = s.record(f.parts, blk, rest, now)
		f.noted()
	}
	f.judge(err)
	if len(rest) > 0 {
		stored.n = len(rest)
		f.queue.keepFor(s, rest, stored)
	}
	return !detached && err == nil
}

// keepFor puts the bytes that the file did not take in front of the waiting data.
func (q *queue) keepFor(s *stream, rest []byte, stored piece) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pieces = append([]piece{stored}, q.pieces...)
	q.pending = append(append([]byte(nil), rest...), q.pending...)
	q.share(s.dropped(), len(rest))
	q.keepTrying()
}

// record puts a block into the ring: as places what the file has taken, and as text the rest. It
// returns where the ring has the rest.
func (s *stream) record(parts []filePart, blk block, rest []byte, now time.Time) (stored piece) {
	s.program.mu.Lock()
	c := s.chunk(blk, now)
	ring, whole := &s.program.rings[s.kind-1], c
	text := blk.text
	if len(rest) > len(text) {
		rest = text // the bytes written before the block do not belong to this stream
	}
	var begun filePart // the start of a line, which the ring has as text
	if n := len(parts); n > 0 && len(rest) > 0 {
		// The disk became full in the middle of a line. In the ring it stays one line.
		p := &parts[n-1]
		written := text[:len(text)-len(rest)]
		if tail := len(written) - 1 - bytes.LastIndexByte(written, '\n'); tail > 0 && tail <= p.n {
			p.n -= tail
			begun = filePart{p.gen, p.off + int64(p.n), tail}
			rest = text[len(written)-tail:]
		}
	}
	for _, p := range parts {
		if p.n == 0 {
			continue
		}
		c.file, c.off, c.n = p.gen, p.off, p.n
		if p.n < len(blk.text) {
			c.lines, c.cut = linesOf(text[:p.n])
			c.cut = c.cut && (blk.cut || len(rest) > 0)
		}
		if p.gen.gone() { // the file was rotated with backups = 0 meanwhile
			c.file, c.off, c.n = nil, 0, 0
			ring.append(text[:p.n], c)
		} else {
			ring.refer(c)
			p.gen.recorded.Store(p.off + int64(p.n))
		}
		text = text[p.n:]
		c.seq += uint64(c.lines)
		c.cont = c.cut
	}
	stored = piece{ring: ring, seq: c.seq, time: c.time}
	if begun.n > 0 {
		begun.gen.enqueue(begun.off, begun.n, stored)
	}
	if len(rest) > 0 {
		c.file, c.off, c.n, c.cut = nil, 0, 0, blk.cut
		ring.append(rest, c)
	}
	s.program.show(s.kind, whole, blk.text)
	s.program.mu.Unlock()
	s.plane.wakeFollowers()
	return stored
}

// linesOf counts the lines of a part of a block and tells whether the last one is unfinished.
func linesOf(text []byte) (n int32, cut bool) {
	n = int32(bytes.Count(text, newline))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		return n + 1, true
	}
	return n, false
}
