package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/rate"
	"github.com/dreamlab-ai/agentinit/mesh/announce"
	"github.com/dreamlab-ai/agentinit/mesh/mailbox"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// kindInbound is the kind of event in the events slot for a message in the inbox.
const kindInbound = "nostr.inbound"

// neighbours connects the box with relays after the boot. Its methods may be called from any
// goroutine; it implements rest.Mesh.
type neighbours struct {
	b       *box
	pool    atomic.Pointer[pool.Pool]       // nil before, and without relays
	mailbox atomic.Pointer[mailbox.Mailbox] // nil until it is read
	// eventsWait is nil while the events of agents are published, or not to be published.
	eventsWait atomic.Pointer[announce.Waiting]

	troubles *rate.Callers[string] // events about troubles, by name
	streams  atomic.Int32          // open streams of the API
	// connected has an element after a relay has connected.
	connected chan struct{}
}

// maxMeshStreams bounds the streams of the API: fewer than the subscriptions of a pool, because the
// mailbox needs one to receive messages.
const maxMeshStreams = 12

// maxMeshUnread bounds the events that wait for the reader of such a stream, in bytes.
const maxMeshUnread = 1 << 20

// troubleEvents bounds how many troubles of one kind become events; metrics count all.
func troubleEvents() *rate.Callers[string] {
	return rate.NewCallers[string](rate.Limit{PerSecond: 1, Burst: 20}, 100)
}

// joinMesh connects to the relays that the manifest wants, publishes what agents do
// and runs the mailbox, until the box stops. It belongs after phase 3: the box
// signs.
func (b *box) joinMesh() {
	relays, signer := b.boot.MeshRelays(), b.self.Signer()
	if signer == nil || len(relays) == 0 && !b.takesGuests() {
		return
	}
	may := func(which func(bootstrap.MeshRelay) bool) func(string) bool {
		return func(url string) bool {
			return slices.ContainsFunc(relays, func(r bootstrap.MeshRelay) bool { return r.URL == url && which(r) })
		}
	}
	urls := make([]string, len(relays))
	for i, r := range relays {
		urls[i] = r.URL
	}
	p, err := pool.Start(pool.Config{
		URLs: urls, Signer: signer, Notice: b.relayNotice, Document: pool.FetchDocument,
		Publishes:  may(func(r bootstrap.MeshRelay) bool { return r.Publish }),
		Subscribes: may(func(r bootstrap.MeshRelay) bool { return r.Subscribe }),
	})
	if err != nil {
		b.publish(event.Warn, "MeshNotJoined", map[string]any{"message": err.Error()})
		return
	}
	b.mesh.pool.Store(p)
	b.member.bringGuests()
	if err := b.registry.Register(&b.mesh); err != nil {
		b.publish(event.Warn, "MetricsIncomplete", map[string]any{"message": err.Error()})
	}
	// It ends before the slots do; the next boot publishes later events.
	ctx, cancel := context.WithCancel(b.stopped)
	b.background(func() {
		defer cancel()
		select {
		case <-b.sup.Done():
		case <-b.stopped.Done():
		}
	})
	b.background(func() {
		<-ctx.Done()
		p.Close()
	})
	b.background(func() { b.announceEvents(ctx, p, signer) })
	b.background(func() { b.announceRelays(ctx, p, signer) })
	b.background(func() { b.runMailbox(ctx, p, signer) })
}

// takesGuests tells whether the box uses relays that its host names: those are outside relays.
func (b *box) takesGuests() bool {
	publish, subscribe := b.boot.Outside()
	return b.member != nil && (publish || subscribe)
}

// announceEvents publishes what agents do, if the manifest asks for it.
func (b *box) announceEvents(ctx context.Context, p *pool.Pool, signer *identity.Signer) {
	m := b.manifest()
	if !m.SovereignMesh.PublishAgentEvents || m.Adapters.Events == string(adapters.ClassOff) {
		return
	}
	announce.Run(ctx, announce.Config{
		Events: b.slots.Events(), Signer: signer, Relays: p, Box: func() string { return string(signer.Public()) },
		Cursor: filepath.Join(b.roots.Workspace, filepath.FromSlash(publishedFile)), MaxEventBytes: int(m.SovereignMesh.Relay.MaxEventBytes),
		Report: b.meshTrouble, Waits: b.mesh.eventsWait.Store,
	})
}

