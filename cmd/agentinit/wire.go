package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"github.com/dreamlab-ai/agentinit/telemetry"
)

// eventsHeld is how many events a reader may be behind before it lags: a boot of
// a thousand programs fits.
const eventsHeld = 8192

// orphanWait is how long the processes that belong to no program have between
// the last TERM and the last KILL.
const orphanWait = 500 * time.Millisecond

// flushWait bounds what the end of the box spends on a console that is stuck, and
// then on a stderr that is.
const flushWait = time.Second

// atRest is how long after the seal the memory of the boot is given back: what
// starts beside the programs would fetch it again before that.
const atRest = time.Second

// box is everything of one running agentinit, joined. It decides nothing: the
// packages do.
type box struct {
	environ []string
	env     map[string]string
	stderr  *lastWords
	started time.Time
	bootID  string

	bus       *event.Bus
	plane     *logs.Plane
	forwards  []forwarding // none unless the manifest wants them
	voice     *voice
	owner     *proc.Owner
	system    *supervisor.System
	gate      *signalGate
	audit     *audit.Log
	sup       *supervisor.Supervisor
	boot      *bootstrap.Boot
	self      *self
	member    *member  // nil unless federation.mode is "client"
	hosting   *hosting // nil unless it is "host"
	roots     bootstrap.Roots
	readiness *probes.Readiness
	registry  *prometheus.Registry
	auth      *probes.Auth
	server    *probes.Server
	drift     *probes.DriftDetector
	addresses bootstrap.Addresses
	readers   int // the group that may read on the control socket
	boundary  boundary
	authMode  probes.AuthMode
	relay     meshRelay
	mesh      neighbours
	resolved  *adapters.Resolved
	slots     *adapters.Set
	showing   sync.Mutex // of showSlots
	dumping   atomic.Bool
	// programsGiven is closed when the supervisor has the programs of the boot;
	// until then there is nothing to apply to.
	programsGiven chan struct{}
	reapplying    atomic.Bool // a SIGHUP's apply has not read the manifest yet
	stack         *middleware.Stack
	agents        *agents
	bridge        *orchestrator.Bridge // nil unless the manifest wants it
	// agentTokens knows the agents by their tokens; nil without a local one.
	agentTokens *orchestrator.Local
	tasks       *tasks.Manager
	backups     []backup.Part
	api         *rest.Server
	keys        []probes.Key // of [api.keys]
	// serversBuilt is closed when buildServers has ended. What that makes is only for
	// those who waited for this, or came with a request.
	serversBuilt chan struct{}
	tracing      *telemetry.Pipeline // nil without a collector
	tracer       trace.Tracer        // nil with it

	// slotFailure is what ended the box because of an adapter.
	slotFailure atomic.Pointer[bootstrap.Failure]

	// stopped ends when the box has: everything that runs beside it hangs on it.
	stopped context.Context
	halt    context.CancelFunc
	running sync.WaitGroup
}

// run boots the box and returns the exit status when it has ended. caught are the
// signals to it.
func run(args, environ []string, stdout, stderr *os.File, caught <-chan os.Signal) int {
	o, code, handled := parseOptions(args, stdout, stderr)
	if handled {
		return code
	}
	b, err := newBox(o, environ, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "agentinit:", err)
		return int(bootstrap.ExitCode(err))
	}
	return b.live(caught)
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

