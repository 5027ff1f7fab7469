package bootstrap

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/schema/rules"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Findings is the error for a manifest that cannot be used. It contains all findings.
type Findings []schema.Finding

// Error returns one line for each finding.
func (f Findings) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// errors are the findings that refuse the manifest.
func (f Findings) errors() Findings {
	return slices.DeleteFunc(slices.Clone(f), func(one schema.Finding) bool { return one.Severity != schema.Error })
}

// Loaded is a manifest with everything derived from it. It is immutable.
type Loaded struct {
	Manifest *schema.Manifest
	Document *schema.Document
	Plan     *plan.Plan
	// Specs is the plan with credentials, in start order.
	Specs    []program.Spec
	Checksum string // checksum of the bytes of the file
	Warnings []schema.Finding
	// Replaceable says why another user could put another manifest in the place of this one, although
	// such a manifest would still have to belong to root; "" if none can.
	Replaceable string
}

// ManifestFile is the path of the manifest: the --manifest flag, or AGENTBOX_CONFIG, or
// /etc/agentbox.toml below the root, in this order. The flag and the variable are used unchanged,
// without the root.
func (b *Boot) ManifestFile() string {
	return cmp.Or(b.cfg.ManifestFile, b.getenv("AGENTBOX_CONFIG"), b.cfg.Roots.Manifest)
}

// ManifestPath is the manifest's absolute path: what a process finds it by that has another working
// directory than agentinit.
func (b *Boot) ManifestPath() string {
	path := b.ManifestFile()
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// Read reads and resolves the manifest. It does not change b, so both the boot and an apply use it.
// If the manifest is wrong, the error holds Findings.
func (b *Boot) Read() (*Loaded, error) {
	path := b.ManifestFile()
	text, weak, err := safeopen.ReadPrivate(path, schema.MaxBytes)
	if err != nil {
		return nil, Findings{unreadable(path, err)}
	}
	users, err := LoadUsers(b.cfg.Roots.Database("passwd"), b.cfg.Roots.Database("group"))
	if err != nil {
		return nil, err
	}
	l, err := b.resolve(path, text, users)
	if err == nil && weak != nil {
		l.Replaceable = weak.Error()
	}
	return l, err
}

func unreadable(path string, err error) schema.Finding {
	f := schema.Finding{Code: "E000", Severity: schema.Error, File: path, Message: "cannot read the manifest: " + unwrapPath(err).Error()}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Hint = "put it there; --manifest or AGENTBOX_CONFIG names another file when agentinit starts"
	case errors.Is(err, fs.ErrPermission):
		f.Hint = fmt.Sprintf("agentinit runs as user %d: let it read the file and enter the directories above it", os.Geteuid())
	case errors.Is(err, safeopen.ErrUnsafe):
		f.Message = "agentinit runs as root and does not run what another user can write: " + err.Error()
		f.Hint = "chown root and chmod go-w it, or mount it read-only"
	}
	return f
}

// Reread is Read for an apply. While the box runs programs, a manifest without programs is refused:
// an incomplete write leaves an empty or short file, which must not stop everything. To stop all
// programs on purpose, set enabled = false, or use a stop request.
func (b *Boot) Reread() (*Loaded, error) {
	l, err := b.Read()
	if err != nil {
		return nil, err
	}
	ours := 0 // programs of the command line; no manifest can remove them
	if len(b.cfg.Main) > 0 {
		ours = 1
	}
	if before := len(b.Current().Specs); before > ours && len(l.Specs) <= ours && !l.Document.Has("programs") {
		return nil, Findings{{
			Code: "E000", Severity: schema.Error, File: b.ManifestFile(),
			Message: fmt.Sprintf("the manifest has no programs, and the box has %s; the file may have been cut off", plural.Of(before-ours, "program")),
			Hint:    "to stop them all, write enabled = false, or call agentctl stop --all",
		}}
	}
	return l, nil
}

// resolve turns the manifest text into specs. It collects the findings of every stage.
func (b *Boot) resolve(path string, text []byte, users *Users) (*Loaded, error) {
	m, doc, findings := schema.Load(path, text)
	if doc == nil {
		return nil, Findings(findings)
	}
	b.chooseRelay(m, doc)
	l := &Loaded{Manifest: m, Document: doc}
	var more, bad []schema.Finding
	l.Plan, more = plan.Resolve(m, doc, b.facts(m, doc, users))
	l.Specs, bad = b.specs(l.Plan, doc, users)
	findings = rules.InOrder(slices.Concat(findings, b.checkRules(doc), more, bad))
	if rules.Errors(findings) {
		return nil, Findings(findings)
	}
	l.Warnings = findings
	sum := sha256.Sum256(text)
	l.Checksum = "sha256:" + hex.EncodeToString(sum[:])
	return l, nil
}

const (
	relayKey = "sovereign_mesh.relay.implementation"
	// RelayProgram is the relay of the catalogue, known by the name of its binary.
	RelayProgram = "nostr-rs-relay"

	// RelayEmbedded is the implementation in which agentinit itself is the relay.
	RelayEmbedded = "embedded"
)

// chooseRelay makes agentinit the relay if the image has no relay and the manifest names none.
func (b *Boot) chooseRelay(m *schema.Manifest, doc *schema.Document) {
	if m == nil || !m.SovereignMesh.Relay.Enabled || doc.NonEmpty(relayKey) {
		return
	}
	if _, err := b.cfg.Roots.lookPath(RelayProgram, b.cfg.Environ); err != nil {
		m.SovereignMesh.Relay.Implementation = RelayEmbedded
	}
}

