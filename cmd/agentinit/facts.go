package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/mesh/relay"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// The small types of this file translate between packages that do not import each other: each
// implements an interface of one package with values of another.

// runner runs bootstrap's one-shot commands through the one owner of processes.
type runner struct{ b *box }

func (r runner) Run(ctx context.Context, c bootstrap.Command) (bootstrap.CommandResult, error) {
	result, err := r.b.owner.Run(ctx, proc.Command{
		Path: c.Argv[0], Args: c.Argv, Env: c.Env, Dir: c.Dir, Scope: proc.ScopeTree,
	}, c.MaxOutput)
	if err != nil {
		return bootstrap.CommandResult{Output: result.Output}, err
	}
	return bootstrap.CommandResult{Status: result.Exit.ShellStatus(), Output: result.Output}, nil
}

// starter gives the supervisor its programs and lets it boot.
type starter struct{ b *box }

func (s starter) Start(ctx context.Context, specs []program.Spec) (<-chan struct{}, error) {
	if _, err := s.b.sup.Apply(ctx, specs); err != nil {
		if _, ok := errors.AsType[*supervisor.Refused](err); errors.Is(err, supervisor.ErrDone) || ok {
			// A stop came at the moment of the start, which is not a failure.
			return nil, &bootstrap.Failure{Code: bootstrap.ExitOK, Reason: "the boot was interrupted", Err: err}
		}
		return nil, err
	}
	s.b.sup.Boot()
	close(s.b.programsGiven)
	s.b.background(s.b.connectSlots)
	return s.b.sup.Started(), nil
}

// programs are the programs of a supervisor that may not exist yet.
type programs struct{ b *box }

func (p programs) All() (uint64, []program.Status) { return p.b.sup.All() }

func (p programs) Status(name string) (program.Status, bool) { return p.b.sup.Status(name) }

func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// metricsPrograms gives the programs to the metrics: it implements probes.Programs.
type metricsPrograms struct{ b *box }

func (m metricsPrograms) Programs() []probes.ProgramFacts {
	streams := map[string][]probes.StreamLogs{}
	for _, s := range m.b.plane.Stats() {
		streams[s.Program] = append(streams[s.Program], probes.StreamLogs{
			Stream: s.Stream.String(), Bytes: s.Bytes, Dropped: s.Dropped + s.Suppressed,
		})
	}
	snap := m.b.sup.Snapshot()
	out, now := make([]probes.ProgramFacts, len(snap.Programs)), time.Now()
	for i, p := range snap.Programs {
		out[i] = probes.ProgramFacts{
			Name: p.Name, State: p.State.String(), Restarts: p.Restarts, StartedAt: value(p.StartedAt), Logs: streams[p.Name],
		}
		for _, former := range p.Former {
			out[i].Logs = joined(out[i].Logs, streams[former])
		}
		if p.LastExit != nil {
			out[i].LastExit = new(p.LastExit.Status())
		}
		out[i].Refused = refusedCalls(m.b.system.Refusals(p.Name))
		u := m.b.system.Usage(p.Name, p.Run, now)
		out[i].CPUSeconds = u.CPU.Seconds()
		if u.Members > 0 {
			out[i].Usage = &probes.Usage{ResidentBytes: uint64(u.RSS), OpenFDs: u.FDs}
		}
	}
	return out
}

func (m metricsPrograms) AgentRefusals() map[string][]probes.RefusedCalls {
	out := map[string][]probes.RefusedCalls{}
	for template, kinds := range m.b.agents.refusals.List() {
		out[template] = refusedCalls(kinds)
	}
	return out
}

// refusedCalls adds up the kinds by what refused them.
func refusedCalls(kinds []supervisor.Refusal) []probes.RefusedCalls {
	var out []probes.RefusedCalls
	for _, k := range kinds {
		by := k.By
		if k.Allowed {
			by = "audit"
		}
		i := slices.IndexFunc(out, func(r probes.RefusedCalls) bool { return r.By == by })
		if i < 0 {
			out, i = append(out, probes.RefusedCalls{By: by}), len(out)
		}
		out[i].Count += k.Count
	}
	return out
}

// joined adds the counters that a program has under one name to those under another.
func joined(a, b []probes.StreamLogs) []probes.StreamLogs {
	for _, s := range b {
		i := slices.IndexFunc(a, func(of probes.StreamLogs) bool { return of.Stream == s.Stream })
		if i < 0 {
			a = append(a, s)
			continue
		}
		a[i].Bytes += s.Bytes
		a[i].Dropped += s.Dropped
	}
	return a
}

func (m metricsPrograms) Reaped() (programs, orphans uint64) {
	s := m.b.owner.Stats()
	return s.Exited, s.Orphans
}

func (m metricsPrograms) ScoreRestored() uint64 { return m.b.owner.Stats().Scores }

// bootMetrics gives the boot to the metrics.
type bootMetrics struct{ b *box }

func (m bootMetrics) Phases() []probes.PhaseState { return m.b.phases() }

func (m bootMetrics) Took() (time.Duration, bool) {
	_, took, ok := m.b.boot.Sealed()
	return took, ok
}

