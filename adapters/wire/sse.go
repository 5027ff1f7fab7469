package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
)

const (
	sseIdle     = 45 * time.Second // three missed comments mean that the connection is dead
	sseLine     = 1 << 20          // bytes of one line
	sseEvent    = 1 << 20          // bytes of one event's data
	sseRetry    = 2 * time.Second  // until the server sets another value
	sseRetryMax = time.Minute
)

// ServerEvent is one server-sent event (WHATWG HTML, 9.2).
type ServerEvent struct {
	ID   string // the last id seen, as the standard defines it
	Type string // "" = message
	Data []byte
}

// EventStream follows a stream. It reconnects with the last id that it has seen. Only one goroutine
// at a time may call Next.
type EventStream struct {
	events chan ServerEvent
	failed chan error // one error, then closed
	cancel context.CancelFunc
	done   chan struct{}
}

// Events opens a stream. It makes the first connection before it returns, so a peer without a
// stream gives an error here. The stream ends with ctx, with Close, or with an answer that a retry
// cannot change.
func (c *Client) Events(ctx context.Context, path string, query url.Values) (*EventStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{client: c, path: path, query: query, retry: sseRetry}
	res, err := f.open(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &EventStream{events: make(chan ServerEvent), failed: make(chan error, 1), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer close(s.failed)
		if err := f.follow(ctx, res, s.events); err != nil {
			s.failed <- err
		}
	}()
	return s, nil
}

// Next returns the next event. After the end it returns the error that ended the stream, or
// UNAVAILABLE after Close.
func (s *EventStream) Next(ctx context.Context) (ServerEvent, error) {
	select {
	case e := <-s.events:
		return e, nil
	case err, ok := <-s.failed:
		if ok {
			return ServerEvent{}, adapters.AsError(err)
		}
		return ServerEvent{}, adapters.Errorf(adapters.CodeUnavailable, "the stream is closed")
	case <-ctx.Done():
		return ServerEvent{}, adapters.AsError(ctx.Err())
	}
}

// Close ends the stream and waits for its goroutine.
func (s *EventStream) Close() error {
	s.cancel()
	<-s.done
	return nil
}

// follower is the state of the reading side; one goroutine uses it.
type follower struct {
	client *Client
	path   string
	query  url.Values
	lastID string
	retry  time.Duration
}

func (f *follower) open(ctx context.Context) (*http.Response, error) {
	h := http.Header{"Cache-Control": {"no-store"}}
	if f.lastID != "" {
		h.Set("Last-Event-ID", f.lastID)
	}
	res, err := f.client.Stream(ctx, Request{Method: http.MethodGet, Path: f.path, Query: f.query, Header: h, Accept: "text/event-stream"})
	if err != nil {
		return nil, err
	}
	if mt, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); mt != "text/event-stream" {
		res.Body.Close()
		return nil, adapters.Unsupported("stream", "the peer answers %q instead of an event stream", mt)
	}
	return res, nil
}

// follow reads until the stream cannot go on. Breaks are mended with backoff.
func (f *follower) follow(ctx context.Context, res *http.Response, out chan<- ServerEvent) error {
	wait := time.Duration(0)
	for {
		got, err := f.read(ctx, res, out)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, adapters.ErrPayloadTooLarge) {
			return err
		}
		if got {
			wait = 0
		}
		for {
			wait = min(max(2*wait, f.retry), sseRetryMax)
			if !sleep.For(ctx, wait/2+rand.N(wait/2+1)) {
				return nil
			}
			res, err = f.open(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return nil
			}
			if e := adapters.AsError(err); !e.Retryable {
				return e
			}
		}
	}
}

// read delivers the events of one connection; got says there were any.
func (f *follower) read(ctx context.Context, res *http.Response, out chan<- ServerEvent) (got bool, err error) {
	defer res.Body.Close()
	// A peer that went away without a word is noticed by its silence.
	idle := time.AfterFunc(sseIdle, func() { res.Body.Close() })
	defer idle.Stop()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(make([]byte, 4096), sseLine)
	lines.Split(splitLines)
	var p parser
	for lines.Scan() {
		idle.Reset(sseIdle)
		e, complete, err := p.line(lines.Text(), f)
		if err != nil {
			return got, err
		}
		if !complete {
			continue
		}
		got = true
		// Waiting for a slow reader is not the peer's silence.
		idle.Stop()
		select {
		case out <- e:
		case <-ctx.Done():
			return got, ctx.Err()
		}
		idle.Reset(sseIdle)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return got, adapters.TooLarge("event line", sseLine, -1)
	}
	if err := lines.Err(); err != nil {
		return got, err
	}
	return got, io.EOF
}

// parser collects the lines of one event.
type parser struct {
	id      string
	hasID   bool
	kind    string
	data    []byte
	hasData bool
}

// line takes one line without its end; complete is true at the empty line
// after data.
func (p *parser) line(line string, f *follower) (e ServerEvent, complete bool, err error) {
	if line == "" {
		if p.hasID {
			f.lastID = p.id
		}
		e = ServerEvent{ID: f.lastID, Type: p.kind, Data: p.data}
		complete = p.hasData
		*p = parser{}
		return e, complete, nil
	}
	name, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch name {
	case "id":
		if !strings.ContainsRune(value, 0) {
			p.id, p.hasID = value, true
		}
	case "event":
		p.kind = value
	case "data":
		if p.hasData {
			p.data = append(p.data, '\n')
		}
		p.hasData = true
		p.data = append(p.data, value...)
		if len(p.data) > sseEvent {
			return e, false, adapters.TooLarge("event", sseEvent, -1)
		}
	case "retry":
		if ms, err := strconv.ParseUint(value, 10, 31); err == nil {
			f.retry = min(max(time.Duration(ms)*time.Millisecond, 10*time.Millisecond), sseRetryMax)
		}
	}
	return e, false, nil
}

// splitLines is bufio.ScanLines for the three line ends of the standard: LF,
// CR LF and CR. A last line without an end is part of no event and dropped.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	i := bytes.IndexAny(data, "\r\n")
	switch {
	case i < 0 && atEOF:
		return len(data), nil, nil
	case i < 0:
		return 0, nil, nil
	case data[i] == '\n':
		return i + 1, data[:i], nil
	case i+1 < len(data) && data[i+1] == '\n':
		return i + 2, data[:i], nil
	case i+1 == len(data) && !atEOF:
		return 0, nil, nil // the LF may be still on its way
	}
	return i + 1, data[:i], nil
}
