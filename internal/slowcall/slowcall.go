// Package slowcall owns how to wait for a function that may never return, such as one that reads a file: a
// program may have put a FIFO in its place, or its file system may be dead. It does not know what the
// function does, and cannot end it.
package slowcall

import (
	"context"
	"sync"
)

// Call is a function that may never return, and its run. All methods may be called from any goroutine.
type Call[T any] struct {
	f func() (T, error)

	mu  sync.Mutex
	run *run[T] // nil if none is under way and no result waits
}

type run[T any] struct {
	done  chan struct{} // closed at its end
	value T             // valid then, as is err
	err   error
}

// New makes a Call of f and does not run it yet.
func New[T any](f func() (T, error)) *Call[T] { return &Call[T]{f: f} }

// Wait runs the function and returns what it returns. If ctx ends before that, Wait returns the error of
// ctx. The run then goes on, and the next Wait waits for it: there are never two at once. All that wait at
// the same time get the result of the same run.
func (c *Call[T]) Wait(ctx context.Context) (T, error) {
	c.mu.Lock()
	r := c.run
	if r == nil {
		r = &run[T]{done: make(chan struct{})}
		c.run = r
		go func() {
			defer close(r.done)
			r.value, r.err = c.f()
		}()
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.run == r {
			c.run = nil
		}
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Fresh is Wait, but never returns what a run returns that was under way before: by the time it ends, what it
// has read may be another thing. Fresh waits for its end first.
func (c *Call[T]) Fresh(ctx context.Context) (T, error) {
	c.mu.Lock()
	before := c.run
	c.mu.Unlock()
	if before != nil {
		if _, err := c.Wait(ctx); ctx.Err() != nil {
			var none T
			return none, err
		}
	}
	return c.Wait(ctx)
}
