package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// federationToken is the environment variable with the token that boxes register with.
const federationToken = "AGENTBOX_FEDERATION_TOKEN"

// registerWait is how long a boot waits for the host; after that it continues without.
const registerWait = 10 * time.Second

// member is the box's side of federation.mode = "client": it applies the session to the slots. Its
// methods may be called from any goroutine; it implements federation.Box.
type member struct {
	b      *box
	m      *schema.Manifest
	client *federation.Client
	runner *federation.Runner
	own    map[adapters.Slot]string // endpoints of the slots in the manifest
	beats  *prometheus.CounterVec

	granted   chan struct{} // closed at the first grant
	connected chan struct{} // closed when the slots have connected for the first time
	once      sync.Once
	begun     atomic.Bool

	guests sync.Mutex // of bringGuests

	mu   sync.Mutex
	urls map[adapters.Slot]string // the endpoint of each external slot
	held map[adapters.Slot]bool   // Degrade has taken the slot out of service
}

// newMember returns nil in a box that stands alone.
func (b *box) newMember(m *schema.Manifest) (*member, error) {
	if m.Federation.Mode != "client" {
		return nil, nil
	}
	f := &member{
		b: b, m: m, granted: make(chan struct{}), connected: make(chan struct{}),
		urls: map[adapters.Slot]string{}, held: map[adapters.Slot]bool{},
		beats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "agentbox_federation_heartbeats_total", Help: "Heartbeats sent to the host, by outcome: ok, failed, gone.",
		}, []string{"outcome"}),
	}
	var err error
	f.client, err = federation.NewClient(federation.ClientConfig{
		BaseURL: m.Federation.ExternalURL, Auth: f, UserAgent: "agentinit/" + version,
	})
	if err != nil {
		return nil, &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: "this box cannot be a client of a host", Err: err}
	}
	for _, slot := range []adapters.Slot{adapters.SlotBeads, adapters.SlotPods, adapters.SlotEvents} {
		f.urls[slot] = m.Federation.ExternalURL
	}
	if own := m.Integrations.ExternalEvents.URL; own != "" {
		f.urls[adapters.SlotEvents] = own
	}
	f.urls[adapters.SlotMemory] = m.Integrations.RuvectorExternal.Conninfo
	f.own = maps.Clone(f.urls)
	f.runner = federation.NewRunner(f.client, f, seed())
	return f, errors.Join(b.registry.Register(f.beats), b.registry.Register(f))
}

// start begins the session and waits a while for the host.
func (f *member) start(ctx context.Context) {
	f.begun.Store(true)
	f.b.background(func() {
		f.runner.Run(ctx)
		f.client.Close()
	})
	limit := time.NewTimer(registerWait)
	defer limit.Stop()
	select {
	case <-f.granted:
	case <-f.runner.Registered():
	case <-limit.C:
	case <-ctx.Done():
	}
}

// ready says that the slots may be replaced from now on.
func (f *member) ready() { close(f.connected) }

// leave ends the session with the host.
func (f *member) leave() {
	if f == nil || !f.begun.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), federation.DeregisterLimit+time.Second)
	defer cancel()
	f.runner.Shutdown(ctx)
}

// reload tries a refused session again.
func (f *member) reload() {
	if f != nil && f.begun.Load() {
		f.runner.Reload()
	}
}

// token is the session's credential for a slot that is behind the host; "" without a session, and
// for a slot elsewhere: no other server, nor a program of this box, may have it.
func (f *member) token(slot adapters.Slot) string {
	if f == nil {
		return ""
	}
	s := f.runner.Session()
	if !f.isBehind(slot, s.Endpoints) {
		return ""
	}
	return cmp.Or(endpointOf(s.Endpoints, slot).Token, s.Token)
}

func endpointOf(e federation.Endpoints, slot adapters.Slot) federation.Endpoint {
	switch slot {
	case adapters.SlotBeads:
		return e.Beads
	case adapters.SlotPods:
		return e.Pods
	case adapters.SlotEvents:
		return e.Events.Endpoint
	case adapters.SlotMemory:
		return federation.Endpoint{URL: e.Memory.Conninfo}
	}
	return federation.Endpoint{}
}