// live is the life of the box. Phase 0 comes first, because the manifest says
// where to listen. The control socket is taken before phase 1; who connects waits
// until what answers there is made, beside the boot.
func (b *box) live(caught <-chan os.Signal) int {
	settleHeap := deferCollection(b.getenv)
	reserve := sync.OnceFunc(func() { reserveThreads(quietThreads) })
	go reserve()
	// What does not wait for one another is done side by side: together it is a
	// third of the time until the first program runs.
	load := sync.OnceValue(func() error { return b.boot.Load(b.stopped) })
	go load()
	prepareErr := b.prepare()
	loadErr := load()
	b.speak(loadErr)
	if err := cmp.Or(loadErr, prepareErr); err != nil {
		return b.neverStarted(err)
	}
	if b.listens() {
		reserve = sync.OnceFunc(func() { reserveThreads(servingThreads) })
		go reserve()
	}
	open := sync.OnceValues(b.claim)
	go open()
	buildErr := b.build()
	socket, openErr := open()
	if err := cmp.Or(buildErr, openErr); err != nil {
		if socket != nil {
			err = errors.Join(err, socket.Close())
		}
		return b.neverStarted(err)
	}
	reserve() // before there is a program that could take what is left
	b.background(func() { b.obey(caught, b.stopped.Done()) })
	b.background(b.watchShutdown)
	results := make(chan supervisor.Result, 1)
	go func() { results <- b.sup.Run(context.Background()) }()

	b.follow()
	booting, interrupt := context.WithCancelCause(b.stopped)
	defer interrupt(nil)
	serving := make(chan error, 1)
	go func() {
		err := b.buildServers()
		if err == nil {
			b.serve(socket)
		} else {
			err = errors.Join(err, socket.Close())
			interrupt(err)
		}
		serving <- err
	}()
	go func() {
		<-b.sup.Done()
		interrupt(errors.New("the box is stopping"))
	}()
	bootErr := b.boot.Run(booting)
	if err := <-serving; err != nil {
		bootErr = err
	}
	b.traceBoot()
	if bootErr != nil {
		return b.end(bootErr, b.stopSupervisor(results, bootErr))
	}
	b.afterBoot()
	b.background(func() {
		select {
		case <-time.After(atRest):
		case <-b.stopped.Done():
			return
		}
		settleHeap()
		if err := proc.ReleaseText(); err != nil {
			b.publish(event.Debug, "TextNotReleased", map[string]any{"message": err.Error()})
		}
	})
	return b.end(nil, <-results)
}

// background runs f until the box is stopped; the end waits for it.
func (b *box) background(f func()) { b.running.Go(f) }

// speak opens the console in the format that the manifest wants, or the default
// one when there is no manifest to ask.
func (b *box) speak(loadErr error) {
	settings := schema.BoxLog{}
	if loadErr == nil {
		settings = b.manifest().Supervisor.Log
	}
	b.plane = logs.New(logs.Config{
		Stdout: os.Stdout, Stderr: os.Stderr, Format: logs.Format(settings.Format),
		Color: b.getenv("NO_COLOR") == "",
		OnTrouble: func(program string, err error) {
			b.bus.Publish(event.Event{Level: event.Warn, Stage: "supervisor", Name: "LogTrouble", Program: program,
				Fields: map[string]any{"error": fmt.Sprint(err)}})
		},
	})
	b.bus.SetMask(b.plane.Mask)
	if loadErr == nil {
		b.redact(b.boot.Current())
	}
	b.voice = newVoice(b.plane.Writer())
	level := b.getenv("AGENTBOX_LOG_LEVEL")
	if loadErr == nil {
		level = cmp.Or(level, settings.Level, b.manifest().Observability.LogLevel)
	}
	if err := b.voice.SetLevel(cmp.Or(level, "info")); err != nil {
		b.publish(event.Warn, "BadLogLevel", map[string]any{"message": err.Error()})
	}
	events := b.bus.Watch(0)
	b.background(func() { b.voice.follow(b.stopped, events) })
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
	m := b.manifest()
	b.agents.plane, b.agents.tracer = b.plane, b.tracer
	b.system = supervisor.NewSystem(supervisor.SystemConfig{
		Owner: b.owner, Logs: b.plane, Bus: b.bus, NotifyDir: b.roots.Runtime,
	})
	b.audit = b.openAudit()
	b.gate = newSignalGate(b.owner.IsInit(), b.system.Whose, b.mayControl)
	var err error
	b.sup, err = supervisor.New(supervisor.Config{
		Processes: b.system, Prober: b.system, Hooks: b.system, Bus: b.bus,
		Barrier: program.Barrier(m.Supervisor.Barrier), StopGrace: m.Supervisor.StopGrace.Std(),
		Drain: m.Supervisor.Drain.Std(), ExitWhenAllExited: m.Supervisor.OnAllExited == "exit", Seed: seed(),
	}, nil)
	if err != nil {
		return err
	}
	if b.hosting, err = b.newHosting(m); err != nil {
		return err
	}
	signed, err := b.signedRequests(m)
	if err != nil {
		return err
	}
	if b.auth, err = probes.NewAuth(b.authMode, signed, b.registry); err != nil {
		return err
	}
	if b.keys, err = b.apiKeys(m); err != nil {
		return err
	}
	if b.member, err = b.newMember(m); err != nil {
		return err
	}
	return b.forward(m)
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
	if err := b.buildSlots(m); err != nil {
		return err
	}
	b.drift = probes.NewDriftDetector(b.bus, b.readiness, b.declared, probes.Reality{
		StatusFile: "/proc/self/status", Root: "/", Metrics: b.metricsBound, LookupEnv: b.getenv,
		ImageRef: func() string { return b.getenv("AGENTBOX_IMAGE_HASH") }, Mounts: b.readiness.MountFaults,
	}.Read)
	b.server, err = probes.NewServer(probes.Config{
		Bus: b.bus, Readiness: b.readiness, Liveness: probes.NewLiveness(b.sup, b.started), Auth: b.auth,
		Gatherer: b.registry, Registerer: b.registry, Health: b.health, Meta: b.meta, Relay: b.relayHealth(m),
		Names: b.boundary.names, PublicOrigins: b.boundary.public, TrustedProxies: b.boundary.proxies, Origins: b.boundary.origins,
		Wrap: b.traceRequests(), ManagementAddress: b.addresses.Management, MetricsAddress: b.addresses.Metrics,
	})
	if err != nil {
		return err
	}
	return b.serveAPI(m)
}

