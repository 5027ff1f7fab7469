package bootstrap

import (
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/dreamlab-ai/agentinit/schema/compose"
)

// WriteConfigurations writes the files that programs of the catalogue read and
// that follow from the manifest, before those programs start: one of them that
// starts without its file would run with settings nobody chose.
func (b *Boot) WriteConfigurations(l *Loaded) error {
	if l.Plan.Profile != "agentbox" {
		return nil
	}
	files, err := compose.Configurations(b.view(l), b.ownKeys(l))
	if err != nil {
		return err
	}
	for _, f := range files {
		path := b.cfg.Roots.configuration(f.Name)
		if err := b.policy.MkdirAll(b.cfg.Roots.Runtime, 0o755); err != nil {
			return fmt.Errorf("cannot make the directory of %s: %w", path, err)
		}
		if err := b.policy.WriteFile(path, f.Content, 0o644); err != nil {
			return fmt.Errorf("cannot write %s: %w", path, err)
		}
	}
	return nil
}

// ownKeys are the public keys of the box and its operator.
func (b *Boot) ownKeys(l *Loaded) []string {
	b.mu.Lock()
	own := b.publicKey
	b.mu.Unlock()
	return slices.DeleteFunc([]string{own, l.Manifest.SovereignMesh.Operator.PubkeyHex}, func(key string) bool {
		raw, err := hex.DecodeString(key)
		return err != nil || len(raw) != 32
	})
}
