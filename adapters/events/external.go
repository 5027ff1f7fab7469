package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// DefaultSpoolBytes bounds the events that wait for the sink.
const DefaultSpoolBytes = 64 << 20

// ExternalConfig configures an External.
type ExternalConfig struct {
	// URL of the sink. With FormatCloudEvents, events go to /v1/events below it; with FormatJSON,
	// exactly to this URL.
	URL    string
	Key    string // the manifest key that contains URL
	Format Format // "" = FormatCloudEvents
	// MCPEndpoint alone is not a valid target; it is refused.
	MCPEndpoint string
	Dir         string        // of the spool
	Source      func() string // default of Event.Source; called for each event without one
	Auth        wire.Authorizer
	UserAgent   string
	SpoolBytes  int64 // 0 = DefaultSpoolBytes, at least 1 MiB
	// Report is called for each event that the sink refused for good; it may be nil. It must not block.
	Report func(what string, fields map[string]any)
}

// Format is the body of one request to the sink.
type Format string

// The formats of a sink.
const (
	// FormatCloudEvents sends CloudEvents 1.0 to a peer that may describe itself at /v1/meta. It
	// sends batches if the sink accepts them.
	FormatCloudEvents Format = "cloudevents"
	// FormatJSON sends each event as plain JSON, without an envelope.
	FormatJSON Format = "json"
)

// External is class external. An event is appended to a spool, and then Dispatch returns. The spool
// is delivered to an HTTP sink in order and at least once.
type External struct {
	cfg ExternalConfig

	life   sync.Mutex   // serialises Connect, Move and Disconnect; guards the fields below
	client *wire.Client // used by the next Connect
	path   string       // below the client's base, where events are POSTed

	open atomic.Pointer[externalOpen]
}

var _ adapters.Events = (*External)(nil)

// externalOpen is everything that exists between Connect and Disconnect.
type externalOpen struct {
	journal *journal
	carrier atomic.Pointer[carrier] // stored under mu

	mu   sync.Mutex // the check for a repeated event and the append are one step
	ids  *seen
	subs map[string]*remote
}

// NewExternal makes the adapter without any I/O.
func NewExternal(cfg ExternalConfig) (*External, error) {
	switch {
	case cfg.URL == "" && cfg.MCPEndpoint != "":
		return nil, &adapters.ConfigError{Key: cfg.Key, Message: "an MCP endpoint cannot take events; name a URL",
			Err: adapters.Unsupported("mcp", "an MCP endpoint cannot take events")}
	case cfg.Dir == "":
		return nil, adapters.Missing("slots.events.dir", "external events wait there for their sink")
	case cfg.SpoolBytes != 0 && cfg.SpoolBytes < minMaxBytes:
		return nil, &adapters.ConfigError{Key: "slots.events.spool_bytes", Message: "must be at least 1 MiB"}
	}
	cfg.SpoolBytes = cmp.Or(cfg.SpoolBytes, DefaultSpoolBytes)
	x := &External{cfg: cfg}
	var err error
	if x.client, x.path, err = cfg.client(); err != nil {
		return nil, err
	}
	return x, nil
}

func (cfg ExternalConfig) client() (c *wire.Client, path string, err error) {
	base, path, err := target(cfg)
	if err != nil {
		return nil, "", err
	}
	c, err = wire.New(wire.Config{Slot: adapters.SlotEvents, BaseURL: base, Key: cfg.Key, Auth: cfg.Auth, UserAgent: cfg.UserAgent})
	return c, path, err
}

// target splits the URL of the sink into the base of a client and the path of a POST. A plain
// sink's path and query often contain its key, so they stay unchanged.
func target(cfg ExternalConfig) (base, path string, err error) {
	switch cfg.Format {
	case "", FormatCloudEvents:
		return cfg.URL, "/v1/events", nil
	case FormatJSON:
	default:
		return "", "", &adapters.ConfigError{Key: "slots.events.format", Message: `must be "cloudevents" or "json"`}
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return cfg.URL, "", nil // wire refuses it without repeating a password
	}
	path = cmp.Or(u.EscapedPath(), "/")
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	u.Path, u.RawPath, u.RawQuery = "", "", ""
	return u.String(), path, nil
}

// Slot and the methods after it describe the adapter.
func (x *External) Slot() adapters.Slot     { return adapters.SlotEvents }
func (x *External) Impl() string            { return "external" }
func (x *External) Class() adapters.Class   { return adapters.ClassExternal }
func (x *External) Enabled() bool           { return true }
func (x *External) ContractVersion() string { return "1.1" }

// Capabilities are those of the sink that this code supports.
func (x *External) Capabilities() []string {
	if o := x.open.Load(); o != nil && o.carrier.Load().hasHistory() {
		return []string{adapters.CapHistory}
	}
	return []string{}
}

