package supervisor

import "sync"

// inbox carries work to the loop. Sending never waits: a goroutine that reaps or watches must not
// wait for the loop, and the loop must not wait for such a goroutine.
type inbox struct {
	mu    sync.Mutex
	queue []func()
	wake  chan struct{} // holds a token while the queue is not empty
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) post(f func()) {
	b.mu.Lock()
	b.queue = append(b.queue, f)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the posted functions and reuses spent as the next queue.
func (b *inbox) take(spent []func()) []func() {
	clear(spent)
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.queue
	b.queue = spent[:0]
	return batch
}
