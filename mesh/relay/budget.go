package relay

import (
	"context"
	"errors"
	"sync"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// The memory that all sessions together may use, in bytes. The limits of one session are not enough,
// because there can be hundreds of sessions. Sessions that have proved a key of Policy.Own have no
// part in it, so that strangers cannot keep out the box.
const (
	inboundMemory  = 8 << 20  // messages that are read or handled
	outboundMemory = 12 << 20 // messages and live events that wait for clients
	filterMemory   = 8 << 20  // filters of subscriptions
)

// Below these sizes a session has its part in any case, so that clients with small messages are served
// while others use up the memory.
const (
	smallMessage = 4 << 10
	smallQueue   = 16 << 10
)

// maxLarge is how many messages above smallMessage are parsed at the same time: a parsed message can
// need ten times the memory of its text.
const maxLarge = 4

// maxReading is how many sessions read the database at the same time. The last reader of the
// database is for sessions of Policy.Own, whose queries would otherwise wait for those of strangers.
const maxReading = sqlite.Readers - 1

var errBusy = errors.New("the relay has no memory left for messages of this size; try again later")

// budget is an amount of memory that sessions share.
type budget struct {
	mu    sync.Mutex
	most  int
	used  int
	freed chan struct{} // closed when memory is freed; nil if no session waits
}

// newBudget returns a budget that has room for some messages of the largest size.
func newBudget(most, largest int) *budget { return &budget{most: max(most, 4*largest)} }

func (b *budget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.most {
		return false
	}
	b.used += n
	return true
}

// await takes the memory as soon as there is some.
func (b *budget) await(ctx context.Context, n int) error {
	for {
		freed := b.takeOr(n)
		if freed == nil {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return errEnded
		}
	}
}

// takeOr takes the memory and returns nil, or returns a channel that is closed when memory is freed.
func (b *budget) takeOr(n int) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n <= b.most {
		b.used += n
		return nil
	}
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	return b.freed
}

func (b *budget) put(n int) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// Sizes of Go's values on a 64-bit machine.
const (
	sizeString = 16
	sizeSlice  = 24
	sizeFilter = 256 // with its map
)

// weight estimates the memory of a parsed event.
func weight(e *nostr.Event) int {
	n := len(e.Content) + 512 // the other fields
	for _, tag := range e.Tags {
		n += sizeSlice
		for _, s := range tag {
			n += sizeString + len(s)
		}
	}
	return n
}

// filterWeight estimates the memory of parsed filters.
func filterWeight(filters []nip01.Filter) int {
	n := 0
	for _, f := range filters {
		n += sizeFilter + 8*len(f.Kinds)
		for _, list := range [][]string{f.IDs, f.Authors} {
			n += texts(list)
		}
		for name, list := range f.Tags {
			n += sizeString + len(name) + sizeSlice + texts(list)
		}
	}
	return n
}

func texts(list []string) int {
	n := 0
	for _, s := range list {
		n += sizeString + len(s)
	}
	return n
}

// turn waits until a message of that size may be parsed. done ends the turn and may be called again.
func (r *Relay) turn(ctx context.Context, size int) (done func(), err error) {
	if size <= smallMessage {
		return func() {}, nil
	}
	return acquire(ctx, r.large)
}

// acquire waits for one of the slots. done frees the slot and may be called again.
func acquire(ctx context.Context, slots chan struct{}) (done func(), err error) {
	select {
	case slots <- struct{}{}:
		return sync.OnceFunc(func() { <-slots }), nil
	case <-ctx.Done():
		return nil, errEnded
	}
}
