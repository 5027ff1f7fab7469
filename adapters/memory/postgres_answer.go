package memory

import (
	"io"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Limits of what a server may answer. pgx itself accepts a message of 1 GiB and
// any number of rows, all of which would be held in PID 1.
const (
	maxPgMessage = 64 << 20  // bytes; a row of agentbox has little more than 1 MiB, a row of another program may have more
	maxPgAnswer  = 512 << 20 // bytes; the largest honest one are the proposals of an index, each with its value
)

// boundedFrontend is pgproto3.NewFrontend for a server that may lie: a longer
// message, or more bytes without being asked again, end the connection with
// UNAVAILABLE.
func boundedFrontend(message int, answer int64) func(io.Reader, io.Writer) *pgproto3.Frontend {
	return func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		b := &bounded{r: r, w: w, limit: answer}
		f := pgproto3.NewFrontend(b, b)
		f.SetMaxBodyLen(message)
		return f
	}
}

// bounded counts the bytes read since the last write. While a connection is being closed, another
// goroutine than the reader writes to it.
type bounded struct {
	r     io.Reader
	w     io.Writer
	limit int64
	got   atomic.Int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.got.Load() > b.limit {
		e := adapters.Errorf(adapters.CodeUnavailable, "PostgreSQL's answer is larger than %d bytes", b.limit)
		e.Retryable = false
		return 0, e
	}
	n, err := b.r.Read(p)
	b.got.Add(int64(n))
	return n, err
}

func (b *bounded) Write(p []byte) (int, error) {
	b.got.Store(0)
	return b.w.Write(p)
}
