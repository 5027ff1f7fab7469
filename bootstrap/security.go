package bootstrap

import (
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema/hardening"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// hardened is the security profile that is derived from the manifest. ok is false in a plain
// container, for which the manifest declares no profile.
func (b *Boot) hardened() (applied hardening.Applied, ok bool) {
	if !b.agentbox() {
		return hardening.Applied{}, false
	}
	return hardening.Harden(b.view(b.Current())), true
}

// securityApplied publishes the profile.
func (b *Boot) securityApplied() {
	a, ok := b.hardened()
	if !ok {
		return
	}
	b.publish(event.Info, EventSecurityApplied, map[string]any{
		"baseline": a.Baseline, "exceptions_applied": a.Exceptions, "effective": a.Effective, "conflicts": a.Conflicts,
	})
}

// DeclaredSecurity is the part of a security profile that can be compared with a running box.
type DeclaredSecurity struct {
	Capabilities []string // capabilities that are kept, without the prefix CAP_, sorted
	ReadOnlyRoot bool
	NoNewPrivs   bool
}

// Security is the security that the manifest declares for the running box. It is nil if the
// manifest declares none.
func (b *Boot) Security() *DeclaredSecurity {
	a, ok := b.hardened()
	if !ok || !slices.Contains(a.Effective.CapDrop, "ALL") {
		return nil
	}
	d := &DeclaredSecurity{ReadOnlyRoot: a.Effective.ReadOnly, Capabilities: slices.Sorted(slices.Values(a.Effective.CapAdd))}
	for _, o := range a.Effective.SecurityOpt {
		switch strings.ReplaceAll(o, "=", ":") {
		case "no-new-privileges", "no-new-privileges:true":
			d.NoNewPrivs = true
		}
	}
	return d
}
