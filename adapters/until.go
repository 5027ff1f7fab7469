package adapters

import (
	"context"
	"io"
)

// UntilDone returns a reader of r that begins no read after ctx has ended; it then returns the error
// of ctx. A read under way is not interrupted.
func UntilDone(ctx context.Context, r io.Reader) io.Reader { return untilDone{ctx, r} }

type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
