package orchestrator

import (
	"context"
	"io"
	"sync"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// localStream is a reader of one agent's ring.
type localStream struct {
	ctx    context.Context // of StreamEvents
	ring   *ring
	place  uint64
	closed chan struct{}
	once   sync.Once
}

var _ adapters.AgentStream = (*localStream)(nil)

func newLocalStream(ctx context.Context, r *ring, from uint64) *localStream {
	return &localStream{ctx: ctx, ring: r, place: from, closed: make(chan struct{})}
}

func (s *localStream) Next(ctx context.Context) (adapters.AgentEvent, error) {
	for {
		if err := s.over(ctx); err != nil {
			return adapters.AgentEvent{}, err
		}
		e, news, ok := s.ring.next(&s.place)
		if ok {
			return e, nil
		}
		if news == nil {
			return adapters.AgentEvent{}, io.EOF
		}
		select {
		case <-news:
		case <-ctx.Done():
		case <-s.ctx.Done():
		case <-s.closed:
		}
	}
}

func (s *localStream) over(ctx context.Context) error {
	select {
	case <-s.closed:
		return errStreamClosed()
	default:
	}
	return streamOver(ctx, s.ctx)
}

func (s *localStream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

const methodStream = "streamEvents"

func errStreamClosed() error {
	return adapters.Errorf(adapters.CodeUnavailable, "the stream is closed").At(adapters.SlotOrchestrator, methodStream)
}

// streamOver is the error of the first context that has ended.
func streamOver(contexts ...context.Context) error {
	for _, ctx := range contexts {
		if ctx.Err() != nil {
			return adapters.AsError(context.Cause(ctx)).At(adapters.SlotOrchestrator, methodStream)
		}
	}
	return nil
}
