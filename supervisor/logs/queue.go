package logs

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// queue stands between the programs and one slow destination: the reader of stdout, or a disk. At
// most limit bytes wait in it, and at most as many are being written. When it is full, it holds
// streams for at most hold. If no data has moved by then, the queue is stalled: it drops new data
// until a batch is taken in less time than hold. So a slow reader does not hold programs again and
// again. Neither does a destination that fails: until it has taken what was kept for it, this data
// takes up its room, the hold is not begun again, and a stall does not end. The queue's goroutine
// runs only while there is data to write.
type queue struct {
	limit int
	hold  time.Duration
	// write delivers a batch of whole lines. It returns how many bytes at the end of the batch were
	// not taken: lost bytes are never delivered, kept bytes wait for a later attempt. It may block;
	// it is called by one goroutine at a time.
	write func([]byte) (lost, kept int)
	// pump, if set, moves a stream's output itself, on the queue's goroutine, as long as the queue
	// is empty. It tells whether the stream has more output.
	pump func(*stream) pumped
	// mark returns a line that says how many bytes were dropped, by reason.
	mark func(dropped uint64) []byte

	mu      sync.Mutex
	pending []byte
	spare   []byte
	pieces  []piece // what pending consists of, in the queue of a file
	taken   []piece // what the latest batch to be written consists of; only the goroutine uses it
	shares  shares  // of the bytes in pending
	writing shares  // of the batch being written; only the goroutine uses it
	waiters []*stream
	timer   *time.Timer
	epoch   uint64 // counts batches, so that an old timer does not stall a newer batch
	stalled bool
	slow    bool // the last batch took longer than hold; only the goroutine uses it
	running bool
	again   bool   // call write once more, even without data
	dropped uint64 // since the last mark
	last    *stream
	midLine bool          // the last batch did not end with a newline
	idle    chan struct{} // closed when all data is written; nil if no caller waits

	ready   []*stream // streams to be pumped
	flight  flight    // the block that pump is writing
	kept    bool      // write has kept bytes and has not taken them yet
	tried   int       // bytes that write has kept and that it is trying now
	retry   time.Duration
	retryAt *time.Timer
}

// piece is a part of a batch: a block with the marks before it, or a mark after the last block.
type piece struct {
	n    int    // bytes
	ring *ring  // the ring that has the block's text
	seq  uint64 // Line.Seq of the first line
	time int64  // Unix nanoseconds
}

// lastPieces returns what the last n bytes of a batch consist of.
func lastPieces(pieces []piece, n int) []piece {
	for i := len(pieces) - 1; i >= 0; i-- {
		if n -= pieces[i].n; n <= 0 {
			kept := slices.Clone(pieces[i:])
			kept[0].n += n // the start of this piece is not among them
			return kept
		}
	}
	return slices.Clone(pieces)
}

// flight is a block that a pump is writing into its file.
type flight struct {
	stream   *stream // nil if there is none
	blk      block
	begun    time.Time
	detached bool        // the write took too long: the stream has returned to its reactor
	stored   piece       // if detached: where the ring has the block
	gone     *stream     // the stream of the flight that was detached last, for pumpOne
	watch    *time.Timer // nil if it is not armed
}

// pumped is the state in which a pump leaves a stream.
type pumped uint8

const (
	pumpedMore  pumped = iota // the stream may have more output already
	pumpedEmpty               // its reactor must watch it
	pumpedEnded               // its reactor must finish it
)

const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 10 * time.Second
)

const (
	queueLimit = 1 << 20
	// queueReserve is room for agentinit's own lines when programs have filled the queue.
	queueReserve = 256 << 10
)

// queueBuffers keeps the buffers of idle queues until the next garbage collection, because even a
// busy queue is often idle for a moment.
var queueBuffers sync.Pool

func recycle(b []byte) {
	if cap(b) > 0 {
		b = b[:0]
		queueBuffers.Put(&b)
	}
}

func recycled() []byte {
	if b, ok := queueBuffers.Get().(*[]byte); ok {
		return *b
	}
	return nil
}

// leastBuffer is the size of a new buffer.
const leastBuffer = 4 << 10

