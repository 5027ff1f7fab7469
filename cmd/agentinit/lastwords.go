package main

import (
	"io"
	"sync"
	"time"
)

// lastWords writes to stderr without the log plane: text after the end of the plane, and the dump
// of a box that is stuck. A separate goroutine writes, because a pipe without a reader blocks a
// write for ever, and PID 1 must continue.
type lastWords struct {
	to      io.Writer // a file, which writes each text as a whole
	pending sync.WaitGroup
}

// say begins to write. said may be nil; it is called with the result.
func (w *lastWords) say(text []byte, said func(error)) {
	w.pending.Go(func() {
		_, err := w.to.Write(text)
		if said != nil {
			said(err)
		}
	})
}

// wait returns when everything was written, or after limit.
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
