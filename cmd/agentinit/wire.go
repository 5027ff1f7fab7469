package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	_ "time/tzdata" // schedules name time zones, and a small image has no zoneinfo

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/middleware"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/audit"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"github.com/dreamlab-ai/agentinit/telemetry"
)

// eventsHeld is how many events a reader may be behind before it lags: a boot of
// a thousand programs fits.
const eventsHeld = 8192

// box is everything of one running agentinit, joined. It decides nothing: the
// packages do. It is built in steps, each of which adds a part: settings when the
// manifest has been read, core before the programs start, servers beside the boot. A
// part is whole once it is there.
type box struct {
	environ []string
	env     map[string]string
	stderr  *lastWords
	started time.Time
	bootID  string
	roots   bootstrap.Roots

	bus       *event.Bus
	plane     *logs.Plane // made by speak, as voice is
	voice     *voice
	owner     *proc.Owner
	boot      *bootstrap.Boot
	self      *self
	agents    *agents
	readiness *probes.Readiness
	registry  *prometheus.Registry

	settings
	*core
	*servers

	readers int // the group that may read on the control socket
	relay   meshRelay
	mesh    neighbours
	showing sync.Mutex // of showSlots
	dumping atomic.Bool
	// programsGiven is closed when the supervisor has the programs of the boot;
	// until then there is nothing to apply to.
	programsGiven chan struct{}
	reapplying    atomic.Bool // a SIGHUP's apply has not read the manifest yet
	// serversBuilt is closed when buildServers has ended. What it makes is only for
	// callers that waited for this, or came with a request.
	serversBuilt chan struct{}

	// slotFailure is what ended the box because of an adapter.
	slotFailure atomic.Pointer[bootstrap.Failure]

	// stopped ends with the box: everything that runs beside the programs ends with it.
	stopped context.Context
	halt    context.CancelFunc
	running sync.WaitGroup
}

// settings are what checkSettings makes of the manifest: no part of it has done
// anything yet.
type settings struct {
	addresses bootstrap.Addresses
	boundary  boundary
	authMode  probes.AuthMode
	tracing   *telemetry.Pipeline // nil without a collector
	tracer    trace.Tracer        // nil with it
	resolved  *adapters.Resolved
	backups   []backup.Part
	bridge    *orchestrator.Bridge // nil unless the manifest wants it
	// agentTokens knows the agents by their tokens; nil without a local orchestrator.
	agentTokens *orchestrator.Local
}

// core is what must be there before a program starts, made by build.
type core struct {
	system  *supervisor.System
	audit   *audit.Log
	gate    *signalGate
	sup     *supervisor.Supervisor
	auth    *probes.Auth
	keys    []probes.Key // of [api.keys]
	member  *member      // nil unless federation.mode is "client"
	hosting *hosting     // nil unless it is "host"

	forwards []forwarding // none unless the manifest wants them
}

// servers is what serves requests, made by buildServers.
type servers struct {
	stack  *middleware.Stack
	slots  *adapters.Set
	drift  *probes.DriftDetector
	server *probes.Server
	tasks  *tasks.Manager // nil: the box runs none
	api    *rest.Server
}

// newBox makes what does not depend on the manifest.
func newBox(o options, environ []string, stderr *os.File) (*box, error) {
	b := &box{environ: environ, env: map[string]string{}, stderr: &lastWords{to: stderr}, started: time.Now(), bootID: newBootID(), programsGiven: make(chan struct{}), serversBuilt: make(chan struct{})}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			b.env[name] = value
		}
	}
	var err error
	if b.roots, err = bootstrap.NewRoots(o.root, b.getenv); err != nil {
		return nil, err
	}
	b.stopped, b.halt = context.WithCancel(context.Background())
	b.bus = event.NewBus(eventsHeld)
	if b.owner, err = proc.New(proc.Options{Cgroups: true, LowerOOMScore: true, ScoreRaised: b.scoreRaised, Report: func(message string) {
		b.publish(event.Warn, "Degraded", map[string]any{"message": message})
	}}); err != nil {
		return nil, err
	}
	b.agents = newAgents(b.owner, nil)
	b.self, b.mesh.b = &self{b: b}, b
	b.boot = bootstrap.New(bootstrap.Config{
		Bus: b.bus, Roots: b.roots, Environ: environ, ManifestFile: o.manifest, Main: o.command,
		Version: version, System: systemName(), Started: b.started, BootID: b.bootID,
		Runner: runner{b.owner}, Starter: starter{b}, Programs: programs{b}, Identity: b.self,
		KeyKnown: func(key bootstrap.Secret) {
			b.plane.Redact(key.Reveal())
			b.auth.SetKey(key.Reveal())
		},
		Sealed: func(bootstrap.Sentinel) {
			b.readiness.Set(probes.Requirement{ID: probes.SentinelID, Kind: probes.KindSentinel, Met: true})
		},
		Resolved: b.checkSettings,
	})
	return b, nil
}

func (b *box) getenv(name string) string { return b.env[name] }

func (b *box) publish(level event.Level, name string, fields map[string]any) {
	b.bus.Publish(event.Event{Level: level, Stage: "supervisor", Name: name, Fields: fields})
}

