package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/middleware"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/internal/slowcall"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/audit"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"github.com/dreamlab-ai/agentinit/telemetry"
)

// eventsHeld is how many events a reader may be behind before it gets a Lagged event. It is enough
// for a boot of a thousand programs.
const eventsHeld = 8192

// box joins all parts of one running agentinit. It decides nothing: the packages do. It is built in
// steps, and each step adds a complete part: settings when the manifest was read, core before the
// programs start, servers in parallel with the boot.
type box struct {
	environ []string
	env     map[string]string
	stderr  *lastWords
	started time.Time
	bootID  string
	roots   bootstrap.Roots

	bus       *event.Bus
	plane     *logs.Plane // made by speak, like voice
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

	// reserved returns when agentinit has the threads that it needs later. No program may run before,
	// because it could use up the last ones.
	reserved func()

	ports   ports
	readers int // the group that may read through the control socket
	relay   meshRelay
	mesh    neighbours
	readID  sync.Once
	id      string     // of a box without an identity; use boxName
	showing sync.Mutex // guards showSlots
	dumping atomic.Bool
	// programsGiven is closed when the supervisor has the programs of the boot. Before that, an
	// apply has nothing to change.
	programsGiven chan struct{}
	rereading     *slowcall.Call[*bootstrap.Loaded]
	reapplying    atomic.Bool // an apply for SIGHUP has not read the manifest yet
	// serversBuilt is closed when buildServers has ended. Only callers that waited for it, or that
	// handle a request, may use the servers.
	serversBuilt chan struct{}

	// slotFailure is set if an adapter has ended the box.
	slotFailure atomic.Pointer[bootstrap.Failure]

	// stopped ends with the box, and ends everything that runs beside the programs.
	stopped context.Context
	halt    context.CancelFunc
	running sync.WaitGroup
}

// settings is what checkSettings makes of the manifest. None of its parts has begun to work.
type settings struct {
	addresses bootstrap.Addresses
	boundary  boundary
	authMode  probes.AuthMode
	tracing   *telemetry.Pipeline // nil if there is no collector
	tracer    trace.Tracer        // nil if there is no collector
	resolved  *adapters.Resolved
	backups   []backup.Part
	bridge    *orchestrator.Bridge // nil unless the manifest configures it
	// agentTokens knows the agents by their tokens; nil without a local orchestrator.
	agentTokens *orchestrator.Local
}

// core is what must exist before a program starts; build makes it.
type core struct {
	system  *supervisor.System
	audit   *audit.Log
	gate    *signalGate
	sup     *supervisor.Supervisor
	auth    *probes.Auth
	keys    []probes.Key // keys of [api.keys]
	member  *member      // nil unless federation.mode is "client"
	hosting *hosting     // nil unless federation.mode is "host"

	memoryLimit uint64 // of the box's cgroup, in bytes; 0 means none

	forwards []forwarding // empty unless the manifest configures some
}

// servers is what answers requests; buildServers makes it.
type servers struct {
	stack  *middleware.Stack
	slots  *adapters.Set
	drift  *probes.DriftDetector
	server *probes.Server
	tasks  *tasks.Manager // nil if the box runs no tasks
	api    *rest.Server
}

// newBox makes the parts that loading the manifest needs.
func newBox(o options, environ []string, stderr *os.File) (*box, error) {
	b := &box{environ: environ, env: bootstrap.EnvironMap(environ), stderr: &lastWords{to: stderr}, started: time.Now(), bootID: newBootID(), programsGiven: make(chan struct{}), serversBuilt: make(chan struct{})}
	b.rereading = slowcall.New(func() (*bootstrap.Loaded, error) { return b.boot.Reread() })
	var err error
	if b.roots, err = bootstrap.NewRoots(o.root, b.getenv); err != nil {
		return nil, err
	}
	b.stopped, b.halt = context.WithCancel(context.Background())
	b.bus = event.NewBus(eventsHeld)
	b.agents = &agents{refusals: supervisor.NewAgentRefusals(b.bus)}
	b.self, b.mesh.b, b.mesh.troubles = &self{b: b}, b, troubleEvents()
	b.mesh.connected = make(chan struct{}, 1)
	b.boot = bootstrap.New(bootstrap.Config{
		Bus: b.bus, Roots: b.roots, Environ: environ, ManifestFile: o.manifest, Main: o.command,
		Version: version, System: catalog.System(), Started: b.started, BootID: b.bootID,
		Runner: runner{b}, Starter: starter{b}, Programs: programs{b}, Identity: b.self,
		KeyKnown: func(key bootstrap.Secret) {
			if key.Empty() {
				b.auth.SetNoKey()
				return
			}
			b.plane.Redact(key.Reveal())
			b.auth.SetKey(key.Reveal())
		},
		Sealed: func(bootstrap.Sentinel) {
			b.readiness.Set(probes.Requirement{ID: probes.SentinelID, Kind: probes.KindSentinel, Met: true})
		},
		Unsealed: func(reason string) {
			b.readiness.Set(probes.Requirement{ID: probes.SentinelID, Kind: probes.KindSentinel,
				Reason: reason + "; the box cannot be sealed any more: restart it"})
		},
		Resolved: b.checkSettings,
	})
	return b, nil
}