func (b *box) phases() []probes.PhaseState {
	records := b.boot.Records()
	out := make([]probes.PhaseState, len(records))
	for i, r := range records {
		out[i] = probes.PhaseState{Number: r.Label(), Name: r.Name, Outcome: string(r.Status), Note: r.Note, Duration: r.Duration}
	}
	return out
}

func (b *box) buildInfo() probes.Build {
	return probes.Build{
		Version: version, ImageHash: b.getenv("AGENTBOX_IMAGE_HASH"), ManifestChecksum: b.boot.Current().Checksum,
		FederationMode: cmp.Or(b.manifest().Federation.Mode, "standalone"), BootID: b.bootID,
	}
}

func (b *box) health() probes.Health {
	_, programs := b.sup.All()
	return probes.NewHealth(probes.Facts{
		Uptime: time.Since(b.started), Verdict: b.readiness.Verdict(), Phases: b.phases(), Programs: programs, Adapters: b.slotStates(),
		Drift: b.drift.Current(), Listeners: b.server.Listeners(), Artifacts: b.boot.Artifacts(), Build: b.buildInfo(),
	})
}

// meta is /v1/meta: facts about the box, none of them secret.
func (b *box) meta(r *http.Request) any {
	build := b.buildInfo()
	m := b.manifest()
	meta := rest.BoxMeta{
		Version: build.Version, BootID: build.BootID, ImageHash: build.ImageHash,
		ManifestChecksum: build.ManifestChecksum, FederationMode: build.FederationMode,
		Observability:  rest.Observability{MetricsEndpoint: b.server.MetricsURL(r), OTLPEndpoint: schema.PublicURL(b.collector(m))},
		Mesh:           b.metaMesh(m),
		RuntimeClosure: b.boot.Closure(),
	}
	meta.SetSlots(b.slots.Status())
	return meta
}

// podServer is the program of the catalogue that serves the pods.
const podServer = "solid-pod"

// podsReport is the body of /health/pods.
type podsReport struct {
	Health string `json:"status"`
	adapters.SlotStatus
	Program *programReport `json:"program,omitempty"` // nil if the box does not run the server
}

// programReport is what the health of a part says of the program behind it.
type programReport struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// programReport returns nil for a program that the box has not.
func (b *box) programReport(name string) *programReport {
	p, ok := b.sup.Status(name)
	if !ok {
		return nil
	}
	return &programReport{Name: p.Name, State: p.Shown(), Ready: p.Ready, Reason: p.Reason}
}

// podsHealth answers /health/pods; nil if the slot is off.
func (b *box) podsHealth(m *schema.Manifest) func() any {
	if m.Adapters.Pods == string(adapters.ClassOff) {
		return nil
	}
	return func() any {
		all := b.slots.Status()
		i := slices.IndexFunc(all, func(s adapters.SlotStatus) bool { return s.Slot == adapters.SlotPods })
		report := podsReport{Health: "ok", SlotStatus: all[i], Program: b.programReport(podServer)}
		if !report.Ready() {
			report.Health = "degraded"
		}
		return report
	}
}

// metaMesh says who the box is in the mesh, and what its relay speaks if agentinit is the relay.
func (b *box) metaMesh(m *schema.Manifest) *rest.MetaMesh {
	own, ok := b.self.current()
	if !ok {
		return nil
	}
	mesh := &rest.MetaMesh{DID: own.DID}
	if embedded(m) {
		mesh.Relay = &rest.MetaRelay{NIPs: relay.NIPs}
	}
	return mesh
}

func (b *box) metricsBound() string { return b.server.Bound(probes.MetricsListener) }

// declared is the contract that the drift check compares with.
func (b *box) declared() probes.Declared {
	metrics := b.addresses.Metrics
	if metrics == bootstrap.Off {
		metrics = ""
	}
	d := probes.Declared{
		MetricsAddress: metrics, Enforce: b.manifest().Security.Enforce, WritableMounts: b.boot.Mounts(),
		ImageRef: b.pinnedImage(), Environment: b.boot.DeclaredEnvironment(),
	}
	if p := b.boot.Security(); p != nil {
		d.Profile = &probes.Security{Capabilities: p.Capabilities, ReadOnlyRoot: p.ReadOnlyRoot, NoNewPrivs: p.NoNewPrivs}
	}
	return d
}

// pinnedImage is the digest in the image reference. A reference with only a tag gives nothing that
// could be compared.
func (b *box) pinnedImage() string {
	_, digest, _ := strings.Cut(b.getenv("AGENTBOX_IMAGE_REF"), "@")
	return digest
}

// manifest is the manifest in force.
func (b *box) manifest() *schema.Manifest { return b.boot.Current().Manifest }

// readinessReport gives the readiness to the control socket.
type readinessReport struct{ b *box }

func (r readinessReport) Report() api.Readiness {
	v := r.b.readiness.Verdict()
	out := api.Readiness{Ready: v.Ready, Reason: v.Reason, Requirements: requirements(v.Requirements), Missing: requirements(v.Missing)}
	if !v.Since.IsZero() {
		out.Since = &v.Since
	}
	return out
}

func requirements(in []probes.Requirement) []api.Requirement {
	out := make([]api.Requirement, len(in))
	for i, q := range in {
		out[i] = api.Requirement{ID: q.ID, Kind: string(q.Kind), OK: q.Met, Reason: q.Reason}
	}
	return out
}

func pointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