// announceRelays tells others which outside relays the box uses. It leaves out addresses with a
// password or a token, which others could not use, and the box's own relay: the box does not know at
// which address others reach that.
func (b *box) announceRelays(ctx context.Context, p *pool.Pool, signer *identity.Signer) {
	var uses []announce.Use
	for _, r := range b.boot.MeshRelays() {
		if !r.Own && shareable(r.URL) {
			uses = append(uses, announce.Use{URL: r.URL, Writes: r.Publish, Reads: r.Subscribe && b.receives(b.manifest())})
		}
	}
	announce.RunLists(ctx, announce.ListsConfig{
		Uses: uses, Signer: signer, Relays: p, Box: func() string { return string(signer.Public()) },
		Connected: b.mesh.connected,
		// No trouble: most private relays take no lists.
		Report: func(what string, fields map[string]any) { b.meshEvent(event.Info, what, fields) },
	})
}

// shareable tells whether others may see the address of a relay: it has no password and no token.
func shareable(relay string) bool { return schema.PublicURL(relay) == relay }

// meshTrouble publishes a warning about what relays and those who write to the box cause.
func (b *box) meshTrouble(what string, fields map[string]any) { b.meshEvent(event.Warn, what, fields) }

// meshEvent publishes what others cause: as often as they like, so no more of one kind than a log can
// bear.
func (b *box) meshEvent(level event.Level, what string, fields map[string]any) {
	if _, ok := b.mesh.troubles.Take(what, time.Now()); !ok {
		return
	}
	b.bus.Publish(event.Event{Level: level, Stage: "mesh", Name: what, Fields: fields})
}

// runMailbox reads the mailbox of the pod and runs it.
func (b *box) runMailbox(ctx context.Context, p *pool.Pool, signer *identity.Signer) {
	m := b.manifest()
	box, err := mailbox.Open(mailbox.Config{
		Dir: filepath.Join(b.self.podDir(), "events"), Files: bootstrap.NewPolicy(b.roots), Relays: p, Key: signer.Key,
		Policy:  func() mailbox.Policy { return b.mailPolicy(m, signer.Public()) },
		Receive: b.receives(m), Tell: b.tellInbound, Work: b.intentWork(m), Report: b.meshTrouble, Registerer: b.registry,
	})
	if err != nil {
		b.meshTrouble("MailboxUnavailable", map[string]any{"message": err.Error()})
		return
	}
	b.mesh.mailbox.Store(box)
	box.Run(ctx)
	b.mesh.mailbox.Store(nil)
}

// receives tells whether the inbox takes anything.
func (b *box) receives(m *schema.Manifest) bool {
	_, fromGuests := b.boot.Outside()
	fromGuests = fromGuests && b.member != nil
	return m.SovereignMesh.Relay.PodBridge && (fromGuests || slices.ContainsFunc(b.boot.MeshRelays(), func(r bootstrap.MeshRelay) bool { return r.Subscribe }))
}

// mailPolicy says which keys may write to the inbox: the same as for the box's relay.
func (b *box) mailPolicy(m *schema.Manifest, own identity.PublicKey) mailbox.Policy {
	settings := m.SovereignMesh.Relay
	p := mailbox.Policy{
		Own: string(own), Trusted: append(append(b.boot.OwnKeys(), string(own)), settings.AllowedPubkeys...),
		Strangers: settings.IngressPolicy != "allowlist", NIP04: settings.AllowNIP04,
		MaxEventBytes: int(settings.MaxEventBytes), Retention: time.Duration(settings.KeptDays()) * 24 * time.Hour,
	}
	for _, k := range settings.AllowedKinds {
		p.Kinds = append(p.Kinds, int(k))
	}
	return p
}

