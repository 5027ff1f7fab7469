package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// applier reads the manifest of the running box again.
type applier struct{ b *box }

func (a applier) Plan(context.Context) ([]byte, error) { return json.Marshal(a.b.boot.Current().Plan) }

func (a applier) Manifest(context.Context) (api.Manifest, error) {
	now := a.b.boot.Current()
	out := api.Manifest{File: now.Document.Name, Findings: wireFindings(now.Warnings)}
	for _, s := range a.b.boot.Effective() {
		out.Settings = append(out.Settings, api.Setting{Path: s.Path, Value: s.Value, Source: s.Source, Detail: s.Detail})
	}
	return out, nil
}

func (a applier) Apply(ctx context.Context, dryRun bool) (api.ApplyResult, error) {
	if a.b.sup.Phase() == supervisor.Idle {
		// The boot is about to start the programs that it has read.
		return api.ApplyResult{}, &supervisor.Refused{Verb: "apply", Reason: "the box is still booting"}
	}
	return a.carryOut(ctx, dryRun, func() {})
}

func (a applier) carryOut(ctx context.Context, dryRun bool, begun func()) (api.ApplyResult, error) {
	told := a.b.boot.Current().Warnings
	result, loaded, err := a.b.apply(ctx, dryRun, begun)
	if err != nil {
		return api.ApplyResult{}, err
	}
	if !dryRun {
		a.b.member.reload()
	}
	out := api.ApplyResult{
		DryRun: dryRun, RolledBack: result.RolledBack, Reason: result.Reason,
		Warnings: wireFindings(newFindings(loaded.Warnings, told)), NextBoot: a.b.boot.AtNextBoot(loaded),
	}
	for _, c := range result.Changes {
		out.Changes = append(out.Changes, api.ApplyChange{
			Program: c.Program, Was: c.Was, Action: string(c.Kind), Keys: manifestKeys(c.Fields), Error: result.Troubles[c.Program],
		})
	}
	return out, nil
}

// keyOf gives the manifest key of those fields of program.Spec whose JSON name is different.
var keyOf = map[string]string{
	"argv": "command", "env": "environment", "credential": "user", "readiness": "ready", "name": "instances",
}

// manifestKeys are the manifest keys that set the fields.
func manifestKeys(fields []string) []string {
	keys := slices.Clone(fields)
	for i, field := range keys {
		keys[i] = cmp.Or(keyOf[field], field)
	}
	return keys
}

// apply reads the manifest when its turn comes, not at the request: of several applies, the last
// one reads last, and the newest manifest wins. The changes outside the programs come after the
// programs, even if the caller has ended. begun is called when the turn has come.
func (b *box) apply(ctx context.Context, dryRun bool, begun func()) (result supervisor.ApplyResult, l *bootstrap.Loaded, err error) {
	if dryRun {
		begun()
		if l, err = b.reread(ctx); err != nil {
			return result, nil, invalid(err)
		}
		result, err = b.sup.Plan(ctx, l.Specs)
		return result, l, err
	}
	read := make(chan *bootstrap.Loaded, 1)
	result, err = b.sup.ApplyWith(ctx, func() ([]program.Spec, supervisor.Steps, error) {
		begun()
		l, err := b.reread(context.Background()) // it goes on although the caller has ended
		if err != nil {
			return nil, supervisor.Steps{}, invalid(err)
		}
		b.redact(l)
		read <- l
		return l.Specs, b.steps(l), nil
	})
	if err != nil {
		return result, nil, err
	}
	return result, <-read, nil
}

// rereadLimit is how long an apply waits until the manifest and the files that it names are read.
const rereadLimit = 30 * time.Second

// reread reads the manifest for an apply. A file system that does not answer can hold one goroutine and its
// thread for good, and no more than one.
func (b *box) reread(ctx context.Context) (*bootstrap.Loaded, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rereadLimit, api.Errorf(api.CodeTimeout,
		"the manifest or a file that it names could not be read within %v; the box is unchanged: see whether their file system answers", rereadLimit))
	defer cancel()
	l, err := b.rereading.Fresh(ctx)
	if err != nil && errors.Is(err, ctx.Err()) {
		err = context.Cause(ctx)
	}
	return l, err
}

// steps are the parts of an apply that are not about programs.
func (b *box) steps(l *bootstrap.Loaded) supervisor.Steps {
	var undo func() error
	return supervisor.Steps{
		Begin: func() (err error) {
			undo, err = b.boot.WriteConfigurations(l)
			return err
		},
		Commit: func() { b.boot.Adopt(l) },
		Undo: func() {
			if undo == nil {
				return // Begin has failed
			}
			if err := undo(); err != nil {
				b.publish(event.Warn, "ConfigurationsNotRestored", map[string]any{"message": err.Error()})
			}
		},
	}
}

// invalid turns a manifest's findings into an answer of the control socket.
func invalid(err error) error {
	findings, ok := errors.AsType[bootstrap.Findings](err)
	if !ok {
		return err
	}
	refusal := api.Errorf(api.CodeInvalid, "the manifest is invalid; the box is unchanged")
	refusal.Findings = wireFindings(findings)
	return refusal
}

// newFindings are the findings in now that are not in before; their position in the text is
// ignored.
func newFindings(now, before []schema.Finding) []schema.Finding {
	same := func(f schema.Finding) schema.Finding {
		f.Line, f.Column = 0, 0
		return f
	}
	told := map[schema.Finding]bool{}
	for _, f := range before {
		told[same(f)] = true
	}
	return slices.DeleteFunc(slices.Clone(now), func(f schema.Finding) bool { return told[same(f)] })
}

func wireFindings(in []schema.Finding) []api.Finding {
	var out []api.Finding
	for _, f := range in {
		out = append(out, api.Finding{
			Code: f.Code, Severity: string(f.Severity), File: f.File, Path: f.Path, Line: f.Line, Column: f.Column,
			Value: f.Value, Message: f.Message, Hint: f.Hint,
		})
	}
	return out
}

// tellFindings publishes the findings about a manifest.
func (b *box) tellFindings(findings []api.Finding) {
	for _, f := range findings {
		level := event.Error
		if f.Severity == string(schema.Warning) {
			level = event.Warn
		}
		b.publish(level, "ManifestFinding", map[string]any{
			"code": f.Code, "severity": f.Severity, "file": f.File, "line": f.Line, "column": f.Column,
			"path": f.Path, "value": f.Value, "hint": f.Hint, "message": f.String(),
		})
	}
}

// reapply handles SIGHUP. If one apply has not begun to read the manifest, it also serves all
// further signals. Before the programs are started, it waits for that.
func (b *box) reapply() {
	if b.reapplying.Swap(true) {
		return
	}
	select {
	case <-b.programsGiven:
	case <-b.stopped.Done():
		return
	}
	result, err := applier{b}.carryOut(b.stopped, false, func() { b.reapplying.Store(false) })
	if err != nil {
		b.reapplying.Store(false)
		if refusal, ok := errors.AsType[*api.Error](err); ok {
			b.tellFindings(refusal.Findings)
		}
		b.publish(event.Error, "ApplyFailed", map[string]any{"message": err.Error()})
		return
	}
	changed := 0
	for _, c := range result.Changes {
		if c.Action != api.ApplyUnchanged {
			changed++
		}
	}
	b.publish(event.Info, "ManifestApplied", map[string]any{"changed": changed, "rolled_back": result.RolledBack, "reason": result.Reason, "next_boot": result.NextBoot})
}
