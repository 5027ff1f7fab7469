package memory

import (
	"io"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Limits for the answers of a server. pgx itself accepts messages of 1 GiB and any number of rows,
// and PID 1 would have all of them in memory.
const (
	maxPgMessage = 64 << 20  // bytes; a row of agentbox has little more than 1 MiB, a row of another program may have more
	maxPgAnswer  = 512 << 20 // bytes; the largest honest one are the proposals of an index, each with its value
)

// boundedFrontend is pgproto3.NewFrontend for a server that is not trusted: a message above the
// limit, or more bytes than the limit in answer to one request, end the connection with
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
		return 0, adapters.Errorf(adapters.CodeUnavailable, "PostgreSQL's answer is larger than %d bytes", b.limit).Final()
	}
	n, err := b.r.Read(p)
	b.got.Add(int64(n))
	return n, err
}

func (b *bounded) Write(p []byte) (int, error) {
	b.got.Store(0)
	return b.w.Write(p)
}
