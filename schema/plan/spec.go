package plan

import (
	"cmp"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// specOf converts a decoded and expanded program. Its caller sets name and environment, needs()
// resolves the needs, and bootstrap sets the credential. If required is true, the program may only
// start with its complete sandbox.
func specOf(p *schema.Program, required bool) program.Spec {
	s := program.Spec{
		Type: program.Type(p.Type), Argv: p.Command, Priority: p.Priority, Needs: needsOf(p),
		Autostart: p.Autostart, Required: p.Required, Essential: p.Essential, OnFatal: program.OnFatal(p.OnFatal),

		Restart: program.RestartPolicy(p.Restart), ExitCodes: p.ExitCodes,
		RunningAfter: p.StartSeconds.Std(), StartTimeout: p.StartTimeout.Std(),
		Backoff: program.BackoffPolicy{
			Initial: p.Backoff.Initial.Std(), Factor: p.Backoff.Factor, Max: p.Backoff.Max.Std(),
			Jitter: p.Backoff.Jitter, ResetAfter: p.Backoff.ResetAfter.Std(),
		},
		RestartLimit: program.RestartLimit{Count: p.RestartLimit.Count, Window: p.RestartLimit.Window.Std()},
		StartRetries: p.StartRetries,

		StopCommand: hookOf(p.StopCommand), Kill: program.KillScope(p.Kill),
		Hooks: program.Hooks{
			PreStart: hookOf(p.Hooks.PreStart), PostReady: hookOf(p.Hooks.PostReady),
			PreStop: hookOf(p.Hooks.PreStop), PostExit: hookOf(p.Hooks.PostExit),
		},
		Umask: -1, Directory: p.Directory, Limits: Limits(p.Limits), Guard: p.Guard, Sandbox: Sandbox(p.Sandbox, required),
		Stdin: program.Stdin(p.Stdin), TTY: p.TTY, Control: p.Control,
		Logs: program.Logs{
			To: program.LogTo(p.Logs.To), Path: p.Logs.Path, StderrPath: p.Logs.StderrPath,
			MaxBytes: int64(p.Logs.MaxBytes), Every: p.Logs.Every.Std(), At: p.Logs.At, Backups: p.Logs.Backups,
			MaxAge: p.Logs.MaxAge.Std(), Compress: string(p.Logs.Compress), TotalBytes: int64(p.Logs.TotalBytes),
			RateLines: p.Logs.RateLines, RateBytes: int64(p.Logs.RateBytes), RateInterval: p.Logs.RateInterval.Std(),
			MaxLine: int(p.Logs.MaxLine), FlushAfter: cmp.Or(p.Logs.FlushAfter.Std(), -1),
		},
	}
	if p.Type == string(program.Schedule) {
		s.Schedule, s.Overlap, s.Timezone = p.Schedule, program.Overlap(p.Overlap), p.Timezone
	}
	if p.Umask != nil {
		s.Umask = int(*p.Umask)
	}
	if r := p.Ready; r != nil {
		s.Readiness = program.Readiness{Probes: probesOf(r.Probes), Any: r.Any, Deadline: r.Deadline.Std()}
	}
	if h := p.Health; h != nil {
		s.Health = program.Health{
			Probes: probesOf(h.Probes), Failures: h.Failures, Action: program.HealthAction(h.Action), Watchdog: h.Watchdog.Std(),
			Wedge: program.Wedge{
				NoOutput: h.Wedge.NoOutput.Std(), Spinning: h.Wedge.Spinning.Std(), Blocked: h.Wedge.Blocked.Std(), StackSignal: h.Wedge.StackSignal,
			},
		}
	}
	for _, step := range p.Stop {
		s.Stop = append(s.Stop, program.StopStep{Signal: step.Signal, Wait: step.Wait.Std()})
	}
	return s
}

// needsOf keeps the names of the manifest. needs() replaces them by instances.
func needsOf(p *schema.Program) []program.Need {
	var out []program.Need
	for _, n := range p.Needs {
		out = append(out, program.Need{Program: n.Program, Condition: program.Condition(n.Condition)})
	}
	return out
}

func hookOf(h *schema.Hook) *program.Hook {
	if h == nil {
		return nil
	}
	return &program.Hook{Argv: h.Command, Timeout: h.Timeout.Std()}
}

func probesOf(probes []schema.Probe) []program.Probe {
	var out []program.Probe
	for _, p := range probes {
		out = append(out, program.Probe{
			Dialect: p.Dialect, Target: p.Target, Argv: p.Argv,
			Interval: p.Interval.Std(), Timeout: p.Timeout.Std(), Successes: p.Successes,
		})
	}
	return out
}

// Limits converts the manifest's limits to the form in which processes get them.
func Limits(l schema.Limits) program.Limits {
	out := program.Limits{Nice: l.Nice, IONice: l.IONice, OOMScoreAdj: l.OOMScoreAdj, CPUs: l.CPUs}
	for name, limit := range l.Rlimits() {
		if out.Rlimits == nil {
			out.Rlimits = map[string]program.Limit{}
		}
		out.Rlimits[name] = program.Limit{Soft: limit.Soft, Hard: limit.Hard}
	}
	return out
}

// Sandbox converts the manifest's sandbox to the form in which processes are confined. It returns
// nil if there is none. required is [security].enforce.
func Sandbox(s *schema.Sandbox, required bool) *program.Sandbox {
	if s == nil {
		return nil
	}
	s = withPreset(s)
	return &program.Sandbox{
		AllowSyscalls: s.AllowSyscalls, DenySyscalls: s.DenySyscalls, PrivateTmp: s.PrivateTmp, Required: required,
		NoNewPrivileges: s.NoNewPrivileges, Capabilities: s.Capabilities, Read: s.Read, Write: s.Write, Execute: s.Execute,
		TCPBind: s.TCPBind, TCPConnect: s.TCPConnect, Seccomp: s.Seccomp, Mode: s.Mode,
	}
}

// artifacts collects the probes of the features that are on, and of the manifest. A probe of the
// manifest replaces one with the same id.
func (r *resolver) artifacts() {
	at := map[string]int{}
	add := func(a Artifact) {
		if i, ok := at[a.ID]; ok {
			a.Required = a.Required || r.plan.Artifacts[i].Required && len(a.Features) > 0
			a.Features = append(r.plan.Artifacts[i].Features, a.Features...)
			r.plan.Artifacts[i] = a
			return
		}
		at[a.ID] = len(r.plan.Artifacts)
		r.plan.Artifacts = append(r.plan.Artifacts, a)
	}
	for _, f := range r.cat.Active(r.view) {
		for _, a := range f.Artifacts {
			entry, err := r.view.Fill(a.Entry)
			if err != nil {
				r.report("E132", schema.Finding{Message: err.Error()})
			}
			timeout := schema.DefaultArtifactTimeout
			if d, err := schema.ParseDuration(a.Timeout); err == nil {
				timeout = d.Std()
			}
			add(Artifact{
				ID: a.ID, Class: a.Class, Entry: entry, Assets: a.Assets, Command: a.Command, Timeout: timeout,
				Required: a.Required == nil || *a.Required, Features: []string{f.Name},
			})
		}
	}
	for _, a := range r.m.Artifacts {
		add(Artifact{
			ID: a.ID, Class: a.Class, Entry: a.Entry, Assets: a.Assets, Command: a.Command,
			Timeout: a.Timeout.Std(), Required: a.Required,
		})
	}
}
