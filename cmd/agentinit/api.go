package main

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/cmd/agentinit/reserve"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// serveAPI puts the slots and the client API on the management listener. A box whose slots are all
// off serves them too; the answers then say that they are off.
func (b *box) serveAPI(m *schema.Manifest, s *servers) error {
	b.auth.SetTokens(b.byToken)
	var err error
	if m.Adapters.Orchestrator != string(adapters.ClassOff) {
		s.tasks, err = tasks.New(tasks.Config{
			Dir: filepath.Join(b.roots.Workspace, "tasks"), Templates: templates(m), Orchestrator: s.slots.Orchestrator(),
			Report: func(task string, err error) {
				b.slotTrouble("TaskTrouble", map[string]any{"task": task, "error": err.Error()})
			},
		})
	}
	if err != nil {
		// Without a place for their records there are no tasks; everything else works.
		b.slotTrouble("TasksUnavailable", map[string]any{"error": err.Error()})
	}
	s.api, err = rest.New(rest.Config{
		Slots: s.slots, Principal: principal, Version: version, Tasks: s.tasks, Facts: b.statusFacts(m), Backup: b.localState(s.tasks),
		Federation: b.federation(m), Identity: identityAPI{b.self}, Host: b.hosting.api(), Mesh: &b.mesh,
		Origins: b.boundary.origins, Origin: s.server.Origin, RateLimit: rateLimit(m), HeldBodies: heldBodies(b.memoryLimit), Scarce: reserve.Scarce,
		Report: func(route string, err error) {
			b.slotTrouble("APITrouble", map[string]any{"route": route, "error": err.Error()})
		},
	})
	if err != nil {
		return err
	}
	b.auth.SetTickets(func(r *http.Request) (probes.Principal, bool) {
		p, ok := s.api.Redeem(r)
		return probes.Principal{Role: p.Role, ID: p.ID}, ok
	})
	for _, mount := range rest.Mounts() {
		options := []probes.MountOption{probes.MaxBody(0)}
		if mount.Open {
			options = append(options, probes.Open())
		}
		if mount.Told {
			options = append(options, probes.TellWrongKeys())
		}
		s.server.Mount(mount.Pattern, auditRequests(b.audit, s.api.Handler()), options...)
	}
	return b.serveOperators(m, s)
}

// slotTrouble publishes a warning about the slots and what serves them.
func (b *box) slotTrouble(name string, fields map[string]any) {
	b.bus.Publish(event.Event{Level: event.Warn, Stage: "adapters", Name: name, Fields: fields})
}

// localState is what a backup contains: the state of the slots, the tasks' records and, only if
// requested, keys and identities, which are read at the next start.
func (b *box) localState(t *tasks.Manager) *backup.State {
	var swap func(func() error) error
	if t != nil {
		swap = t.Replace
	}
	return &backup.State{Version: version, Staging: b.roots.Workspace, Parts: append(slices.Clone(b.backups),
		backup.Tree("tasks", filepath.Join(b.roots.Workspace, "tasks"), false, swap),
		backup.Tree("profiles", filepath.Join(b.roots.Workspace, "profiles"), true, nil),
		backup.Tree("identities", b.roots.Identities, true, nil),
	)}
}

// boundary is what the management listener must know about the network around it.
type boundary struct {
	names   []string       // names of the box
	public  []string       // origins at which the box can be reached
	proxies []netip.Prefix // proxies whose forwarded headers are trusted
	origins []string       // origins whose pages may read
}

// newBoundary computes the boundary. The box's own names are the host name, the listener's address
// and the hosts of its public URLs.
func newBoundary(m *schema.Manifest, management string, getenv func(string) string) (boundary, error) {
	var o boundary
	public, err := bootstrap.PublicOrigins(m, getenv)
	if err != nil {
		return o, err
	}
	o.public = public
	for _, origin := range public {
		u, err := url.Parse(origin)
		if err != nil {
			return o, err
		}
		o.names = append(o.names, u.Hostname())
	}
	if host, _, err := net.SplitHostPort(management); err == nil {
		o.names = append(o.names, host)
	}
	// Without a host name, the box can be reached by its other names.
	if name, err := os.Hostname(); err == nil {
		o.names = append(o.names, name)
	}
	o.names = slices.DeleteFunc(o.names, func(name string) bool { return name == "" })
	for _, p := range m.API.TrustedProxies {
		prefix, err := schema.ParsePrefix(p)
		if err != nil {
			return o, err
		}
		o.proxies = append(o.proxies, prefix)
	}
	for _, s := range m.API.CORSOrigins {
		origin, err := schema.ParseOrigin(s)
		if err != nil {
			return o, err
		}
		o.origins = append(o.origins, origin)
	}
	return o, nil
}

// rateLimit is the manifest's number of requests a second; 0 means no limit.
func rateLimit(m *schema.Manifest) int {
	if m.API.RateLimit == 0 {
		return -1
	}
	return m.API.RateLimit
}

// byToken identifies a spawned agent by its token and, on a host, a box by its token.
func (b *box) byToken(token string) (probes.Principal, error) {
	if b.agentTokens != nil {
		if id, ok := b.agentTokens.AgentByToken(token); ok {
			return probes.Principal{Role: rest.RoleAgent, ID: id}, nil
		}
	}
	return b.hosting.principal(token)
}

// principal translates the principal that the management listener or the control socket has
// admitted.
func principal(ctx context.Context) (rest.Principal, bool) {
	switch control.Granted(ctx) {
	case control.Write:
		return rest.Principal{Role: rest.RoleAdmin, ID: "operator"}, true
	case control.Read:
		return rest.Principal{Role: rest.RoleReader, ID: "peer"}, true
	}
	p, ok := probes.PrincipalFrom(ctx)
	if p.Role == roleViewer || p.Role == roleOperator {
		p.Role = rest.RoleReader // the only changes allowed to them are to programs, not to the slots
	}
	return rest.Principal{Role: p.Role, ID: p.ID}, ok
}

// templates are the templates that /v1/tasks may start, without the confinement of their agents.
func templates(m *schema.Manifest) orchestrator.Templates {
	out := orchestrator.Templates{}
	for name, t := range m.Templates {
		out[name] = orchestrator.Template{
			Command: t.Command, Args: t.Args, Environment: t.Environment, Directory: t.Directory,
			Timeout: t.Timeout.Std(), StdinPipe: t.Stdin == "pipe",
		}
	}
	return out
}

// federation reports the session with a host, or that the box stands alone.
func (b *box) federation(m *schema.Manifest) func() rest.FederationStatus {
	if b.member != nil {
		return b.member.status
	}
	if b.hosting != nil {
		return b.hosting.status
	}
	alone := rest.FederationStatus{Mode: cmp.Or(m.Federation.Mode, "standalone"), State: "idle", Since: adapters.At(b.started)}
	return func() rest.FederationStatus { return alone }
}

// statusFacts are the facts that only the manifest and the environment know: names and presence of
// credentials, never a value.
func (b *box) statusFacts(m *schema.Manifest) rest.Facts {
	facts := rest.Facts{GPU: rest.GPUStatus{Backend: m.GPU.Backend}, Providers: map[string]rest.ProviderStatus{}}
	for name, p := range m.Providers {
		facts.Providers[name] = rest.ProviderStatus{Enabled: p.Enabled, Present: b.getenv(p.EnvVar) != ""}
	}
	return facts
}
