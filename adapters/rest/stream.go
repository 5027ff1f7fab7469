package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Times and bounds of streams.
const (
	heartbeat   = 15 * time.Second // a comment this often keeps proxies from cutting
	pieceLimit  = 10 * time.Second // to send one message: a caller that reads slower is cut off
	pingEvery   = 20 * time.Second
	retryMillis = 2000
	maxFrame    = 1 << 20 // bytes of a message from a WebSocket's peer
)

// message is one piece of a stream.
type message struct {
	ID    string // "" = none: it is not resumed from
	Event string // "" = message
	Data  []byte // one line
}

// feed yields a stream's messages. next returns io.EOF at its end and is called
// by one goroutine; close ends a next that waits.
type feed struct {
	next  func(context.Context) (message, error)
	close func() error
}

// position is where a caller wants to go on: Last-Event-ID, else after; false
// when it says neither.
func (q *request) position() (after uint64, given bool, err error) {
	v := q.Header.Get("Last-Event-ID")
	if v == "" {
		if v = q.URL.Query().Get("after"); v == "" {
			return 0, false, nil
		}
	}
	after, err = strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0, false, adapters.Invalid("after", "must be a number that the stream gave")
	}
	return after, true, nil
}

// isWebSocket tells whether the request asks for an upgrade.
func (q *request) isWebSocket() bool {
	return strings.EqualFold(q.Header.Get("Upgrade"), "websocket")
}

// enter counts a stream in; the returned function counts it out.
func (s *Server) enter() (leave func(), err error) {
	if s.streams.Add(1) > maxStreams {
		s.streams.Add(-1)
		return nil, adapters.Errorf(adapters.CodeRateLimited, "more than %d streams are open", maxStreams)
	}
	s.open.Add(1)
	return func() {
		s.streams.Add(-1)
		s.open.Done()
	}, nil
}

// follow sends what open yields until it ends, the caller goes or the server
// closes: over a WebSocket where one is asked for, else as server-sent events.
func (q *request) follow(open func(context.Context) (feed, error)) error {
	leave, err := q.s.enter()
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	stop := context.AfterFunc(q.s.closing, cancel)
	defer stop()
	f, err := open(ctx)
	if err != nil {
		return err
	}
	p := pump(ctx, f)
	defer p.end(cancel)
	if q.isWebSocket() {
		return q.followSocket(ctx, p)
	}
	return q.followEvents(ctx, p)
}

// pumped carries a feed's messages to a loop that has other things to wait for.
type pumped struct {
	messages chan message
	failed   chan error // one error, io.EOF at the end
	done     chan struct{}
	close    func() error
}

func pump(ctx context.Context, f feed) *pumped {
	p := &pumped{messages: make(chan message), failed: make(chan error, 1), done: make(chan struct{}), close: f.close}
	go func() {
		defer close(p.done)
		for {
			m, err := f.next(ctx)
			if err != nil {
				p.failed <- err
				return
			}
			select {
			case p.messages <- m:
			case <-ctx.Done():
				p.failed <- ctx.Err()
				return
			}
		}
	}()
	return p
}

// end closes the feed and waits for its goroutine.
func (p *pumped) end(cancel context.CancelFunc) {
	cancel()
	// The stream has ended: an error of closing it changes nothing.
	_ = p.close()
	<-p.done
}

