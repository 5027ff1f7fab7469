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

// Limits of streams.
const (
	heartbeat   = 15 * time.Second // an SSE comment this often keeps proxies from closing the stream
	pieceLimit  = 10 * time.Second // to send one message: a slower reader is disconnected
	pingEvery   = 20 * time.Second
	retryMillis = 2000
	maxFrame    = 1 << 20 // bytes of a message from a WebSocket's peer
)

// message is one message of a stream.
type message struct {
	ID    string // "" = none: a reader cannot resume after it
	Event string // "" = "message", the default of SSE
	Data  []byte // one line
}

// feed yields the messages of a stream. next returns io.EOF at the end of the stream; only one
// goroutine calls next, and it ends with its context. close is called when it has ended.
type feed struct {
	next  func(context.Context) (message, error)
	close func() error
}

// position returns the position after which the caller wants to continue: the header Last-Event-ID,
// or else the query parameter after. given is false if the request has neither.
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

// stream is an open stream.
type stream struct {
	who Principal
	end context.CancelFunc
}

// enter counts an open stream, within maxStreams and maxGuestStreams. The stream must end when its
// context ends: that of the request, which ends earlier if the server closes or endStreams is called.
// The caller must call leave when the stream ends.
func (s *Server) enter(request context.Context, who Principal) (ctx context.Context, leave func(), err error) {
	s.entering.Lock()
	defer s.entering.Unlock()
	if err := s.closed(); err != nil {
		return nil, nil, err
	}
	one := 0
	if who.guest() {
		one = 1
	}
	switch {
	case len(s.streams) == maxStreams:
		return nil, nil, adapters.Errorf(adapters.CodeRateLimited, "more than %d streams are open", maxStreams)
	case s.guests+one > maxGuestStreams:
		return nil, nil, adapters.Errorf(adapters.CodeRateLimited, "agents and boxes have more than %d streams open", maxGuestStreams)
	}
	ctx, end := context.WithCancel(request)
	st := &stream{who, end}
	s.streams[st] = struct{}{}
	s.guests += one
	s.open.Add(1)
	return ctx, func() {
		end()
		s.entering.Lock()
		delete(s.streams, st)
		s.guests -= one
		s.entering.Unlock()
		s.open.Done()
	}, nil
}

// endStreams ends the streams of a principal that has lost its rights.
func (s *Server) endStreams(who Principal) {
	s.entering.Lock()
	defer s.entering.Unlock()
	for st := range s.streams {
		if st.who == who {
			st.end()
		}
	}
}

// follow sends the messages of the feed that open returns, over a WebSocket if the request asks for
// one, otherwise as server-sent events. It returns when the feed ends, the caller disconnects or
// the server closes.
func (q *request) follow(open func(context.Context) (feed, error)) error {
	ctx, leave, err := q.s.enter(q.Context(), q.who)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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

// pumped carries the messages of a feed over a channel, so that a loop can wait for other things too.
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

// end waits for the goroutine of the feed and closes the feed.
func (p *pumped) end(cancel context.CancelFunc) {
	cancel()
	<-p.done
	// The stream has already ended: an error of close has no consequence.
	_ = p.close()
}

// followEvents sends server-sent events (WHATWG HTML, 9.2).
func (q *request) followEvents(ctx context.Context, p *pumped) error {
	q.readDeadline(0)
	h := q.begin(sseType)
	h.Set("X-Accel-Buffering", "no") // without it, nginx buffers the stream
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

// lastWords sends the reason why the stream ends. The reader will connect again.
func (q *request) lastWords(err error) {
	_, body := adapters.Problem(err)
	q.piece(message{Event: "error", Data: body}.text())
}

// piece sends text immediately. It returns false if the caller does not take it in time.
func (q *request) piece(text string) bool {
	q.writeDeadline(pieceLimit)
	if _, err := io.WriteString(q.w, text); err != nil {
		return false
	}
	return q.rc.Flush() == nil
}

// text returns the message in the event stream format. Data is JSON on one line: it has no line
// break except at its end.
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

// accept upgrades to a WebSocket. It does not check the origin: admit has done so. If the client
// disconnects during the handshake, accept returns neither a connection nor an error.
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

// handshake is the ResponseWriter for the WebSocket library. It passes an upgrade on to the client.
// It withholds a refusal, so that the client gets a problem document instead.
type handshake struct {
	w      http.ResponseWriter
	header http.Header
	status int
}

func (h *handshake) Header() http.Header { return h.header }

// Unwrap lets http.ResponseController find the connection.
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

// refusal returns the error for a failed handshake, nil if the status 101 is already sent. A faulty
// request gets 400 (RFC 6455, 4.2.1). If the version is wrong, the answer names the supported one
// (RFC 6455, 4.4).
func (h *handshake) refusal(err error) error {
	if why := errors.Unwrap(err); why != nil {
		err = why // without the prefix of the library
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

// followSocket sends messages as text frames. A data frame from the peer closes the socket.
func (q *request) followSocket(ctx context.Context, p *pumped) error {
	c, err := q.accept()
	if c == nil {
		return err
	}
	defer c.CloseNow()
	// The read must not end with ctx: a cancelled read closes the connection before hangUp has sent
	// the reason.
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

// hangUp closes a socket with the status that fits err.
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

// errPolicy means that the peer has sent a frame that the socket does not allow.
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
