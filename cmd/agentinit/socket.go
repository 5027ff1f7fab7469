package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/prometheus/client_golang/prometheus"
)

// claim takes the control socket and the ports, and removes the sentinel of an earlier box. A second
// agentinit in the same place does not get the socket. Requests are answered only after serve.
func (b *box) claim() (*control.Socket, error) {
	socket, err := b.listen()
	if errors.Is(err, control.ErrInUse) {
		return nil, err
	}
	b.holdPorts()
	// Not earlier: the sentinel of a running box is not stale.
	if err := b.boot.RemoveStaleSentinel(); err != nil {
		b.publish(event.Warn, "StaleSentinel", map[string]any{"message": err.Error()})
	}
	return socket, err
}

func (b *box) listen() (*control.Socket, error) {
	m := b.manifest()
	path := b.roots.Socket(m)
	// Only the box's own directory is made here; any other must exist.
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

// serve answers on the ports and on the control socket.
func (b *box) serve(socket *control.Socket) {
	b.serveRelay()
	// A port that is in use is reported, tried again and shown in /health; the programs run without
	// it.
	if err := b.server.Start(b.stopped); err != nil {
		b.publish(event.Warn, "ListenersIncomplete", map[string]any{"message": err.Error()})
	}
	b.publish(event.Info, "ControlListening", map[string]any{"socket": socket.Name()})
	server := control.New(b.controlConfig(b.servers))
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

func (b *box) controlConfig(s *servers) control.Config {
	config := control.Config{
		Supervisor: b.sup, Events: b.bus, Owner: b.system.Owner, Logs: b.plane, Applier: applier{b},
		Readiness: readinessReport{b}, Boot: bootRecord{b}, LogLevel: b.voice, Usage: b.programUsage, Processes: b.programProcesses, Bounds: b.programBounds, Probes: s.server.Handler(),
		Adapters: auditRequests(b.audit, s.api.Handler()), Audit: b.audit, Crashes: b.system.Crashes, Refusals: b.system.Refusals, Try: b.system.Try,
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

// socketGroup resolves supervisor.socket_group, a name or a number; -1 if it is not set.
func (b *box) socketGroup(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	users, err := bootstrap.LoadUsers(b.roots.Database("passwd"), b.roots.Database("group"))
	if err != nil {
		return -1, err
	}
	gid, err := users.Group(name)
	if err != nil {
		return -1, &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: "supervisor.socket_group: " + err.Error()}
	}
	return int(gid), nil
}