func (b *box) getenv(name string) string { return b.env[name] }

// tokenIn is the token in a variable: a secret file often ends with a newline, which no token has.
func (b *box) tokenIn(name string) string { return strings.TrimSpace(b.getenv(name)) }

func (b *box) publish(level event.Level, name string, fields map[string]any) {
	b.bus.Publish(event.Event{Level: level, Stage: "supervisor", Name: name, Fields: fields})
}

// collector is the address for spans. The environment takes precedence over the manifest.
func (b *box) collector(m *schema.Manifest) string {
	return cmp.Or(b.getenv("AGENTBOX_OTLP_ENDPOINT"), m.Observability.OTLPEndpoint)
}

func newBootID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(id[:])
}

// checkSettings refuses settings that only this file can check, before anything is started.
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

// prepare makes further parts that do not depend on the manifest, while it is loaded.
func (b *box) prepare() (err error) {
	if b.owner, err = proc.New(proc.Options{Cgroups: true, LowerOOMScore: true, Ready: func() { b.reserved() }, ScoreRaised: b.scoreRaised, Report: func(message string) {
		b.publish(event.Warn, "Degraded", map[string]any{"message": message})
	}}); err != nil {
		return err
	}
	b.readiness = probes.NewReadiness(b.bus)
	b.registry = prometheus.NewRegistry()
	_, err = probes.RegisterMetrics(b.registry, probes.MetricsConfig{
		Bus: b.bus, Readiness: b.readiness, Programs: metricsPrograms{b}, Boot: bootMetrics{b}, Build: b.buildInfo,
	})
	return err
}

// build makes what the programs need. It refuses mistakes of the manifest that only show here.
func (b *box) build() error {
	b.agents.owner, b.agents.plane, b.agents.tracer = b.owner, b.plane, b.tracer
	c := &core{audit: b.openAudit(), system: supervisor.NewSystem(supervisor.SystemConfig{
		Owner: b.owner, Logs: b.plane, Bus: b.bus, NotifyDir: b.roots.Runtime,
	})}
	c.memoryLimit = c.system.MemoryLimit()
	b.owner.BoxMemory(c.memoryLimit)
	limitHeap(b.getenv, c.memoryLimit)
	b.plane.Bound(c.memoryLimit)
	if err := b.join(c, b.manifest()); err != nil {
		c.audit.Flush()
		return errors.Join(err, c.system.Close())
	}
	b.core = c
	startForwards(c.forwards)
	return nil
}

// join makes the rest of the core, around its processes.
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

// buildServers makes everything that answers requests. It runs in parallel with the boot, because
// no program needs it to start. Mistakes in the manifest were refused before, so an error here is a
// defect of agentinit.
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
		Gatherer: b.registry, Registerer: b.registry, Health: b.health, Meta: b.meta, Pods: b.podsHealth(m), Relay: b.relayHealth(m),
		Names: b.boundary.names, PublicOrigins: b.boundary.public, TrustedProxies: b.boundary.proxies, Origins: b.boundary.origins,
		Wrap: b.traceRequests(), ManagementAddress: b.addresses.Management, MetricsAddress: b.addresses.Metrics,
		Listen: b.ports.listen,
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

// seed makes the jitter of boxes that start at the same time different.
func seed() uint64 {
	var s [8]byte
	_, _ = rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return binary.LittleEndian.Uint64(s[:])
}
