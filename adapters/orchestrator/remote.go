package orchestrator

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// remoteBytes is how many bytes of a stream wait for a slow reader. Above that, the subscription is
// ended and made again at the reader's position: the host's ring can hold more than this box
// should.
const remoteBytes = 1 << 20

// remoteStream is a reader of an agent of the host.
type remoteStream struct {
	ctx     context.Context // of StreamEvents
	bridge  *Bridge
	agentID string
	closed  chan struct{}
	once    sync.Once
	wake    chan struct{} // has a token when there may be news

	mu       sync.Mutex
	name     string // of the subscription; "" while there is none
	peer     *peer  // that it is with
	queue    []queued
	bytes    int
	next     uint64 // seq of the next event to be queued; 0 = the oldest kept
	dropping bool   // the queue was full: the rest comes by a new subscription
	over     bool   // no event follows after the queue
}

type queued struct {
	event adapters.AgentEvent
	size  int
}

var _ adapters.AgentStream = (*remoteStream)(nil)

func newRemoteStream(ctx context.Context, b *Bridge, agentID string, from uint64) *remoteStream {
	return &remoteStream{
		ctx: ctx, bridge: b, agentID: agentID, next: from, closed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// subscribe asks the host for the events from next on. The stream is known
// before the host is asked, so no event can come too early.
func (r *remoteStream) subscribe(ctx context.Context) error {
	p, err := r.bridge.attached()
	if err != nil {
		return err
	}
	name := adapters.NewID()
	r.mu.Lock()
	r.name, r.peer, r.dropping = name, p, false
	from := r.next
	r.mu.Unlock()
	r.bridge.follow(name, r)
	err = r.bridge.ask(ctx, callLimit, rpcSubscribe,
		subscribeParams{AgentID: r.agentID, From: from, Subscription: name, Meta: metaOf(r.ctx)}, nil)
	if err != nil {
		r.bridge.unfollow(name)
	}
	return err
}

func (b *Bridge) follow(name string, r *remoteStream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remotes[name] = r
}

func (b *Bridge) unfollow(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.remotes, name)
}

// followers are the streams that an event is for. If the host does not name the subscription, these
// are all streams of the agent.
func (b *Bridge) followers(sub subscription) []*remoteStream {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.remotes[sub.Subscription]; r != nil && r.agentID == sub.AgentID {
		return []*remoteStream{r}
	}
	var all []*remoteStream
	for _, r := range b.remotes {
		if sub.Subscription == "" && r.agentID == sub.AgentID {
			all = append(all, r)
		}
	}
	return all
}

func (b *Bridge) arrived(p eventParams, size int) {
	for _, r := range b.followers(subscription{p.AgentID, p.Subscription}) {
		r.push(p, size)
	}
}

func (b *Bridge) over(sub subscription) {
	for _, r := range b.followers(sub) {
		r.mu.Lock()
		r.over = r.over || !r.dropping && r.current(sub.Subscription)
		r.mu.Unlock()
		r.rouse()
	}
}

// current tells whether a subscription is the present one. Events of an earlier one come from
// before the position of the present one. The caller holds mu.
func (r *remoteStream) current(name string) bool {
	return r.name != "" && (name == "" || name == r.name)
}

// push takes an event. It runs on the session's reader and never waits.
func (r *remoteStream) push(p eventParams, size int) {
	e := p.AgentEvent
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.current(p.Subscription) {
		return
	}
	next := e.Seq + 1
	if e.Kind == adapters.AgentEventLagged {
		var p laggedPayload
		if json.Unmarshal(e.Payload, &p) == nil && p.ResumeFrom > 0 {
			next = p.ResumeFrom
		}
	}
	switch {
	case r.over || r.dropping || next <= r.next:
		return
	case p.Subscription == "" && r.next > 0 && e.Seq > r.next && e.Kind != adapters.AgentEventLagged:
		return // of another subscription, which the host does not name
	case len(r.queue) > 0 && r.bytes+size > remoteBytes:
		r.dropping = true
		return
	}
	r.queue = append(r.queue, queued{e, size})
	r.bytes += size
	r.next = next
	r.over = e.Kind == adapters.AgentEventExit
	r.rouse()
}

func (r *remoteStream) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Next implements adapters.AgentStream. When the host is detached it answers
// UNAVAILABLE; a new stream can go on from the seq after the last event.
func (r *remoteStream) Next(ctx context.Context) (adapters.AgentEvent, error) {
	for {
		select {
		case <-r.closed:
			r.drop() // Close may have come between the end of one subscription and the next
			return adapters.AgentEvent{}, errStreamClosed()
		default:
		}
		if err := streamOver(ctx, r.ctx); err != nil {
			return adapters.AgentEvent{}, err
		}
		e, ok, again, err := r.pop()
		if ok || err != nil {
			return e, err
		}
		if again {
			r.drop()
			if err := r.subscribe(ctx); err != nil {
				return e, adapters.AsError(err).At(adapters.SlotOrchestrator, methodStream)
			}
			continue
		}
		if err := r.wait(ctx); err != nil {
			return e, err
		}
	}
}

// pop takes the oldest event; again asks for a new subscription.
func (r *remoteStream) pop() (e adapters.AgentEvent, ok, again bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) > 0 {
		q := r.queue[0]
		r.queue[0] = queued{}
		r.queue = r.queue[1:]
		r.bytes -= q.size
		return q.event, true, false, nil
	}
	if r.over {
		return e, false, false, io.EOF
	}
	return e, false, r.dropping, nil
}

func (r *remoteStream) wait(ctx context.Context) error {
	r.mu.Lock()
	p := r.peer
	r.mu.Unlock()
	select {
	case <-r.wake:
	case <-ctx.Done():
	case <-r.ctx.Done():
	case <-r.closed:
	case <-p.ctx.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.queue) == 0 && !r.over {
			return adapters.AsError(p.gone()).At(adapters.SlotOrchestrator, methodStream)
		}
	}
	return nil
}

// drop gives the subscription up.
func (r *remoteStream) drop() {
	r.mu.Lock()
	name, p, over := r.name, r.peer, r.over
	r.name = ""
	r.mu.Unlock()
	if name == "" {
		return
	}
	r.bridge.unfollow(name)
	if over {
		return // the host has ended it
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastWrite)
	defer cancel()
	// A host that does not get this request sends events that are dropped here.
	_ = p.notify(ctx, rpcUnsubscribe, subscription{r.agentID, name})
}

func (r *remoteStream) Close() error {
	r.once.Do(func() {
		close(r.closed)
		r.drop()
	})
	return nil
}
