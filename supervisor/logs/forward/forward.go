// Package forward sends captured output to log collectors outside the box: syslog, Loki, OTLP and
// plain HTTP. It runs only if the manifest configures it.
//
// A forwarder is one more reader of the log plane. While a collector is slow or unreachable, the
// lines stay in the rings and log files, where they are kept anyway. Lines that are forgotten there
// before they could be sent are counted. The package must never delay a program or another reader,
// never keep more than one batch and one line of its own, and never write a token into an error.
package forward

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Config describes one forwarder.
type Config struct {
	Name string // name of the table in the manifest, for errors
	// Kind is syslog, loki, otlp or http.
	Kind string
	// URL is the target: unix://, udp://, tcp:// or tls:// for syslog, otherwise http(s)://.
	URL      string
	Token    string            // bearer token; "" means none; not for syslog
	Headers  map[string]string // sent with every request
	CAFile   string            // PEM certificates to trust instead of the system's
	Programs []string          // names and globs; empty means all
	Host     string            // the name of this box, as host name in syslog and as a label elsewhere

	BatchLines int           // default 1000
	BatchWait  time.Duration // how long a line may wait for others; default 1 s
	Timeout    time.Duration // of one attempt; default 10 s

	// OnTrouble is called once with an error when sending begins to fail, and once with nil when it
	// works again. Meanwhile it is called with another error when the collector begins to refuse lines
	// that it did not answer before, or the other way round. It must not block.
	OnTrouble func(error)
}

// The values for a Config that sets none. The manifest's keys have the same defaults.
const (
	DefaultBatchLines = 1000
	DefaultBatchWait  = time.Second
	DefaultTimeout    = 10 * time.Second
)

const (
	maxBatchBytes = 1 << 20

	retryFirst = 500 * time.Millisecond
	retryMost  = 30 * time.Second
)

// Source is where the lines come from: the log plane.
type Source interface {
	Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line]
}

// Stats counts lines since the start.
type Stats struct {
	Sent    uint64
	Dropped uint64 // forgotten by the rings before they could be sent, refused, or not taken at the end
	Retries uint64 // attempts that failed and were repeated
}

// Forwarder sends what programs print to one collector. Its methods may be called from
// any goroutine.
type Forwarder struct {
	cfg    Config
	sender sender

	sent, dropped, retries atomic.Uint64
	trouble                trouble

	stop     context.CancelFunc // ends the reading and the repeating of attempts
	abort    context.CancelFunc // ends an attempt that is under way
	stopping <-chan struct{}    // closed by stop
	done     sync.WaitGroup
	due      *time.Timer // expires when the first line of the batch has waited for BatchWait
	// turn has room for one value. The goroutine that puts it there may use the batch and send it, until
	// it takes the value back. It is a channel and not a mutex because the fake clock of synctest
	// stands still while a goroutine waits for a mutex.
	turn chan struct{}

	// The goroutines of Start write these, and Close uses them afterwards.
	last     lastLine
	received uint64 // Seq of the newest line that was read
	known    uint64 // how many lines of all programs were read, or marked as lost
	batch    batch  // lines that were read and neither sent nor given up
}

// trouble is what the last attempt has told of the collector.
type trouble uint8

const (
	works    trouble = iota
	away             // lines wait
	refusing         // lines are dropped
)

// sender delivers a batch. An error that wraps errRefused is final. After other errors, the batch is
// tried again, or what a progressError leaves of it.
type sender interface {
	send(ctx context.Context, batch []logs.Line) error
	close()
}

// errRefused says that the collector will never take the batch.
var errRefused = errors.New("refused")

// errTooLarge says that the collector, or a proxy before it, takes only smaller batches.
var errTooLarge = fmt.Errorf("%w: too large", errRefused)

// halves tells whether the batch must be sent in two parts. Text can become several times as long in
// JSON, so that no fixed size of a batch suits every limit.
func halves(lines []logs.Line, err error) bool {
	return len(lines) > 1 && errors.Is(err, errTooLarge)
}

