package bootstrap

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Starter starts programs. Start returns as soon as it has taken the specs;
// started is closed when every wave has been started.
type Starter interface {
	Start(ctx context.Context, specs []program.Spec) (started <-chan struct{}, err error)
}

// IdentityPreparer creates or loads the key material of the box (phase 3). An
// error ends the boot: key material is never silently replaced.
type IdentityPreparer interface {
	Prepare(ctx context.Context, m *schema.Manifest, r Roots) error
}

// Config is what a boot needs of the world.
type Config struct {
	Bus     *event.Bus
	Roots   Roots
	Environ []string // of agentinit itself
	// ManifestFile is the --manifest flag; empty when it was not given.
	ManifestFile string
	Main         []string // argv of the essential program "main"; nil without
	Version      string
	System       string // x86_64-linux
	Started      time.Time
	BootID       string

	Runner   Runner
	Starter  Starter
	Programs Snapshotter
	// Identity nil means that this build has none: phase 3 says so.
	Identity IdentityPreparer
	// Reload names the events after which the set of programs may have changed.
	Reload []string
	// KeyKnown is called once, in phase 2, with the management key.
	KeyKnown func(Secret)
	// Sealed is called when the seal fires.
	Sealed func(Sentinel)
	// Resolved is called at the end of phase 0 and may refuse what it sees:
	// adapters that cannot be resolved, a bad authentication mode.
	Resolved func(*schema.Manifest, *plan.Plan) error
}

// Boot is one boot of the box. Run it once; the methods that only read may be
// called from any goroutine at any time.
type Boot struct {
	cfg     Config
	env     map[string]string
	policy  *Policy
	journal *journal

	// Written by phase 0, before anything reads them.
	manifest  *schema.Manifest
	document  *schema.Document
	plan      *plan.Plan
	checksum  string
	artifacts []Artifact
	specs     []program.Spec

	key      Secret
	sentinel *sentinelFile
	watcher  *watcher
	started  <-chan struct{}

	mu        sync.Mutex
	results   []ArtifactResult
	seal      *Sentinel
	elapsed   time.Duration
	unsealed  string // why it was given up
	keySource KeySource
}

// phases is the boot.
var phases = []Phase{
	{Number: 0, Name: "load", Run: load},
	{Number: 0.5, Name: "immutable-root", Run: immutableRoot, AgentboxOnly: true},
	{Number: 1, Name: "directories", Run: makeDirectories, AgentboxOnly: true},
	{Number: 2, Name: "management-key", Run: managementKey, AgentboxOnly: true},
	{Number: 3, Name: "identity", Run: identity, AgentboxOnly: true},
	{Number: 4, Name: "workspace", Run: workspaceDefaults, AgentboxOnly: true},
	{Number: 5, Name: "artifacts", Run: probeArtifacts},
	{Number: 6, Name: "closures", Run: closures, AgentboxOnly: true},
	{Number: 7, Name: "reserved"},
	{Number: 8, Name: "env-hints", Run: envHints, AgentboxOnly: true},
	{Number: 9, Name: "start", Run: start},
	{Number: 10, Name: "seal", Run: seal},
}

// Phases is the table of the boot, for those who show or document it.
func Phases() []Phase { return append([]Phase(nil), phases...) }

// New prepares a boot; nothing happens yet.
func New(cfg Config) *Boot {
	b := &Boot{cfg: cfg, env: environMap(cfg.Environ), policy: NewPolicy(cfg.Roots), journal: newJournal(phases)}
	b.sentinel = &sentinelFile{policy: b.policy, path: cfg.Roots.Sentinel(), bus: cfg.Bus}
	return b
}

func environMap(environ []string) map[string]string {
	m := make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			m[name] = value
		}
	}
	return m
}

func (b *Boot) getenv(name string) string { return b.env[name] }

// Load runs phase 0. After it the manifest is known, and the listeners can open.
// The error is a *Failure.
func (b *Boot) Load(ctx context.Context) error {
	b.publish(event.Info, EventStarted, map[string]any{"boot_id": b.cfg.BootID, "version": b.cfg.Version})
	return b.runPhases(ctx, phases[:1])
}

// Run runs all phases after Load. It returns when the box is sealed, when the
// seal has been given up, or with the *Failure of the first phase that failed.
func (b *Boot) Run(ctx context.Context) error { return b.runPhases(ctx, phases[1:]) }

