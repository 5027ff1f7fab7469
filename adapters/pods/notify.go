package pods

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
)

const (
	channelPath   = "/.notifications/WebSocketChannel2023/" // where the reference server has it
	channelType   = rdf.Notify + "WebSocketChannel2023"
	channelLimit  = 5 * time.Second // to open the channel
	noticeLimit   = 1 << 20         // bytes of one message
	noticeBuffer  = 1024            // notices kept for a slow reader
	noticePing    = 20 * time.Second
	noticesOfWire = "application/ld+json"
)

// Subscribe follows changes over a WebSocketChannel2023
// (https://solid.github.io/notifications/websocket-channel-2023). For a container, Add and Remove
// name the member. The subscription ends with an error if the connection ends, or if its reader is
// more than 1024 notices behind. The reader must then find out itself what it has missed.
func (s *Solid) Subscribe(ctx context.Context, topic string) (adapters.PodSubscription, error) {
	c, err := s.live()
	if err != nil {
		return nil, err
	}
	target, err := s.target(topic)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	conn, err := s.channel(ctx, c, target)
	if err != nil {
		stop()
		cancel()
		return nil, about(err, topic)
	}
	sub := &subscription{solid: s, conn: conn, ctx: ctx, notices: make(chan adapters.PodNotice, noticeBuffer), end: make(chan struct{})}
	sub.cancel = func() { stop(); cancel() }
	sub.wg.Go(sub.receive)
	sub.wg.Go(sub.ping)
	return sub, nil
}

// channel asks for a channel on target and connects to it.
func (s *Solid) channel(ctx context.Context, c *session, target string) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, channelLimit)
	defer cancel()
	// Strings always marshal.
	ask, _ := json.Marshal(map[string]any{
		"@context": []string{"https://www.w3.org/ns/solid/notification/v1"}, "type": channelType, "topic": s.url(target).String(),
	})
	res, err := s.openChannel(ctx, c, ask)
	if err != nil {
		return nil, err
	}
	var answer struct {
		ReceiveFrom string `json:"receiveFrom"`
	}
	if !adapters.IsJSON(mediaType(res.Header)) || json.Unmarshal(res.Body, &answer) != nil || answer.ReceiveFrom == "" {
		return nil, lied("answer to a subscription names no address to receive from")
	}
	u, err := s.receiveFrom(answer.ReceiveFrom)
	if err != nil {
		return nil, err
	}
	conn, _, err := websocket.Dial(ctx, u, &websocket.DialOptions{HTTPClient: s.dial})
	if err != nil {
		if ctx.Err() != nil {
			return nil, adapters.AsError(ctx.Err())
		}
		return nil, adapters.Unavailable(nil, "cannot connect to the server's notification channel").Wrap(err)
	}
	conn.SetReadLimit(noticeLimit)
	return conn, nil
}

// openChannel posts the subscription to the endpoints that the server named,
// else to the one of the reference server.
func (s *Solid) openChannel(ctx context.Context, c *session, ask []byte) (*wire.Response, error) {
	at := channelPath
	if len(c.subscribe) > 0 {
		at = c.subscribe[0]
	}
	res, err := s.origin.Do(ctx, wire.Request{
		Method: http.MethodPost, Path: at, Body: ask, ContentType: noticesOfWire, Accept: noticesOfWire, Keep: kept,
	})
	if len(c.subscribe) == 0 && (errors.Is(err, adapters.ErrNotFound) || errors.Is(err, adapters.ErrUnsupported)) {
		return nil, adapters.Unsupported(CapNotifications, "the server has no WebSocketChannel2023").With("method", "subscribe")
	}
	return res, err
}

// receiveFrom checks the address of a channel: the server's own host, and no
// less protected than the server is.
func (s *Solid) receiveFrom(ref string) (string, error) {
	u, err := url.Parse(ref)
	if err != nil || u.User != nil || !strings.EqualFold(u.Hostname(), s.base.Hostname()) {
		return "", lied("notification channel lies on another host")
	}
	if u.Scheme != "wss" && (u.Scheme != "ws" || s.base.Scheme == "https") {
		return "", lied("notification channel is no protected WebSocket")
	}
	return u.String(), nil
}

