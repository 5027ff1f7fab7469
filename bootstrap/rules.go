package bootstrap

import (
	"os"
	"runtime"

	"github.com/dreamlab-ai/agentinit/bootstrap/profiles"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// checkRules runs the rules of the manifest with the facts of this machine.
func (b *Boot) checkRules(doc *schema.Document) []schema.Finding {
	return rules.Run(doc, rules.Facts{
		Env:      func(name string) (string, bool) { v, ok := b.env[name]; return v, ok },
		Arch:     runtime.GOARCH,
		Exists:   func(path string) bool { _, err := os.Stat(path); return err == nil },
		Profiles: func() []rules.Profile { return profiles.Read(b.cfg.Roots.Workspace) },
	})
}
