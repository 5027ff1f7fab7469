package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Mesh is the box's access to relays: its connections, its mailbox, and the events on the relays.
// Its methods may be called from any goroutine. If the box has no connections to relays, they
// return UNSUPPORTED.
type Mesh interface {
	Status() (MeshStatus, error)
	// Publish queues a message. It waits, at most for wait, until the message is published or has
	// failed.
	Publish(ctx context.Context, m MeshMessage, wait time.Duration) (MeshReceipt, error)
	// Receipt returns the state of a queued message; NOT_FOUND if the id is unknown.
	Receipt(pendingID string) (MeshReceipt, error)
	// Subscribe asks all relays. The stream begins with the events that they have stored.
	Subscribe(ctx context.Context, f MeshFilter) (MeshStream, error)
}

// MeshStream yields events until it is closed. Only one goroutine at a time may call Next.
type MeshStream interface {
	Next(ctx context.Context) (MeshEvent, error)
	Close()
}

// MeshStatus is the state of the box's relays and mailbox at one moment.
type MeshStatus struct {
	PublicKey string      `json:"public_key_hex"`
	Npub      string      `json:"npub"`
	Relays    []MeshRelay `json:"relays"`
	// Mailbox is null while it is being read, or if it cannot be read.
	Mailbox *MeshMailbox `json:"mailbox"`
	// EventsWait is null while the events of agents are published, or if they are not published at all.
	EventsWait *MeshWait `json:"events_wait"`
}

// MeshWait is why the events of agents are not published now.
type MeshWait struct {
	Event  string    `json:"event"` // id of the event that no relay has taken yet; "" if the events cannot be read
	Since  time.Time `json:"since"`
	Tries  int       `json:"tries"`
	Reason string    `json:"reason"`
}

// MeshRelay is the state of one relay.
type MeshRelay struct {
	URL        string    `json:"url"`
	Own        bool      `json:"own"`   // the box runs it
	Guest      bool      `json:"guest"` // the host has named it, until the session ends
	State      string    `json:"state"` // connecting, connected, waiting
	Since      time.Time `json:"since"`
	LoggedIn   bool      `json:"logged_in"`
	Publishes  bool      `json:"publishes"`
	Subscribes bool      `json:"subscribes"`
	LatencyMS  float64   `json:"latency_ms"` // of the last handshake
	LastEvent  time.Time `json:"last_event,omitzero"`
	Events     uint64    `json:"events"`    // received and verified
	Published  uint64    `json:"published"` // accepted by the relay
	Refused    uint64    `json:"refused"`   // messages that an honest relay would not send
	Retries    int       `json:"retries"`
	Name       string    `json:"name,omitempty"` // by NIP-11
	Software   string    `json:"software,omitempty"`
	Error      string    `json:"error,omitempty"`
}

// MeshMailbox counts the messages in the pod.
type MeshMailbox struct {
	Receiving bool `json:"receiving"`
	Inbox     int  `json:"inbox"`
	Untold    int  `json:"untold"` // messages of the inbox that are not yet in the events slot
	Pending   int  `json:"pending"`
	Published int  `json:"published"`
	Failed    int  `json:"failed"`
}

// MeshMessage is a message to publish with the box's key.
type MeshMessage struct {
	Kind    int        `json:"kind,omitempty"` // absent: 1, with To 14
	Content string     `json:"content"`
	Tags    [][]string `json:"tags,omitempty"`
	// To is the public key of the only reader. If To is set, the box encrypts the message and puts
	// it in a gift wrap (NIP-17, NIP-59).
	To string `json:"to,omitempty"`
}

// MeshReceipt is the state of a message in the outbox.
type MeshReceipt struct {
	PendingID   string     `json:"pending_id"`
	Status      string     `json:"status"`   // pending, published, failed
	EventID     string     `json:"event_id"` // "" until it is signed
	Tries       int        `json:"tries"`
	Reason      string     `json:"reason,omitempty"`
	PublishedAt *time.Time `json:"published_at"`
}

// MeshFilter selects events. A zero field selects all.
type MeshFilter struct {
	Kinds   []int
	Authors []string
	To      []string // tag p
	Since   int64    // Unix seconds
	Limit   int      // stored events from each relay; < 0 = no limit
}

// MeshEvent is an event from a relay. Its id and signature have been verified.
type MeshEvent struct {
	Relay string          `json:"relay"`
	Event json.RawMessage `json:"event"`
}

// meshWait is the longest time that a caller may wait for a relay.
const meshWait = 60 * time.Second