// tellInbound puts a notice of a message into the events slot. A repeated notice has the same id,
// so the slot stores it once.
func (b *box) tellInbound(ctx context.Context, n mailbox.Notice) error {
	payload, err := json.Marshal(n)
	if err != nil {
		return err
	}
	ctx = adapters.WithMeta(ctx, adapters.Meta{Actor: b.boxName()})
	_, err = b.slots.Events().Dispatch(ctx, adapters.Event{
		ID: "nostr:" + n.EventID, Kind: kindInbound, Subject: "did:nostr:" + n.Sender, Payload: payload,
	})
	return err
}

// relayReachable is the probes.RelayDial of a box in the mesh. A relay that the box is connected to
// is reachable; any other is dialled.
func (b *box) relayReachable(ctx context.Context, url string) error {
	if p := b.mesh.pool.Load(); p != nil && slices.ContainsFunc(p.Status(), func(s pool.Status) bool { return s.URL == url && s.State == pool.Connected }) {
		return nil
	}
	c, err := pool.Dial(ctx, url)
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", schema.PublicURL(url), err)
	}
	return nil
}

// rotated says that the box has another key. The relays must learn it before they deliver messages
// for it.
func (n *neighbours) rotated() {
	if p := n.pool.Load(); p != nil {
		p.Reconnect()
	}
	if box := n.mailbox.Load(); box != nil {
		box.Rotated()
	}
}

// connections returns the connections to relays, or the reason why there are none.
func (n *neighbours) connections() (*pool.Pool, error) {
	if p := n.pool.Load(); p != nil {
		return p, nil
	}
	switch {
	case !n.b.manifest().SovereignMesh.Enabled:
		return nil, adapters.Unsupported("mesh", "this box has no identity: sovereign_mesh.enabled is false")
	case len(n.b.boot.MeshRelays()) == 0 && !n.b.takesGuests():
		return nil, adapters.Unsupported("mesh", "this box has no relays: switch on sovereign_mesh.relay, or nostr_bridge with NOSTR_RELAYS or operator.relay_urls")
	}
	return nil, adapters.Unavailable(nil, "the box has not joined the mesh yet")
}

func (n *neighbours) box() (*mailbox.Mailbox, error) {
	if _, err := n.connections(); err != nil {
		return nil, err
	}
	box := n.mailbox.Load()
	if box == nil {
		return nil, adapters.Unavailable(nil, "the mailbox is not open; the log of agentinit says why (MailboxUnavailable)")
	}
	return box, nil
}

func (n *neighbours) Status() (rest.MeshStatus, error) {
	p, err := n.connections()
	if err != nil {
		return rest.MeshStatus{}, err
	}
	self, _ := n.b.self.current()
	relays := n.b.boot.MeshRelays()
	out := rest.MeshStatus{PublicKey: string(self.PublicKey), Npub: self.Npub, Relays: []rest.MeshRelay{}}
	for _, s := range p.Status() {
		r := rest.MeshRelay{
			URL: schema.PublicURL(s.URL), State: string(s.State), Since: s.Since, LoggedIn: s.LoggedIn, LatencyMS: s.LatencyMS, LastEvent: s.LastEvent,
			Events: s.Events, Published: s.Published, Refused: s.Refused, Retries: s.Retries, Name: s.Document.Name, Software: s.Document.Software, Error: s.Error,
		}
		if i := slices.IndexFunc(relays, func(r bootstrap.MeshRelay) bool { return r.URL == s.URL }); i >= 0 {
			r.Own, r.Publishes, r.Subscribes = relays[i].Own, relays[i].Publish, relays[i].Subscribe
		}
		if s.Guest {
			r.Guest = true
			r.Publishes, r.Subscribes = n.b.boot.Outside()
		}
		out.Relays = append(out.Relays, r)
	}
	if w := n.eventsWait.Load(); w != nil {
		out.EventsWait = (*rest.MeshWait)(w)
	}
	if box := n.mailbox.Load(); box != nil {
		c := box.Counts()
		out.Mailbox = &rest.MeshMailbox{
			Receiving: n.b.receives(n.b.manifest()), Inbox: c.Inbox, Untold: c.Untold, Pending: c.Pending, Published: c.Published, Failed: c.Failed,
		}
	}
	return out, nil
}

