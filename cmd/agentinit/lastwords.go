package main

import (
	"io"
	"sync"
	"time"
)

// lastWords go to stderr past the log plane: those that come after its end, and the
// dump of a box that is stuck. They are written by a goroutine of their own: a
// pipe without a reader blocks the write for ever, and PID 1 must go on, at last to its
// end.
type lastWords struct {
	to      io.Writer // a file, which keeps each of them whole
	pending sync.WaitGroup
}

// say begins to write. said, which may be nil, hears how it went.
func (w *lastWords) say(text []byte, said func(error)) {
	w.pending.Go(func() {
		_, err := w.to.Write(text)
		if said != nil {
			said(err)
		}
	})
}

// wait returns when all has been written, or after limit.
func (w *lastWords) wait(limit time.Duration) {
	written := make(chan struct{})
	go func() {
		w.pending.Wait()
		close(written)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
	}
}
