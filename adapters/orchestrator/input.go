package orchestrator

import (
	"context"
	"io"
	"sync"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// inputQueued is how much input may wait for an agent that does not read.
const inputQueued = adapters.MaxAgentCommand

// input feeds an agent's standard input. It accepts a piece of data completely or not at all. A
// separate goroutine writes, because an agent may never read.
type input struct {
	w io.WriteCloser

	mu     sync.Mutex
	queue  []byte
	eof    bool          // no more data is accepted
	ended  bool          // the box or the agent has closed the pipe
	change chan struct{} // closed at the next change; waited for by both sides
}

func newInput(w io.WriteCloser, first string, open bool) *input {
	return &input{w: w, queue: []byte(first), eof: !open, change: make(chan struct{})}
}

// changed wakes the callers that wait. The caller holds mu.
func (in *input) changed() {
	close(in.change)
	in.change = make(chan struct{})
}

// put accepts data, and the end of input if eof is set. While too much is queued, it waits; if ctx
// ends first, it has accepted nothing.
func (in *input) put(ctx context.Context, data []byte, eof bool) error {
	for {
		taken, change, err := in.offer(data, eof)
		if taken || err != nil {
			return err
		}
		select {
		case <-change:
		case <-ctx.Done():
			return adapters.Errorf(adapters.CodeTimeout, "the agent does not read its standard input").Wrap(ctx.Err())
		}
	}
}

func (in *input) offer(data []byte, eof bool) (taken bool, change <-chan struct{}, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.ended:
		return false, nil, inputClosed("the agent has closed its standard input")
	case in.eof:
		return false, nil, inputClosed("the agent's standard input has been closed")
	case len(in.queue) > 0 && len(in.queue)+len(data) > inputQueued:
		return false, in.change, nil
	}
	in.queue = append(in.queue, data...)
	in.eof = eof
	in.changed()
	return true, nil, nil
}

func inputClosed(why string) error {
	return adapters.Errorf(adapters.CodeConflict, "%s", why).Final()
}

// feed writes until the end of input, a broken pipe, or close.
func (in *input) feed() {
	for {
		chunk, ok := in.take()
		if !ok {
			break
		}
		if _, err := in.w.Write(chunk); err != nil {
			break // the agent has closed it; put tells
		}
	}
	in.close()
}

// take waits for something to write.
func (in *input) take() ([]byte, bool) {
	for {
		in.mu.Lock()
		chunk, change, over := in.queue, in.change, in.ended || in.eof
		if !in.ended && len(chunk) > 0 {
			in.queue = nil
			in.changed()
			in.mu.Unlock()
			return chunk, true
		}
		in.mu.Unlock()
		if over {
			return nil, false
		}
		<-change
	}
}

// close ends the pipe, even if data is queued. It may be called more than once.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return
	}
	in.ended, in.queue = true, nil
	in.changed()
	// Closing a pipe's write end flushes nothing, so an error does not matter.
	_ = in.w.Close()
}
