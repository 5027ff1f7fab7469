// Package controltest is a fake box for tests of the control socket and its clients. Its supervisor
// carries out each request at once. Logs, boot record and the rest are in memory.
//
// It must not start a process, and only tests may import it.
package controltest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/audit"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Epoch is the time at which the clock of a Box stands.
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Box is the fake box. Set its exported fields before you use it. Its methods may be called from
// any goroutine.
type Box struct {
	Bus *event.Bus
	// Reopened counts the requests to reopen log files.
	Reopened atomic.Int64
	// Hold keeps programs of these names in STARTING or STOPPING until Release.
	Hold []string
	// Fails names programs whose start ends in FATAL.
	Fails []string
	// Refuse names programs for which every request is refused.
	Refuse []string
	// Owners maps a pid to the program whose tree it is in.
	Owners func(pid int) (string, bool)
	Lines  []logs.Line
	// LogTroubles says why the log files of a program take no output.
	LogTroubles map[string]error
	// Phase is Running unless it is set.
	Phase    supervisor.Phase
	BootData api.Boot
	// BootBefore is the record of the boot before; if StartedAt is not set, there was none.
	BootBefore api.Boot
	Result     api.ApplyResult
	ApplyErr   error
	PlanJSON   []byte
	Audit      *audit.Log
	Crashes    map[string]supervisor.Crash
	Refusals   map[string][]supervisor.Refusal
	// Bounds are the limits in force, by program.
	Bounds map[string][]api.ProgramLimit
	// ProbeJSON holds the answers of the probe routes by path. A route without an entry answers
	// with its path.
	ProbeJSON map[string]string

	mu        sync.Mutex
	programs  []supervisor.Status
	ready     api.Readiness
	level     string
	signals   []string
	shutdowns []string
	applied   []bool
}

// Program is a running, ready service for New.
func Program(name string) supervisor.Status {
	since := Epoch.Add(-3*time.Minute - 12*time.Second)
	return supervisor.Status{
		Name: name, Group: name, State: program.Running, Ready: true, Healthy: true, PID: 100 + len(name), Run: 1,
		Since: since, StartedAt: &since, RunningAt: &since,
		Spec: &program.Spec{Name: name, Group: name, Type: program.Service, Argv: []string{"/bin/" + name}, Autostart: true},
	}
}

// New returns a box of the programs.
func New(programs ...supervisor.Status) *Box {
	return &Box{
		Bus: event.NewBus(1024), programs: programs, level: "info", Audit: audit.Open("", func(error) {}),
		ready: api.Readiness{Ready: true, Since: &Epoch}, Owners: func(int) (string, bool) { return "", false },
	}
}

// Own is Config for a server of the user that runs the test.
func (b *Box) Own() control.Config { return b.Config(os.Geteuid(), os.Getegid()) }

// Config is a control.Config with everything in it.
func (b *Box) Config(uid, gid int) control.Config {
	started := Epoch.Add(-time.Hour)
	return control.Config{
		Supervisor: b, Events: b.Bus, Logs: b, Applier: b, Readiness: b, Boot: b, LogLevel: b, Bridge: b,
		Usage: b.usage, Processes: b.processes, Audit: b.Audit,
		Bounds:  func(name string, _ uint64) []api.ProgramLimit { return b.Bounds[name] },
		Crashes: func() map[string]supervisor.Crash { return b.Crashes },
		Try: func(_ context.Context, spec *program.Spec, argv []string) (supervisor.Trial, error) {
			return supervisor.Trial{Status: 3, Output: []byte(spec.Name + " " + argv[0]), Refused: []supervisor.Refusal{{By: "seccomp", Call: "mount", Count: 1}}}, nil
		},
		Refusals: func(name string) []supervisor.Refusal { return b.Refusals[name] },
		Owner:    func(pid int) (string, bool) { return b.Owners(pid) }, UID: uint32(uid), GID: uint32(gid),
		Probes: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if text, ok := b.ProbeJSON[r.URL.Path]; ok {
				fmt.Fprint(w, text)
				return
			}
			fmt.Fprintf(w, `{"probe":%q}`, r.URL.Path)
		}),
		Version: api.Version{Version: "1.2.3", Commit: "c0ffee", Go: "go1.26", PID: 1, BootID: "b00t", StartedAt: &started},
	}
}