// newDialer makes the client of WebSocket handshakes. They carry no
// credentials, the address itself is the permission, and are not redirected.
func newDialer(rt http.RoundTripper) *http.Client {
	if rt == nil {
		d := &net.Dialer{Timeout: 3 * time.Second}
		rt = sysroots.Transport(&http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: hostname.Dial(d), TLSHandshakeTimeout: 3 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		})
	}
	return &http.Client{Transport: rt, CheckRedirect: outbound.NoRedirect}
}

// subscription is one open channel.
type subscription struct {
	solid   *Solid
	conn    *websocket.Conn
	ctx     context.Context
	cancel  func()
	wg      sync.WaitGroup
	notices chan adapters.PodNotice
	end     chan struct{} // closed when err is set
	once    sync.Once
	err     error
}

// fail ends the subscription with the reason for its reader.
func (s *subscription) fail(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.end)
		s.cancel()
	})
}

func (s *subscription) receive() {
	// The reason for the end was already reported, or is reported below.
	defer s.conn.CloseNow()
	for {
		_, msg, err := s.conn.Read(s.ctx)
		if err != nil {
			s.fail(adapters.Unavailable(nil, "the notification channel ended").Wrap(err))
			return
		}
		n, ok := s.solid.notice(msg)
		if !ok {
			continue
		}
		select {
		case s.notices <- n:
		default:
			s.fail(adapters.Unavailable(nil, "the reader is more than %d notices behind", noticeBuffer))
			return
		}
	}
}

// ping finds out that a connection is dead.
func (s *subscription) ping() {
	tick := time.NewTicker(noticePing)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(s.ctx, noticePing)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			s.fail(adapters.Unavailable(nil, "the notification channel does not answer").Wrap(err))
			return
		}
	}
}

// Next returns the next notice. What arrived before the end is given out first.
func (s *subscription) Next(ctx context.Context) (adapters.PodNotice, error) {
	select {
	case n := <-s.notices:
		return n, nil
	default:
	}
	select {
	case n := <-s.notices:
		return n, nil
	case <-ctx.Done():
		return adapters.PodNotice{}, adapters.AsError(ctx.Err()).At(adapters.SlotPods, "subscribe")
	case <-s.end:
	}
	select { // both were ready: no notice may be lost to chance
	case n := <-s.notices:
		return n, nil
	default:
		return adapters.PodNotice{}, adapters.AsError(s.err).At(adapters.SlotPods, "subscribe")
	}
}

// Close ends the subscription and waits for its goroutines.
func (s *subscription) Close() error {
	s.fail(adapters.Unavailable(nil, "the subscription is closed"))
	s.wg.Wait()
	return nil
}

// activity is one ActivityStreams message of a channel.
type activity struct {
	Type      oneOrMany `json:"type"`
	Object    iriRef    `json:"object"`
	State     string    `json:"state"`
	Published string    `json:"published"`
}

var activities = []string{"Create", "Update", "Delete", "Add", "Remove"}

// notice reads a message. It returns false if the message is not about this pod.
func (s *Solid) notice(msg []byte) (adapters.PodNotice, bool) {
	var a activity
	if json.Unmarshal(msg, &a) != nil {
		return adapters.PodNotice{}, false
	}
	u, err := url.Parse(string(a.Object))
	if err != nil {
		return adapters.PodNotice{}, false
	}
	path, ok := s.podPath(u)
	for _, kind := range a.Type {
		if name := kind[strings.LastIndexAny(kind, "#:")+1:]; ok && slices.Contains(activities, name) {
			n := adapters.PodNotice{Type: name, Path: path, State: a.State}
			if at, err := adapters.ParseTime(a.Published); err == nil {
				n.TS = at
			}
			return n, true
		}
	}
	return adapters.PodNotice{}, false
}

// oneOrMany reads a string or an array of them.
type oneOrMany []string

// UnmarshalJSON takes both shapes.
func (o *oneOrMany) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*o = make(oneOrMany, 1)
		return json.Unmarshal(b, &(*o)[0])
	}
	return json.Unmarshal(b, (*[]string)(o))
}

// iriRef reads an IRI, alone or as the id of an object.
type iriRef string

// UnmarshalJSON takes both shapes.
func (r *iriRef) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(r))
	}
	var node struct {
		ID string `json:"id"`
	}
	err := json.Unmarshal(b, &node)
	*r = iriRef(node.ID)
	return err
}
