package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// keyPlaceholder is the text that sample files contain in place of a management key.
const keyPlaceholder = "change-this-secret-key"

// maxKey bounds the key file. minKey is the minimum length of a key.
const (
	maxKey = 4096
	minKey = 16
)

// KeySource is where the management key comes from.
type KeySource string

// The sources of a management key.
const (
	KeyFromEnvironment KeySource = "environment"
	KeyFromFile        KeySource = "file"
	KeyGenerated       KeySource = "generated"
)

// environmentKey is the management key of the environment. It is empty if the variable is unset,
// blank or the placeholder.
func environmentKey(getenv func(string) string) string {
	if env := strings.TrimSpace(getenv("MANAGEMENT_API_KEY")); env != keyPlaceholder {
		return env
	}
	return ""
}

// findKey returns the management key: that of the environment if there is one, otherwise the
// one in the file, otherwise a new one that is written there. note is a warning, or empty.
func findKey(p *Policy, r Roots, getenv func(string) string) (key Secret, from KeySource, note string, err error) {
	if env := environmentKey(getenv); env != "" {
		if len(env) < minKey {
			note = fmt.Sprintf("MANAGEMENT_API_KEY has fewer than %d characters", minKey)
		}
		return newSecret(env), KeyFromEnvironment, note, nil
	}
	key, note, err = readKey(p, r.ManagementKey())
	if !errors.Is(err, fs.ErrNotExist) {
		return key, KeyFromFile, note, err
	}
	return createKey(p, r.ManagementKey())
}

// createKey creates the file. If another box on the same volume was faster, its key is used.
func createKey(p *Policy, path string) (Secret, KeySource, string, error) {
	if err := p.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Secret{}, "", "", err
	}
	key := randomHex(32)
	err := p.CreateFile(path, []byte(key+"\n"), 0o600)
	if errors.Is(err, fs.ErrExist) {
		key, note, err := readKey(p, path)
		return key, KeyFromFile, note, err
	}
	return newSecret(key), KeyGenerated, "", err
}

// readKey reads the file. A file without a valid key is an error and is never replaced, because its
// key may be in use elsewhere. If others may read the file, readKey removes their rights. Volumes
// with an fsGroup are readable again at each start, so that alone is no error. A key that everyone
// can read, and whose mode cannot be changed, is an error.
func readKey(p *Policy, path string) (Secret, string, error) {
	data, info, err := p.ReadFile(path, maxKey)
	if err != nil {
		return Secret{}, "", err
	}
	key := string(bytes.TrimSpace(data))
	if err := checkKey(key); err != nil {
		return Secret{}, "", fmt.Errorf("the file %w; remove it to have a new key made", err)
	}
	open := info.Mode().Perm() & 0o077
	if open == 0 {
		return newSecret(key), "", nil
	}
	note := fmt.Sprintf("%s had mode %04o and was closed to others", path, info.Mode().Perm())
	if err := closeToOthers(p, path); err != nil {
		if open&0o007 != 0 {
			return Secret{}, "", fmt.Errorf("the file can be read by everyone (mode %04o) and cannot be closed: %w", info.Mode().Perm(), err)
		}
		note = fmt.Sprintf("%s can be read by its group (mode %04o) and cannot be closed: %v", path, info.Mode().Perm(), err)
	}
	return newSecret(key), note, nil
}

// checkKey refuses a text that is no key. The placeholder is public, so it would let everyone in.
func checkKey(key string) error {
	if key == keyPlaceholder {
		return fmt.Errorf("holds the placeholder %s of sample files", keyPlaceholder)
	}
	if len(key) < minKey {
		return fmt.Errorf("holds fewer than %d characters", minKey)
	}
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return errors.New("holds something else than one line of printable ASCII")
		}
	}
	return nil
}

func closeToOthers(p *Policy, path string) error {
	r, rel, err := p.open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	// Use a descriptor: Root.Chmod would follow a symbolic link that was put there meanwhile.
	f, err := r.OpenFile(rel, openFlags, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

// ErrKeyElsewhere means that agentinit cannot change the management key.
var ErrKeyElsewhere = errors.New("the management key comes from MANAGEMENT_API_KEY: change it there, and start once with the former one in MANAGEMENT_API_KEY_PREVIOUS")

// RotateManagementKey makes a new management key if the key is in a file. reseal encrypts with the
// new key everything that was encrypted with the old one. reseal runs first: after a crash, the
// next boot finds both keys. KeyKnown is called with the new key. Programs that were given the old
// key keep it until they restart.
func (b *Boot) RotateManagementKey(reseal func(next Secret) error) error {
	old := b.ManagementKey()
	path, next := b.cfg.Roots.ManagementKey(), newSecret(randomHex(32))
	if old.Empty() || environmentKey(b.getenv) != "" {
		return ErrKeyElsewhere
	}
	for _, f := range []struct {
		path string
		key  Secret
	}{{b.cfg.Roots.NextManagementKey(), next}, {b.cfg.Roots.PreviousManagementKey(), old}} {
		if err := b.policy.WriteFile(f.path, []byte(f.key.Reveal()+"\n"), 0o600); err != nil {
			return fmt.Errorf("cannot write %s: %w", f.path, err)
		}
	}
	if err := reseal(next); err != nil {
		return errors.Join(err, b.policy.Remove(b.cfg.Roots.NextManagementKey()))
	}
	if err := b.policy.WriteFile(path, []byte(next.Reveal()+"\n"), 0o600); err != nil {
		return fmt.Errorf("cannot write the management key %s: %w", path, err)
	}
	b.mu.Lock()
	b.key = next
	b.mu.Unlock()
	b.publish(event.Info, EventKeyRotated, map[string]any{"path": path})
	if b.cfg.KeyKnown != nil {
		b.cfg.KeyKnown(next)
	}
	return b.policy.Remove(b.cfg.Roots.NextManagementKey())
}