// Start serves on the socket until stop is called.
func Start(cfg control.Config, socket string) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	s, warning, err := control.Listen(ctx, control.SocketConfig{Path: socket, Mode: 0o666, GID: -1})
	if err = errors.Join(warning, err); err != nil {
		cancel()
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- control.New(cfg).Serve(ctx, s) }()
	return func() error { cancel(); return <-done }, nil
}

// SocketPath returns a short path: the path of a socket is limited, and TempDir may be too long.
func SocketPath(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "ctl")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// Serve is Start for as long as the test, on a socket of its own, which it returns.
func Serve(tb testing.TB, cfg control.Config) (socket string) {
	tb.Helper()
	socket = SocketPath(tb)
	ServeAt(tb, cfg, socket)
	return socket
}

// ServeAt is Serve on a socket that the test has chosen.
func ServeAt(tb testing.TB, cfg control.Config, socket string) {
	tb.Helper()
	stop, err := Start(cfg, socket)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := stop(); err != nil {
			tb.Errorf("the server ended with %v", err)
		}
	})
}

var (
	_ control.Supervisor = (*Box)(nil)
	_ control.Logs       = (*Box)(nil)
	_ control.Applier    = (*Box)(nil)
	_ control.Readiness  = (*Box)(nil)
	_ control.BootRecord = (*Box)(nil)
	_ control.LogLevel   = (*Box)(nil)
	_ control.Bridge     = (*Box)(nil)
)

// Attach sends back what comes, until the word "close".
func (b *Box) Attach(ctx context.Context, conn io.ReadWriteCloser) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	in := bufio.NewScanner(conn)
	for in.Scan() {
		if in.Text() == "close" {
			return errors.New("asked to close")
		}
		if _, err := fmt.Fprintln(conn, in.Text()); err != nil {
			return err
		}
	}
	return nil
}

// Started says that the box is past its start.
func (b *Box) Started() <-chan struct{} {
	started := make(chan struct{})
	close(started)
	return started
}

// Snapshot returns the programs as they are.
func (b *Box) Snapshot() supervisor.Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	return supervisor.Snapshot{Seq: b.Bus.Seq(), Time: Epoch, Phase: cmp.Or(b.Phase, supervisor.Running), Programs: slices.Clone(b.programs)}
}

// Add adds a program.
func (b *Box) Add(p supervisor.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.programs = append(b.programs, p)
}

// Set changes one program and publishes an event about it.
func (b *Box) Set(name string, change func(*supervisor.Status)) {
	b.mu.Lock()
	i := slices.IndexFunc(b.programs, func(p supervisor.Status) bool { return p.Name == name })
	if i < 0 {
		b.mu.Unlock()
		panic("no program " + name)
	}
	from := b.programs[i].State
	change(&b.programs[i])
	p := b.programs[i]
	b.mu.Unlock()
	b.Bus.Publish(event.Event{
		Time: Epoch, Level: event.Info, Stage: "supervisor", Name: event.ProgramStateChanged, Program: name, Run: p.Run,
		Change: &event.Change{From: from.String(), To: p.State.String(), PID: p.PID, Ready: p.Ready, Reason: p.Reason},
	})
}

// Remove takes a program away.
func (b *Box) Remove(name string) {
	b.mu.Lock()
	b.programs = slices.DeleteFunc(b.programs, func(p supervisor.Status) bool { return p.Name == name })
	b.mu.Unlock()
	b.Bus.Publish(event.Event{Time: Epoch, Level: event.Info, Stage: "supervisor", Name: event.ProgramRemoved, Program: name})
}