// followEvents speaks the event stream format (WHATWG HTML, 9.2).
func (q *request) followEvents(ctx context.Context, p *pumped) error {
	q.readDeadline(0)
	h := q.begin(sseType)
	h.Set("X-Accel-Buffering", "no") // nginx holds a stream back without it
	q.w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	if !q.piece(fmt.Sprintf("retry: %d\n\n", retryMillis)) {
		return nil
	}
	for {
		select {
		case m := <-p.messages:
			if !q.piece(m.text()) {
				return nil
			}
		case <-beat.C:
			if !q.piece(": \n\n") {
				return nil
			}
		case err := <-p.failed:
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				q.lastWords(err)
			}
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// lastWords tells a reader why its stream ends; it will come back.
func (q *request) lastWords(err error) {
	_, body := adapters.Problem(err)
	q.piece(message{Event: "error", Data: body}.text())
}

// piece sends one piece at once; false when the caller does not take it.
func (q *request) piece(text string) bool {
	q.writeDeadline(pieceLimit)
	if _, err := io.WriteString(q.w, text); err != nil {
		return false
	}
	return q.rc.Flush() == nil
}

// text is the message in the event stream format. Data holds no line break but
// at its end: it is JSON.
func (m message) text() string {
	var b strings.Builder
	if m.ID != "" {
		b.WriteString("id: " + m.ID + "\n")
	}
	if m.Event != "" {
		b.WriteString("event: " + m.Event + "\n")
	}
	b.WriteString("data: " + strings.TrimRight(string(m.Data), "\n") + "\n\n")
	return b.String()
}

// accept upgrades to a WebSocket. Whether the page may was asked before. There
// is none, and no error either, when the client went in between.
func (q *request) accept() (*websocket.Conn, error) {
	q.readDeadline(0)
	q.writeDeadline(0)
	h := &handshake{w: q.w, header: http.Header{}}
	c, err := websocket.Accept(h, q.Request, &websocket.AcceptOptions{
		InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, h.refusal(err)
	}
	c.SetReadLimit(maxFrame)
	return c, nil
}

// handshake is what the library answers into: an upgrade goes to the client, a
// refusal is held back, to be made in the words of every other.
type handshake struct {
	w      http.ResponseWriter
	header http.Header
	status int
}

func (h *handshake) Header() http.Header { return h.header }

// Unwrap leads to the connection (http.ResponseController).
func (h *handshake) Unwrap() http.ResponseWriter { return h.w }

func (h *handshake) WriteHeader(status int) {
	if h.status != 0 {
		return
	}
	h.status = status
	if status == http.StatusSwitchingProtocols {
		maps.Copy(h.w.Header(), h.header)
		h.w.WriteHeader(status)
	}
}

func (h *handshake) Write(p []byte) (int, error) { return len(p), nil }

// refusal is why there is no WebSocket, nil when the client has been told that
// there is one. A flaw of its request is 400 (RFC 6455, 4.2.1), with the version
// that would do where that is the flaw (4.4).
func (h *handshake) refusal(err error) error {
	if why := errors.Unwrap(err); why != nil {
		err = why // without what the library says around it
	}
	text := adapters.Cut(err.Error(), 200)
	switch h.status {
	case http.StatusSwitchingProtocols:
		return nil
	case http.StatusNotImplemented:
		return adapters.Unsupported("websocket", "no WebSocket over this connection: %s", text)
	}
	if v := h.header.Get("Sec-WebSocket-Version"); v != "" {
		h.w.Header().Set("Sec-WebSocket-Version", v)
	}
	return adapters.Errorf(adapters.CodeValidation, "%s", text)
}

// followSocket sends messages as text frames. What the peer sends is refused.
func (q *request) followSocket(ctx context.Context, p *pumped) error {
	c, err := q.accept()
	if c == nil {
		return err
	}
	defer c.CloseNow()
	// A read whose context ends takes the connection with it, before the peer
	// could be told why: ours ends when the peer goes, no sooner.
	peer := c.CloseRead(context.WithoutCancel(ctx))
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		select {
		case m := <-p.messages:
			if err := sendFrame(peer, c, m.Data); err != nil {
				return nil
			}
		case <-ping.C:
			if err := sendPing(peer, c); err != nil {
				return nil
			}
		case err := <-p.failed:
			q.hangUp(c, err)
			return nil
		case <-peer.Done():
			return nil
		case <-ctx.Done():
			q.hangUp(c, ctx.Err())
			return nil
		}
	}
}

// hangUp closes a socket with the status that says why.
func (q *request) hangUp(c *websocket.Conn, err error) {
	code, reason := websocket.StatusNormalClosure, ""
	switch {
	case q.s.closing.Err() != nil:
		code, reason = websocket.StatusGoingAway, "the box is shutting down"
	case errors.Is(err, io.EOF), err == nil, errors.Is(err, context.Canceled):
	case errors.Is(err, errPolicy):
		code, reason = websocket.StatusPolicyViolation, adapters.Cut(err.Error(), 100)
	case errors.Is(err, adapters.ErrUnavailable), errors.Is(err, adapters.ErrRateLimited):
		code, reason = websocket.StatusTryAgainLater, string(adapters.CodeOf(err))
	default:
		code, reason = websocket.StatusInternalError, string(adapters.CodeOf(err))
	}
	// A peer that does not answer the close is dropped by CloseNow.
	_ = c.Close(code, reason)
}

// errPolicy is a peer that breaks the rules of a socket.
var errPolicy = errors.New("policy")

func sendFrame(ctx context.Context, c *websocket.Conn, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, pieceLimit)
	defer cancel()
	return c.Write(ctx, websocket.MessageText, data)
}

func sendPing(ctx context.Context, c *websocket.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, pingEvery)
	defer cancel()
	return c.Ping(ctx)
}