// collector is where spans go: the environment wins over the manifest.
func (b *box) collector(m *schema.Manifest) string {
	return cmp.Or(b.getenv("AGENTBOX_OTLP_ENDPOINT"), m.Observability.OTLPEndpoint)
}

func newBootID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(id[:])
}

// systemName is Nix's word for what this binary was built for.
func systemName() string {
	arch := runtime.GOARCH
	switch arch {
	case "amd64":
		arch = "x86_64"
	case "arm64":
		arch = "aarch64"
	}
	return arch + "-" + runtime.GOOS
}

// checkSettings refuses what only this file can judge, while nothing has been
// started.
func (b *box) checkSettings(m *schema.Manifest, _ *plan.Plan) (err error) {
	if b.addresses, err = bootstrap.ListenAddresses(b.boot.Current(), bootstrap.Contained(os.Getpid(), b.roots, b.getenv), b.getenv); err != nil {
		return err
	}
	if b.boundary, err = newBoundary(m, b.addresses.Management, b.getenv); err != nil {
		return err
	}
	if b.authMode, err = probes.ParseAuthMode(b.getenv("MANAGEMENT_API_AUTH_MODE")); err != nil {
		return err
	}
	if err := b.startTracing(b.collector(m)); err != nil {
		return err
	}
	return b.resolveSlots(m)
}

// prepare makes what does not depend on the manifest.
func (b *box) prepare() error {
	b.readiness = probes.NewReadiness(b.bus)
	b.registry = prometheus.NewRegistry()
	_, err := probes.RegisterMetrics(b.registry, probes.MetricsConfig{
		Bus: b.bus, Readiness: b.readiness, Programs: metricsPrograms{b}, Boot: bootMetrics{b}, Build: b.buildInfo,
	})
	return err
}

// build makes what the programs need, and refuses what the manifest has wrong that
// only its making shows.
func (b *box) build() error {
	b.agents.plane, b.agents.tracer = b.plane, b.tracer
	c := &core{audit: b.openAudit(), system: supervisor.NewSystem(supervisor.SystemConfig{
		Owner: b.owner, Logs: b.plane, Bus: b.bus, NotifyDir: b.roots.Runtime,
	})}
	if err := b.join(c, b.manifest()); err != nil {
		c.audit.Flush()
		return errors.Join(err, c.system.Close())
	}
	b.core = c
	return nil
}

// join makes the rest of the core around its processes.
func (b *box) join(c *core, m *schema.Manifest) (err error) {
	c.gate = newSignalGate(b.owner.IsInit(), c.system.Whose, b.mayControl)
	c.sup, err = supervisor.New(supervisor.Config{
		Processes: c.system, Prober: c.system, Hooks: c.system, Bus: b.bus,
		Barrier: program.Barrier(m.Supervisor.Barrier), StopGrace: m.Supervisor.StopGrace.Std(),
		Drain: m.Supervisor.Drain.Std(), ExitWhenAllExited: m.Supervisor.OnAllExited == "exit", Seed: seed(),
	}, nil)
	if err != nil {
		return err
	}
	if c.hosting, err = b.newHosting(m); err != nil {
		return err
	}
	signed, err := b.signedRequests(m, c.hosting)
	if err != nil {
		return err
	}
	if c.auth, err = probes.NewAuth(b.authMode, signed, b.registry); err != nil {
		return err
	}
	if c.keys, err = b.apiKeys(m); err != nil {
		return err
	}
	if c.member, err = b.newMember(m); err != nil {
		return err
	}
	c.forwards, err = b.forward(m)
	return err
}

// buildServers makes everything that serves requests. It runs beside the boot: no
// program needs it to start, and what the manifest can have wrong was refused
// before, so that an error here is a mistake of agentinit's.
func (b *box) buildServers() (err error) {
	defer close(b.serversBuilt)
	m := b.manifest()
	if err := b.traceMetrics(); err != nil {
		return err
	}
	s := &servers{}
	if s.stack, s.slots, err = b.buildSlots(m); err != nil {
		return err
	}
	s.drift = probes.NewDriftDetector(b.bus, b.readiness, b.declared, probes.Reality{
		StatusFile: "/proc/self/status", Root: "/", Metrics: b.metricsBound, LookupEnv: b.getenv,
		ImageRef: func() string { return b.getenv("AGENTBOX_IMAGE_HASH") }, Mounts: b.readiness.MountFaults,
	}.Read)
	s.server, err = probes.NewServer(probes.Config{
		Bus: b.bus, Readiness: b.readiness, Liveness: probes.NewLiveness(b.sup, b.started), Auth: b.auth,
		Gatherer: b.registry, Registerer: b.registry, Health: b.health, Meta: b.meta, Relay: b.relayHealth(m),
		Names: b.boundary.names, PublicOrigins: b.boundary.public, TrustedProxies: b.boundary.proxies, Origins: b.boundary.origins,
		Wrap: b.traceRequests(), ManagementAddress: b.addresses.Management, MetricsAddress: b.addresses.Metrics,
	})
	if err != nil {
		return err
	}
	if err := b.serveAPI(m, s); err != nil {
		return err
	}
	b.servers = s
	return nil
}

// seed spreads the jitter of many boxes that start at once.
func seed() uint64 {
	var s [8]byte
	_, _ = rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return binary.LittleEndian.Uint64(s[:])
}
