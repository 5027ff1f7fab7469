package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/dreamlab-ai/agentinit/adapters/memory"
	"github.com/dreamlab-ai/agentinit/adapters/middleware"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/adapters/pods"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// answersFile is the file of idempotency keys in the workspace.
const answersFile = "idempotency.db"

// slotsConfig is the manifest's configuration of the slots.
func slotsConfig(m *schema.Manifest, doc *schema.Document) adapters.Config {
	words := map[adapters.Slot]string{
		adapters.SlotBeads: m.Adapters.Beads, adapters.SlotPods: m.Adapters.Pods, adapters.SlotMemory: m.Adapters.Memory,
		adapters.SlotEvents: m.Adapters.Events, adapters.SlotOrchestrator: m.Adapters.Orchestrator,
	}
	lines := map[adapters.Slot]int{}
	for slot := range words {
		lines[slot] = doc.KeyPos("adapters", string(slot)).Line
	}
	return adapters.Config{Slots: words, Lines: lines}
}

// slotsTable lists all implementations: slot, the manifest's word, constructor. A constructor does
// no I/O.
func (b *box) slotsTable(m *schema.Manifest, doc *schema.Document) adapters.Table {
	agent := "agentinit/" + version
	eventsDir := b.roots.Events()
	return adapters.Table{
		adapters.SlotBeads: {
			"local-sqlite": func() (adapters.Adapter, error) {
				cfg := beads.LocalConfig{
					Path:         b.roots.Beads(m),
					LeaseExpired: b.leaseExpired,
				}
				local, err := beads.NewLocal(cfg)
				b.backs(adapters.SlotBeads, backup.Place{Path: cfg.Path, File: "beads.db"}, local.Backup, func(dir string) (adapters.Adapter, error) {
					return adapter(beads.NewLocal(beads.LocalConfig{Path: filepath.Join(dir, "beads.db")}))
				})
				return adapter(local, err)
			},
			"external": func() (adapters.Adapter, error) {
				return adapter(beads.NewExternal(beads.ExternalConfig{
					URL: m.Federation.ExternalURL, Key: "federation.external_url",
					Auth: b.credential(adapters.SlotBeads, m.Slots.Beads.Auth, m.Slots.Beads.TokenEnv), UserAgent: agent,
				}))
			},
		},
		adapters.SlotOrchestrator: {
			"local-process-manager": func() (adapters.Adapter, error) {
				local, err := b.processManager(m)
				b.agentTokens = local
				return adapter(local, err)
			},
			"stdio-bridge": func() (adapters.Adapter, error) {
				local, err := b.processManager(m)
				if err != nil {
					return nil, err
				}
				bridge, err := orchestrator.NewBridge(orchestrator.BridgeConfig{
					Protocol: m.Integrations.ExternalOrchestrator.Protocol, Local: adapters.WrapOrchestrator(local, nil),
					Confined: confinedTemplates(b.agents.confinements),
				})
				b.agentTokens, b.bridge = local, bridge
				return adapter(bridge, err)
			},
		},
		adapters.SlotPods: {
			"local-solid-rs": func() (adapters.Adapter, error) {
				return adapter(pods.NewLocal(pods.Config{
					BaseURL: podBase(m.Integrations.SolidPodRS, doc), Auth: b.podCredential(m, doc), UserAgent: agent,
					Listener: m.Integrations.SolidPodRS.Bind,
				}))
			},
			"external": func() (adapters.Adapter, error) {
				return adapter(pods.NewExternal(pods.Config{
					BaseURL: m.Federation.ExternalURL, Auth: b.credential(adapters.SlotPods, m.Slots.Pods.Auth, m.Slots.Pods.TokenEnv), UserAgent: agent,
				}))
			},
		},
		adapters.SlotMemory: {
			"embedded-ruvector": func() (adapters.Adapter, error) {
				embedder, err := b.embedder(m)
				if err != nil {
					return nil, err
				}
				cfg := memory.EmbeddedConfig{Dir: b.roots.Memory(m), Embedder: embedder}
				local, err := memory.NewEmbedded(cfg)
				b.backs(adapters.SlotMemory, backup.Place{Path: filepath.Join(cfg.Dir, "memory.db"), File: "memory.db"}, local.Backup, func(dir string) (adapters.Adapter, error) {
					return adapter(memory.NewEmbedded(memory.EmbeddedConfig{Dir: dir, Embedder: embedder}))
				})
				return adapter(local, err)
			},
			"external-pg": func() (adapters.Adapter, error) {
				embedder, err := b.embedder(m)
				if err != nil {
					return nil, err
				}
				return adapter(memory.NewPostgres(memory.PostgresConfig{
					Conninfo: m.Integrations.RuvectorExternal.Conninfo, Embedder: embedder,
				}))
			},
		},
		adapters.SlotEvents: {
			"local-jsonl": func() (adapters.Adapter, error) {
				cfg := events.LocalConfig{
					Dir: eventsDir, Source: b.eventSource, Fsync: m.Slots.Events.Fsync,
					RetentionDays: int(m.Slots.Events.RetentionDays), MaxBytes: int64(m.Slots.Events.MaxBytes),
				}
				local, err := events.NewLocal(cfg)
				b.backs(adapters.SlotEvents, backup.Place{Path: cfg.Dir}, local.Backup, func(dir string) (adapters.Adapter, error) {
					apart := cfg
					apart.Dir = dir
					return adapter(events.NewLocal(apart))
				})
				return adapter(local, err)
			},
			"external": func() (adapters.Adapter, error) {
				return adapter(events.NewExternal(events.ExternalConfig{
					URL: cmp.Or(m.Integrations.ExternalEvents.URL, m.Federation.ExternalURL), Key: "integrations.external_events.url",
					Format:      events.Format(m.Slots.Events.Format),
					MCPEndpoint: m.Integrations.ExternalEvents.MCPEndpoint, Dir: eventsDir, Source: b.eventSource,
					Auth: b.credential(adapters.SlotEvents, m.Slots.Events.Auth, m.Slots.Events.TokenEnv), UserAgent: agent,
					SpoolBytes: int64(m.Slots.Events.SpoolBytes), Report: b.eventTrouble,
				}))
			},
		},
	}
}

