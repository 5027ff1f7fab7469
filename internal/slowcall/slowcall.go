// Package slowcall owns how to wait for a function that may never return, such as one that reads a file: a
// program may have put a FIFO in its place, or its file system may be dead. It does not know what the
// function does, and cannot end it.
package slowcall

import "context"

// Call is a function that may never return, and its run. Only one goroutine at a time may use it.
type Call[T any] struct {
	f       func() (T, error)
	running chan result[T] // nil if no run is under way
}

type result[T any] struct {
	value T
	err   error
}

// New makes a Call of f and does not run it yet.
func New[T any](f func() (T, error)) *Call[T] { return &Call[T]{f: f} }

// Wait runs the function and returns what it returns. If ctx ends before that, Wait returns the error of
// ctx. The run then goes on, and the next Wait waits for it: there are never two at once.
func (c *Call[T]) Wait(ctx context.Context) (T, error) {
	if c.running == nil {
		running := make(chan result[T], 1)
		c.running = running
		go func() {
			value, err := c.f()
			running <- result[T]{value, err}
		}()
	}
	select {
	case r := <-c.running:
		c.running = nil
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
