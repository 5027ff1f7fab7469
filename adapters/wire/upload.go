package wire

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// uploadLimit bounds one streamed upload. After the last byte, the peer has writeLimit to answer.
const uploadLimit = 2 * time.Minute

// upload reads a caller's body for the transport. It keeps failures of the caller apart from those
// of the peer, and refuses a body that has not the promised length. It begins no read after the
// call has returned, although the transport may ask for one.
type upload struct {
	stopped atomic.Bool
	cancel  context.CancelFunc // ends the exchange

	mu    sync.Mutex // held while reading r
	begun bool
	r     io.Reader
	left  int64 // < 0 = unknown
	err   error
}

func newUpload(r io.Reader, size int64, cancel context.CancelFunc) *upload {
	return &upload{r: r, left: size, cancel: cancel}
}

func (u *upload) Read(buf []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.stopped.Load():
		return 0, errors.New("the upload has ended")
	case u.err != nil:
		return 0, u.err
	}
	u.begun = true
	n, err := u.r.Read(buf)
	if u.left >= 0 {
		u.left -= int64(n)
		if u.left == 0 && err == nil {
			err = u.atEnd()
		}
		if u.left < 0 {
			u.err = adapters.Invalid("body", "is longer than its size")
			return 0, u.err
		}
	}
	if err == nil {
		return n, nil
	}
	if u.err = u.judge(err); u.err != io.EOF {
		return 0, u.err
	}
	return n, io.EOF
}

// atEnd checks that the body ends at the promised length, before the last byte is sent: with that
// byte the peer would have a complete document.
func (u *upload) atEnd() error {
	n, err := io.ReadFull(u.r, make([]byte, 1))
	u.left -= int64(n)
	return err
}

// judge turns the end of the body into the errors for the transport and for the caller.
func (u *upload) judge(err error) error {
	coded, isCoded := errors.AsType[*adapters.Error](err)
	switch {
	case err == io.EOF && u.left > 0:
		return adapters.Invalid("body", "is %d bytes shorter than its size", u.left)
	case err == io.EOF:
		time.AfterFunc(writeLimit, u.cancel) // harmless once the exchange is over
		return io.EOF
	case isCoded:
		return coded
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return adapters.AsError(err)
	}
	return adapters.Invalid("body", "cannot be read").Wrap(err)
}

// failure is the error of the body; nil if the body did not fail. It does not wait for a read that
// hangs: such a body has not failed.
func (u *upload) failure() error {
	if !u.mu.TryLock() {
		return nil
	}
	defer u.mu.Unlock()
	if u.err == io.EOF {
		return nil
	}
	return u.err
}

// stop ends the upload. A running read of the caller's body ends by itself, and no further read
// begins. unread tells that none has begun.
func (u *upload) stop() (unread bool) {
	u.stopped.Store(true)
	if !u.mu.TryLock() {
		return false
	}
	defer u.mu.Unlock()
	return !u.begun
}