// dedupe removes repeated findings: all instances of one program have the same faults.
func dedupe(findings []schema.Finding) []schema.Finding {
	seen := make(map[schema.Finding]bool, len(findings))
	out := findings[:0]
	for _, f := range findings {
		if !seen[f] {
			seen[f] = true
			out = append(out, f)
		}
	}
	return out
}

// facts is what the plan needs to know about the machine.
func (b *Boot) facts(m *schema.Manifest, doc *schema.Document, users *Users) plan.Facts {
	return plan.Facts{
		Env:         b.environment(m, doc),
		InBox:       true,
		Lacks:       b.lacksThing,
		ReadFileFor: func(path, user string) ([]byte, error) { return readEnvFile(path, user, users) },
		Account:     users.account,
		Main:        b.cfg.Main,
		Version:     b.cfg.Version,
		System:      b.cfg.System,
	}
}

// lacksThing reports whether a file is missing, or a directory that no phase of the boot makes. Accounts are
// checked later, when user names become numbers.
func (b *Boot) lacksThing(what plan.Thing, name string) bool {
	if what != plan.File && (what != plan.Directory || NewPolicy(b.cfg.Roots).Check(name) == nil) {
		return false
	}
	_, err := os.Stat(name)
	return errors.Is(err, fs.ErrNotExist)
}

// readEnvFile reads an env_file as root. The program's user may own the file, because its content
// is given only to that program.
func readEnvFile(path, user string, users *Users) ([]byte, error) {
	var owners []uint32
	if user != "" {
		if id, err := users.Resolve(user, "", nil); err == nil { // if it fails, Resolve's error is reported elsewhere
			owners = append(owners, id.Credential.UID)
		}
	}
	text, _, err := safeopen.ReadPrivate(path, plan.MaxEnvFile+1, owners...)
	return text, err
}

// defaultSocket is the path that agentctl uses by default.
const defaultSocket = defaultRuntime + "/agentinit.sock"

// environment is agentinit's own environment. For an agentbox it also has the control socket, the
// roots and the management key. Before phase 2 the key may not exist yet. Then a placeholder stands
// for it, so that a program that uses the key is not reported for a missing variable.
func (b *Boot) environment(m *schema.Manifest, doc *schema.Document) map[string]string {
	env := maps.Clone(b.env)
	// Whatever agentinit's own environment contains, a program's agentctl must use this box.
	delete(env, "AGENTCTL_SOCKET")
	if socket := b.cfg.Roots.Socket(m); socket != defaultSocket {
		env["AGENTCTL_SOCKET"] = socket
	}
	if !isAgentbox(m, doc) {
		return env
	}
	maps.Copy(env, b.cfg.Roots.Environment())
	env["MANAGEMENT_API_KEY"] = cmp.Or(environmentKey(b.getenv), b.ManagementKey().Reveal(), keyPlaceholder)
	return env
}

// load is phase 0.
func load(_ context.Context, b *Boot) (Outcome, error) {
	l, err := b.Read()
	if err != nil {
		return Outcome{}, manifestFailure(b.ManifestFile(), err)
	}
	b.adopt(l)
	for _, f := range l.Warnings {
		b.publish(event.Warn, EventWarning, map[string]any{"message": f.Error(), "code": f.Code})
	}
	if l.Replaceable != "" {
		b.publish(event.Warn, EventManifestReplaceable, map[string]any{
			"path": b.ManifestFile(), "reason": l.Replaceable, "hint": "keep the manifest where only root can write, such as /etc",
		})
	}
	if b.cfg.Resolved != nil {
		if err := b.cfg.Resolved(l.Manifest, l.Plan); err != nil {
			return Outcome{}, refused(err)
		}
	}
	if n := len(l.Warnings); n > 0 {
		return warned(plural.Of(n, "warning")), nil
	}
	return done(), nil
}

// ownSections are the sections that agentinit reads only at the boot. An apply takes over the
// programs, and the sections that other packages read.
var ownSections = []string{
	"supervisor", "bootstrap", "artifacts", "adapters", "slots", "api", "templates", "federation", "observability",
}

// AtNextBoot names the changed keys of a manifest that take effect only at the next boot. The phase
// load must be over.
func (b *Boot) AtNextBoot(l *Loaded) []string {
	return schema.Difference(b.booted, l.Manifest, ownSections...)
}

func (b *Boot) adopt(l *Loaded) {
	b.booted = l.Manifest
	b.Adopt(l)
	b.cfg.Roots = b.cfg.Roots.WithManifest(l.Manifest, b.getenv)
	b.policy = NewPolicy(b.cfg.Roots)
	b.sentinel.policy = b.policy
	b.artifacts = nil
	for _, a := range l.Plan.Artifacts {
		b.artifacts = append(b.artifacts, artifact{
			ID: a.ID, Class: a.Class, Entry: a.Entry, Assets: a.Assets, Command: a.Command, Timeout: a.Timeout,
			Required: a.Required, Feature: strings.Join(a.Features, ", "),
		})
	}
}

func manifestFailure(path string, err error) *Failure {
	findings, ok := errors.AsType[Findings](err)
	if !ok {
		return fail(ExitManifest, err, "cannot use the manifest %s", path)
	}
	return fail(ExitManifest, findings, "the manifest %s has %s", path, plural.Of(len(findings.errors()), "error"))
}

// refused returns the Failure in err, with its own exit status, or else a failure with
// ExitManifest.
func refused(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	return fail(ExitManifest, err, "the manifest cannot be used")
}
