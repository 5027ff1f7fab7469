package solid

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/pods/wac"
)

const (
	channelPath  = "/.notifications/WebSocketChannel2023/"
	channelType  = rdf.Notify + "WebSocketChannel2023"
	maxChannels  = 32 // channels, connected or not, of who owns the whole tree, and as many of all others
	maxOfAgent   = 16 // channels of one of the others
	maxAsk       = 16 << 10
	channelQueue = 256 // notices for a slow reader
	unconnected  = time.Minute
	channelWrite = 10 * time.Second
	channelPing  = 30 * time.Second
)

// hub owns the channels of notifications (Solid WebSocketChannel2023). The address of a channel is secret, and is the
// permission to connect to it. Each notice needs the right to read its topic at that moment.
type hub struct {
	s       *Server
	closing context.Context
	close   context.CancelFunc

	watcher *watcher

	mu       sync.Mutex
	channels map[string]*channel
}

type channel struct {
	topic     resource
	agent     wac.Agent
	owner     bool // the agent owned the whole tree when it subscribed
	made      time.Time
	connected bool
	notices   chan []byte
	behind    chan struct{} // closed when the reader is too slow
	once      sync.Once     // closes it
}

func newHub(s *Server) *hub {
	h := &hub{s: s, channels: map[string]*channel{}}
	h.closing, h.close = context.WithCancel(context.Background())
	h.watcher = newWatcher(s)
	return h
}

// subscribe makes a channel (Solid Notifications Protocol, 4).
func (h *hub) subscribe(q *request) error {
	if q.r.Method != http.MethodPost {
		return q.noMethod("POST")
	}
	if t, err := q.contentType(); err != nil || !adapters.IsJSON(adapters.MediaType(t)) {
		return faulty(adapters.CodeUnsupported, "a subscription is %s", rdf.MediaJSONLD)
	}
	raw, err := readAll(q.r.Body, maxAsk)
	if err != nil {
		return err
	}
	var ask struct{ Type, Topic string }
	if json.Unmarshal(raw, &ask) != nil || ask.Type != channelType && ask.Type != "WebSocketChannel2023" {
		return faulty(adapters.CodeValidation, "the subscription has not the type WebSocketChannel2023")
	}
	topic, err := h.topic(ask.Topic)
	if err != nil {
		return err
	}
	if err := q.allow(need{topic, wac.Read}); err != nil {
		return err
	}
	if q.standing == Anyone { // the channel keeps the rights of the agent, also those that it gets later
		if err := q.use(); err != nil {
			return err
		}
	}
	if err := q.signed(sha256.Sum256(raw)); err != nil {
		return err
	}
	if _, err := h.s.store.stat(topic); err != nil {
		return err
	}
	secret := rand.Text()
	watched, err := h.add(secret, &channel{
		topic: topic, agent: q.agent, owner: q.owner, made: time.Now(), notices: make(chan []byte, channelQueue), behind: make(chan struct{}),
	})
	if err != nil {
		return err
	}
	done, err := q.work()
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.channels[secret] != nil { // nobody knows the address
			h.drop(secret)
		}
		return err
	}
	for _, c := range watched {
		h.watcher.list(c)
	}
	done()
	answer, err := json.Marshal(map[string]any{
		"@context": []string{"https://www.w3.org/ns/solid/notification/v1"}, "id": "urn:uuid:" + uuid.NewString(), "type": channelType,
		"topic": h.s.iri(topic), "receiveFrom": "ws" + strings.TrimPrefix(h.s.origin, "http") + channelPath + secret,
	})
	if err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", rdf.MediaJSONLD)
	q.w.Header().Set("Cache-Control", "no-store")
	_, err = q.w.Write(answer)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// asking are the subscriptions of guests at work, the oldest first.
type asking struct {
	mu  sync.Mutex
	all []*http.ResponseController
}

// enter adds one. If there are too many, the oldest one's body is not waited for any longer.
func (a *asking) enter(w http.ResponseWriter) (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := http.NewResponseController(w)
	a.all = append(a.all, one)
	if len(a.all) > maxAsking {
		_ = a.all[0].SetReadDeadline(time.Unix(1, 0)) // an error does not matter: only a connection of a test has no deadlines
		a.all = a.all[1:]
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = slices.DeleteFunc(a.all, func(other *http.ResponseController) bool { return other == one })
	}
}

// topic is the resource with an IRI of this server.
func (h *hub) topic(ref string) (resource, error) {
	u, err := url.Parse(ref)
	if err != nil || u.RawQuery != "" || u.Fragment != "" || u.User != nil || h.s.hosts[hostOf(u.Scheme, u.Host)] == "" {
		return resource{}, faulty(adapters.CodeValidation, "the topic is no resource of %s", h.s.origin)
	}
	return parse(u.EscapedPath())
}

