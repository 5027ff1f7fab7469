package orchestrator

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// protocolName is the name of the protocol that both ends send.
const protocolName = "agentbox.orchestrator"

// BridgeConfig of a stdio bridge.
type BridgeConfig struct {
	// Protocol is integrations.external_orchestrator.protocol; "" is "stdio".
	Protocol string
	// Local runs the agents that the host asks for: the local process manager with the middleware
	// of the slot. The bridge connects and disconnects it.
	Local adapters.Orchestrator
	// Confined names the templates that must not run without their sandbox.
	Confined map[string]bool
}

// Bridge is stdio-bridge: calls of the box go to the attached host, and calls of the host go to the
// local process manager. It is safe for concurrent use.
type Bridge struct {
	cfg BridgeConfig

	mu        sync.Mutex
	connected bool
	taken     bool // a host is attached, or about to be
	peer      *peer
	ending    context.CancelFunc // of the session
	gone      chan struct{}      // closed when taken becomes false
	remotes   map[string]*remoteStream

	changed chan struct{} // has a token when a host has come or gone
}

var (
	_ adapters.Orchestrator = (*Bridge)(nil)
	_ adapters.SelfAware    = (*Bridge)(nil)
)

// peer is an attached host that has sent initialize.
type peer struct {
	*session
	minor int // of the host's contract
}

// greeting is the form of the parameters and of the result of initialize.
type greeting struct {
	Protocol     string   `json:"protocol"`
	Version      string   `json:"version"`
	Capabilities []string `json:"capabilities"`
}

func ourGreeting() greeting {
	return greeting{protocolName, contractVersion(), []string{adapters.CapInput}}
}

// NewBridge makes the bridge. It performs no I/O.
func NewBridge(cfg BridgeConfig) (*Bridge, error) {
	if cfg.Protocol != "" && cfg.Protocol != "stdio" {
		why := "only stdio reaches a bridge: no port is published for this slot"
		return nil, &adapters.ConfigError{
			Key: "integrations.external_orchestrator.protocol", Message: cfg.Protocol + ": " + why,
			Err: adapters.Unsupported("external_orchestrator.protocol", "%s", why).With("protocol", cfg.Protocol),
		}
	}
	return &Bridge{cfg: cfg, remotes: make(map[string]*remoteStream), changed: make(chan struct{}, 1)}, nil
}

// The descriptive methods of adapters.Adapter.

func (b *Bridge) Slot() adapters.Slot     { return adapters.SlotOrchestrator }
func (b *Bridge) Impl() string            { return "stdio-bridge" }
func (b *Bridge) Class() adapters.Class   { return adapters.ClassExternal }
func (b *Bridge) Enabled() bool           { return true }
func (b *Bridge) ContractVersion() string { return contractVersion() }

// Capabilities are those of the attached host; there are none without a host.
func (b *Bridge) Capabilities() []string {
	p, err := b.attached()
	if err != nil || p.minor < 1 {
		return []string{}
	}
	return []string{adapters.CapInput}
}

// Connect lets a host attach. It does not wait for a host: a host attaches with docker exec, and
// the box must run for that.
func (b *Bridge) Connect(ctx context.Context) error {
	if err := b.cfg.Local.Connect(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected = true
	return nil
}

// Health is degraded while no host is attached.
func (b *Bridge) Health(context.Context) adapters.Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.connected:
		return adapters.Unhealthy(adapters.Closed(adapters.SlotOrchestrator))
	case b.peer == nil:
		return adapters.Health{State: adapters.StateDegraded, Message: "no host is attached"}
	}
	return adapters.Healthy()
}

// HealthChanged implements adapters.SelfAware: the Set learns at once that a host has attached or
// detached, not only at the next check.
func (b *Bridge) HealthChanged() <-chan struct{} { return b.changed }

func (b *Bridge) tell() {
	select {
	case b.changed <- struct{}{}:
	default: // the reader of the token already in the channel sees this change too
	}
}