func (b *Boot) agentbox() bool { return b.plan != nil && b.plan.Profile == "agentbox" }

// managementKey is phase 2.
func managementKey(_ context.Context, b *Boot) (Outcome, error) {
	key, from, note, err := ManagementKey(b.policy, b.cfg.Roots, b.getenv)
	if err != nil {
		return Outcome{}, fail(ExitPrepare, err, "cannot read or write the management key")
	}
	b.key = key
	b.mu.Lock()
	b.keySource = from
	b.mu.Unlock()
	fields := map[string]any{"source": string(from)}
	if from != KeyFromEnvironment {
		fields["path"] = b.cfg.Roots.ManagementKey()
	}
	b.publish(event.Info, EventKeyReady, fields)
	if b.cfg.KeyKnown != nil {
		b.cfg.KeyKnown(key)
	}
	if note != "" {
		b.warn("%s", note)
		return warned(note), nil
	}
	return done(), nil
}

// identity is phase 3.
func identity(ctx context.Context, b *Boot) (Outcome, error) {
	if !b.manifest.SovereignMesh.Enabled {
		return off("sovereign_mesh.enabled is false"), nil
	}
	if b.cfg.Identity == nil {
		return warned("this build makes no identity"), nil
	}
	if err := b.cfg.Identity.Prepare(ctx, b.manifest, b.cfg.Roots); err != nil {
		return Outcome{}, fail(ExitPrepare, err, "cannot prepare the identity")
	}
	return done(), nil
}

// start is phase 9. The seal watches from before the first program starts.
func start(ctx context.Context, b *Boot) (Outcome, error) {
	specs, err := b.finalSpecs()
	if err != nil {
		return Outcome{}, err
	}
	started, err := b.cfg.Starter.Start(ctx, specs)
	if err != nil {
		return Outcome{}, fail(ExitInternal, err, "cannot start the programs")
	}
	b.started = started
	b.watcher = newWatcher(b.cfg.Bus, b.cfg.Programs, b.cfg.Reload)
	return done(), nil
}

// sealTimeout is that of the environment, else of the manifest.
func (b *Boot) sealTimeout() time.Duration {
	if text := b.getenv("BOOTSTRAP_SEAL_TIMEOUT"); text != "" {
		if _, err := strconv.Atoi(text); err == nil {
			text += "s" // the older runtime's plain number of seconds
		}
		if d, err := schema.ParseDuration(text); err == nil && d > 0 {
			return d.Std()
		}
		b.warn("BOOTSTRAP_SEAL_TIMEOUT is %q, which is no duration; the manifest's is used", truncate(text, 40))
	}
	return b.manifest.Bootstrap.SealTimeout.Std()
}

func (b *Boot) setArtifacts(results []ArtifactResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results = results
}

func (b *Boot) setSealed(s Sentinel, elapsed time.Duration) {
	b.mu.Lock()
	b.seal, b.elapsed = &s, elapsed
	b.mu.Unlock()
	if b.cfg.Sealed != nil {
		b.cfg.Sealed(s)
	}
}

func (b *Boot) setUnsealed(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsealed = reason
}

// Records returns the phases as they went so far.
func (b *Boot) Records() []Record { return b.journal.Records() }

// Artifacts returns the results of the artifact probes.
func (b *Boot) Artifacts() []ArtifactResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]ArtifactResult(nil), b.results...)
}

// Sealed returns the seal and the time from start to seal; ok is false before.
func (b *Boot) Sealed() (s Sentinel, took time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seal == nil {
		return Sentinel{}, 0, false
	}
	return *b.seal, b.elapsed, true
}

// GivenUp says why the box was not sealed in time; empty unless that happened.
func (b *Boot) GivenUp() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unsealed
}

// Manifest, Document, Plan and Checksum are known after Load.
func (b *Boot) Manifest() *schema.Manifest { return b.manifest }

// Document is the manifest as text with positions.
func (b *Boot) Document() *schema.Document { return b.document }

// Plan is the resolved plan that the boot starts from.
func (b *Boot) Plan() *plan.Plan { return b.plan }

// Checksum is "sha256:" and the digest of the manifest's bytes.
func (b *Boot) Checksum() string { return b.checksum }

// ManagementKey is the management key; empty before phase 2 and with profile
// "none".
func (b *Boot) ManagementKey() Secret { return b.key }
