package bootstrap

import (
	"os"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/schema/rules"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// account implements Account of plan.Facts.
func (u *Users) account(name string) (home, login string, ok bool) {
	name, _, _ = strings.Cut(name, ":")
	who, known, err := u.user(name)
	if err != nil || !known {
		return "", "", false
	}
	return who.home, who.name, true
}

// specs adds the numeric user and group of each program. Every user and group that does not exist
// is a finding. Log files, and the directories of the catalogue's programs, lie below the root. If
// the specification of a program stays as it is, p and the result share it: both are kept as long as
// the box lives. p must not be in use yet.
func (b *Boot) specs(p *plan.Plan, doc *schema.Document, users *Users) ([]program.Spec, []schema.Finding) {
	var bad []schema.Finding
	out := make([]program.Spec, len(p.Programs))
	for i := range p.Programs {
		one := &p.Programs[i]
		spec := &out[i]
		*spec = *one.Spec
		spec.Logs.Path = b.cfg.Roots.Output(one.Spec.Logs.Path)
		spec.Logs.StderrPath = b.cfg.Roots.Output(one.Spec.Logs.StderrPath)
		if one.ImageDirectory {
			spec.Directory = b.cfg.Roots.Path(one.Spec.Directory)
		}
		if one.User != "" || one.Group != "" || len(one.Groups) > 0 {
			credential, err := credentialOf(one, users)
			if err != nil {
				bad = append(bad, userFinding(one, doc, err))
				continue
			}
			spec.Credential = credential
		}
		if spec.Logs == one.Spec.Logs && spec.Directory == one.Spec.Directory && spec.Credential == nil {
			one.Spec = spec
		}
	}
	return out, dedupe(bad)
}

// credentialOf resolves the names. A program without a user keeps agentinit's own user, but gets
// the group that the manifest names.
func credentialOf(p *plan.Program, users *Users) (*program.Credential, error) {
	if p.User != "" {
		id, err := users.Resolve(p.User, p.Group, p.Groups)
		return &id.Credential, err
	}
	c := &program.Credential{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	return c, users.setGroups(c, p.Group, p.Groups)
}

func userFinding(p *plan.Program, doc *schema.Document, err error) schema.Finding {
	keys := []string{"programs", p.Spec.Group, "user"}
	at := doc.KeyPos(keys...)
	return schema.Finding{
		Code: plan.UnknownAccount, Severity: schema.Error, File: doc.Name, Path: schema.Path(keys...), Line: at.Line, Column: at.Column,
		Value: p.Spec.Hide(p.User), Message: "program " + p.Spec.Group + ": " + p.Spec.Hide(err.Error()), Hint: "write the numeric id, or add the account to the image",
	}
}

func isAgentbox(m *schema.Manifest, doc *schema.Document) bool {
	return plan.Profile(m, doc) == "agentbox"
}

// stacks are the agent stacks that get a profile directory: the default one, and one for each agent
// that the manifest enables.
func stacks(m *schema.Manifest) []string {
	out := []string{"default"}
	for _, s := range []struct {
		name string
		on   bool
	}{
		{"claude", m.Toolchains.Claude || m.Toolchains.ClaudeCode},
		{"codex", m.Toolchains.Codex},
		{"gemini", m.Toolchains.GeminiCLI},
		{"ruflo", m.Toolchains.Ruflo || m.Toolchains.ClaudeFlow},
	} {
		if s.on {
			out = append(out, s.name)
		}
	}
	return out
}

// finalSpecs resolves the plan again if phase 2 has made or read the management key. Then programs
// that use the key get the real one.
func (b *Boot) finalSpecs() ([]program.Spec, error) {
	if key := b.ManagementKey(); key.Empty() || environmentKey(b.getenv) == key.Reveal() {
		return b.Current().Specs, nil
	}
	users, err := LoadUsers(b.cfg.Roots.Database("passwd"), b.cfg.Roots.Database("group"))
	if err != nil {
		return nil, fail(ExitInternal, err, "cannot read the accounts")
	}
	with := *b.Current()
	p, findings := plan.Resolve(with.Manifest, with.Document, b.facts(with.Manifest, with.Document, users))
	if rules.Errors(findings) {
		return nil, fail(ExitManifest, Findings(findings), "the plan changed during the boot")
	}
	final, bad := b.specs(p, with.Document, users)
	if len(bad) > 0 {
		return nil, fail(ExitManifest, Findings(bad), "the accounts changed during the boot")
	}
	with.Plan, with.Specs = p, final
	b.Adopt(&with)
	return final, nil
}

// view is the feature catalogue's view of a manifest.
func (b *Boot) view(l *Loaded) catalog.View {
	return plan.View(l.Manifest, l.Document, plan.Facts{Version: b.cfg.Version, System: b.cfg.System})
}

// Effective lists every value of the manifest in force and the source of each value. Secrets are
// redacted.
func (b *Boot) Effective() []schema.Setting {
	now := b.Current()
	return schema.Effective(now.Document, func(name string) (string, bool) {
		v, ok := b.env[name]
		return v, ok
	}, b.view(now).Programs())
}

// hints are the variables for login shells: the paths of the roots, and the catalogue's variables
// filled from the manifest. They contain no secrets.
func (b *Boot) hints() map[string]string {
	out := b.cfg.Roots.Environment()
	out["AGENTBOX_CONFIG"] = b.ManifestPath()
	out["AGENTBOX_VERSION"] = b.cfg.Version
	c, view := catalog.Load(), b.view(b.Current())
	for name, template := range c.Environment {
		if _, set := out[name]; set || b.Current().Manifest.IsSecret(name) {
			continue
		}
		if v := b.env[name]; v != "" && !schema.HoldsSecret(v) {
			out[name] = v
		} else if v, err := view.Fill(template); err == nil && v != "" {
			out[name] = v
		}
	}
	return out
}

// DeclaredEnvironment is the set of variables that the generators derive from the manifest for
// agentinit's environment. If a variable has another value at run time, that is contract drift. The
// set is empty in a plain container.
func (b *Boot) DeclaredEnvironment() map[string]string {
	out := make(map[string]string)
	if !b.agentbox() {
		return out
	}
	c, view := catalog.Load(), b.view(b.Current())
	for name, template := range c.Environment {
		if !strings.HasPrefix(template, "{") || strings.HasPrefix(template, "{@") {
			continue // the operator may change a fixed value
		}
		if v, err := view.Fill(template); err == nil {
			out[name] = v
		}
	}
	out["AGENTBOX_LOG_LEVEL"] = b.Current().Manifest.LogLevel()
	if !b.Current().Document.NonEmpty(relayKey) {
		delete(out, "AGENTBOX_RELAY_IMPL") // chooseRelay has set the value
	}
	return out
}