// Connect opens the spool and asks the sink for its contract. If the sink cannot be reached,
// Connect still succeeds, because the spool keeps the events; Health is degraded until the sink
// answers. A further Connect ends the pause before the next delivery.
func (x *External) Connect(ctx context.Context) error {
	x.life.Lock()
	defer x.life.Unlock()
	if o := x.open.Load(); o != nil {
		o.carrier.Load().retry() // the caller connects again because the sink is probably back
		return nil
	}
	ids := newSeen()
	j, err := openJournal(ctx, x.cfg.Dir, false, x.cfg.SpoolBytes/16, func(e adapters.Event) { ids.add(e) })
	if err != nil {
		return err
	}
	c, err := newCarrier(x.cfg, x.client, x.path, j)
	if err == nil {
		err = c.handshake(ctx)
	}
	if err != nil && (c == nil || errors.Is(err, adapters.ErrContractMismatch)) {
		return errors.Join(err, j.close())
	}
	o := &externalOpen{journal: j, ids: ids, subs: make(map[string]*remote)}
	o.carrier.Store(c)
	x.open.Store(o)
	c.start()
	return nil
}

// Move delivers to the sink at url from now on. Dispatch continues meanwhile into the spool. If the
// new sink has another contract, it is refused, and the former sink stays.
func (x *External) Move(ctx context.Context, url string) error {
	x.life.Lock()
	defer x.life.Unlock()
	cfg := x.cfg
	cfg.URL = url
	client, path, err := cfg.client()
	if err != nil {
		return err
	}
	o := x.open.Load()
	if o != nil {
		if _, err := client.Handshake(ctx); errors.Is(err, adapters.ErrContractMismatch) {
			return err
		}
		// Otherwise two carriers would deliver from the same spool.
		former := o.carrier.Load()
		former.end()
		next := former.successor(client, path)
		o.mu.Lock() // under the lock, an event is either in the spool already or wakes next
		o.carrier.Store(next)
		o.mu.Unlock()
		next.start()
	}
	x.client.Close()
	x.client, x.path = client, path
	return nil
}

// Health is unhealthy if the spool cannot be written, and degraded while the sink cannot be
// reached.
func (x *External) Health(context.Context) adapters.Health {
	o, err := x.opened()
	if err != nil {
		return adapters.Unhealthy(err)
	}
	if _, _, failed := o.journal.status(); failed != nil {
		if err := o.journal.probe(); err != nil {
			return adapters.Unhealthy(adapters.Unavailable(err, "cannot write the spool"))
		}
	}
	if err := o.carrier.Load().trouble(); err != nil {
		return adapters.Health{State: adapters.StateDegraded, Message: err.Error()}
	}
	return adapters.Healthy()
}

// Lost implements adapters.Lossy. Events that the sink has refused for good are in
// dead-letter.jsonl. Lines of the spool that a crash has torn are skipped.
func (x *External) Lost() map[string]uint64 {
	o, err := x.opened()
	if err != nil {
		return nil
	}
	_, torn, _ := o.journal.status()
	return map[string]uint64{"dead_letters": o.carrier.Load().deadLetters.Load(), "torn_lines": torn}
}

// Disconnect stops the delivery and closes the spool. The remaining events wait for the next
// Connect.
func (x *External) Disconnect(context.Context) error {
	x.life.Lock()
	defer x.life.Unlock()
	o := x.open.Swap(nil)
	if o == nil {
		return nil
	}
	o.carrier.Load().end()
	o.mu.Lock()
	subs := o.subs
	o.subs = nil
	o.mu.Unlock()
	for _, s := range subs {
		_ = s.EventStream.Close() // it cannot fail
	}
	x.client.Close()
	if err := o.journal.close(); err != nil {
		return adapters.Unavailable(err, "cannot close the spool")
	}
	return nil
}

func (x *External) opened() (*externalOpen, error) {
	if o := x.open.Load(); o != nil {
		return o, nil
	}
	return nil, adapters.Closed(adapters.SlotEvents)
}

// Dispatch appends to the spool.
func (x *External) Dispatch(ctx context.Context, e adapters.Event) (adapters.Receipt, error) {
	o, err := x.opened()
	if err != nil {
		return adapters.Receipt{}, err
	}
	if err := ctx.Err(); err != nil {
		return adapters.Receipt{}, adapters.AsError(err)
	}
	e.Source = cmp.Or(e.Source, sourceOf(x.cfg.Source))
	o.mu.Lock()
	defer o.mu.Unlock()
	if r, ok := o.ids.get(e); ok {
		r.Queued = true
		return r, nil
	}
	if o.journal.size() >= x.cfg.SpoolBytes {
		return adapters.Receipt{}, adapters.Unavailable(nil, "the spool is full: %d bytes wait for the sink", x.cfg.SpoolBytes)
	}
	e, err = o.journal.append(e, nil)
	if err != nil {
		return adapters.Receipt{}, err
	}
	o.ids.add(e)
	o.carrier.Load().signal()
	return receipt(e, true), nil
}

func (f filterQuery) values() url.Values {
	q := url.Values{}
	for _, k := range f.Kinds {
		q.Add("kind", k)
	}
	for _, p := range [][2]string{{"session_id", f.SessionID}, {"execution_id", f.ExecutionID}, {"source", f.Source}, {"subject", f.Subject}} {
		if p[1] != "" {
			q.Set(p[0], p[1])
		}
	}
	return q
}

