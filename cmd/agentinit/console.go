package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/probes/console"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// The roles of [api.keys].
const (
	roleViewer   = console.RoleViewer
	roleOperator = "operator"
)

// apiKeys reads the keys that [api.keys] names.
func (b *box) apiKeys(m *schema.Manifest) ([]probes.Key, error) {
	keys, err := bootstrap.APIKeys(m, b.getenv)
	if err != nil {
		return nil, err
	}
	held := make([]probes.Key, len(keys))
	for i, k := range keys {
		held[i] = probes.NewKey(k.Key.Reveal(), probes.Principal{Role: k.Role, ID: "key:" + k.Name})
	}
	return held, nil
}

// serveOperators puts programs, logs and events on the management listener, for
// the management key and the keys of [api.keys], and the console if it is on.
func (b *box) serveOperators(m *schema.Manifest, s *servers) error {
	b.auth.SetKeys(b.keys)
	// It does not listen: the management listener serves its rows.
	remote := control.New(b.controlConfig(s)).Remote(func(r *http.Request) control.Grant { return grant(r.Context()) })
	for _, prefix := range control.RemotePrefixes() {
		s.server.Mount(prefix, remote)
	}
	if m.Supervisor.Console == schema.ConsoleOff {
		return nil
	}
	c, err := console.New(console.Config{
		Login:    func(_ *http.Request, key string) (console.Holder, error) { return b.logIn(key) },
		ReadOnly: m.Supervisor.Console == schema.ConsoleReadOnly, Programs: b.consolePrograms, Version: version,
	})
	if err != nil {
		return err
	}
	b.auth.SetSessions(func(r *http.Request) (probes.Principal, error) {
		h, err := c.Holder(r)
		return probes.Principal{Role: h.Role, ID: h.ID}, err
	})
	s.server.Mount(console.Prefix, c, probes.Open())
	return nil
}

// grant is what a principal of the management listener may do with programs. Agents, and boxes
// that register here, have routes of their own.
func grant(ctx context.Context) control.Grant {
	p, _ := probes.PrincipalFrom(ctx)
	g := control.Grant{Principal: p.ID}
	switch p.Role {
	case probes.RoleAdmin, roleOperator:
		g.Access = control.Write
	case roleViewer:
		g.Access = control.Read
	}
	return g
}

// logIn admits holders of a key that may at least read.
func (b *box) logIn(key string) (console.Holder, error) {
	p, err := b.auth.Bearer(key)
	switch {
	case errors.Is(err, probes.ErrNoKeyYet), errors.Is(err, probes.ErrNoKey):
		return console.Holder{}, err
	case err != nil:
		return console.Holder{}, errors.New("this key is not known")
	}
	switch p.Role {
	case probes.RoleAdmin, roleOperator, roleViewer:
		return console.Holder{Role: p.Role, ID: p.ID}, nil
	}
	return console.Holder{}, errors.New("the token of an agent or of another box does not open the console")
}

func (b *box) consolePrograms() []console.Program {
	snap := b.sup.Snapshot()
	out := make([]console.Program, len(snap.Programs))
	for i, p := range snap.Programs {
		out[i] = console.Program{Name: p.Name, State: p.Shown(), Reason: p.Reason, PID: p.PID, Restarts: p.Restarts}
	}
	return out
}

// programUsage reads what every program uses now.
func (b *box) programUsage() []api.ProgramUsage {
	snap := b.sup.Snapshot()
	out, now := make([]api.ProgramUsage, len(snap.Programs)), time.Now()
	for i, p := range snap.Programs {
		u := b.system.Usage(p.Name, p.Run, now)
		out[i] = api.ProgramUsage{
			Name: p.Name, CPUSeconds: u.CPU.Seconds(), MemoryBytes: u.RSS, Processes: u.Members, Threads: u.Threads, OpenFiles: u.FDs, Zombies: u.Zombies,
		}
	}
	return out
}

// programBounds lists the limits of processes and memory of a run.
func (b *box) programBounds(name string, run uint64) []api.ProgramLimit {
	return limitsInForce(b.system.Bounds(name, run))
}

func limitsInForce(bounds []proc.Bound) []api.ProgramLimit {
	var out []api.ProgramLimit
	for _, l := range bounds {
		limit := api.ProgramLimit{Name: l.Name, Source: api.LimitManifest, Counts: limitCounts[l.Of]}
		if l.Default {
			limit.Source = api.LimitDefault
		}
		if l.Hard != program.Infinity {
			limit.Max = l.Hard
		}
		if l.Soft < l.Hard {
			limit.Soft = l.Soft
		}
		out = append(out, limit)
	}
	return out
}

var limitCounts = map[proc.BoundOf]string{
	proc.OfTree: api.LimitOfProgram, proc.OfAll: api.LimitOfPrograms, proc.OfUser: api.LimitOfUser, proc.OfProcess: api.LimitOfProcess,
}

// programProcesses lists the processes of a run.
func (b *box) programProcesses(name string, run uint64) []api.Process {
	out := []api.Process{}
	for _, p := range b.system.Processes(name, run, time.Now()) {
		out = append(out, api.Process{
			PID: p.PID, PPID: p.PPID, Name: p.Name, State: string(p.State), CPUSeconds: p.CPU.Seconds(), MemoryBytes: p.RSS, Threads: p.Threads,
		})
	}
	return out
}
