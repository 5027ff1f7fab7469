package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// Config says how a Plane works. Zero values mean the defaults.
type Config struct {
	// Stdout and Stderr are the inherited descriptors 1 and 2; nil discards.
	Stdout, Stderr *os.File
	Format         Format // default FormatAuto
	Color          bool   // colours in FormatConsole on a terminal

	RingBytes  int   // the most bytes of one stream's ring, which may hold one longer line in addition; default 256 KiB
	TotalBytes int64 // limit for all rings together; above it a growing ring forgets old lines; default 64 MiB
	MaxLine    int   // bytes; a longer line is cut into several; default 1 MiB
	// FlushAfter is how long an unfinished line waits for its end; default 1 s, negative: for ever.
	// Options can set another value for a program.
	FlushAfter time.Duration

	// OnTrouble is called once with an error when a destination begins to fail, and once with nil
	// when it works again. It is also called once when a file cannot be rotated, and once when
	// rotated files cannot be tidied. program is "" for the console. OnTrouble is called from the
	// package's goroutines and must not block.
	OnTrouble func(program string, err error)
}

// The values for a Config, or for a program's settings, that sets none. The manifest's keys have
// the same defaults.
const (
	DefaultMaxLine    = 1 << 20
	DefaultFlushAfter = time.Second
)

const (
	defaultRingBytes  = 256 << 10
	defaultTotalBytes = 64 << 20
	leastLine         = 16 // the least length at which the framer can cut without splitting a character
	maxReactors       = 2
	// keepBatch is the largest scratch space that is kept for reuse.
	keepBatch = 256 << 10
	// maxPipeBytes bounds the capacity of enlarged pipes. An unprivileged user has 64 MiB for all
	// pipes unless an administrator changed that.
	maxPipeBytes = 32 << 20
	// maxUnfinished bounds the unfinished lines of all streams together. Above it a line is divided as
	// soon as it has crowdedLine bytes.
	maxUnfinished = 64 << 20
	crowdedLine   = 64 << 10
)

// Plane is the output of all programs of a box. Its methods may be called from any goroutine. Only
// Flush and Close may wait long.
type Plane struct {
	cfg     Config
	console *console
	budget  budget // of the rings
	seq     atomic.Uint64
	batches sync.Pool
	follow  followers
	secrets atomic.Pointer[redactor]
	made    atomic.Uint64 // how often a programLog was made
	born    atomic.Uint64 // how many generations there have been
	ended   chan struct{} // closed; Capture.Done of captures that have ended

	fileHold   time.Duration // the constant fileHold, except in tests
	pipes      budget        // of the capacity of enlarged pipes
	unfinished budget        // of the unfinished lines that streams hold
	listings   listings

	mu       sync.Mutex
	programs map[string]*programLog
	leaving  []*programLog // removed, but a reader may want their lines; oldest first
	files    map[string]*fileSink
	swept    map[string]weak.Pointer[generation] // by path, of forgotten files, while a ring refers to them
	sweepAt  int                                 // from this number of files on, those without use are forgotten
	reactors []*reactor
	nextUp   int
	closed   bool
}

// New makes a Plane. It starts no goroutine: reading begins with the first Open.
func New(cfg Config) *Plane {
	cfg.RingBytes = cmp.Or(max(cfg.RingBytes, 0), defaultRingBytes)
	cfg.TotalBytes = cmp.Or(max(cfg.TotalBytes, 0), defaultTotalBytes)
	cfg.FlushAfter = cmp.Or(cfg.FlushAfter, DefaultFlushAfter)
	cfg.MaxLine = max(cmp.Or(max(cfg.MaxLine, 0), DefaultMaxLine), leastLine)
	if cfg.OnTrouble == nil {
		cfg.OnTrouble = func(string, error) {}
	}
	p := &Plane{cfg: cfg, fileHold: fileHold, programs: map[string]*programLog{}, files: map[string]*fileSink{}, swept: map[string]weak.Pointer[generation]{}}
	p.budget.max.Store(cfg.TotalBytes)
	p.pipes.max.Store(maxPipeBytes)
	p.unfinished.max.Store(maxUnfinished)
	p.ended = make(chan struct{})
	close(p.ended)
	p.batches.New = func() any { return new(batch) }
	p.console = newConsole(cfg)
	return p
}

// Bound has the plane take no more than its share of the memory of a small box: an eighth for all rings,
// and a sixteenth each for unfinished lines and enlarged pipes. memory is 0 if the box has no limit.
func (p *Plane) Bound(memory uint64) {
	if memory == 0 {
		return
	}
	for b, share := range map[*budget]uint64{&p.budget: memory / 8, &p.pipes: memory / 16, &p.unfinished: memory / 16} {
		b.max.Store(int64(min(uint64(b.max.Load()), share)))
	}
}

// putBatch keeps scratch space for the next batch, unless a huge line has made it too large.
func (p *Plane) putBatch(b *batch) {
	if cap(b.out) <= keepBatch {
		p.batches.Put(b)
	}
}

