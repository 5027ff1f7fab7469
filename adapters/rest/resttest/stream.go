package resttest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// maxEventLine bounds a line of a stream, in bytes: an output event holds 64 KiB,
// six times as much when all of it is escaped.
const maxEventLine = 1 << 20

// StreamEvents implements adapters.Orchestrator. The stream ends where the
// answer does: a box ends it after the exit event.
func (a *Agents) StreamEvents(ctx context.Context, id string, from uint64) (adapters.AgentStream, error) {
	if err := ctx.Err(); err != nil {
		return nil, adapters.AsError(err)
	}
	if a.peer.Load() == nil {
		return nil, adapters.Closed(a.slot)
	}
	q := url.Values{}
	if from > 0 {
		q.Set("after", strconv.FormatUint(from-1, 10))
	}
	inner, cancel := context.WithCancel(ctx)
	res, err := a.client.Stream(inner, wire.Request{Method: http.MethodGet, Path: agentPath(id) + "/events", Query: q, Accept: "text/event-stream"})
	if err != nil {
		cancel()
		return nil, err
	}
	s := &agentStream{outer: ctx, cancel: cancel, events: make(chan adapters.AgentEvent), end: make(chan struct{}), closed: make(chan struct{})}
	go func() {
		defer close(s.end)
		defer res.Body.Close()
		s.err = s.read(inner, res.Body)
	}()
	return s, nil
}

type agentStream struct {
	outer  context.Context // of StreamEvents
	cancel context.CancelFunc
	events chan adapters.AgentEvent
	end    chan struct{} // closed once err is set
	err    error
	closed chan struct{}
	once   sync.Once
}

// read passes the events of an event stream (WHATWG HTML, 9.2) on until it ends.
func (s *agentStream) read(ctx context.Context, body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEventLine)
	numbered := false // the error that ends a stream is no event of the agent's
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			numbered = true
		case "data":
			if !numbered {
				return adapters.FromProblem(http.StatusServiceUnavailable, http.Header{"Content-Type": {adapters.ProblemType}}, []byte(value))
			}
			var e adapters.AgentEvent
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				return adapters.Unavailable(err, "the box sent an event that cannot be read")
			}
			select {
			case s.events <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
		case "":
			numbered = false
		}
	}
	if err := ctx.Err(); err != nil {
		return err // which broke it off
	}
	if err := lines.Err(); err != nil {
		return adapters.Unavailable(err, "the stream broke off")
	}
	return io.EOF
}

func (s *agentStream) Next(ctx context.Context) (adapters.AgentEvent, error) {
	if err := ctx.Err(); err != nil {
		return adapters.AgentEvent{}, placed(err)
	}
	select {
	case <-s.closed:
		return adapters.AgentEvent{}, placed(errClosed)
	default:
	}
	select {
	case e := <-s.events:
		return e, nil
	case <-s.closed:
		return adapters.AgentEvent{}, placed(errClosed)
	case <-s.outer.Done():
		return adapters.AgentEvent{}, placed(s.outer.Err())
	case <-ctx.Done():
		return adapters.AgentEvent{}, placed(ctx.Err())
	case <-s.end:
		select {
		case <-s.closed: // which ends the reader, too
			return adapters.AgentEvent{}, placed(errClosed)
		default:
		}
		if s.err == io.EOF {
			return adapters.AgentEvent{}, io.EOF
		}
		return adapters.AgentEvent{}, placed(s.err)
	}
}

var errClosed = adapters.Errorf(adapters.CodeUnavailable, "the stream is closed")

// placed says where an error came from.
func placed(err error) error {
	return adapters.AsError(err).At(adapters.SlotOrchestrator, "streamEvents")
}

// Close implements adapters.AgentStream. It waits for the reader.
func (s *agentStream) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.cancel()
		<-s.end
	})
	return nil
}