// behind are the slots whose state is on the host: external ones that use the host's address, or
// for which the host gave an endpoint.
func (f *member) behind(e federation.Endpoints) []adapters.Slot {
	var out []adapters.Slot
	for _, slot := range adapters.Slots() {
		if f.isBehind(slot, e) {
			out = append(out, slot)
		}
	}
	return out
}

func (f *member) isBehind(slot adapters.Slot, e federation.Endpoints) bool {
	if !f.isExternal(slot) {
		return false
	}
	own := slot == adapters.SlotMemory || slot == adapters.SlotEvents && f.m.Integrations.ExternalEvents.URL != ""
	return endpointOf(e, slot).URL != "" || !own
}

// isExternal tells whether the manifest says that the slot is served outside the box.
func (f *member) isExternal(slot adapters.Slot) bool {
	switch slot {
	case adapters.SlotBeads:
		return f.m.Adapters.Beads == "external"
	case adapters.SlotPods:
		return f.m.Adapters.Pods == "external"
	case adapters.SlotMemory:
		return f.m.Adapters.Memory == "external-pg"
	case adapters.SlotEvents:
		return f.m.Adapters.Events == "external"
	}
	return false
}

func (f *member) Registration() federation.Registration {
	build := f.b.buildInfo()
	r := federation.Registration{
		BoxID: f.b.boxName(), BootID: build.BootID, ImageHash: build.ImageHash, ManifestChecksum: build.ManifestChecksum,
		Version: build.Version, Adapters: map[string]federation.AdapterReport{},
		MetaURL: metaURL(f.b.publicBase(f.m), f.b.server.Bound(probes.ManagementListener)),
	}
	if own, ok := f.b.self.current(); ok {
		r.DID = own.DID
	}
	for _, s := range f.b.slots.Status() {
		if s.Class == adapters.ClassOff {
			continue
		}
		r.Adapters[string(s.Slot)] = federation.AdapterReport{Impl: s.Wanted, ContractVersion: s.ContractVersion, Capabilities: append([]string{}, s.Capabilities...)}
	}
	return r
}

// metaURL is where the host can read what the box says of itself: at its public address, else at the
// address of the listener. A listener on all addresses names none, and one at a link-local address with a
// zone (RFC 4007, 11) only one inside the box, so the result is then "".
func metaURL(public, listener string) string {
	if public != "" {
		return public + "/v1/meta"
	}
	if at, err := netip.ParseAddrPort(listener); err == nil && !at.Addr().IsUnspecified() && at.Addr().Zone() == "" {
		return "http://" + listener + "/v1/meta"
	}
	return ""
}