// Release lets a held program finish what it is doing.
func (b *Box) Release(name string) {
	b.Set(name, func(p *supervisor.Status) {
		if p.State == program.Stopping {
			p.State, p.PID, p.Ready, p.Reason = program.Stopped, 0, false, "stopped on request"
			return
		}
		p.State, p.Ready, p.Reason = program.Running, true, ""
	})
}

// each acts on those programs whose state does not refuse it.
func (b *Box) each(names []string, refuses func(supervisor.Status) bool, act func(*supervisor.Status)) error {
	var errs []error
	for _, name := range names {
		if slices.Contains(b.Refuse, name) {
			errs = append(errs, &supervisor.Refused{Program: name, State: b.state(name), Reason: "refused in this state"})
			continue
		}
		var refused error
		b.Set(name, func(p *supervisor.Status) {
			if refuses(*p) {
				refused = &supervisor.Refused{Program: name, State: p.State, Reason: "it is so already"}
			} else {
				act(p)
			}
		})
		errs = append(errs, refused)
	}
	return errors.Join(errs...)
}

func (b *Box) state(name string) program.State {
	for _, p := range b.Snapshot().Programs {
		if p.Name == name {
			return p.State
		}
	}
	return program.Stopped
}

func willing(supervisor.Status) bool { return false }

// Start makes programs RUNNING, or what Hold and Fails demand.
func (b *Box) Start(_ context.Context, names ...string) error {
	return b.each(names, func(p supervisor.Status) bool {
		return p.State == program.Running || p.State == program.Starting
	}, b.start)
}

// StartAll is Start.
func (b *Box) StartAll(ctx context.Context, names ...string) error { return b.Start(ctx, names...) }

// RunNow is Start.
func (b *Box) RunNow(ctx context.Context, names ...string) error { return b.Start(ctx, names...) }

func (b *Box) start(p *supervisor.Status) {
	p.Run++
	p.PID, p.State, p.Ready, p.Reason, p.Since, p.RunningAt = 1000+int(p.Run), program.Running, true, "", Epoch, &Epoch
	switch {
	case slices.Contains(b.Fails, p.Name):
		p.State, p.PID, p.Ready, p.Reason, p.RunningAt = program.Fatal, 0, false, "/bin/"+p.Name+": no such file", nil
	case slices.Contains(b.Hold, p.Name):
		p.State, p.Ready, p.Reason, p.RunningAt = program.Starting, false, "starting", nil
	}
}

// Stop makes programs STOPPED, or STOPPING when held.
func (b *Box) Stop(_ context.Context, names ...string) error {
	return b.each(names, func(p supervisor.Status) bool { return p.PID == 0 }, func(p *supervisor.Status) {
		p.State, p.PID, p.Ready, p.Reason, p.Since = program.Stopped, 0, false, "stopped on request", Epoch
		if slices.Contains(b.Hold, p.Name) {
			p.State, p.PID, p.Reason = program.Stopping, 1, "stopping"
		}
	})
}

// Restart is Start in every state.
func (b *Box) Restart(_ context.Context, names ...string) error {
	return b.each(names, willing, b.start)
}

// RestartAll is Restart.
func (b *Box) RestartAll(ctx context.Context, names ...string) error { return b.Restart(ctx, names...) }

// Signal notes what was sent.
func (b *Box) Signal(_ context.Context, signal string, names ...string) error {
	return b.each(names, willing, func(p *supervisor.Status) { b.signals = append(b.signals, p.Name+" "+signal) })
}

// Signals returns what was sent: "NAME SIGNAL".
func (b *Box) Signals() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.signals)
}

// Shutdown notes the reason.
func (b *Box) Shutdown(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shutdowns = append(b.shutdowns, reason)
}

// Shutdowns returns the reasons of the shutdowns asked for.
func (b *Box) Shutdowns() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.shutdowns)
}

// Read gives the selected lines. When following, it then waits for the end of the context, or for the one
// that the query names.
func (b *Box) Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line] {
	return func(yield func(logs.Line) bool) {
		for _, l := range b.fitting(q) {
			if !yield(l) {
				return
			}
		}
		if q.Follow {
			select {
			case <-ctx.Done():
			case <-q.Ending:
			}
		}
	}
}

