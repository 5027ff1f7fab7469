package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

// adopt takes over the plaintext private key that the older runtime kept in the identity file.
// First it encrypts the key, then it writes the identity file without the key.
func (s *Store) adopt(known *Identity, plaintext *Key, sealed []byte, managementKey string, older []string) (*Opened, error) {
	if sealed != nil {
		key, _, err := s.unseal(sealed, managementKey, older, "or move it away: the identity file "+s.identityFile()+" holds the key too")
		if err != nil {
			return nil, err
		}
		if key.Public() != plaintext.Public() {
			return nil, fmt.Errorf("the identity file %s holds a private key in the clear that is not the one in %s; remove the one that is not wanted",
				s.identityFile(), s.keyFile())
		}
	} else if err := s.createSealed(plaintext, managementKey); err != nil {
		return nil, err
	}
	o := &Opened{Identity: newIdentity(s.cfg.AgentID, plaintext.Public(), known.CreatedAt), Key: plaintext}
	if known.CreatedAt.IsZero() {
		o.CreatedAt = stamp(time.Now())
	}
	o.RotatedAt = known.RotatedAt
	o.note("the identity file held the private key unencrypted; the key is now encrypted in " + s.keyFile() +
		" and removed from the identity file. Every user that could read the file may know the key: consider agentctl identity rotate")
	// The npub names the pod directory, and the older runtime made it from too many bytes.
	if err := s.renamePod(known.Npub, o.Npub); err != nil {
		return nil, err
	}
	return o, s.finish(o, true)
}

func (s *Store) createSealed(key *Key, managementKey string) error {
	sealed, err := s.seal(key, managementKey)
	if err != nil {
		return err
	}
	if err := s.cfg.Files.MkdirAll(s.cfg.Layout.Profile, 0o700); err != nil {
		return fmt.Errorf("cannot make the directory of the encrypted key: %w", err)
	}
	if err := s.cfg.Files.CreateFile(s.keyFile(), sealed, 0o600); err != nil {
		return fmt.Errorf("cannot write the encrypted key: %w", err)
	}
	return nil
}

// Rotate replaces the key of an open identity. The old encrypted key and the old identity file are
// copied to archive/<time>. The pod is renamed, with a link from the old name. If the process is
// killed at any point, the next Open finds either the old key or the new key in force.
func (s *Store) Rotate(current *Opened, managementKey string) (*Opened, error) {
	key, sealed, err := s.newKey(managementKey)
	if err != nil {
		return nil, err
	}
	if err := s.archive(); err != nil {
		return nil, fmt.Errorf("cannot archive the key that is to be replaced: %w", err)
	}
	now := stamp(time.Now())
	next := &Opened{Identity: newIdentity(s.cfg.AgentID, key.Public(), current.CreatedAt), Key: key}
	next.RotatedAt, next.Previous = &now, current.PublicKey
	if err := s.writeIdentity(next.Identity); err != nil {
		return nil, err
	}
	// From here on the new key is in force.
	if err := s.replaceKey(sealed); err != nil {
		err = fmt.Errorf("cannot write the new encrypted key: %w", err)
		return nil, errors.Join(err, s.writeIdentity(current.Identity))
	}
	return next, s.finish(next, false)
}

// archive copies the files of the key in force to a new directory.
func (s *Store) archive() error {
	dir := filepath.Join(s.cfg.Layout.Profile, "archive", stamp(time.Now()).Format("20060102T150405.000Z"))
	if err := s.cfg.Files.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range []struct {
		from, name string
	}{{s.keyFile(), "nostr.key.enc"}, {s.identityFile(), "identity.json"}} {
		data, _, err := s.cfg.Files.ReadFile(f.from, maxFile)
		if err != nil {
			return err
		}
		if err := s.cfg.Files.WriteFile(filepath.Join(dir, f.name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// renamePod renames the pod directory and leaves a relative link under the old name. If there is no
// directory of the old name, or one of the new name already exists, it leaves both as they are.
func (s *Store) renamePod(from, to string) error {
	if from == to || !isPodName(from) {
		return nil
	}
	before, after := s.PodDir(from), s.PodDir(to)
	info, err := s.cfg.Files.Lstat(before)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := s.cfg.Files.Lstat(after); err != nil {
			return nil // there is no pod at all: prepareTree makes one
		}
		// The process was killed between the rename and the link.
		return s.linkPod(to, before)
	}
	if err != nil || !info.IsDir() {
		return err // the old name is a link already
	}
	if _, err := s.cfg.Files.Lstat(after); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.cfg.Files.Rename(before, after); err != nil {
		return fmt.Errorf("cannot rename the pod directory: %w", err)
	}
	return s.linkPod(to, before)
}

func (s *Store) linkPod(to, before string) error {
	if err := s.cfg.Files.Symlink(to, before); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot link the pod's old name to the new one: %w", err)
	}
	return nil
}
