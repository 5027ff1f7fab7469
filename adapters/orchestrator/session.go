package orchestrator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

const (
	pingEvery   = 15 * time.Second
	pingsMissed = 3                // without an answer in a row: the peer counts as lost
	greetLimit  = 10 * time.Second // for the peer's initialize
	callLimit   = 10 * time.Second // for the answer to a call
	lastWrite   = time.Second      // for queued lines when a session ends
	callsServed = 64               // of a peer's at once; more are RATE_LIMITED
	linesQueued = 64
)

// errDetached is the ordinary end of a session: the peer closed the channel.
var errDetached = errors.New("the peer has closed the channel")

// session is one attached channel. It reads and writes lines, matches answers to calls, and checks
// that the peer is alive. It keeps at most callsServed calls of the peer and linesQueued lines for
// it.
type session struct {
	rwc  io.ReadWriteCloser
	host *hosted

	ctx    context.Context
	cancel context.CancelCauseFunc

	out, urgent chan []byte // lines; pings and pongs go before all else
	inputs      chan func() // agent.input, one after the other
	pong        chan struct{}
	greeted     chan struct{}
	serving     chan struct{}
	running     sync.WaitGroup

	mu      sync.Mutex
	lastID  uint64
	pending map[uint64]func(message)
}

func newSession(ctx context.Context, rwc io.ReadWriteCloser, h *hosted) *session {
	s := &session{
		rwc: rwc, host: h, out: make(chan []byte, linesQueued), urgent: make(chan []byte, 8),
		inputs: make(chan func(), linesQueued), pong: make(chan struct{}, 1), greeted: make(chan struct{}),
		serving: make(chan struct{}, callsServed), pending: make(map[uint64]func(message)),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s
}

// run serves the channel until it ends. It returns the reason; nil if the peer has closed the
// channel. All goroutines of the session have ended then.
func (s *session) run() error {
	s.running.Go(s.writeLines)
	s.running.Go(s.watch)
	s.running.Go(s.feedInputs)
	// A peer that does not read must not delay the end.
	stop := context.AfterFunc(s.ctx, func() { time.AfterFunc(lastWrite, func() { s.rwc.Close() }) })
	s.end(s.readLines())
	s.running.Wait()
	stop()
	if err := context.Cause(s.ctx); !errors.Is(err, errDetached) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *session) end(why error) { s.cancel(why) }

func (s *session) isGreeted() bool {
	select {
	case <-s.greeted:
		return true
	default:
		return false
	}
}

// readLines reads until the channel breaks or an error ends the session.
func (s *session) readLines() error {
	r := bufio.NewReaderSize(s.rwc, maxLine+1)
	for s.ctx.Err() == nil {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return adapters.TooLarge("a line of the channel", maxLine, -1)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if end := s.take(line); end != nil {
				return end
			}
		}
		if err != nil {
			return errDetached // one of the sides has ended it; the earlier cause stays
		}
	}
	return s.ctx.Err()
}

// take handles one line. An error ends the session.
func (s *session) take(line []byte) error {
	m, bad := decode(line)
	switch {
	case bad != nil:
		return s.answer(m.ID, nil, bad)
	case m.isAnswer():
		s.settle(m)
		return nil
	case !s.isGreeted():
		return s.greet(m)
	case m.ID == nil:
		if *m.Method != rpcInput {
			s.host.notice(*m.Method, m.Params)
			return nil
		}
	case *m.Method == "ping":
		s.hurry(mustJSON(message{JSONRPC: "2.0", ID: m.ID, Result: json.RawMessage("{}")}))
		return nil
	}
	return s.accept(m)
}

func (s *session) greet(m message) error {
	if *m.Method != "initialize" || m.ID == nil {
		// The channel stays open. A host that calls in another order gets this error, and
		// greetLimit limits its time for the right call.
		return s.answer(m.ID, nil, invalid("initialize comes first"))
	}
	result, err := s.host.greet(m.Params)
	if err != nil {
		return errors.Join(s.answer(m.ID, nil, toRPC(err)), err)
	}
	if err := s.answer(m.ID, result, nil); err != nil {
		return err
	}
	close(s.greeted)
	return nil
}

// accept serves a call while the session reads on. Calls with input for an agent keep their order.
func (s *session) accept(m message) error {
	select {
	case s.serving <- struct{}{}:
	default:
		if m.ID == nil {
			return nil
		}
		return s.answer(m.ID, nil, toRPC(adapters.Errorf(adapters.CodeRateLimited, "more than %d calls at once", callsServed)))
	}
	job := func() {
		defer func() { <-s.serving }()
		s.serve(m)
	}
	if *m.Method == rpcInput {
		s.inputs <- job // has room for all that serving lets through
		return nil
	}
	s.running.Go(job)
	return nil
}