// backs includes a slot's state in backup and restore.
func (b *box) backs(slot adapters.Slot, place backup.Place, snapshot func(ctx context.Context, to string) error, open func(dir string) (adapters.Adapter, error)) {
	slots := backup.Slots{
		Set: func() *adapters.Set { return b.slots }, Adapter: func(slot adapters.Slot) adapters.Adapter { return b.resolved.Adapter(slot) },
		Forget: func(ctx context.Context) error { return b.stack.Forget(ctx) },
		Restored: func(slot adapters.Slot, path, kept string) {
			b.slotTrouble("StateRestored", map[string]any{"slot": string(slot), "path": path, "kept": kept})
		},
		Report: func(name string, err error) { b.slotTrouble(name, map[string]any{"error": err.Error()}) },
	}
	b.backups = append(b.backups, slots.Part(slot, place, snapshot, open))
}

// eventSource is the default source of events.
func (b *box) eventSource() string { return "urn:agentbox:" + b.boxName() }

// boxName is the box's name for others: its public key, else its box id. Without a workspace to keep
// the box id in, it changes with each boot.
func (b *box) boxName() string {
	if own, ok := b.self.current(); ok {
		return string(own.PublicKey)
	}
	b.readID.Do(func() {
		var err error
		if b.id, err = bootstrap.BoxID(bootstrap.NewPolicy(b.roots), b.roots); err != nil {
			b.slotTrouble("BoxIDNotKept", map[string]any{"error": err.Error()})
			b.id = b.bootID
		}
	})
	return b.id
}

// podBase is the base URL of the local pod server: the one in the manifest, otherwise that of its
// listener.
func podBase(p schema.SolidPodRS, doc *schema.Document) string {
	if doc.NonEmpty("integrations.solid_pod_rs.base_url") {
		return p.BaseURL
	}
	return pods.ListenerURL(p.Bind, p.Port)
}

