package relay

import (
	"context"
	"errors"
	"sync"
)

// outboundBytes limits the unsent data of one connection.
const outboundBytes = 4 << 20

var errEnded = errors.New("the session has ended")

// outbound is the queue of messages to send on one connection. Its size in bytes is limited, but an
// empty queue takes a message of any size.
type outbound struct {
	mu    sync.Mutex
	items [][]byte
	bytes int
	ready chan struct{} // has a token if there may be a message to send
	space chan struct{} // has a token if there may be room
}

func newOutbound() *outbound {
	return &outbound{ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// offer queues a message. It returns false if there is no room.
func (o *outbound) offer(message []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.items) > 0 && o.bytes+len(message) > outboundBytes {
		return false
	}
	o.items = append(o.items, message)
	o.bytes += len(message)
	signal(o.ready)
	return true
}

// wait queues a message as soon as there is room. Only one goroutine may wait.
func (o *outbound) wait(ctx context.Context, message []byte) error {
	for !o.offer(message) {
		select {
		case <-o.space:
		case <-ctx.Done():
			return errEnded
		}
	}
	return nil
}

// next takes the oldest message.
func (o *outbound) next(ctx context.Context) ([]byte, error) {
	for {
		o.mu.Lock()
		if len(o.items) > 0 {
			message := o.items[0]
			o.items[0] = nil
			o.items = o.items[1:]
			o.bytes -= len(message)
			o.mu.Unlock()
			signal(o.space)
			return message, nil
		}
		o.mu.Unlock()
		select {
		case <-o.ready:
		case <-ctx.Done():
			return nil, errEnded
		}
	}
}