// Disconnect detaches the host and ends the agents that it has started here.
func (b *Bridge) Disconnect(ctx context.Context) error {
	b.mu.Lock()
	b.connected = false
	ending, gone := b.ending, b.gone
	b.mu.Unlock()
	if ending != nil {
		ending()
		select {
		case <-gone:
		case <-ctx.Done():
			return adapters.AsError(ctx.Err())
		}
	}
	return b.cfg.Local.Disconnect(ctx)
}

// Attach serves one host over conn until the host closes the channel, breaks the protocol or stops
// answering, or until ctx ends. Then it closes conn. The host's agents here keep running. If
// another host is attached already, the new one is refused with CONFLICT.
func (b *Bridge) Attach(ctx context.Context, conn io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &hosted{bridge: b, server: newServer(b.cfg.Local)}
	s := newSession(ctx, conn, h)
	h.session = s
	if refused := b.take(cancel); refused != nil {
		return turnAway(s, refused)
	}
	defer b.release()
	return s.run()
}

// turnAway tells a host why and closes its channel.
func turnAway(s *session, why error) error {
	defer s.end(why)
	line, err := encode(message{ID: null, Error: toRPC(why)})
	if err == nil {
		late := time.AfterFunc(lastWrite, func() { s.rwc.Close() })
		defer late.Stop()
		s.write(line)
	}
	// The host is refused in any case, so an error of the close does not matter.
	_ = s.rwc.Close()
	return why
}

func (b *Bridge) take(cancel context.CancelFunc) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.connected:
		return adapters.Closed(adapters.SlotOrchestrator)
	case b.taken:
		return adapters.Errorf(adapters.CodeConflict, "a host is attached already")
	}
	b.taken, b.ending, b.gone = true, cancel, make(chan struct{})
	return nil
}

func (b *Bridge) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken, b.peer, b.ending = false, nil, nil
	close(b.gone)
	b.tell()
}

// hosted is the bridge's side of one session.
type hosted struct {
	*server
	bridge  *Bridge
	session *session
}

// greet answers initialize, the first call of the peer. An error ends the session.
func (h *hosted) greet(raw json.RawMessage) (any, error) {
	g, err := params[greeting](raw)
	if err != nil {
		return nil, err
	}
	if g.Protocol != protocolName {
		return nil, adapters.Invalid("protocol", "must be %q", protocolName)
	}
	if err := adapters.CheckVersion(adapters.SlotOrchestrator, contractVersion(), g.Version, false); err != nil {
		return nil, err
	}
	v, err := adapters.ParseVersion(g.Version)
	if err != nil {
		return nil, adapters.Invalid("version", "%v", err)
	}
	h.bridge.mu.Lock()
	defer h.bridge.mu.Unlock()
	h.bridge.peer = &peer{session: h.session, minor: v.Minor}
	h.bridge.tell()
	return ourGreeting(), nil
}

// notice takes a notification. It must not block.
func (h *hosted) notice(method string, raw json.RawMessage) {
	switch method {
	case rpcUnsubscribe:
		h.unsubscribe(raw)
	case rpcEvent:
		if p, err := params[eventParams](raw); err == nil {
			h.bridge.arrived(p, len(raw))
		}
	case rpcEnd:
		if p, err := params[subscription](raw); err == nil {
			h.bridge.over(p)
		}
	}
}

// attached returns the host, or why there is none.
func (b *Bridge) attached() (*peer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.connected:
		return nil, adapters.Closed(adapters.SlotOrchestrator)
	case b.peer == nil:
		return nil, adapters.Unavailable(nil, "no host is attached")
	}
	return b.peer, nil
}