// withRoom returns b with room for n more bytes. It doubles the buffer. append lets a large slice grow
// by a quarter only: until a queue were full, it would take and copy five times its size.
func withRoom(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	larger := make([]byte, len(b), max(len(b)+n, 2*cap(b), leastBuffer))
	copy(larger, b)
	return larger
}

// shares says how many bytes of a batch came from each stream. The key is the stream's counter of
// lost bytes.
type shares map[*atomic.Uint64]int

// lose counts the bytes of a batch that write did not take. The loss is divided among the streams
// of the batch, because it is no longer known which line came from which stream.
func (s shares) lose(lost, size int) {
	if lost == 0 {
		return
	}
	for counter, raw := range s {
		counter.Add(uint64((raw*lost + size - 1) / size))
	}
}

// admit tells whether s may produce a batch now. If not, s is resumed later.
func (q *queue) admit(s *stream) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stalled || len(q.pending)+q.tried < q.limit {
		return true
	}
	q.waiters = append(q.waiters, s)
	if q.timer == nil {
		epoch := q.epoch
		q.timer = time.AfterFunc(q.hold, func() { q.stall(epoch) })
	}
	return false
}

// stall stops holding programs, because no data was taken during the whole hold.
func (q *queue) stall(epoch uint64) {
	q.mu.Lock()
	if q.epoch != epoch {
		q.mu.Unlock()
		return
	}
	q.stalled, q.timer = true, nil
	waiters := q.waiters
	q.waiters = nil
	q.mu.Unlock()
	resume(waiters)
}

// put queues a non-empty batch of lines from s and reports whether it was taken. raw is how many
// bytes the program wrote for the batch. s is nil for agentinit's own lines, which may use the
// reserve.
func (q *queue) put(s *stream, batch []byte, raw int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit := q.limit + queueReserve
	if s != nil && q.stalled {
		limit = q.limit
	} else if s != nil {
		// admit has allowed this batch; only the ends of streams come without admit.
		limit = 2 * q.limit
	}
	if len(q.pending)+q.tried >= limit {
		q.dropped += uint64(len(batch))
		return false
	}
	if q.pending == nil {
		q.pending = recycled()
	}
	q.pending = withRoom(q.pending, len(batch))
	before := len(q.pending)
	q.markDropped()
	if q.last != s && q.midLine {
		q.pending = append(q.pending, '\n')
	}
	q.last, q.midLine = s, batch[len(batch)-1] != '\n'
	q.pending = append(q.pending, batch...)
	if s != nil {
		q.share(s.dropped(), raw)
	}
	if q.pump != nil {
		p := s.stored
		p.n = len(q.pending) - before
		q.pieces = append(q.pieces, p)
	}
	if !q.kept {
		q.start()
	}
	return true
}

// markDropped puts a mark of what was dropped behind the waiting data, on a line of its own. The caller
// holds mu.
func (q *queue) markDropped() {
	if q.dropped == 0 {
		return
	}
	if q.midLine {
		q.pending = append(q.pending, '\n')
	}
	q.pending = append(q.pending, q.mark(q.dropped)...)
	q.dropped, q.midLine = 0, false
}

func (q *queue) share(counter *atomic.Uint64, raw int) {
	if q.shares == nil {
		q.shares = make(shares)
	}
	q.shares[counter] += raw
}

// kick causes one more call of write, even without data: a file is created before its first line
// and closed after its last.
func (q *queue) kick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.again = true
	q.start()
}

// atRest tells whether the goroutine has ended and all data is written. Then the caller may read
// the goroutine's fields.
func (q *queue) atRest() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.running && !q.kept
}

func (q *queue) start() {
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *queue) run() {
	for {
		batch, s, waiters, done := q.take()
		resume(waiters)
		if done {
			return
		}
		begin := time.Now()
		if s != nil {
			q.pumpOne(s)
			q.slow = time.Since(begin) > q.hold
			continue
		}
		lost, kept := q.write(batch)
		q.slow = time.Since(begin) > q.hold
		if kept > 0 {
			resume(q.keep(batch, kept))
			continue
		}
		q.writing.lose(lost, len(batch))
		clear(q.writing)
		q.mu.Lock()
		q.kept, q.tried, q.retry = false, 0, 0
		q.spare = batch[:0]
		q.mu.Unlock()
	}
}