// seed spreads the jitter of many boxes that start at once.
func seed() uint64 {
	var s [8]byte
	_, _ = rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return binary.LittleEndian.Uint64(s[:])
}

// claim takes the control socket, which a second agentinit in the same place does
// not get, and clears away what an earlier box has left of the seal. Nobody answers
// there before serve.
func (b *box) claim() (*control.Socket, error) {
	socket, err := b.listen()
	if errors.Is(err, control.ErrInUse) {
		return nil, err
	}
	// Not earlier: the sentinel of a box that lives is not stale.
	if err := b.boot.RemoveStaleSentinel(); err != nil {
		b.publish(event.Warn, "StaleSentinel", map[string]any{"message": err.Error()})
	}
	return socket, err
}

func (b *box) listen() (*control.Socket, error) {
	m := b.manifest()
	path := b.roots.Socket(m)
	// Only the box's own directory is made here; somebody else's must exist.
	if filepath.Dir(path) == b.roots.Runtime {
		if err := os.MkdirAll(b.roots.Runtime, 0o755); err != nil {
			b.publish(event.Warn, "RuntimeDirectory", map[string]any{"message": err.Error()})
		}
	}
	gid, err := b.socketGroup(m.Supervisor.SocketGroup)
	if err != nil {
		return nil, err
	}
	socket, warning, err := control.Listen(b.stopped, control.SocketConfig{Path: path, Mode: fs.FileMode(m.Supervisor.SocketMode), GID: gid})
	if err != nil {
		return nil, &bootstrap.Failure{Code: bootstrap.ExitPrepare, Reason: "control socket", Err: err}
	}
	if warning != nil {
		b.publish(event.Warn, "ControlSocketFallback", map[string]any{"message": warning.Error()})
	}
	b.readers = gid
	if gid < 0 {
		b.readers = os.Getegid()
	}
	return socket, nil
}

// follow keeps readiness true to what happens.
func (b *box) follow() {
	b.background(func() { b.readiness.Follow(b.stopped, b.sup) })
	if mounts := b.boot.Mounts(); len(mounts) > 0 {
		b.background(func() { b.readiness.FollowMounts(b.stopped, mounts, probes.CheckMount) })
	}
	if relays, wanted := b.boot.Relays(); wanted {
		b.background(func() { b.readiness.FollowRelays(b.stopped, relays, b.relayReachable) })
	}
}

// serve opens the listeners and answers there and on the control socket.
func (b *box) serve(socket *control.Socket) {
	b.serveRelay()
	// A port that is taken is told of, tried again and shown in /health; programs
	// run without it.
	if err := b.server.Start(b.stopped); err != nil {
		b.publish(event.Warn, "ListenersIncomplete", map[string]any{"message": err.Error()})
	}
	b.publish(event.Info, "ControlListening", map[string]any{"socket": socket.Name()})
	server := control.New(b.controlConfig())
	if err := b.registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "agentbox_control_panics_total", Help: "Handlers of the control socket that panicked.",
	}, func() float64 { return float64(server.Panics()) })); err != nil {
		b.publish(event.Warn, "MetricsIncomplete", map[string]any{"message": err.Error()})
	}
	b.background(func() {
		if err := server.Serve(b.stopped, socket); err != nil {
			b.publish(event.Error, "ControlEnded", map[string]any{"message": err.Error()})
		}
	})
}

