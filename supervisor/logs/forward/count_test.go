package forward

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// Whatever the collector does, and however much the programs print meanwhile, each line is counted
// once: as sent or as dropped. Lines that the rings have are not dropped while the collector is there.
func TestEveryLineIsCountedOnce(t *testing.T) {
	away := errors.New("away")
	small := func(batch []logs.Line) error {
		if len(batch) > 30 {
			return errTooLarge
		}
		return nil
	}
	for name, c := range map[string]struct {
		// answer is the collector's answer to an attempt; they count from 1.
		answer func(ctx context.Context, attempt int, batch []logs.Line) error
		// attempts is how many attempts the box makes before it ends. If it is 0, the box ends in
		// the first attempt with lines of the flood.
		attempts int
		takesAll bool // that the rings hold
	}{
		"takes everything": {takesAll: true, answer: func(context.Context, int, []logs.Line) error { return nil }},
		"is away":          {attempts: 2, answer: func(context.Context, int, []logs.Line) error { return away }},
		"is back at the end": {attempts: 2, takesAll: true, answer: func(_ context.Context, attempt int, _ []logs.Line) error {
			if attempt > 2 {
				return nil
			}
			return away
		}},
		"goes away": {attempts: 2, answer: func(_ context.Context, attempt int, _ []logs.Line) error {
			if attempt == 1 {
				return nil
			}
			return away
		}},
		"comes and goes": {attempts: 3, answer: func(_ context.Context, attempt int, _ []logs.Line) error {
			if attempt%2 == 0 {
				return nil
			}
			return away
		}},
		"goes away after the forwarder has learned of a loss": {answer: func(_ context.Context, _ int, batch []logs.Line) error {
			if flooded(batch) {
				return away
			}
			return nil
		}},
		"refuses": {answer: func(context.Context, int, []logs.Line) error { return errRefused }},
		"refuses every other batch": {answer: func(_ context.Context, attempt int, _ []logs.Line) error {
			if attempt%2 == 0 {
				return errRefused
			}
			return nil
		}},
		"rejects some lines":     {answer: func(context.Context, int, []logs.Line) error { return &partError{errors.New("some"), 3} }},
		"takes only small parts": {takesAll: true, answer: func(_ context.Context, _ int, batch []logs.Line) error { return small(batch) }},
		"takes small parts and goes away": {attempts: 4, answer: func(_ context.Context, attempt int, batch []logs.Line) error {
			if attempt > 3 && len(batch) <= 30 {
				return away
			}
			return small(batch)
		}},
		"takes three lines at once": {attempts: 3, answer: func(_ context.Context, _ int, batch []logs.Line) error {
			return &progressError{away, min(3, len(batch)-1)}
		}},
		"never answers": {attempts: 1, answer: func(ctx context.Context, _ int, batch []logs.Line) error { return silent{}.send(ctx, batch) }},
	} {
		for _, flood := range []int{100, 10_000} { // a ring has room for some hundred lines
			for _, streams := range [][]logs.Stream{{logs.Stdout}, {logs.Stdout, logs.Stderr}} {
				t.Run(fmt.Sprintf("%s/%d lines/%v", name, flood, streams), func(t *testing.T) {
					t.Parallel()
					sink := &scripted{answer: c.answer, attempts: c.attempts,
						begun: make(chan struct{}), printed: make(chan struct{}), enough: make(chan struct{})}
					f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", BatchLines: 100, BatchWait: time.Millisecond, Timeout: 50 * time.Millisecond})
					if err != nil {
						t.Fatal(err)
					}
					f.sender = sink
					plane := logs.New(logs.Config{RingBytes: 32 << 10})
					f.Start(plane)
					p := newPrinter(t, plane, streams)
					p.print("early", 10)
					<-sink.begun
					p.print("flood", flood)
					p.end()
					close(sink.printed)
					<-sink.enough
					f.Close(t.Context(), plane)
					s := f.Stats()
					if s.Sent+s.Dropped != uint64(p.lines) {
						t.Errorf("printed %d lines, counted %d: %+v", p.lines, s.Sent+s.Dropped, s)
					}
					if c.takesAll && flood == 100 && s.Dropped > 0 {
						t.Errorf("dropped lines that were not lost: %+v", s)
					}
					for i, l := range sink.taken[min(1, len(sink.taken)):] {
						if l.Seq <= sink.taken[i].Seq {
							t.Errorf("the collector took line %d after line %d", l.Seq, sink.taken[i].Seq)
						}
					}
					if err := plane.Close(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// A collector that does not answer before the end of the time that Close has does not keep Close from
// counting the lines that it has not tried to send.
func TestLinesWithoutTimeAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", BatchLines: 2})
		if err != nil {
			t.Fatal(err)
		}
		f.sender = silent{}
		s := newSource()
		for i := range uint64(9) {
			s.add(line(i+1, "web", "a"))
		}
		f.Start(s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.Close(ctx, s)
		if st := f.Stats(); st != (Stats{Dropped: 9}) || ctx.Err() != nil {
			t.Errorf("stats %+v, %v", st, ctx.Err())
		}
	})
}

// While a collector does not answer, the forwarder has one batch and at most one line that it has read
// after it. Long lines fill a batch before there are many of them.
func TestHoldsOneBatch(t *testing.T) {
	for name, c := range map[string]struct {
		length int // of a line
		early  int // lines whose batch is sent because BatchWait is over
		want   int // lines that the forwarder has read
	}{
		"full of long lines":      {length: maxBatchBytes, want: 1},
		"full of shorter lines":   {length: maxBatchBytes / 4, want: 4},
		"full of short lines":     {length: 1, want: 10},
		"sent before it was full": {length: 1, early: 3, want: 4},
		"sent with one long line": {length: maxBatchBytes / 2, early: 1, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", BatchLines: 10})
				if err != nil {
					t.Fatal(err)
				}
				f.sender = silent{}
				s := &watchedSource{source: newSource()}
				text := strings.Repeat("x", c.length)
				f.Start(s)
				for i := range 200 {
					if i == c.early {
						time.Sleep(f.cfg.BatchWait)
						synctest.Wait()
					}
					s.add(line(uint64(i+1), "web", text))
				}
				synctest.Wait()
				if s.read != c.want {
					t.Errorf("the forwarder has read %d lines of %d bytes, want %d", s.read, c.length, c.want)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				f.Close(ctx, s)
				if st := f.Stats(); st.Dropped != 200 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

// watchedSource counts the lines that were read from it.
type watchedSource struct {
	*source
	read int
}

func (s *watchedSource) Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line] {
	return func(yield func(logs.Line) bool) {
		for l := range s.source.Read(ctx, q) {
			if s.read++; !yield(l) {
				return
			}
		}
	}
}

// silent is a collector that never answers.
type silent struct{}

func (silent) send(ctx context.Context, _ []logs.Line) error { <-ctx.Done(); return ctx.Err() }
func (silent) close()                                        {}

// scripted is a collector that keeps what it takes.
type scripted struct {
	answer   func(ctx context.Context, attempt int, batch []logs.Line) error
	attempts int // until enough; 0 means until a batch has lines of the flood

	n     int
	ended bool
	taken []logs.Line

	begun   chan struct{} // the first attempt has begun
	printed chan struct{} // the first attempt may end: until then the forwarder does not read on
	enough  chan struct{}
}

func (s *scripted) send(ctx context.Context, batch []logs.Line) error {
	if s.n++; s.n == 1 {
		close(s.begun)
		<-s.printed
	}
	if !s.ended && (s.n == s.attempts || s.attempts == 0 && flooded(batch)) {
		s.ended = true
		close(s.enough)
	}
	err := s.answer(ctx, s.n, batch)
	progress, isProgress := errors.AsType[*progressError](err)
	switch {
	case err == nil:
		s.taken = append(s.taken, batch...)
	case isProgress:
		s.taken = append(s.taken, batch[:progress.sent]...)
	}
	return err
}

func (s *scripted) close() {}

func flooded(batch []logs.Line) bool { return strings.HasPrefix(batch[len(batch)-1].Text, "flood") }

// printer is a program that prints to its streams in turn.
type printer struct {
	t       *testing.T
	capture *logs.Capture
	outputs []*os.File
	lines   int
}

func newPrinter(t *testing.T, plane *logs.Plane, streams []logs.Stream) *printer {
	t.Helper()
	capture, err := plane.Open(logs.Options{Program: "web", To: logs.ToNone})
	if err != nil {
		t.Fatal(err)
	}
	p := &printer{t: t, capture: capture}
	for _, stream := range streams {
		end := capture.Stdout
		if stream == logs.Stderr {
			end = capture.Stderr
		}
		own, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", end.Fd()), os.O_WRONLY, 0) // Started closes end
		if err != nil {
			t.Fatal(err)
		}
		p.outputs = append(p.outputs, own)
	}
	capture.Started(1)
	return p
}

func (p *printer) print(text string, n int) {
	p.t.Helper()
	for range n {
		if _, err := fmt.Fprintf(p.outputs[p.lines%len(p.outputs)], "%s %d\n", text, p.lines); err != nil {
			p.t.Fatal(err)
		}
		p.lines++
	}
}

// end returns when everything that was printed is in the rings.
func (p *printer) end() {
	p.t.Helper()
	for _, output := range p.outputs {
		if err := output.Close(); err != nil {
			p.t.Fatal(err)
		}
	}
	<-p.capture.Done()
}
