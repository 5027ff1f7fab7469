package bootstrap

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Starter starts programs. Start returns as soon as it has accepted the specs. started is closed
// when every wave was started.
type Starter interface {
	Start(ctx context.Context, specs []program.Spec) (started <-chan struct{}, err error)
}

// IdentityPreparer creates or loads the key material of the box (phase 3). An error ends the boot,
// because key material is never silently replaced. publicKey is the public key of the box, 64
// hexadecimal digits.
type IdentityPreparer interface {
	Prepare(ctx context.Context, m *schema.Manifest, r Roots) (publicKey string, err error)
}

// Config is the input of a boot.
type Config struct {
	Bus     *event.Bus
	Roots   Roots
	Environ []string // the environment of agentinit itself
	// ManifestFile is the --manifest flag; empty if the flag was not given.
	ManifestFile string
	Main         []string // argv of the essential program "main"; nil if there is none
	Version      string
	System       string // for example x86_64-linux
	Started      time.Time
	BootID       string

	Runner   Runner
	Starter  Starter
	Programs program.Reader
	// If Identity is nil, this build has no identity, and phase 3 reports that.
	Identity IdentityPreparer
	// KeyKnown is called once, in phase 2, with the management key. The key is empty if the box has none.
	KeyKnown func(Secret)
	// Sealed is called when the box becomes sealed, Unsealed when the seal is given up.
	Sealed   func(Sentinel)
	Unsealed func(reason string)
	// Resolved is called at the end of phase 0. It may refuse the manifest, for example if adapters
	// cannot be resolved or the authentication mode is wrong.
	Resolved func(*schema.Manifest, *plan.Plan) error
}

// Boot is one boot of the box. Run it only once. Methods that only read may be called from any
// goroutine at any time.
type Boot struct {
	cfg     Config
	env     map[string]string
	policy  *Policy
	journal *journal

	loaded    atomic.Pointer[Loaded]
	booted    *schema.Manifest // the manifest of the boot; an apply does not replace it
	artifacts []artifact       // written by phase 0

	sentinel *sentinelFile
	watcher  *watcher // from the start of the programs to the seal
	recorder *recorder
	started  <-chan struct{}

	background sync.WaitGroup

	mu  sync.Mutex
	key Secret
	// publicKey is the public key of the box; empty without an identity.
	publicKey string
	results   []ArtifactResult
	seal      *Sentinel
	elapsed   time.Duration
	unsealed  string // why the seal was given up
	// recorded is true after the call of KeepRecord. recordErr is the error of that call.
	recorded  bool
	recordErr error
}

// phases are the phases of the boot, in order.
var phases = []phase{
	{Number: 0, Name: "load", Run: load},
	{Number: 0.5, Name: "immutable-root", Run: immutableRoot},
	{Number: 1, Name: "directories", Run: makeDirectories, AgentboxOnly: true},
	{Number: 2, Name: "management-key", Run: managementKey},
	{Number: 3, Name: "identity", Run: identity, AgentboxOnly: true},
	{Number: 4, Name: "workspace", Run: workspaceDefaults, AgentboxOnly: true},
	{Number: 5, Name: "artifacts", Run: probeArtifacts},
	{Number: 6, Name: "closures", Run: closures, AgentboxOnly: true},
	{Number: 7, Name: "reserved"},
	{Number: 8, Name: "env-hints", Run: envHints, AgentboxOnly: true},
	{Number: 9, Name: "start", Run: start},
	{Number: 10, Name: "seal", Run: seal},
}

// New prepares a boot and does not start it.
func New(cfg Config) *Boot {
	b := &Boot{cfg: cfg, env: EnvironMap(cfg.Environ), policy: NewPolicy(cfg.Roots), journal: newJournal(phases)}
	b.loaded.Store(&Loaded{Manifest: new(schema.Manifest), Document: new(schema.Document), Plan: new(plan.Plan)})
	b.sentinel = newSentinelFile(b.policy, cfg.Roots.Sentinel(), cfg.Bus)
	return b
}

// EnvironMap returns an environment by name. If a name is there twice, the last value counts.
func EnvironMap(environ []string) map[string]string {
	m := make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			m[name] = value
		}
	}
	return m
}

func (b *Boot) getenv(name string) string { return b.env[name] }

// Load runs phase 0. After it, the manifest is known and the listeners can open. The error is a
// *Failure.
func (b *Boot) Load(ctx context.Context) error {
	b.publish(event.Info, EventStarted, map[string]any{"boot_id": b.cfg.BootID, "version": b.cfg.Version})
	return b.runPhases(ctx, phases[:1])
}

// Run runs all phases after Load. It returns when the box is sealed, when the seal has been given
// up, or with the *Failure of the first phase that fails.
func (b *Boot) Run(ctx context.Context) error { return b.runPhases(ctx, phases[1:]) }

// Wait returns when no goroutine of the boot is left. The goroutines end when Run's context ends.
func (b *Boot) Wait() { b.background.Wait() }

// Current is the manifest in force with everything derived from it. Before the end of Load its
// fields are empty, but not nil.
func (b *Boot) Current() *Loaded { return b.loaded.Load() }

// Adopt makes the result of Read the manifest in force: an apply calls it when its programs run.
// The roots and artifacts stay those of the boot.
func (b *Boot) Adopt(l *Loaded) { b.loaded.Store(l) }

