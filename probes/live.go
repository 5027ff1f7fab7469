package probes

import (
	"context"
	"errors"
	"sync"
	"time"
)

// pingTimeout is how long the supervisor's loop may take to answer.
const pingTimeout = 100 * time.Millisecond

// pingFresh is how long an answer is used for other requests. So any number of requests causes at
// most 20 pings a second.
const pingFresh = 50 * time.Millisecond

// Pinger asks the supervisor's loop for one iteration. It returns after that iteration, or with the
// error of ctx.
type Pinger interface {
	Ping(ctx context.Context) error
}

// ErrStuck means that the supervisor's loop has not answered in time.
var ErrStuck = errors.New("the supervisor loop does not answer")

// Liveness tells whether the supervisor's loop runs. Its methods may be called from any goroutine.
// At most one ping is under way at a time.
type Liveness struct {
	pinger  Pinger
	started time.Time

	mu     sync.Mutex
	flight *flight
}

// flight is one ping; done is closed when err and at are final.
type flight struct {
	done chan struct{}
	at   time.Time
	err  error
}

// NewLiveness returns a Liveness whose uptime counts from started. A nil pinger means that there is
// no supervisor yet: always alive.
func NewLiveness(p Pinger, started time.Time) *Liveness {
	return &Liveness{pinger: p, started: started}
}

// uptime is the time since the start.
func (l *Liveness) uptime() time.Duration { return time.Since(l.started) }

// check returns nil if the loop answers within pingTimeout, or has answered within pingFresh
// before.
func (l *Liveness) check(ctx context.Context) error {
	if l.pinger == nil {
		return nil
	}
	f := l.join()
	// A separate time limit, because a pinger may ignore its context.
	ctx, cancel := context.WithTimeoutCause(ctx, pingTimeout, ErrStuck)
	defer cancel()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Liveness) join() *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.flight; f != nil && !f.stale() {
		return f
	}
	f := &flight{done: make(chan struct{})}
	l.flight = f
	go func() {
		// Not the request's context: the callers that joined must not lose the answer
		// because the first caller went away.
		ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
		defer cancel()
		if err := l.pinger.Ping(ctx); err != nil {
			f.err = ErrStuck
		}
		f.at = time.Now()
		close(f.done)
	}()
	return f
}

func (f *flight) stale() bool {
	select {
	case <-f.done:
		return time.Since(f.at) > pingFresh
	default:
		return false
	}
}