// add takes a channel and returns the containers that must be listed for it.
func (h *hub) add(secret string, c *channel) ([]*watched, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	alike, ofAgent := 0, 0
	for key, other := range h.channels {
		if !other.connected && time.Since(other.made) > unconnected {
			h.drop(key)
			continue
		}
		if other.owner == c.owner {
			alike++
		}
		if slices.Equal(other.agent.IDs, c.agent.IDs) {
			ofAgent++
		}
	}
	if alike >= maxChannels || !c.owner && ofAgent >= maxOfAgent {
		f := faulty(adapters.CodeUnavailable, "there are too many subscriptions")
		f.retry = int(unconnected.Seconds())
		return nil, f
	}
	h.channels[secret] = c
	var out []*watched
	for _, container := range c.watched() {
		out = append(out, h.watcher.hold(container))
	}
	return out, nil
}

// drop removes a channel. The caller holds mu.
func (h *hub) drop(secret string) {
	for _, container := range h.channels[secret].watched() {
		h.watcher.release(container)
	}
	delete(h.channels, secret)
}

// watched are the containers in which something can happen to the topic or to its members.
func (c *channel) watched() []resource {
	if c.topic.isRoot() {
		return []resource{c.topic}
	}
	if c.topic.container {
		return []resource{c.topic.parent(), c.topic}
	}
	return []resource{c.topic.parent()}
}

// connect serves a channel until the client leaves.
func (h *hub) connect(q *request, secret string) error {
	h.mu.Lock()
	c := h.channels[secret]
	usable := c != nil && !c.connected
	if usable {
		c.connected = true
	}
	h.mu.Unlock()
	if !usable {
		return faulty(adapters.CodeNotFound, "there is no such channel, or it is in use; subscribe again")
	}
	defer func() {
		h.mu.Lock()
		h.drop(secret)
		h.mu.Unlock()
	}()
	// The address is the permission, so pages of every origin may connect.
	conn, err := websocket.Accept(q.w, q.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil // Accept has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 10)
	ctx := conn.CloseRead(h.closing)
	ping := time.NewTicker(channelPing)
	defer ping.Stop()
	for {
		err := c.next(ctx, conn, ping.C)
		switch {
		case h.closing.Err() != nil:
			_ = conn.Close(websocket.StatusGoingAway, "the server stops")
			return nil
		case err != nil:
			return nil // the client has left, or does not read
		}
	}
}

var errBehind = errors.New("the reader is too slow")

// next sends the next notice, or a ping. It ends with an error if the connection is of no use any more.
func (c *channel) next(ctx context.Context, conn *websocket.Conn, ping <-chan time.Time) error {
	limited, cancel := context.WithTimeout(ctx, channelWrite)
	defer cancel()
	select {
	case n := <-c.notices:
		return conn.Write(limited, websocket.MessageText, n)
	case <-c.behind:
		return errBehind
	default:
	}
	select {
	case n := <-c.notices:
		return conn.Write(limited, websocket.MessageText, n)
	case <-ping:
		return conn.Ping(limited)
	case <-c.behind:
		return errBehind
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tellMade tells of new containers.
func (s *Server) tellMade(made []resource) {
	for _, r := range made {
		s.tell(r, isContainer)
	}
}

// isContainer is the state of a container for watches; that of what is not there is "".
const isContainer = "/"

// tell sends what has happened to a resource, of which state is the present one, to its channels and those of its container.
func (s *Server) tell(r resource, state string) {
	if s.hub == nil {
		return
	}
	kind := s.hub.watcher.change(r, state)
	if kind == "" {
		return
	}
	etag := strings.TrimSuffix(state, isContainer)
	s.hub.tell(kind, r, r, etag)
	if kinds := map[string]string{"Create": "Add", "Delete": "Remove"}; kinds[kind] != "" && !adapters.PodAuxiliary(r.name()) {
		s.hub.tell(kinds[kind], r.parent(), r, etag)
	}
}

func (h *hub) tell(kind string, topic, object resource, state string) {
	h.mu.Lock()
	var of []*channel
	for _, c := range h.channels {
		if c.topic.path() == topic.path() {
			of = append(of, c)
		}
	}
	h.mu.Unlock()
	if of == nil {
		return
	}
	notice := map[string]any{
		"@context": []string{"https://www.w3.org/ns/activitystreams", "https://www.w3.org/ns/solid/notification/v1"},
		"id":       "urn:uuid:" + uuid.NewString(), "type": kind, "object": h.s.iri(object),
		"published": time.Now().UTC().Format(adapters.TimeFormat),
	}
	if state != "" {
		notice["state"] = state
	}
	if topic.path() != object.path() {
		notice["target"] = h.s.iri(topic)
	}
	text, err := json.Marshal(notice)
	if err != nil {
		return
	}
	subject, control := topic.subject()
	needed := wac.Read
	if control {
		needed = wac.Control
	}
	list := h.s.rulesOf(subject)
	for _, c := range of {
		if !h.s.modes(list, c.agent).Has(needed) {
			continue
		}
		select {
		case c.notices <- text:
		default:
			c.once.Do(func() { close(c.behind) })
		}
	}
}