func (b *Boot) agentbox() bool { return b.Current().Plan.Profile == "agentbox" }

// managementKey is phase 2. A plain container has no place for a key file, so there only a key in
// the environment is used.
func managementKey(_ context.Context, b *Boot) (Outcome, error) {
	if !b.agentbox() && environmentKey(b.getenv) == "" {
		if b.cfg.KeyKnown != nil {
			b.cfg.KeyKnown(Secret{})
		}
		return off(`profile "none" and no MANAGEMENT_API_KEY`), nil
	}
	key, from, note, err := findKey(b.policy, b.cfg.Roots, b.getenv)
	if err != nil {
		return Outcome{}, fail(ExitPrepare, err, "cannot read or write the management key %s", b.cfg.Roots.ManagementKey())
	}
	b.mu.Lock()
	b.key = key
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
	if !b.Current().Manifest.SovereignMesh.Enabled {
		return off("sovereign_mesh.enabled is false"), nil
	}
	if b.cfg.Identity == nil {
		return warned("this build makes no identity"), nil
	}
	key, err := b.cfg.Identity.Prepare(ctx, b.Current().Manifest, b.cfg.Roots)
	if err != nil {
		return Outcome{}, fail(ExitPrepare, err, "cannot prepare the identity")
	}
	b.mu.Lock()
	b.publicKey = key
	b.mu.Unlock()
	return done(), nil
}

// start is phase 9. The recorder watches before the first program starts.
func start(ctx context.Context, b *Boot) (Outcome, error) {
	specs, err := b.finalSpecs()
	if err != nil {
		return Outcome{}, err
	}
	if _, err := b.WriteConfigurations(b.Current()); err != nil {
		return Outcome{}, fail(ExitPrepare, err, "cannot write the configuration of a program")
	}
	b.securityApplied()
	r := newRecorder(b.cfg.Bus, b.cfg.Programs, specs)
	b.mu.Lock()
	b.recorder = r
	b.mu.Unlock()
	b.background.Go(func() { r.follow(ctx) })
	started, err := b.cfg.Starter.Start(ctx, specs)
	refused, isRefused := errors.AsType[*Failure](err)
	switch {
	case err == nil:
	case isRefused:
		return Outcome{}, refused
	case context.Cause(ctx) != nil:
		return Outcome{}, fail(ExitOK, err, "the boot was interrupted")
	default:
		return Outcome{}, fail(ExitInternal, err, "cannot start the programs")
	}
	b.started = started
	b.watcher = newWatcher(b.cfg.Bus, b.cfg.Programs)
	return done(), nil
}

// sealTimeout is the seal timeout of the environment or, if that is not set, of the manifest.
func (b *Boot) sealTimeout() time.Duration {
	if text := b.getenv("BOOTSTRAP_SEAL_TIMEOUT"); text != "" {
		unit := ""
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			unit = "s" // a plain number is seconds, as in the manifest
		}
		if d, err := schema.ParseDuration(text + unit); err == nil && d > 0 {
			return d.Std()
		}
		b.warn("BOOTSTRAP_SEAL_TIMEOUT is %q and must be a duration above 0, such as \"90s\"; the manifest's is used", truncate(text, 40))
	}
	return b.Current().Plan.SealTimeout
}

func (b *Boot) setArtifacts(results []ArtifactResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results = results
}

func (b *Boot) setSealed(s Sentinel, elapsed time.Duration) {
	b.mu.Lock()
	b.seal, b.elapsed = &s, elapsed
	b.endRecording()
	b.mu.Unlock()
	if b.cfg.Sealed != nil {
		b.cfg.Sealed(s)
	}
}

func (b *Boot) setUnsealed(reason string) {
	b.mu.Lock()
	b.unsealed = reason
	b.endRecording()
	b.mu.Unlock()
	if b.cfg.Unsealed != nil {
		b.cfg.Unsealed(reason)
	}
}

// endRecording ends the record of the boot at the present event. The caller holds mu.
func (b *Boot) endRecording() {
	if b.recorder != nil { // phase 9 has made the recorder
		b.recorder.finish(b.cfg.Bus.Seq())
	}
}

// awaitRuns waits until Runs has what the boot waited for. The recorder reads the events of the boot on
// its own, and without the wait the last program could lack the time at which it was ready.
func (b *Boot) awaitRuns() {
	if b.recorder != nil {
		<-b.recorder.complete
	}
}

// Records returns the phases with their status so far.
func (b *Boot) Records() []Record { return b.journal.Records() }

// Artifacts returns the results of the artifact probes, never nil.
func (b *Boot) Artifacts() []ArtifactResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]ArtifactResult{}, b.results...)
}

// Sealed returns the seal and the time from the start to the seal. ok is false before the seal.
func (b *Boot) Sealed() (s Sentinel, took time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seal == nil {
		return Sentinel{}, 0, false
	}
	return *b.seal, b.elapsed, true
}

// GivenUp says why the box was not sealed in time. It is empty if the seal was not given up.
func (b *Boot) GivenUp() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unsealed
}

// Runs returns when each program was first started and ready, in start order. It returns nil before
// phase 9.
func (b *Boot) Runs() []Run {
	b.mu.Lock()
	r := b.recorder
	b.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.Runs()
}

// ManagementKey is the management key. It is empty before phase 2, and in a plain container without
// a key in its environment.
func (b *Boot) ManagementKey() Secret {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.key
}
