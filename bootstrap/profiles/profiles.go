// Package profiles reads what a rule needs of the workspace's profiles. Programs can write them: whatever they put
// there must not hold up a boot or a check.
package profiles

import (
	"path/filepath"

	"github.com/pelletier/go-toml/v2"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// Bounds of what is read. The time to parse TOML grows with the square of its keys: one file of 1 MiB takes half a
// minute.
const (
	maxProfiles    = 1000
	maxProfile     = 16 << 10  // bytes
	maxAllProfiles = 256 << 10 // bytes
)

// Read reads the part of the profiles of a workspace that rule E010 needs. A profile that cannot be read or
// parsed is skipped, as E010 specifies, and so are those above the bounds.
func Read(workspace string) []rules.Profile {
	dir := filepath.Join(workspace, "profiles")
	list, err := names(dir)
	if err != nil {
		return nil // E010 needs none
	}
	var out []rules.Profile
	left := int64(maxAllProfiles)
	for _, name := range list {
		at := filepath.Join(dir, name)
		text, err := safeopen.ReadPlain(filepath.Join(at, "profile.toml"), min(maxProfile, left))
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

func names(dir string) ([]string, error) {
	d, err := safeopen.OpenDirectory(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Names(func(string) bool { return true }, maxProfiles)
}
