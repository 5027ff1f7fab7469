package main

import (
	"io"
	"sync"
	"time"
)

// lastWords go to stderr past the log plane: those that come after its end, and the
// dump of a box that is stuck. They are written beside whoever says them, because
// a pipe that nobody reads takes none for ever, and PID 1 has to go on, to its end
// at last.
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