func (f *member) Beat() federation.Beat {
	verdict := f.b.readiness.Verdict()
	beat := federation.Beat{
		Status: "ok", Ready: verdict.Ready, Slots: map[string]string{}, UptimeS: int64(time.Since(f.b.started).Seconds()),
	}
	if !verdict.Ready {
		beat.Status = "degraded"
	}
	for _, s := range f.b.slots.Status() {
		beat.Slots[string(s.Slot)] = string(s.State)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// A slot that gives no answer counts as having no agents.
	if agents, err := f.b.slots.Orchestrator().ListAgents(ctx, adapters.AgentFilter{Status: "running"}); err == nil {
		beat.Agents = len(agents)
	}
	return beat
}

// Connect implements federation.Box. A slot that the host names no longer goes back to its own
// address.
func (f *member) Connect(ctx context.Context, e federation.Endpoints) {
	f.once.Do(func() { close(f.granted) })
	f.bringGuests()
	select {
	case <-f.connected:
	case <-ctx.Done():
		return
	}
	var all sync.WaitGroup
	for _, slot := range adapters.Slots() {
		if !f.isExternal(slot) {
			continue
		}
		all.Go(func() {
			if err := f.point(ctx, slot, cmp.Or(endpointOf(e, slot).URL, f.own[slot])); err != nil {
				f.trouble(slot, err)
			}
		})
	}
	all.Wait()
	f.b.showSlots(f.b.slots)
}

// point gives one slot the endpoint and brings it back into service.
func (f *member) point(ctx context.Context, slot adapters.Slot, url string) error {
	f.mu.Lock()
	same := f.urls[slot] == url
	f.mu.Unlock()
	switch {
	case same:
		return f.restore(ctx, slot)
	case slot == adapters.SlotEvents:
		if err := f.moveEvents(ctx, url); err != nil {
			return err
		}
		f.pointed(slot, url)
		return f.restore(ctx, slot)
	}
	next, err := f.external(slot, url)
	if err != nil {
		return err
	}
	f.pointed(slot, url)
	f.release(slot) // by Replace
	return f.b.slots.Replace(ctx, slot, next)
}

func (f *member) pointed(slot adapters.Slot, url string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls[slot] = url
}

// restore brings a slot that Degrade has taken out of service back.
func (f *member) restore(ctx context.Context, slot adapters.Slot) error {
	if !f.release(slot) {
		return nil
	}
	return f.b.slots.Restore(ctx, slot)
}

// release tells whether the slot was held, and forgets it.
func (f *member) release(slot adapters.Slot) (held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held = f.held[slot]
	delete(f.held, slot)
	return held
}

// moveEvents changes the sink of the one spool. With two adapters, both would deliver from the
// spool.
func (f *member) moveEvents(ctx context.Context, url string) error {
	sink, ok := f.b.resolved.Adapter(adapters.SlotEvents).(*events.External)
	if !ok {
		return adapters.Unsupported("events", "this class of the events slot has no sink to move")
	}
	return sink.Move(ctx, url)
}

// external makes the external adapter of a slot for another address.
func (f *member) external(slot adapters.Slot, url string) (adapters.Adapter, error) {
	there := *f.m
	word := "external"
	if slot == adapters.SlotMemory {
		there.Integrations.RuvectorExternal.Conninfo, word = url, "external-pg"
	} else {
		there.Federation.ExternalURL = url
	}
	return f.b.slotsTable(&there, f.b.boot.Current().Document)[slot][word]()
}

func (f *member) Degrade(ctx context.Context, reason string) {
	select {
	case <-f.connected:
	case <-ctx.Done():
		return
	}
	for _, slot := range f.behind(f.runner.Session().Endpoints) {
		f.mu.Lock()
		f.held[slot] = true
		f.mu.Unlock()
		if err := f.b.slots.Degrade(ctx, slot, errors.New(reason)); err != nil {
			f.trouble(slot, err)
		}
	}
}

func (f *member) trouble(slot adapters.Slot, err error) {
	if f.b.stopped.Err() == nil {
		f.b.bus.Publish(event.Event{Level: event.Warn, Stage: "federation", Name: "FederationSlotTrouble", Fields: map[string]any{
			"slot": string(slot), "error": err.Error(),
		}})
	}
}

// sessionID is the requirement that the host has accepted the box.
const sessionID = "federation:session"

// Show implements federation.Box. Without an accepted session, calls of the slots that log in with
// it are refused, even if those slots look healthy.
func (f *member) Show(s federation.Session) {
	f.bringGuests()
	if s.State == federation.Deregistering || s.State == federation.Closed {
		return // the box is stopping
	}
	if !slices.ContainsFunc(f.behind(s.Endpoints), func(slot adapters.Slot) bool { return f.needsSession(slot, s) }) {
		f.b.readiness.Remove(sessionID)
		return
	}
	reason := string(s.State)
	if s.Reason != "" {
		reason += ": " + s.Reason
	}
	f.b.readiness.Set(probes.Requirement{
		ID: sessionID, Kind: probes.KindSession, Reason: reason,
		Met: s.State == federation.Active || s.State == federation.Suspect,
	})
}

// needsSession tells whether the calls of a slot are refused without a session. At a host, the
// token that boxes register with is not enough for calls. But it may be the API key of a server
// that is not a host.
func (f *member) needsSession(slot adapters.Slot, s federation.Session) bool {
	switch slot {
	case adapters.SlotBeads:
		return f.hasNoLogin(slot, f.m.Slots.Beads.Auth, f.m.Slots.Beads.TokenEnv, s)
	case adapters.SlotPods:
		return f.hasNoLogin(slot, f.m.Slots.Pods.Auth, f.m.Slots.Pods.TokenEnv, s)
	case adapters.SlotEvents:
		return f.hasNoLogin(slot, f.m.Slots.Events.Auth, f.m.Slots.Events.TokenEnv, s)
	}
	return false // the connection string of memory has its own password
}

// hasNoLogin tells that neither a signature nor a token of its own admits the slot.
func (f *member) hasNoLogin(slot adapters.Slot, auth, variable string, s federation.Session) bool {
	if auth == "nip98" {
		return false
	}
	own := wire.TokenOf(slot, variable, func(name string) string {
		if name == federationToken && !s.NoHost {
			return ""
		}
		return f.b.tokenIn(name)
	})
	return own() == ""
}

// bringGuests gives the relays that the host has named to the box's connections, if the manifest
// wants outside relays, and takes them away when the session has ended. A host that is lost has
// not ended it.
func (f *member) bringGuests() {
	if f == nil {
		return
	}
	p := f.b.mesh.pool.Load()
	if p == nil {
		return // joinMesh calls again
	}
	f.guests.Lock() // the later of two calls sees the newer session
	defer f.guests.Unlock()
	var urls []string
	publish, subscribe := f.b.boot.Outside()
	if s := f.runner.Session(); s.ID != "" && (publish || subscribe) {
		urls = s.Endpoints.Events.RelayURLs
	}
	p.Guests(urls, publish, subscribe)
}

func (f *member) Tell(name, reason string, s federation.Session) {
	level := event.Info
	switch name {
	case federation.NoticeSuspect, federation.NoticeLost, federation.NoticeEvicted, federation.NoticeRefused:
		level = event.Warn
	}
	fields := map[string]any{"state": string(s.State), "host": schema.PublicURL(f.m.Federation.ExternalURL), "session_id": s.ID}
	if reason != "" {
		fields["reason"] = reason
	}
	f.b.bus.Publish(event.Event{Level: level, Stage: "federation", Name: name, Fields: fields})
}

func (f *member) Fatal(reason string) {
	select {
	case <-f.connected:
		return // the boot has ended
	default:
	}
	failure := &bootstrap.Failure{Code: bootstrap.ExitContractMismatch, Phase: "federation", Reason: "the host refuses this box: " + reason}
	f.b.slotFailure.Store(failure)
	f.b.sup.Fail(failure.Error(), int(failure.Code))
}

func (f *member) Counted(outcome string) { f.beats.WithLabelValues(outcome).Inc() }

// Descriptions of the metrics that are read from the session.
func federationState() *prometheus.Desc {
	return prometheus.NewDesc("agentbox_federation_state", "1 for the state that the session with the host is in.", []string{"state"}, nil)
}

func federationLastBeat() *prometheus.Desc {
	return prometheus.NewDesc("agentbox_federation_last_heartbeat_timestamp_seconds", "When the host last answered a heartbeat.", nil, nil)
}

func (f *member) Describe(to chan<- *prometheus.Desc) {
	to <- federationState()
	to <- federationLastBeat()
}

func (f *member) Collect(to chan<- prometheus.Metric) {
	s := f.runner.Session()
	for _, state := range federation.States() {
		value := 0.0
		if s.State == state {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(federationState(), prometheus.GaugeValue, value, string(state))
	}
	if !s.LastHeartbeat.IsZero() {
		to <- prometheus.MustNewConstMetric(federationLastBeat(), prometheus.GaugeValue, float64(s.LastHeartbeat.UnixMilli())/1000)
	}
}

// status is the session for GET /v1/federation; it names no token.
func (f *member) status() rest.FederationStatus {
	s := f.runner.Session()
	out := rest.FederationStatus{
		Mode: f.m.Federation.Mode, State: string(s.State), Detail: s.Reason, Since: adapters.At(s.Since),
		Host: adapters.NullString(schema.PublicURL(f.m.Federation.ExternalURL)), SessionID: adapters.NullString(s.ID),
		LastHeartbeat: adapters.At(s.LastHeartbeat), Heartbeats: s.Seq, Missed: s.Missed, Evictions: s.Evictions,
		Endpoints: map[string]string{},
	}
	if s.ID == "" {
		out.NextTry = adapters.At(s.Next)
	}
	for _, slot := range adapters.Slots() {
		if url := endpointOf(s.Endpoints, slot).URL; url != "" {
			out.Endpoints[string(slot)] = schema.PublicURL(url)
		}
	}
	return out
}
