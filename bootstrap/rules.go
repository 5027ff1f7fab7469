package bootstrap

import (
	"os"
	"path/filepath"
	"runtime"

	"github.com/pelletier/go-toml/v2"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// Bounds of the profiles that are read. Programs can write them, and the time to parse TOML grows with the
// square of its keys: one file of 1 MiB takes half a minute.
const (
	maxProfiles    = 1000
	maxProfile     = 16 << 10  // bytes
	maxAllProfiles = 256 << 10 // bytes
)

// checkRules runs the rules of the manifest with the facts of this machine.
func (b *Boot) checkRules(doc *schema.Document) []schema.Finding {
	return rules.Run(doc, rules.Facts{
		Env:      func(name string) (string, bool) { v, ok := b.env[name]; return v, ok },
		Arch:     runtime.GOARCH,
		Exists:   func(path string) bool { _, err := os.Stat(path); return err == nil },
		Profiles: func() []rules.Profile { return readProfiles(filepath.Join(b.cfg.Roots.Workspace, "profiles")) },
	})
}

// readProfiles reads the part of the workspace's profiles that rule E010 needs. A profile that
// cannot be read or parsed is skipped, as E010 specifies, and so are those above the bounds.
func readProfiles(dir string) []rules.Profile {
	names, err := profileNames(dir)
	if err != nil {
		return nil // E010 needs none
	}
	var out []rules.Profile
	left := int64(maxAllProfiles)
	for _, name := range names {
		at := filepath.Join(dir, name)
		text, err := readFileBounded(filepath.Join(at, "profile.toml"), min(maxProfile, left))
		if err != nil {
			continue
		}
		left -= int64(len(text))
		var p struct {
			HeadlessOnly bool `toml:"headless_only"`
		}
		if toml.Unmarshal(text, &p) == nil {
			out = append(out, rules.Profile{Dir: at, HeadlessOnly: p.HeadlessOnly})
		}
	}
	return out
}

func profileNames(dir string) ([]string, error) {
	d, err := safeopen.OpenDirectory(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Names(func(string) bool { return true }, maxProfiles)
}
