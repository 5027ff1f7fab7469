package wire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const (
	breakerFailures = 5               // failures in a row that open it
	breakerOpen     = 5 * time.Second // time before one trial call is allowed
)

// errLeftAlone is in the error of a call that the breaker has refused. Such a call is not retried: to
// wait until the breaker lets a call through would take as long as the time-outs that it saves.
var errLeftAlone = errors.New("the breaker is open")

// breaker refuses calls while a peer is known to be down, so that many calls do not all wait for a
// time-out. The zero value is closed.
type breaker struct {
	mu       sync.Mutex
	failures int
	until    time.Time // open until then; zero = closed
	trial    bool      // one call is testing the peer
	last     error     // the latest failure
}

type outcome int

const (
	peerAnswered outcome = iota // the peer gave any answer
	peerFailed
	unknown // the caller stopped waiting first
)

// outcomeOf tells failures of the peer from mistakes of the caller.
func outcomeOf(ctx context.Context, err error) outcome {
	switch adapters.CodeOf(err) {
	case adapters.CodeUnavailable:
		return peerFailed
	case adapters.CodeTimeout:
		if errors.Is(ctx.Err(), context.Canceled) {
			return unknown
		}
		return peerFailed
	}
	return peerAnswered
}

// enter allows a call or refuses it. trial says that this call tests the peer; it is passed to
// leave.
func (b *breaker) enter(slot adapters.Slot) (trial bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.IsZero() {
		return false, nil
	}
	left := time.Until(b.until)
	if left <= 0 && !b.trial {
		b.trial = true
		return true, nil
	}
	e := adapters.Errorf(adapters.CodeUnavailable, "the peer failed %d times in a row and is left alone: %s", breakerFailures, adapters.AsError(b.last).Message).
		Wrap(fmt.Errorf("%w: %w", errLeftAlone, b.last)).With("slot", slot)
	return false, e.WithRetryAfter(max(left, time.Second))
}

// leave notes what became of the call: outcomeOf(ctx, err).
func (b *breaker) leave(ctx context.Context, trial bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if trial {
		b.trial = false
	}
	switch outcomeOf(ctx, err) {
	case peerAnswered:
		b.failures, b.until, b.last = 0, time.Time{}, nil
	case peerFailed:
		b.failures++
		b.last = err
		if trial || b.failures >= breakerFailures {
			b.until = time.Now().Add(breakerOpen)
		}
	}
}