// ask calls the host and waits for the answer, at most limit.
func (b *Bridge) ask(ctx context.Context, limit time.Duration, method string, params, result any) error {
	if err := ctx.Err(); err != nil {
		return adapters.AsError(err)
	}
	p, err := b.attached()
	if err != nil {
		return err
	}
	if p.minor < 1 && (method == rpcGet || method == rpcInput) {
		return adapters.Unsupported(adapters.CapInput, "the host speaks contract 1.0, which has no %s", method)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return p.call(ctx, method, params, result)
}

// SpawnAgent asks the host, with an idempotency key: after a time-out it is not known what the host
// did. A template's sandbox cannot be applied on the host, so such an agent is refused.
func (b *Bridge) SpawnAgent(ctx context.Context, spec adapters.AgentSpec) (adapters.Agent, error) {
	if b.cfg.Confined[spec.Template] {
		const reason = "a sandbox cannot be applied on the host"
		return adapters.Agent{}, adapters.Errorf(adapters.CodeSpawn, "template %s: %s", spec.Template, reason).With("reason", reason)
	}
	m := metaOf(ctx)
	if m.IdempotencyKey == "" {
		m.IdempotencyKey = adapters.NewID()
	}
	return b.askAgent(ctx, callLimit, rpcSpawn, spawnParams{spec, m})
}

// askAgent makes a call that returns an agent.
func (b *Bridge) askAgent(ctx context.Context, limit time.Duration, method string, params any) (adapters.Agent, error) {
	var a adapters.Agent
	if err := b.ask(ctx, limit, method, params, &a); err != nil {
		return adapters.Agent{}, err
	}
	if err := adapters.CheckID("agentId", a.AgentID); err != nil {
		return adapters.Agent{}, adapters.Unavailable(err, "the host's answer to %s is not of the contract", method)
	}
	if a.Labels == nil {
		a.Labels = map[string]string{}
	}
	return a, nil
}

// TerminateAgent implements adapters.Orchestrator. It waits for the grace of the agent and the
// limit of a call.
func (b *Bridge) TerminateAgent(ctx context.Context, agentID string, grace time.Duration) (adapters.Agent, error) {
	if grace < 0 {
		grace = adapters.DefaultGrace
	}
	ms := grace.Milliseconds()
	return b.askAgent(ctx, grace+callLimit, rpcTerminate, terminateParams{AgentID: agentID, GraceMS: &ms, Meta: metaOf(ctx)})
}

// GetAgent implements adapters.Orchestrator.
func (b *Bridge) GetAgent(ctx context.Context, agentID string) (adapters.Agent, error) {
	return b.askAgent(ctx, callLimit, rpcGet, agentParams{agentID, metaOf(ctx)})
}

// maxListed limits how many agents of a host's list are kept in memory.
const maxListed = 10000

// ListAgents implements adapters.Orchestrator.
func (b *Bridge) ListAgents(ctx context.Context, filter adapters.AgentFilter) ([]adapters.Agent, error) {
	all := []adapters.Agent{}
	p := listParams{Status: filter.Status, Labels: filter.Labels, Meta: metaOf(ctx)}
	for len(all) < maxListed {
		var r listResult
		if err := b.ask(ctx, callLimit, rpcList, p, &r); err != nil {
			return nil, err
		}
		all = append(all, r.Agents...)
		if r.NextCursor == "" || len(r.Agents) == 0 {
			return all, nil
		}
		p.Cursor = string(r.NextCursor)
	}
	return nil, adapters.Unavailable(nil, "the host lists more than %d agents", maxListed)
}

// SendInput implements adapters.Orchestrator.
func (b *Bridge) SendInput(ctx context.Context, agentID string, data []byte, eof bool) error {
	p := inputParams{AgentID: agentID, Data: string(data), EOF: eof, Meta: metaOf(ctx)}
	if !isText(data) {
		p.Data, p.Encoding = base64.StdEncoding.EncodeToString(data), "base64"
	}
	return b.ask(ctx, callLimit, rpcInput, p, nil)
}

// StreamEvents implements adapters.Orchestrator.
func (b *Bridge) StreamEvents(ctx context.Context, agentID string, from uint64) (adapters.AgentStream, error) {
	r := newRemoteStream(ctx, b, agentID, from)
	if err := r.subscribe(ctx); err != nil {
		return nil, err
	}
	return r, nil
}