func (b *box) controlConfig() control.Config {
	config := control.Config{
		Supervisor: b.sup, Events: b.bus, Owner: b.system.Owner, Logs: b.plane, Applier: applier{b},
		Readiness: readinessReport{b}, Boot: bootRecord{b}, LogLevel: b.voice, Usage: b.programUsage, Processes: b.programProcesses, Probes: b.server.Handler(),
		Adapters: auditRequests(b.audit, b.api.Handler()), Audit: b.audit, Crashes: b.system.Crashes, Refusals: b.system.Refusals, Try: b.system.Try,
		Version: api.Version{
			Version: version, Commit: commit, Go: runtime.Version(), PID: os.Getpid(), BootID: b.bootID, StartedAt: &b.started,
		},
		Wrap: b.traceRequests(), UID: uint32(os.Geteuid()), GID: uint32(b.readers),
		Watch: func(path string) control.PathWatch { return b.boot.WatchPath(path) },
	}
	if b.bridge != nil {
		config.Bridge = b.bridge
	}
	return config
}

// watchShutdown makes /ready 503 and takes the sentinel away the moment a
// shutdown begins, whoever asked for it.
func (b *box) watchShutdown() {
	events := b.bus.Watch(0)
	for {
		e, err := events.Next(b.stopped)
		if err != nil {
			return
		}
		if e.Name != event.ShutdownStarted {
			continue
		}
		endWithoutCollection(b.getenv)
		b.readiness.Shutdown()
		if err := b.boot.Unseal(); err != nil {
			b.publish(event.Warn, "SentinelNotRemoved", map[string]any{"message": err.Error()})
		}
		return
	}
}

// afterBoot starts what watches a box that is up.
func (b *box) afterBoot() {
	b.background(b.keepBoot)
	b.joinMesh()
	b.background(func() { b.boot.GuardSentinel(b.stopped) })
	b.background(func() { b.drift.Run(b.stopped) })
}

// stopSupervisor ends what has been started because err ended the boot.
func (b *box) stopSupervisor(results <-chan supervisor.Result, err error) supervisor.Result {
	b.readiness.Shutdown()
	select {
	case r := <-results:
		return r
	default:
	}
	b.sup.Shutdown(err.Error())
	return <-results
}

// neverStarted ends a box that has not come to starting anything.
func (b *box) neverStarted(err error) int {
	var findings bootstrap.Findings
	if errors.As(err, &findings) {
		b.tellFindings(wireFindings(findings))
	}
	b.traceBoot()
	return b.end(err, supervisor.Result{})
}

// end takes the box down after its programs: what is left of processes, the
// listeners, the log; then it says why.
func (b *box) end(bootErr error, result supervisor.Result) int {
	if failure := b.slotFailure.Load(); failure != nil {
		bootErr = failure
	}
	code := finalStatus(bootErr, result)
	if b.api != nil {
		b.api.Close()
	}
	if b.tasks != nil {
		b.tasks.Close()
	}
	b.member.leave()
	b.disconnectSlots(disconnectTime(result.Grace, result.Took))
	if left := b.owner.KillAll(orphanWait); left > 0 {
		b.publish(event.Warn, "ProcessesLeft", map[string]any{"count": left})
	}
	if err := b.owner.Close(); err != nil {
		b.publish(event.Warn, "OwnerNotClosed", map[string]any{"message": err.Error()})
	}
	b.say(b.report(code, bootErr, result))
	b.endTracing()
	b.halt()
	b.running.Wait()
	if b.audit != nil {
		b.audit.Flush()
	}
	b.boot.Wait()
	if b.server != nil {
		b.server.Wait()
	}
	if b.system != nil {
		if err := b.system.Close(); err != nil {
			b.stderr.say(fmt.Appendln(nil, "agentinit: cannot close the notification socket:", err), nil)
		}
	}
	flushing, cancel := context.WithTimeout(context.Background(), flushWait)
	defer cancel()
	b.closeForwards(flushing)
	if err := b.plane.Close(flushing); err != nil {
		b.stderr.say(fmt.Appendln(nil, "agentinit: the end of the log may be missing:", err), nil)
	}
	b.stderr.wait(flushWait)
	return code
}