func (n *neighbours) Publish(ctx context.Context, m rest.MeshMessage, wait time.Duration) (rest.MeshReceipt, error) {
	box, err := n.box()
	if err != nil {
		return rest.MeshReceipt{}, err
	}
	meta := adapters.MetaFrom(ctx)
	if err := adapters.CheckIdempotencyKey(meta.IdempotencyKey); err != nil {
		return rest.MeshReceipt{}, err
	}
	o := mailbox.Outgoing{Kind: m.Kind, Content: m.Content}
	if meta.IdempotencyKey != "" {
		o.Key = meta.Actor + "\x00" + meta.IdempotencyKey
	}
	for _, tag := range m.Tags {
		o.Tags = append(o.Tags, nostr.Tag(tag))
	}
	if m.To != "" {
		if o.To, err = identity.ParsePublicKey(m.To); err != nil {
			return rest.MeshReceipt{}, adapters.Invalid("to", "is no public key: %v", err)
		}
	}
	e, err := box.Send(o, time.Now())
	if err != nil {
		return rest.MeshReceipt{}, sendError(err)
	}
	adapters.ReportFrom(ctx).Replayed = e.Replayed
	if wait > 0 {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if e, _, err = box.Wait(limited, e.PendingID); err != nil {
			return rest.MeshReceipt{}, err
		}
	}
	return receiptOf(e), nil
}

func sendError(err error) error {
	if invalid, ok := errors.AsType[*mailbox.InvalidError](err); ok {
		return adapters.Invalid(invalid.Field, "%s", invalid.Reason)
	}
	switch {
	case errors.Is(err, mailbox.ErrFull):
		return adapters.Errorf(adapters.CodeRateLimited, "%v", err)
	case errors.Is(err, mailbox.ErrMismatch):
		return adapters.Errorf(adapters.CodeIdempotencyMismatch, "%v", err)
	}
	return adapters.Unavailable(err, "cannot keep the message")
}

func receiptOf(e mailbox.Entry) rest.MeshReceipt {
	return rest.MeshReceipt{PendingID: e.PendingID, Status: string(e.Status), EventID: e.EventID, Tries: e.Tries, Reason: e.Reason, PublishedAt: e.PublishedAt}
}

func (n *neighbours) Receipt(id string) (rest.MeshReceipt, error) {
	box, err := n.box()
	if err != nil {
		return rest.MeshReceipt{}, err
	}
	e, there, err := box.Entry(id)
	if err == nil && !there {
		err = adapters.NotFound("message", id)
	}
	return receiptOf(e), err
}

func (n *neighbours) Subscribe(_ context.Context, f rest.MeshFilter) (rest.MeshStream, error) {
	p, err := n.connections()
	if err != nil {
		return nil, err
	}
	filter := nip01.Filter{Kinds: f.Kinds}
	if filter.Authors, err = publicKeys("author", f.Authors); err != nil {
		return nil, err
	}
	to, err := publicKeys("to", f.To)
	if err != nil {
		return nil, err
	}
	if to != nil {
		filter.Tags = map[string][]string{"p": to}
	}
	if f.Since > 0 {
		filter.Since = &f.Since
	}
	if f.Limit >= 0 {
		filter.Limit = &f.Limit
	}
	if n.streams.Add(1) > maxMeshStreams {
		n.streams.Add(-1)
		return nil, adapters.Errorf(adapters.CodeRateLimited, "%d streams of relays' events are open already", maxMeshStreams)
	}
	s, err := p.Watch([]nip01.Filter{filter}, maxMeshUnread)
	if err != nil {
		n.streams.Add(-1)
		return nil, adapters.Errorf(adapters.CodeRateLimited, "%v", err)
	}
	return relayed{s, n}, nil
}