// filterQuery writes a filter as the query of the wire.
type filterQuery adapters.EventFilter

// Subscribe follows the sink's own stream. Without "after" it begins with the next event.
func (x *External) Subscribe(ctx context.Context, filter adapters.EventFilter, from adapters.From) (adapters.Subscription, error) {
	o, err := x.opened()
	if err != nil {
		return nil, err
	}
	sink := o.carrier.Load()
	if sink.plain {
		return nil, adapters.Unsupported("stream", "the sink has no event stream")
	}
	q := filterQuery(filter).values()
	if !from.Live {
		q.Set("after", strconv.FormatUint(from.After, 10))
	}
	stream, err := sink.client.Events(ctx, "/v1/events/stream", q)
	if errors.Is(err, adapters.ErrNotFound) {
		err = adapters.Unsupported("stream", "the sink has no event stream")
	}
	if err != nil {
		return nil, err
	}
	s := &remote{EventStream: stream, id: adapters.NewID(), owner: o}
	o.mu.Lock()
	full := len(o.subs) >= maxSubscriptions
	if o.subs != nil && !full {
		o.subs[s.id] = s
	}
	closed := o.subs == nil
	o.mu.Unlock()
	if closed || full {
		_ = stream.Close() // it cannot fail
		if closed {
			return nil, adapters.Closed(adapters.SlotEvents)
		}
		return nil, adapters.Errorf(adapters.CodeRateLimited, "there are %d subscriptions already", maxSubscriptions)
	}
	return s, nil
}

// remote is a subscription to the sink's stream.
type remote struct {
	*wire.EventStream
	id    string
	owner *externalOpen
}

// ID names the subscription for Unsubscribe.
func (r *remote) ID() string { return r.id }

// Next waits for the next event of the sink.
func (r *remote) Next(ctx context.Context) (adapters.Event, error) {
	for {
		e, err := r.EventStream.Next(ctx)
		if err != nil {
			return adapters.Event{}, err
		}
		var ev adapters.Event
		// A kind with a line break would forge messages in the event streams of the box.
		if json.Unmarshal(e.Data, &ev) == nil && adapters.CheckKind(ev.Kind) == nil {
			return ev, nil
		}
		if e.Type == adapters.KindLagged { // a notice without an event
			seq, _ := strconv.ParseUint(e.ID, 10, 64) // without an id, the number is 0
			return adapters.Event{Kind: adapters.KindLagged, Payload: json.RawMessage(e.Data), Seq: seq}, nil
		}
		// It is not an event of the contract: a newer peer may send other things.
	}
}

// Close ends the subscription.
func (r *remote) Close() error {
	r.owner.mu.Lock()
	delete(r.owner.subs, r.id)
	r.owner.mu.Unlock()
	return r.EventStream.Close()
}

// Unsubscribe ends a subscription.
func (x *External) Unsubscribe(_ context.Context, id string) error {
	o, err := x.opened()
	if err != nil {
		return err
	}
	o.mu.Lock()
	s, ok := o.subs[id]
	o.mu.Unlock()
	if !ok {
		return adapters.NotFound("subscription", id)
	}
	return s.Close()
}

// History returns the sink's history.
func (x *External) History(ctx context.Context, filter adapters.EventFilter, opt adapters.PageOpt) (adapters.Page[adapters.Event], error) {
	var page adapters.Page[adapters.Event]
	o, err := x.opened()
	if err != nil {
		return page, err
	}
	sink := o.carrier.Load()
	if !sink.hasHistory() {
		return page, adapters.Unsupported(adapters.CapHistory, "the sink keeps no history")
	}
	q := filterQuery(filter).values()
	q.Set("limit", strconv.Itoa(opt.Rows()))
	if opt.Cursor != "" {
		q.Set("cursor", opt.Cursor)
	}
	res, err := sink.client.Do(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/events", Query: q})
	if err != nil {
		return page, err
	}
	return wire.List[adapters.Event](res)
}

// readPosition is the number of the last event that the sink has accepted. An older version could
// leave a file without a number after a power loss. Such a file counts as missing: the events in
// the spool are delivered again, and none is lost.
func readPosition(dir string) (uint64, error) {
	raw, err := safeopen.ReadFile(filepath.Join(dir, positionFile), maxPosition)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	seq, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, nil
	}
	return seq, nil
}

const (
	positionFile = "delivered"
	maxPosition  = 64 // bytes; a number needs 20
)

// writePosition replaces the file by a rename, so a crash leaves the old or the new number. With
// the old number, events are delivered again, but none is lost. The content is synced before the
// rename: rename(2) orders nothing, and after a power loss the file could otherwise be empty.
func writePosition(dir string, seq uint64) error {
	return safeopen.WriteFile(filepath.Join(dir, positionFile), strconv.AppendUint(nil, seq, 10), 0o640)
}

// sourceOf returns the default source, or "" if the configuration has none.
func sourceOf(source func() string) string {
	if source == nil {
		return ""
	}
	return source()
}
