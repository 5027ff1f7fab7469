package bootstrap

import (
	"os"
	"path/filepath"
	"runtime"

	"github.com/pelletier/go-toml/v2"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// maxProfile bounds one profile.toml.
const maxProfile = 1 << 20

// checkRules runs the rules of the manifest with the facts of this machine.
func (b *Boot) checkRules(doc *schema.Document) []schema.Finding {
	return rules.Run(doc, rules.Facts{
		Env:      func(name string) (string, bool) { v, ok := b.env[name]; return v, ok },
		Arch:     runtime.GOARCH,
		Exists:   func(path string) bool { _, err := os.Stat(path); return err == nil },
		Profiles: readProfiles(filepath.Join(b.cfg.Roots.Workspace, "profiles")),
	})
}

// readProfiles reads the part of the workspace's profiles that rule E010 needs. A profile that
// cannot be read or parsed is skipped, as E010 specifies.
func readProfiles(dir string) []rules.Profile {
	files, err := filepath.Glob(filepath.Join(dir, "*", "profile.toml"))
	if err != nil {
		return nil // the directory's own name is not a valid pattern
	}
	var out []rules.Profile
	for _, file := range files {
		text, err := readFileBounded(file, maxProfile)
		if err != nil {
			continue
		}
		var p struct {
			HeadlessOnly bool `toml:"headless_only"`
		}
		if toml.Unmarshal(text, &p) == nil {
			out = append(out, rules.Profile{Dir: filepath.Dir(file), HeadlessOnly: p.HeadlessOnly})
		}
	}
	return out
}