// New checks the configuration. It opens no connection.
func New(cfg Config) (*Forwarder, error) {
	if cfg.BatchLines <= 0 {
		cfg.BatchLines = DefaultBatchLines
	}
	if cfg.BatchWait <= 0 {
		cfg.BatchWait = DefaultBatchWait
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.OnTrouble == nil {
		cfg.OnTrouble = func(error) {}
	}
	for _, glob := range cfg.Programs {
		if _, err := path.Match(glob, ""); err != nil {
			return nil, fmt.Errorf("forward %s: %q is not a valid glob", cfg.Name, glob)
		}
	}
	f := &Forwarder{cfg: cfg}
	var err error
	if cfg.Kind == "syslog" {
		f.sender, err = newSyslog(cfg)
	} else {
		f.sender, err = newPush(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("forward %s: %w", cfg.Name, err)
	}
	return f, nil
}

// Start begins to send, first the lines that are in the rings now. One goroutine reads lines into the
// batch and sends it when it is full. The other one sends it when its first line has waited long enough.
// While the batch is being sent, the first goroutine waits with one line: the others stay in the rings.
func (f *Forwarder) Start(source Source) {
	ctx, abort := context.WithCancel(context.Background())
	reading, stop := context.WithCancel(ctx)
	f.stop, f.abort, f.stopping = stop, abort, reading.Done()
	f.turn, f.due = make(chan struct{}, 1), time.NewTimer(f.cfg.BatchWait)
	f.done.Go(func() {
		for line := range source.Read(reading, logs.Query{Follow: true}) {
			if f.wants(line) {
				f.collect(ctx, f.last.apart(line))
			}
			f.received = max(f.received, line.Seq)
			f.known += max(line.Dropped, 1)
		}
	})
	f.done.Go(func() {
		for {
			select {
			case <-f.due.C:
				f.turn <- struct{}{}
				f.sendBatch(ctx)
				<-f.turn
			case <-f.stopping:
				return
			}
		}
	})
}

// Close sends the lines that programs have printed until now: first those that the forwarder has,
// because the rings may have forgotten them. It tries once and stops when ctx ends. It returns how many
// lines the collector did not get.
//
// The answer to an attempt that is under way has half of the time. A collector that has taken the
// batch would otherwise get it twice.
func (f *Forwarder) Close(ctx context.Context, source Source) (missed uint64) {
	if f.stop == nil {
		return 0
	}
	f.stop()
	waiting, cancel := sparing(ctx, 2)
	context.AfterFunc(waiting, f.abort)
	f.done.Wait()
	cancel()
	before := f.dropped.Load()
	// Lines that a slow collector leaves must still be read, to count them.
	sending, cancel := sparing(ctx, 10)
	defer cancel()
	var b batch
	add := func(line logs.Line) {
		if b.add(line, f.cfg.BatchLines) {
			f.deliver(sending, b.lines, false)
			b = batch{}
		}
	}
	for _, line := range f.batch.lines {
		add(line)
	}
	newest, known, lost := f.received, f.known, uint64(0)
	for line := range source.Read(ctx, logs.Query{After: f.received}) {
		if line.Dropped == 0 {
			newest = line.Seq
			known++
		}
		switch {
		case !f.wants(line):
		case line.Dropped > 0:
			lost += line.Dropped
		default:
			add(f.last.apart(line))
		}
	}
	// The mark of a loss may count too many lines, also some that the forwarder has counted already.
	// But lines are numbered without gaps: no more are lost than numbers are missing.
	if newest > f.received {
		lost = min(lost, newest-min(known, newest))
	}
	f.dropped.Add(lost)
	if len(b.lines) > 0 {
		f.deliver(sending, b.lines, false)
	}
	f.sender.close()
	return f.dropped.Load() - before
}

// sparing returns a context that ends before ctx, when one nth of the remaining time is left.
func sparing(ctx context.Context, n time.Duration) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, end.Add(-time.Until(end)/n))
	}
	return context.WithCancel(ctx)
}

// Stats returns the counters.
func (f *Forwarder) Stats() Stats {
	return Stats{Sent: f.sent.Load(), Dropped: f.dropped.Load(), Retries: f.retries.Load()}
}

func (f *Forwarder) wants(line logs.Line) bool {
	return len(f.cfg.Programs) == 0 || slices.ContainsFunc(f.cfg.Programs, func(glob string) bool {
		return program.Named(glob, line.Program)
	})
}

// lastLine is the newest line that was taken.
type lastLine struct {
	program string
	stream  logs.Stream
	time    time.Time
	equal   time.Duration // how many lines before it had its time, in nanoseconds
}

// apart gives each line of a stream a time of its own. Lines that were read together have one time,
// and Loki drops an entry that has the time and the text of another (unorderedHeadBlock in its
// pkg/chunkenc). The time belongs to the line and not to the batch, so an entry that is sent again is
// still dropped.
func (l *lastLine) apart(line logs.Line) logs.Line {
	if line.Program == l.program && line.Stream == l.stream && line.Time.Equal(l.time) {
		l.equal++
	} else {
		*l = lastLine{line.Program, line.Stream, line.Time, 0}
	}
	line.Time = line.Time.Add(l.equal)
	return line
}

type batch struct {
	lines []logs.Line
	bytes int
}