// Troubles implements control.Logs.
func (b *Box) Troubles() map[string]error { return b.LogTroubles }

// Reopen implements control.Logs.
func (b *Box) Reopen() { b.Reopened.Add(1) }

func (b *Box) fitting(q logs.Query) []logs.Line {
	var fit []logs.Line
	for _, l := range b.Lines {
		also := q.Also != nil && q.Also(l.Program)
		if len(q.Programs) > 0 && !slices.Contains(q.Programs, l.Program) && !also || len(q.Streams) > 0 && !slices.Contains(q.Streams, l.Stream) ||
			l.Time.Before(q.Since) || l.Seq == 0 && l.Time.Before(q.Resume) || !q.Until.IsZero() && !l.Time.Before(q.Until) || q.After > 0 && l.Seq <= q.After ||
			q.Runs != nil && q.Runs[l.Program] != l.Run || q.Grep != nil && !q.Grep.MatchString(l.Text) {
			continue
		}
		fit = append(fit, l)
	}
	if q.Lines != 0 {
		fit = fit[max(0, len(fit)-max(0, q.Lines)):]
	}
	return fit
}

// usage reports one process for each program.
func (b *Box) usage() []api.ProgramUsage {
	var all []api.ProgramUsage
	for _, p := range b.Snapshot().Programs {
		all = append(all, api.ProgramUsage{Name: p.Name, CPUSeconds: 1.5, MemoryBytes: 4096, Processes: 1, Threads: 1})
	}
	return all
}

// processes returns the program's process and a child with a strange name.
func (b *Box) processes(name string, _ uint64) []api.Process {
	for _, p := range b.Snapshot().Programs {
		if p.Name == name && p.PID != 0 {
			return []api.Process{
				{PID: p.PID, PPID: 1, Name: name, State: "S", CPUSeconds: 1.25, MemoryBytes: 3 << 20, Threads: 4},
				{PID: p.PID + 1000, PPID: p.PID, Name: "odd\x1b[2J", State: "R", CPUSeconds: 0.25, MemoryBytes: 1 << 20, Threads: 1},
			}
		}
	}
	return []api.Process{}
}

// Plan returns PlanJSON.
func (b *Box) Plan(context.Context) ([]byte, error) { return b.PlanJSON, nil }

// Apply returns Result and ApplyErr.
func (b *Box) Apply(_ context.Context, dryRun bool) (api.ApplyResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applied = append(b.applied, dryRun)
	out := b.Result
	out.DryRun = dryRun
	return out, b.ApplyErr
}

// Manifest is one setting.
func (b *Box) Manifest(context.Context) (api.Manifest, error) {
	return api.Manifest{File: "agentbox.toml", Settings: []api.Setting{{Path: "supervisor.barrier", Value: "ready", Source: "default"}}}, nil
}

// Report is the readiness.
func (b *Box) Report() api.Readiness {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready
}

// SetReadiness changes it and tells of it.
func (b *Box) SetReadiness(r api.Readiness) {
	b.mu.Lock()
	b.ready = r
	b.mu.Unlock()
	b.Bus.Publish(event.Event{Time: Epoch, Level: event.Info, Stage: "probes", Name: "ReadinessChanged"})
}

// Boot returns BootData.
func (b *Box) Boot() api.Boot { return b.BootData }

// Previous returns BootBefore.
func (b *Box) Previous() (api.Boot, error) {
	if b.BootBefore.StartedAt.IsZero() {
		return api.Boot{}, errors.New("no boot before this one is recorded")
	}
	return b.BootBefore, nil
}

// Level is the log level.
func (b *Box) Level() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.level
}

// SetLevel takes debug and info.
func (b *Box) SetLevel(level string) error {
	if level != "debug" && level != "info" {
		return fmt.Errorf("unknown level %q", level)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.level = level
	return nil
}