// pickReactor distributes programs over the reactors.
func (p *Plane) pickReactor() (*reactor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("cannot capture output: the log plane is closed")
	}
	want := min(runtime.GOMAXPROCS(0), maxReactors)
	p.nextUp++
	i := p.nextUp % want
	if i < len(p.reactors) {
		return p.reactors[i], nil
	}
	r, err := newReactor()
	if err != nil {
		if len(p.reactors) > 0 {
			return p.reactors[0], nil
		}
		return nil, fmt.Errorf("cannot capture output: %w", err)
	}
	go r.run()
	p.reactors = append(p.reactors, r)
	return r, nil
}

// sinkFor chooses where a stream's lines go. The sink is nil if they go only to the ring.
func (p *Plane) sinkFor(o Options, kind Stream) (sink, *fileSink) {
	own := Stdout
	if kind == Stderr && o.StderrPath != "" {
		// A file that stdout goes to as well is no file of stderr only.
		if o.To != ToFile || filepath.Clean(o.StderrPath) != filepath.Clean(o.Path) {
			own = Stderr
		}
		o.Path = o.StderrPath
	}
	switch {
	case o.To == ToNone:
		return nil, nil
	case (o.To == ToFile || own == Stderr) && !isConsolePath(o.Path):
		f := p.openFile(o, own)
		return f, f
	}
	return p.console, nil
}

// Stats returns the counters of the named programs, by program and stream. Without names, it
// returns those of all programs.
func (p *Plane) Stats(programs ...string) []StreamStats {
	var stats []StreamStats
	list := p.list(programs)
	slices.SortFunc(list, func(a, b *programLog) int { return cmp.Compare(a.name, b.name) })
	for _, pl := range list {
		for i := range pl.rings {
			stats = append(stats, StreamStats{
				Program: pl.name, Stream: Stream(i + 1),
				Bytes: pl.bytes[i].Load(), Dropped: pl.dropped[i].Load(),
				Suppressed: pl.suppressed[i].Load(),
			})
		}
	}
	return stats
}

// list returns the named programs, or all if there are no names, in no particular order.
func (p *Plane) list(names []string) []*programLog {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(names) > 0 {
		var list []*programLog
		for i, name := range names {
			if pl := p.programs[name]; pl != nil && !slices.Contains(names[:i], name) {
				list = append(list, pl)
			}
		}
		return list
	}
	return slices.Collect(maps.Values(p.programs))
}

// Flush waits until the console and all files have taken what was handed to them, or until ctx
// ends. An error names each file that did not take all of it. To flush all output of a program, first
// wait for Done of its capture.
func (p *Plane) Flush(ctx context.Context) error {
	late := p.flushConsole(ctx) // the same for all that ctx did not wait for
	var errs []error
	for _, f := range p.sinks() {
		kept, err := f.queue.flush(ctx)
		if err != nil {
			late = err
		} else if kept > 0 {
			errs = append(errs, f.missing(kept))
		}
	}
	if late != nil {
		errs = append(errs, fmt.Errorf("cannot flush all logs: %w", late))
	}
	return errors.Join(errs...)
}

func (p *Plane) flushConsole(ctx context.Context) (late error) {
	for _, q := range []*queue{p.console.out, p.console.err} {
		if _, err := q.flush(ctx); err != nil { // the console keeps no bytes
			late = err
		}
	}
	return late
}

// sinks returns all files that are known.
func (p *Plane) sinks() []*fileSink {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.files))
}

// Troubles says why the log files of programs take no output now. A program is missing if its files
// take its output, or if no output has come for them since the trouble began.
func (p *Plane) Troubles() map[string]error {
	troubles := make(map[string][]string)
	for _, f := range p.sinks() {
		if failure := f.failure.Load(); failure != nil {
			program := f.options.Load().Program
			troubles[program] = append(troubles[program], (*failure).Error())
		}
	}
	out := make(map[string]error, len(troubles))
	for program, texts := range troubles {
		slices.Sort(texts)
		out[program] = errors.New(strings.Join(slices.Compact(texts), "; "))
	}
	return out
}

// Reopen closes every log file and opens it again by its path, for tools that moved the file away.
// It does not wait.
func (p *Plane) Reopen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.files {
		f.reopen()
	}
}

// Drain abandons the remaining captures and waits, until ctx ends, for their output: then it is in the
// rings, and the console has taken it. So what is written to Writer from now on comes after it, and is
// not dropped because of it. No capture can be opened any more.
func (p *Plane) Drain(ctx context.Context) {
	p.mu.Lock()
	p.closed = true
	reactors := p.reactors
	p.mu.Unlock()
	for _, r := range reactors {
		r.drain(ctx)
	}
	_ = p.flushConsole(ctx) // Close flushes again and says what is missing
}

// Close drains and flushes until ctx ends, and stops the package's goroutines. What a file has not
// taken by then is lost, and the error says so. Lines written to Writer still pass afterwards.
func (p *Plane) Close(ctx context.Context) error {
	p.Drain(ctx)
	p.mu.Lock()
	reactors := p.reactors
	p.reactors = nil
	p.mu.Unlock()
	for _, r := range reactors {
		r.stop()
	}
	err := p.Flush(ctx)
	files := p.sinks()
	for _, f := range files {
		f.queue.giveUp()
	}
	for _, f := range files {
		err = errors.Join(err, f.archive.wait(ctx))
	}
	return err
}
