package relay

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// outboundBytes limits the unsent data of one connection.
const outboundBytes = 4 << 20

var errEnded = errors.New("the session has ended")

// outbound is the queue of messages to send on one connection. outboundBytes limits its size, except
// that an empty queue takes a message of any size. The shared budget limits the size of all queues
// together.
type outbound struct {
	shared *budget
	mu     sync.Mutex
	items  []item
	bytes  int
	sent   int           // charge of the message that is being sent
	closed bool          // no more messages
	ready  chan struct{} // has a token if there may be a message to send
	space  chan struct{} // has a token if there may be room
}

// item is a message: head, or the beginning of an EVENT in head and the event in body. Queues share
// the body of a live event.
type item struct {
	head, body []byte
	charge     int // what is taken of the shared budget for it
}

func (i item) size() int { return len(i.head) + len(i.body) }

func (i item) message() []byte {
	if i.body == nil {
		return i.head
	}
	return slices.Concat(i.head, i.body, []byte("]"))
}

// eventItem is the message EVENT to a subscription. body is the event's JSON.
func eventItem(subscription string, body []byte) item {
	head := nip01.Message(nip01.VerbEvent, subscription)
	head[len(head)-1] = ',' // it was "]"
	return item{head: head, body: body}
}

func newOutbound(shared *budget) *outbound {
	return &outbound{shared: shared, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// offer queues a message. It returns false if there is no room. If free is true, offer takes nothing of
// the shared budget: the caller has taken i.charge, or the message needs no part of the budget.
func (o *outbound) offer(i item, free bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := i.size()
	if o.closed || len(o.items) > 0 && o.bytes+size > outboundBytes {
		return false
	}
	if !free && o.bytes+size > smallQueue {
		if !o.shared.take(size) {
			return false
		}
		i.charge = size
	}
	o.items = append(o.items, i)
	o.bytes += size
	signal(o.ready)
	return true
}

// wait queues a message as soon as this queue has room, like an offer that is free. Only one goroutine
// may wait.
func (o *outbound) wait(ctx context.Context, i item) error {
	for !o.offer(i, true) {
		select {
		case <-o.space:
		case <-ctx.Done():
			return errEnded
		}
	}
	return nil
}

// next takes the oldest message. The caller has sent the message before.
func (o *outbound) next(ctx context.Context) ([]byte, error) {
	for {
		o.mu.Lock()
		o.shared.put(o.sent)
		o.sent = 0
		if len(o.items) > 0 {
			i := o.items[0]
			o.items[0] = item{}
			o.items = o.items[1:]
			o.bytes -= i.size()
			o.sent = i.charge
			o.mu.Unlock()
			signal(o.space)
			return i.message(), nil
		}
		o.mu.Unlock()
		select {
		case <-o.ready:
		case <-ctx.Done():
			return nil, errEnded
		}
	}
}

// close drops the messages. No goroutine may be in next.
func (o *outbound) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range o.items {
		o.sent += i.charge
	}
	o.shared.put(o.sent)
	o.items, o.bytes, o.sent, o.closed = nil, 0, 0, true
}