// publicKeys reads keys of the query; nil if there are none.
func publicKeys(field string, texts []string) (keys []string, err error) {
	for _, text := range texts {
		key, err := identity.ParsePublicKey(text)
		if err != nil {
			return nil, adapters.Invalid(field, "is no public key: %v", err)
		}
		keys = append(keys, string(key))
	}
	return keys, nil
}

// relayed is a subscription in the form of the API, a rest.MeshStream.
type relayed struct {
	*pool.Subscription
	of *neighbours
}

// Close implements rest.MeshStream. It is called once.
func (r relayed) Close() {
	r.Subscription.Close()
	r.of.streams.Add(-1)
}

func (r relayed) Next(ctx context.Context) (rest.MeshEvent, error) {
	e, err := r.Subscription.Next(ctx)
	if errors.Is(err, pool.ErrClosed) {
		return rest.MeshEvent{}, adapters.Unavailable(err, "the box leaves the mesh")
	}
	if errors.Is(err, pool.ErrBehind) {
		return rest.MeshEvent{}, adapters.Errorf(adapters.CodeRateLimited, "the stream was read too slowly; ask again with since")
	}
	if err != nil {
		return rest.MeshEvent{}, err
	}
	return rest.MeshEvent{Relay: e.Relay, Event: json.RawMessage(e.Event.String())}, nil
}

// relayMetric is a metric of one connection; known is false as long as there is no value.
type relayMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(pool.Status) (v float64, known bool)
}

// relayMetrics are the metrics of the connections, by the relay's address.
func relayMetrics() []relayMetric {
	count := func(n func(pool.Status) uint64) func(pool.Status) (float64, bool) {
		return func(s pool.Status) (float64, bool) { return float64(n(s)), true }
	}
	return []relayMetric{
		{prometheus.NewDesc("agentbox_mesh_relay_up", "1 while the box is connected to the relay.", []string{"relay"}, nil), prometheus.GaugeValue,
			func(s pool.Status) (float64, bool) {
				if s.State == pool.Connected {
					return 1, true
				}
				return 0, true
			}},
		{prometheus.NewDesc("agentbox_mesh_relay_connect_seconds", "How long the last handshake with the relay took.", []string{"relay"}, nil), prometheus.GaugeValue,
			func(s pool.Status) (float64, bool) { return s.Connect.Seconds(), s.Connect > 0 }},
		{prometheus.NewDesc("agentbox_mesh_relay_last_event_timestamp_seconds", "When the relay last gave an event.", []string{"relay"}, nil), prometheus.GaugeValue,
			func(s pool.Status) (float64, bool) {
				return float64(s.LastEvent.UnixMilli()) / 1000, !s.LastEvent.IsZero()
			}},
		{prometheus.NewDesc("agentbox_mesh_relay_received_total", "Verified events that the relay gave.", []string{"relay"}, nil), prometheus.CounterValue,
			count(func(s pool.Status) uint64 { return s.Events })},
		{prometheus.NewDesc("agentbox_mesh_relay_published_total", "Events that the relay accepted.", []string{"relay"}, nil), prometheus.CounterValue,
			count(func(s pool.Status) uint64 { return s.Published })},
		{prometheus.NewDesc("agentbox_mesh_relay_refused_total", "Messages of the relay that a correct relay does not send.", []string{"relay"}, nil), prometheus.CounterValue,
			count(func(s pool.Status) uint64 { return s.Refused })},
	}
}

func (n *neighbours) Describe(to chan<- *prometheus.Desc) {
	for _, m := range relayMetrics() {
		to <- m.desc
	}
}

// Collect implements prometheus.Collector. Addresses whose shown parts are equal get a number.
func (n *neighbours) Collect(to chan<- prometheus.Metric) {
	p := n.pool.Load()
	if p == nil {
		return
	}
	metrics, seen := relayMetrics(), map[string]int{}
	for _, s := range p.Status() {
		name := schema.PublicURL(s.URL)
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprintf("%s#%d", name, seen[name])
		}
		for _, m := range metrics {
			if v, known := m.value(s); known {
				to <- prometheus.MustNewConstMetric(m.desc, m.kind, v, name)
			}
		}
	}
}
