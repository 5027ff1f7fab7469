package forward

import (
	"context"
	"iter"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// BenchmarkBatch measures how long a full batch of short lines takes from the source to the sender.
func BenchmarkBatch(b *testing.B) {
	f, err := New(Config{Name: "x", Kind: "http", URL: "http://x"})
	if err != nil {
		b.Fatal(err)
	}
	lines := b.N * DefaultBatchLines
	sink := &counting{missing: lines, all: make(chan struct{})}
	f.sender = sink
	b.ReportAllocs()
	b.ResetTimer()
	f.Start(repeated(lines))
	<-sink.all
	b.StopTimer()
	f.Close(b.Context(), newSource())
}

// repeated is a source of so many short lines.
type repeated int

func (n repeated) Read(ctx context.Context, _ logs.Query) iter.Seq[logs.Line] {
	return func(yield func(logs.Line) bool) {
		for i := range int(n) {
			if !yield(line(uint64(i+1), "web", "GET /index.html 200 in 12 ms")) {
				return
			}
		}
		<-ctx.Done()
	}
}

// counting is a collector that closes all when no lines are missing.
type counting struct {
	missing int
	all     chan struct{}
}

func (c *counting) send(_ context.Context, batch []logs.Line) error {
	if c.missing -= len(batch); c.missing == 0 {
		close(c.all)
	}
	return nil
}

func (c *counting) close() {}