// processManager runs agents as children of the one owner of processes.
func (b *box) processManager(m *schema.Manifest) (*orchestrator.Local, error) {
	var granted []string
	for _, p := range m.Providers {
		if p.Enabled {
			granted = append(append(granted, p.EnvVar), p.OptionalEnvVars...)
		}
	}
	slices.Sort(granted)
	users, err := bootstrap.LoadUsers(b.roots.Database("passwd"), b.roots.Database("group"))
	if err != nil {
		return nil, err
	}
	if b.agents.confinements, err = confinements(m, users); err != nil {
		return nil, fmt.Errorf("cannot tell who agents run as: %w", err)
	}
	b.agents.skipped = func(template string, what error) {
		b.slotTrouble(event.SandboxNotApplied, map[string]any{
			"template": template, "reason": what.Error(),
		})
	}
	return orchestrator.NewLocal(orchestrator.LocalConfig{
		Spawner: b.agents, Roots: []string{b.roots.Workspace, b.roots.Projects}, Granted: granted,
		Environ: append(slices.Clone(b.environ), "WORKSPACE="+b.roots.Workspace), // as programs have it; the last one counts
	})
}

// embedder is the embedder that both classes of memory use.
func (b *box) embedder(m *schema.Manifest) (memory.Embedder, error) {
	e := m.Slots.Memory.Embedder
	return memory.NewEmbedder(memory.EmbedderConfig{Kind: e.Kind, URL: e.URL, Model: e.Model, KeyEnv: e.KeyEnv})
}

// adapter turns a nil pointer into a nil interface.
func adapter[T adapters.Adapter](a T, err error) (adapters.Adapter, error) {
	if err != nil {
		return nil, err
	}
	return a, nil
}

// eventTrouble publishes what the sink of the events slot refuses, no more than a log can bear.
func (b *box) eventTrouble(what string, fields map[string]any) {
	if _, ok := b.mesh.troubles.Take(what, time.Now()); ok {
		b.slotTrouble(what, fields)
	}
}

func (b *box) leaseExpired(id, actor string) {
	b.slotTrouble("BeadLeaseExpired", map[string]any{"bead": id, "actor": actor})
}

// resolveSlots makes the adapters of the manifest; nothing is dialled.
func (b *box) resolveSlots(m *schema.Manifest) error {
	doc := b.boot.Current().Document
	resolved, err := adapters.Resolve(slotsConfig(m, doc), b.slotsTable(m, doc))
	if err != nil {
		return &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: "the adapters cannot be resolved", Err: err}
	}
	b.resolved = resolved
	return nil
}

// buildSlots puts the adapters behind the one chain of middleware.
func (b *box) buildSlots(m *schema.Manifest) (*middleware.Stack, *adapters.Set, error) {
	var redactor middleware.Redactor
	if m.PrivacyFilter.Enabled {
		redactor = middleware.NewSidecar(m.PrivacyFilter.Port)
	}
	stack, err := middleware.New(middleware.Options{
		Registerer: b.registry, Tracer: b.tracer, Log: b.voice.logger("adapters"),
		Privacy: middleware.PrivacyConfig{
			Redactor: redactor, Policies: policies(m.PrivacyFilter.Policy), Entities: m.PrivacyFilter.Entities.Enabled,
		},
	})
	if err != nil {
		return nil, nil, err
	}
	set := adapters.NewSet(b.resolved, adapters.Options{Middleware: stack.Middleware(), Publisher: slotNotices{b}})
	b.showSlots(set)
	return stack, set, stack.Watch(set.Status)
}

func policies(p schema.PrivacyPolicy) map[adapters.Slot]middleware.Policy {
	return map[adapters.Slot]middleware.Policy{
		adapters.SlotPods: middleware.Policy(p.Pods), adapters.SlotMemory: middleware.Policy(p.Memory),
		adapters.SlotEvents: middleware.Policy(p.Events), adapters.SlotBeads: middleware.Policy(p.Beads),
		adapters.SlotOrchestrator: middleware.Policy(p.Orchestrator),
	}
}

// connectSlots connects the slots in parallel with the programs. A failure that must end the boot
// ends it, with the status of that adapter.
func (b *box) connectSlots() {
	<-b.serversBuilt
	if b.servers == nil {
		return // the box is ending
	}
	b.keepAnswers()
	if b.hosting != nil {
		b.background(func() { b.hosting.open(b.stopped) })
	}
	if b.member != nil {
		b.member.start(b.stopped)
	}
	err := b.slots.Connect(b.stopped)
	b.showSlots(b.slots)
	if b.member != nil {
		b.member.ready()
	}
	if err == nil || b.stopped.Err() != nil {
		return
	}
	failure := &bootstrap.Failure{Code: bootstrap.ExitOrchestrator, Phase: "adapters", Reason: "an adapter cannot be used", Err: err}
	if fatal, ok := errors.AsType[*adapters.FatalError](err); ok {
		failure.Code = bootstrap.Code(fatal.Exit)
	}
	b.slotFailure.Store(failure)
	b.bus.Publish(event.Event{Level: event.Error, Stage: "adapters", Name: "AdaptersFailed", Fields: map[string]any{
		"message": failure.Error(), "exit_code": int(failure.Code),
	}})
	b.sup.Fail(failure.Error(), int(failure.Code))
}