// keep puts the last kept bytes of a batch back in front of the newer data. They are tried again
// after a while, or at the next flush. If some were taken, there may be room for streams that wait.
func (q *queue) keep(batch []byte, kept int) (waiters []*stream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	rest := batch[len(batch)-kept:]
	n := copy(batch, rest)
	q.pending, q.spare = append(batch[:n], q.pending...), nil
	q.pieces = append(lastPieces(q.taken, kept), q.pieces...)
	for counter, raw := range q.writing {
		q.share(counter, (raw*kept+len(batch)-1)/len(batch))
	}
	clear(q.writing)
	q.tried = 0
	q.keepTrying()
	if len(q.pending) < q.limit {
		waiters, q.waiters = q.waiters, nil
	}
	return waiters
}

// keepTrying makes the queue try again later. The caller holds mu.
func (q *queue) keepTrying() {
	q.kept = true
	q.retry = min(max(2*q.retry, retryFirst), retryMost)
	disarm(&q.retryAt)
	q.retryAt = time.AfterFunc(q.retry, q.kick)
}

// take swaps the buffers. If the batch before was written, the streams that wait go on, and a stall
// ends if that took less time than hold.
func (q *queue) take() (batch []byte, s *stream, waiters []*stream, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.kept && !q.again {
		waiters = q.sendBack()
		q.running, q.slow = false, false
		q.wake()
		return nil, nil, waiters, true
	}
	if !q.kept {
		q.stalled = q.stalled && q.slow
		waiters = q.goOn()
	}
	if len(q.pending) == 0 && q.dropped > 0 && !q.kept {
		// Room is free again, but the program may print nothing more. For a reader, the mark belongs to the
		// block before it.
		q.markDropped()
		if n := len(q.taken); n > 0 {
			p := q.taken[n-1]
			p.n = len(q.pending)
			q.pieces = append(q.pieces, p)
		}
	}
	if len(q.pending) == 0 && !q.again && len(q.ready) > 0 {
		s, q.ready = q.ready[0], q.ready[1:]
		return nil, s, waiters, false
	}
	if len(q.pending) == 0 && !q.again {
		q.running, q.stalled, q.slow = false, false, false
		recycle(q.pending)
		recycle(q.spare)
		q.pending, q.spare, q.ready, q.pieces, q.taken = nil, nil, nil, nil, nil
		q.wake()
		return nil, nil, waiters, true
	}
	disarm(&q.retryAt)
	batch, q.pending, q.spare = q.pending, q.spare, nil
	q.taken, q.pieces = q.pieces, q.taken[:0]
	q.shares, q.writing = q.writing, q.shares
	q.again = false
	if q.kept {
		q.tried = len(batch)
	}
	return batch, nil, waiters, false
}

// goOn ends the hold of the streams that wait, and returns them. The caller holds mu.
func (q *queue) goOn() (waiters []*stream) {
	waiters, q.waiters = q.waiters, nil
	q.epoch++
	disarm(&q.timer)
	return waiters
}

// wake wakes the callers that wait in flush. The caller holds mu.
func (q *queue) wake() {
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// flush waits until all queued data is written, or until ctx ends. Data that could not be written
// is tried once more. It returns how many bytes are kept because that failed again.
func (q *queue) flush(ctx context.Context) (kept int, err error) {
	q.mu.Lock()
	if q.kept { // also if an attempt is under way: it may have begun before the caller mended something
		q.again = true
		q.start()
	}
	if !q.running {
		q.mu.Unlock()
		return 0, nil
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.kept {
		kept = len(q.pending) + q.tried
	}
	return kept, nil
}

// giveUp counts the bytes that write has kept as lost. It is called when the plane closes.
func (q *queue) giveUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	disarm(&q.retryAt)
	if q.kept && !q.running {
		q.shares.lose(len(q.pending), len(q.pending))
		q.pending, q.pieces, q.kept = nil, nil, false
		clear(q.shares)
	}
}

// disarm stops a timer, if there is one, and forgets it.
func disarm(timer **time.Timer) {
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
}

func resume(streams []*stream) {
	for _, s := range streams {
		if !s.reactor.post(command{op: opResume, stream: s}) {
			s.drop() // the plane was closed
		}
	}
}