func meshRoutes() []route {
	return needing(needsMesh, []route{
		{Method: "GET", Path: "/v1/mesh", ID: "mesh", Roles: reader, Reply: MeshStatus{}, Doc: "The relays that the box is connected to, and its mailbox.", handle: getMesh},
		{Method: "POST", Path: "/v1/mesh/publish", ID: "meshPublish", Roles: adminOnly, Body: MeshMessage{}, Reply: MeshReceipt{}, Status: 202,
			Query: []param{{"wait_s", "integer", "seconds to wait until a relay has it, 0-60, default 0"}},
			Doc:   "Sign an event with the box's key and publish it.", handle: postMeshPublish},
		{Method: "GET", Path: "/v1/mesh/outbox/{id}", ID: "meshReceipt", Roles: reader, Reply: MeshReceipt{}, Doc: "What has become of a message.", handle: getMeshReceipt},
		{Method: "GET", Path: "/v1/mesh/events", ID: "meshSubscribe", Roles: reader, Reply: MeshEvent{}, ReplyType: sseType,
			Query: []param{
				{"kind", "integer", "of this kind; may be repeated"}, {"author", "string", "of this public key (hex or npub); may be repeated"},
				{"to", "string", "addressed to this public key (tag p); may be repeated"}, {"since", "integer", "created at this time or later, Unix seconds"},
				{"limit", "integer", "stored events of each relay, default 100; -1 for as many as it gives"},
			},
			Doc: "Events of all relays, the stored ones first (SSE or WebSocket). The stream ends if more than 1 MiB waits for a slow reader.", handle: streamMesh},
	})
}

func needsMesh(q *request) error {
	if q.s.cfg.Mesh == nil {
		return adapters.Unsupported("mesh", "this box has no mesh")
	}
	return nil
}

func getMesh(q *request) error {
	status, err := q.s.cfg.Mesh.Status()
	return q.result(http.StatusOK, status, err)
}

func postMeshPublish(q *request) error {
	// Kind 0 replaces the profile of the box on all relays, so it must be asked for.
	var body struct {
		MeshMessage
		Kind    *int    `json:"kind"`
		Content *string `json:"content"`
	}
	if err := q.json(&body); err != nil {
		return err
	}
	if body.Content == nil {
		return adapters.Invalid("content", "is required")
	}
	in := body.MeshMessage
	in.Content = *body.Content
	switch {
	case body.Kind != nil:
		in.Kind = *body.Kind
	case in.To != "":
		in.Kind = 14 // a chat message of NIP-17
	default:
		in.Kind = 1 // a note of NIP-01
	}
	wait, err := whole64(q.URL.Query(), "wait_s", 0, 0, int64(meshWait/time.Second))
	if err != nil {
		return err
	}
	q.writeDeadline(time.Duration(wait)*time.Second + pieceLimit)
	receipt, err := q.s.cfg.Mesh.Publish(q.Context(), in, time.Duration(wait)*time.Second)
	return q.result(http.StatusAccepted, receipt, err)
}

// whole64 reads an integer from the query.
func whole64(values url.Values, name string, otherwise, least, most int64) (int64, error) {
	text := values.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, adapters.Invalid(name, "must be a whole number from %d to %d", least, most)
	}
	return n, nil
}

func getMeshReceipt(q *request) error {
	receipt, err := q.s.cfg.Mesh.Receipt(q.param("id"))
	return q.result(http.StatusOK, receipt, err)
}

// meshFilter reads the query of a subscription.
func meshFilter(values url.Values) (f MeshFilter, err error) {
	f.Authors, f.To = values["author"], values["to"]
	for _, text := range values["kind"] {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 65535 {
			return f, adapters.Invalid("kind", "must be a whole number from 0 to 65535")
		}
		f.Kinds = append(f.Kinds, n)
	}
	if f.Since, err = whole64(values, "since", 0, 0, 1<<53-1); err != nil {
		return f, err
	}
	limit, err := whole64(values, "limit", 100, -1, 5000)
	f.Limit = int(limit)
	return f, err
}

func streamMesh(q *request) error {
	f, err := meshFilter(q.URL.Query())
	if err != nil {
		return err
	}
	return q.follow(func(ctx context.Context) (feed, error) {
		s, err := q.s.cfg.Mesh.Subscribe(ctx, f)
		if err != nil {
			return feed{}, err
		}
		return feed{close: func() error { s.Close(); return nil }, next: func(ctx context.Context) (message, error) {
			e, err := s.Next(ctx)
			if err != nil {
				return message{}, err
			}
			data, err := json.Marshal(e)
			if err != nil {
				return message{}, adapters.Errorf(adapters.CodeInternal, "the event cannot be written as JSON").Wrap(err)
			}
			return message{Data: data}, nil
		}}, nil
	})
}