// add adds a line and tells whether the batch is full.
func (b *batch) add(line logs.Line, most int) (full bool) {
	b.lines = append(b.lines, line)
	b.bytes += len(line.Text)
	return len(b.lines) >= most || b.bytes >= maxBatchBytes
}

// collect adds a line to the batch and sends the batch if it is full.
func (f *Forwarder) collect(ctx context.Context, line logs.Line) {
	if line.Dropped > 0 { // the line only marks a loss
		f.dropped.Add(line.Dropped)
		return
	}
	f.turn <- struct{}{}
	if len(f.batch.lines) == 0 {
		f.due.Reset(f.cfg.BatchWait)
	}
	if f.batch.add(line, f.cfg.BatchLines) {
		f.sendBatch(ctx)
	}
	<-f.turn
}

// sendBatch sends the batch. When agentinit stops, it leaves the rest to Close.
func (f *Forwarder) sendBatch(ctx context.Context) {
	f.due.Stop()
	if len(f.batch.lines) > 0 {
		f.batch = batch{lines: f.deliver(ctx, f.batch.lines, true)}
	}
}

// deliver sends lines until they are taken or refused. Without retry it tries once and counts what is
// not taken as dropped. With retry it begins no attempt once agentinit stops, and returns the lines that
// are left.
func (f *Forwarder) deliver(ctx context.Context, lines []logs.Line, retry bool) (rest []logs.Line) {
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		select {
		case <-f.stopping:
			if retry {
				return lines
			}
		default:
		}
		err := ctx.Err()
		if err == nil {
			err = f.attempt(ctx, lines)
		}
		if half := len(lines) / 2; halves(lines, err) {
			if rest := f.deliver(ctx, lines[:half], retry); len(rest) > 0 {
				return lines[half-len(rest):]
			}
			return f.deliver(ctx, lines[half:], retry)
		}
		if n := f.settle(lines, err); n == len(lines) {
			return nil
		} else if n > 0 {
			lines, wait = lines[n:], retryFirst
		}
		if !retry {
			f.dropped.Add(uint64(len(lines)))
			return nil
		}
		pause := time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
		if later, ok := errors.AsType[*laterError](err); ok {
			pause = max(pause, min(later.after, 10*retryMost))
		}
		select {
		case <-time.After(pause):
			f.retries.Add(1)
		case <-f.stopping:
			return lines
		}
	}
}

// settle counts the lines that were taken or refused. It returns how many they are, from the first on.
func (f *Forwarder) settle(lines []logs.Line, err error) int {
	part, isPart := errors.AsType[*partError](err)
	progress, isProgress := errors.AsType[*progressError](err)
	settled, rejected := len(lines), 0
	switch {
	case err == nil:
	case isProgress:
		settled = progress.sent
	case isPart:
		rejected = min(part.rejected, len(lines))
	case errors.Is(err, errRefused):
		rejected = len(lines)
	default:
		return 0
	}
	f.sent.Add(uint64(settled - rejected))
	f.dropped.Add(uint64(rejected))
	return settled
}

// partError says that the collector took a part of the batch and will never take the rest.
type partError struct {
	error
	rejected int
}

// progressError says that the collector took the first lines of the batch, and not yet the rest.
type progressError struct {
	error
	sent int
}

func (e *progressError) Unwrap() error { return e.error }

// laterError is an answer that says when to try again.
type laterError struct {
	error
	after time.Duration
}

func (e *laterError) Unwrap() error { return e.error }

// attempt sends once and reports a change of the trouble.
func (f *Forwarder) attempt(ctx context.Context, lines []logs.Line) error {
	bounded, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	err := f.sender.send(bounded, lines)
	_, isPart := errors.AsType[*partError](err)
	_, isProgress := errors.AsType[*progressError](err)
	answered := errors.Is(err, errRefused) || isPart
	if ctx.Err() != nil && err != nil && !answered || halves(lines, err) {
		return err // agentinit itself is stopping, or smaller batches may do: no trouble to report
	}
	now := works
	switch {
	case answered:
		now = refusing
	case err != nil && !isProgress: // a slow collector is no trouble
		now = away
	}
	if now == f.trouble {
		return err
	}
	if f.trouble = now; now == works {
		f.cfg.OnTrouble(nil)
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v: %w", f.cfg.Timeout, err)
	}
	err = fmt.Errorf("cannot forward logs to %s: %w", f.cfg.Name, err)
	f.cfg.OnTrouble(err)
	return err
}

// levelOf is the level of a line; that of a program's line follows from its stream.
func levelOf(l logs.Line) string {
	switch {
	case l.Level != "":
		return l.Level
	case l.Stream == logs.Stderr:
		return "error"
	}
	return "info"
}