func (s *session) feedInputs() {
	for {
		select {
		case job := <-s.inputs:
			job()
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *session) serve(m message) {
	result, after, err := s.host.serve(s.ctx, s, *m.Method, m.Params)
	if m.ID == nil {
		return
	}
	failed, isFailed := errors.AsType[*rpcError](err)
	if err != nil && !isFailed {
		failed = toRPC(err)
	}
	// An error ends the session; the reading side reports it.
	if s.answer(m.ID, result, failed) == nil && after != nil {
		s.running.Go(after)
	}
}

// answer queues an answer. The id is null if the call could not be read.
func (s *session) answer(id json.RawMessage, result any, failed *rpcError) error {
	m := message{ID: id, Error: failed}
	if id == nil {
		m.ID = null
	}
	if failed == nil {
		m.Result = mustJSON(result)
	}
	line, err := encode(m)
	if err != nil {
		if line, err = encode(message{ID: m.ID, Error: toRPC(err)}); err != nil {
			return err
		}
	}
	return s.send(s.ctx, line)
}

// send queues a line. It waits while the queue is full.
func (s *session) send(ctx context.Context, line []byte) error {
	select {
	case s.out <- line:
		return nil
	case <-ctx.Done():
		return adapters.AsError(ctx.Err())
	case <-s.ctx.Done():
		return s.gone()
	}
}

func (s *session) gone() error {
	return adapters.Unavailable(context.Cause(s.ctx), "the peer is not attached any more")
}

// hurry queues a line before all others. If there is no room at once, it drops the line.
func (s *session) hurry(line []byte) {
	select {
	case s.urgent <- append(line, '\n'):
	default: // a peer that has not read eight pings counts as lost
	}
}

// notify sends a notification.
func (s *session) notify(ctx context.Context, method string, params any) error {
	line, err := encode(message{Method: &method, Params: mustJSON(params)})
	if err != nil {
		return err
	}
	return s.send(ctx, line)
}

func (s *session) writeLines() {
	for {
		select {
		case line := <-s.urgent:
			s.write(line)
			continue
		default:
		}
		select {
		case line := <-s.urgent:
			s.write(line)
		case line := <-s.out:
			s.write(line)
		case <-s.ctx.Done():
			s.flush()
			// The session is over, so an error of the close does not matter.
			_ = s.rwc.Close()
			return
		}
	}
}

func (s *session) flush() {
	for {
		select {
		case line := <-s.out:
			s.write(line)
		default:
			return
		}
	}
}

func (s *session) write(line []byte) {
	if _, err := s.rwc.Write(line); err != nil {
		s.end(errDetached)
	}
}

// watch ends a session whose peer does not introduce itself, or stops answering without closing the
// channel.
func (s *session) watch() {
	limit := time.NewTimer(greetLimit)
	defer limit.Stop()
	select {
	case <-s.greeted:
	case <-limit.C:
		s.end(fmt.Errorf("no initialize within %v", greetLimit))
		return
	case <-s.ctx.Done():
		return
	}
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	var unanswered []func() // forgets one ping each
	for {
		select {
		case <-s.pong:
			// An answer to one ping is as good as one to all before it.
			for _, forget := range unanswered {
				forget()
			}
			unanswered = nil
		case <-tick.C:
			if len(unanswered) >= pingsMissed {
				s.end(fmt.Errorf("the peer has not answered %d pings", pingsMissed))
				return
			}
			unanswered = append(unanswered, s.ping())
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *session) ping() (forget func()) {
	method := "ping"
	id, forget := s.expect(func(message) {
		select {
		case s.pong <- struct{}{}:
		default:
		}
	})
	s.hurry(mustJSON(message{JSONRPC: "2.0", ID: id, Method: &method}))
	return forget
}

// expect registers for an answer. The reader delivers it once, unless the caller calls forget
// before.
func (s *session) expect(f func(message)) (id json.RawMessage, forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	n := s.lastID
	s.pending[n] = f
	return strconv.AppendUint(nil, n, 10), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pending, n)
	}
}

// settle delivers an answer to the call that waits for it. It drops an answer for which no call
// waits.
func (s *session) settle(m message) {
	n, err := strconv.ParseUint(string(m.ID), 10, 64)
	if err != nil {
		return
	}
	s.mu.Lock()
	f := s.pending[n]
	delete(s.pending, n)
	s.mu.Unlock()
	if f != nil {
		f(m)
	}
}

// call sends a call to the peer and decodes the answer into result, unless result is nil. The peer gets the
// answer to its initialize before any call.
func (s *session) call(ctx context.Context, method string, params, result any) error {
	select {
	case <-s.greeted:
	case <-ctx.Done():
		return adapters.AsError(ctx.Err())
	case <-s.ctx.Done():
		return s.gone()
	}
	answered := make(chan message, 1)
	id, forget := s.expect(func(m message) { answered <- m })
	defer forget()
	line, err := encode(message{ID: id, Method: &method, Params: mustJSON(params)})
	if err != nil {
		return err
	}
	if err := s.send(ctx, line); err != nil {
		return err
	}
	select {
	case m := <-answered:
		if m.Error != nil {
			return fromRPC(m.Error)
		}
		if result == nil {
			return nil
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			return adapters.Unavailable(err, "the peer's answer to %s is not of the contract", method)
		}
		return nil
	case <-ctx.Done():
		return adapters.AsError(ctx.Err())
	case <-s.ctx.Done():
		return s.gone()
	}
}
