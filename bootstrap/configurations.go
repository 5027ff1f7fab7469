package bootstrap

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// maxConfiguration limits how much of an overwritten file is kept.
const maxConfiguration = 1 << 20

// WriteConfigurations writes the files that are derived from the manifest for programs of the
// catalogue. It must run before those programs start: without its file, a program would use its own
// defaults. undo restores the old files if an apply is undone. After an error, they are already
// restored.
func (b *Boot) WriteConfigurations(l *Loaded) (undo func() error, err error) {
	var back []func() error
	undo = func() error {
		var errs []error
		for _, f := range slices.Backward(back) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	if l.Plan.Profile != "agentbox" {
		return undo, nil
	}
	files, err := configurations(b.view(l), b.cfg.Roots, b.ownKeys(l))
	if err != nil {
		return undo, err
	}
	for _, f := range files {
		path := b.cfg.Roots.configuration(f.path)
		if err := b.policy.MkdirAll(b.cfg.Roots.Runtime, 0o755); err != nil {
			return undo, errors.Join(fmt.Errorf("cannot make the directory of %s: %w", path, err), undo())
		}
		restore := b.restorer(path)
		if err := b.policy.WriteFile(path, f.content, 0o644); err != nil {
			return undo, errors.Join(fmt.Errorf("cannot write %s: %w", path, err), undo())
		}
		back = append(back, restore)
	}
	return undo, nil
}

// restorer returns a function that restores the present file at path.
func (b *Boot) restorer(path string) func() error {
	content, info, err := b.policy.ReadFile(path, maxConfiguration)
	return func() error {
		switch {
		case err == nil:
			err = b.policy.WriteFile(path, content, info.Mode().Perm())
		case errors.Is(err, fs.ErrNotExist):
			err = b.policy.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("cannot restore %s: %w", path, err)
		}
		return nil
	}
}

// OwnKeys are the public keys of the box and its operator, as 64 hexadecimal digits. The box's key
// is included after phase 3.
func (b *Boot) OwnKeys() []string { return b.ownKeys(b.Current()) }

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