// keepLimit bounds the opening of the file of idempotency keys, because the slots wait for it.
const keepLimit = 5 * time.Second

// keepAnswers makes idempotency keys survive a restart, if a slot uses them and there is a place to
// write.
func (b *box) keepAnswers() {
	honoured := []adapters.Slot{adapters.SlotBeads, adapters.SlotEvents, adapters.SlotOrchestrator}
	if !slices.ContainsFunc(b.slots.Status(), func(s adapters.SlotStatus) bool {
		return s.Class != adapters.ClassOff && slices.Contains(honoured, s.Slot)
	}) {
		return
	}
	ctx, cancel := context.WithTimeout(b.stopped, keepLimit)
	defer cancel()
	if err := b.stack.Keep(ctx, filepath.Join(b.roots.Workspace, answersFile)); err != nil {
		b.slotTrouble("IdempotencyInMemory", map[string]any{
			"message": "idempotency keys will not survive a restart: " + err.Error(),
		})
	}
}

// slotNotices publishes what happens to the slots as events, and updates readiness at once.
type slotNotices struct{ b *box }

func (s slotNotices) Publish(n adapters.Notice) {
	level := event.Info
	if n.State != adapters.StateHealthy {
		level = event.Warn
	}
	fields := map[string]any{"slot": string(n.Slot), "impl": n.Impl, "state": string(n.State)}
	if n.Error != "" {
		fields["error"] = n.Error
	}
	s.b.bus.Publish(event.Event{Level: level, Stage: "adapters", Name: n.Name, Fields: fields})
	s.b.showSlots(s.b.slots)
}

// showSlots updates readiness with the state of all slots. Only one call runs at a time, and each
// reads the state again, so that an old state does not replace a newer one.
func (b *box) showSlots(slots *adapters.Set) {
	b.showing.Lock()
	defer b.showing.Unlock()
	for _, s := range slots.Status() {
		b.require(s.Slot, s.State, s.LastError)
	}
}

// require makes a configured slot a requirement of /ready.
func (b *box) require(slot adapters.Slot, state adapters.State, why string) {
	if state == adapters.StateOff {
		return
	}
	reason := string(state)
	if why != "" {
		reason = fmt.Sprintf("%s: %s", state, why)
	}
	b.readiness.Set(probes.Requirement{
		ID: "adapter:" + string(slot), Kind: probes.KindAdapter, Met: state == adapters.StateHealthy, Reason: reason,
	})
}

// slotStates are the slots in the form of /health.
func (b *box) slotStates() []probes.AdapterState {
	var out []probes.AdapterState
	for _, s := range b.slots.Status() {
		out = append(out, probes.AdapterState{Slot: string(s.Slot), Impl: s.Active, Status: string(s.State), Reason: s.LastError, Lost: s.Lost})
	}
	return out
}

// disconnectLeast is the least time that the slots get for their end, even if the programs took
// long. It is as long as the reserve of a stop for KILL and the log.
const disconnectLeast = 2 * time.Second

// disconnectTime is the time that the slots get for their end: the rest of the budget for stopping
// the box, after which the container engine kills it.
func disconnectTime(grace, took time.Duration) time.Duration {
	return max(cmp.Or(grace, program.DefaultStopGrace)-took, disconnectLeast)
}

// disconnectSlots ends the slots after the programs.
func (b *box) disconnectSlots(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := b.slots.Disconnect(ctx); err != nil {
		b.slotTrouble("DisconnectFailed", map[string]any{"message": err.Error()})
	}
	if err := b.stack.Close(); err != nil {
		b.slotTrouble("IdempotencyNotClosed", map[string]any{"message": err.Error()})
	}
}
