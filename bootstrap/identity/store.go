package identity

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Files is how the package reads and writes files: the write policy of bootstrap. WriteFile and
// CreateFile are atomic and synced. CreateFile returns fs.ErrExist if the file exists.
type Files interface {
	MkdirAll(path string, mode fs.FileMode) error
	ReadFile(path string, limit int64) ([]byte, fs.FileInfo, error)
	ReadDir(path string) ([]string, error)
	Lstat(path string) (fs.FileInfo, error)
	WriteFile(path string, data []byte, mode fs.FileMode) error
	CreateFile(path string, data []byte, mode fs.FileMode) error
	Rename(from, to string) error
	Symlink(target, path string) error
	Remove(path string) error
}

// Layout is the paths of the identity's files.
type Layout struct {
	Identities  string // directory of <agent id>.json
	Profile     string // directory of the encrypted key
	Pods        string // directory of the pods; the tree is below pods/<npub>
	Environment string // identity.env
}

// Config of a Store.
type Config struct {
	Files   Files
	Layout  Layout
	AgentID string // defaultAgentID when empty
	// PodBase is the address of the pod server. The pod's documents use it to refer to each other.
	// If it is empty, they contain no references.
	PodBase string
	// QuotaBytes is written to .quota.json. If it is 0, there is no such file.
	QuotaBytes int64
	// Services are the service endpoints of the DID document.
	Services []Service
	// Log2N is the cost of scrypt for new files, 1 to 18; 0 means 15. Lower values are for tests.
	Log2N int
}

// defaultAgentID is the identity's name unless AGENTBOX_AGENT_ID sets another one.
const defaultAgentID = "agentbox-core"

// keepPrevious is how long the old encrypted file is kept after a change of the management key.
const keepPrevious = 24 * time.Hour

// maxFile bounds every file that this package reads.
const maxFile = 64 << 10

// Identity is the public part of the box's identity: the identity file.
type Identity struct {
	AgentID   string    `json:"agent_id"`
	CreatedAt time.Time `json:"created_at"`
	// RotatedAt is when the key was last replaced; nil if it never was.
	RotatedAt *time.Time `json:"rotated_at"`
	PublicKey PublicKey  `json:"public_key_hex"`
	Npub      string     `json:"npub"`
	DID       string     `json:"did"`
	// Previous is the key before the last rotation. It is written before the new key, so that an
	// interrupted rotation can be told from a file of another box.
	Previous PublicKey `json:"previous_public_key_hex,omitempty"`
}

func newIdentity(agentID string, public PublicKey, created time.Time) Identity {
	return Identity{
		AgentID: agentID, CreatedAt: stamp(created), PublicKey: public, Npub: public.Npub(), DID: public.DID(),
	}
}

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// Opened is an identity that is ready for use.
type Opened struct {
	Identity
	Key *Key
	// Created is true if this call created the identity.
	Created bool
	// Notes are warnings for the operator; none contains a secret.
	Notes []string
}

// Store keeps one identity. Its methods must not be called at the same time.
type Store struct {
	cfg Config
}

// agentIDs matches valid names of an identity. The name becomes a file name.
var agentIDs = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`) })

// NewStore returns a Store. It reads no file.
func NewStore(cfg Config) (*Store, error) {
	cfg.AgentID = cmp.Or(cfg.AgentID, defaultAgentID)
	cfg.Log2N = cmp.Or(cfg.Log2N, defaultLog2N)
	if !agentIDs().MatchString(cfg.AgentID) {
		return nil, fmt.Errorf("AGENTBOX_AGENT_ID is %q; use 1 to 64 letters, digits, '.', '_' and '-', not beginning with a mark", cfg.AgentID)
	}
	return &Store{cfg: cfg}, nil
}

func (s *Store) identityFile() string {
	return filepath.Join(s.cfg.Layout.Identities, s.cfg.AgentID+".json")
}
func (s *Store) keyFile() string      { return filepath.Join(s.cfg.Layout.Profile, "nostr.key.enc") }
func (s *Store) saltFile() string     { return filepath.Join(s.cfg.Layout.Profile, "nostr.salt") }
func (s *Store) previousFile() string { return s.keyFile() + ".previous" }

// Open loads the identity, or creates one if there is none. managementKey decrypts the key. If only
// one of older decrypts it, the key is encrypted again with managementKey. A file that cannot be
// read, decrypted or trusted is an error and stays unchanged.
func (s *Store) Open(managementKey string, older ...string) (*Opened, error) {
	known, plaintext, err := s.readIdentity()
	if err != nil {
		return nil, err
	}
	sealed, _, err := s.cfg.Files.ReadFile(s.keyFile(), maxFile)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return nil, fmt.Errorf("cannot read the encrypted key %s: %w", s.keyFile(), err)
	case plaintext != nil:
		return s.adopt(known, plaintext, sealed, managementKey, older)
	case missing && known != nil:
		return nil, fmt.Errorf("%s names the identity %s, but its private key %s is missing; "+
			"restore that file from a backup, or remove the identity file to have a new identity made",
			s.identityFile(), known.Npub, s.keyFile())
	case missing:
		return s.create(managementKey)
	}
	return s.load(known, sealed, managementKey, older)
}

// readIdentity reads the identity file. known is nil if there is none. plaintext is the private
// key, if the file is one of the older runtime, which kept the key in it.
func (s *Store) readIdentity() (known *Identity, plaintext *Key, err error) {
	path := s.identityFile()
	raw, _, err := s.cfg.Files.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the identity file %s: %w", path, err)
	}
	// The decoder's error is not passed on, because it may quote the content.
	unusable := func(why string) error {
		return fmt.Errorf("the identity file %s %s; restore it from a backup, or remove it to have it written anew from the encrypted key", path, why)
	}
	var file struct {
		AgentID    string     `json:"agent_id"`
		CreatedAt  *time.Time `json:"created_at"`
		RotatedAt  *time.Time `json:"rotated_at"`
		PublicKey  string     `json:"public_key_hex"`
		Npub       string     `json:"npub"`
		Previous   string     `json:"previous_public_key_hex"`
		PrivateKey string     `json:"private_key_hex"`
	}
	if json.Unmarshal(raw, &file) != nil {
		return nil, nil, unusable("is not a JSON object of the expected form")
	}
	known = &Identity{AgentID: s.cfg.AgentID, RotatedAt: file.RotatedAt, Npub: file.Npub}
	if file.CreatedAt != nil {
		known.CreatedAt = *file.CreatedAt
	}
	if file.PrivateKey != "" {
		if plaintext, err = ParseKey(strings.ToLower(file.PrivateKey)); err != nil {
			return nil, nil, unusable("holds a private_key_hex that is no private key")
		}
		return known, plaintext, nil
	}
	if known.PublicKey, err = ParsePublicKey(file.PublicKey); err != nil {
		return nil, nil, unusable("has no valid public_key_hex")
	}
	if file.Previous != "" {
		if known.Previous, err = ParsePublicKey(file.Previous); err != nil {
			return nil, nil, unusable("has no valid previous_public_key_hex")
		}
	}
	if file.Npub != known.PublicKey.Npub() {
		return nil, nil, unusable("has an npub that is not that of its public_key_hex")
	}
	return known, nil, nil
}

// newKey makes a key and encrypts it.
func (s *Store) newKey(managementKey string) (key *Key, sealed []byte, err error) {
	if key, err = NewKey(); err != nil {
		return nil, nil, err
	}
	sealed, err = s.seal(key, managementKey)
	return key, sealed, err
}

// create makes a new identity. If another box on the same volume was faster, its identity is used.
func (s *Store) create(managementKey string) (*Opened, error) {
	key, sealed, err := s.newKey(managementKey)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Files.MkdirAll(s.cfg.Layout.Profile, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of the encrypted key: %w", err)
	}
	err = s.cfg.Files.CreateFile(s.keyFile(), sealed, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return s.Open(managementKey)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write the encrypted key %s: %w", s.keyFile(), err)
	}
	o := &Opened{Identity: newIdentity(s.cfg.AgentID, key.Public(), time.Now()), Key: key, Created: true}
	return o, s.finish(o, true)
}

// load opens the encrypted key and compares it with the identity file.
func (s *Store) load(known *Identity, sealed []byte, managementKey string, older []string) (*Opened, error) {
	key, note, err := s.unseal(sealed, managementKey, older, "without a backup, move it and "+s.identityFile()+" away, and agentinit makes a new identity")
	if err != nil {
		return nil, err
	}
	o := &Opened{Key: key}
	o.note(note)
	rewrite := false
	switch {
	case known == nil:
		created := time.Now()
		if _, info, err := s.cfg.Files.ReadFile(s.keyFile(), maxFile); err == nil {
			created = info.ModTime()
		}
		o.Identity, rewrite = newIdentity(s.cfg.AgentID, key.Public(), created), true
		o.note("the identity file " + s.identityFile() + " was missing and has been written anew from the encrypted key")
	case known.PublicKey == key.Public():
		o.Identity = *known
		o.Npub, o.DID = key.Public().Npub(), key.Public().DID()
	case known.Previous == key.Public():
		// The rotation was interrupted before it had written its key, so its new key was never in
		// force.
		o.Identity, rewrite = newIdentity(s.cfg.AgentID, key.Public(), known.CreatedAt), true
		o.note("an interrupted rotation of the identity was undone; run it again")
	default:
		return nil, fmt.Errorf("the identity file %s names %s, but the key in %s is that of %s; put back the file that belongs to the other",
			s.identityFile(), known.Npub, s.keyFile(), key.Public().Npub())
	}
	return o, s.finish(o, rewrite)
}

func (o *Opened) note(text string) {
	if text != "" {
		o.Notes = append(o.Notes, text)
	}
}

// unseal opens the encrypted key. If the file has the old format, or an old management key opened
// it, unseal encrypts the key again. instead says what helps if the file is none of agentinit's and
// there is no backup.
func (s *Store) unseal(sealed []byte, managementKey string, older []string, instead string) (key *Key, note string, err error) {
	salt, err := s.salt(sealed)
	if err != nil {
		return nil, "", err
	}
	key, version, err := openKey(sealed, salt, managementKey)
	if err == nil {
		if version == 2 {
			return key, "", nil
		}
		return key, s.reseal(key, sealed, managementKey, "the encrypted key was of version 1 and is now of version 2"), nil
	}
	if errors.Is(err, ErrWrongKey) {
		for _, old := range older {
			if old == "" || old == managementKey {
				continue
			}
			if key, _, err := openKey(sealed, salt, old); err == nil {
				return key, s.reseal(key, sealed, managementKey, "the management key has changed, and the private key was encrypted again"), nil
			}
		}
	}
	if errors.Is(err, ErrNotSealed) {
		return nil, "", fmt.Errorf("%s is no file that agentinit made: %w; restore it from a backup; %s", s.keyFile(), err, instead)
	}
	return nil, "", fmt.Errorf("cannot open the encrypted private key %s: %w; start once with the former key in %s, or restore the file from a backup",
		s.keyFile(), err, PreviousKeyVariable)
}

// PreviousKeyVariable names the variable that holds the former management key
// for the first start after MANAGEMENT_API_KEY has changed.
const PreviousKeyVariable = "MANAGEMENT_API_KEY_PREVIOUS"

func (s *Store) salt(sealed []byte) ([]byte, error) {
	if bytes.HasPrefix(sealed, []byte(magic)) || len(sealed) != v1Size {
		return nil, nil // version 2, or no encrypted key
	}
	text, _, err := s.cfg.Files.ReadFile(s.saltFile(), maxFile)
	if err != nil {
		return nil, fmt.Errorf("%s looks like an encrypted key of version 1, and its salt cannot be read: %w; restore both from a backup", s.keyFile(), err)
	}
	salt, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("the salt %s is not hexadecimal", s.saltFile())
	}
	return salt, nil
}

// reseal encrypts the key again and keeps the old file. If a file cannot be written, the key is
// still the right one, so the error is only a note.
func (s *Store) reseal(key *Key, old []byte, managementKey, done string) (note string) {
	sealed, err := s.seal(key, managementKey)
	if err == nil {
		err = s.cfg.Files.WriteFile(s.previousFile(), old, 0o600)
	}
	if err == nil {
		err = s.replaceKey(sealed)
	}
	if err != nil {
		return fmt.Sprintf("the private key could not be encrypted again: %v", err)
	}
	return done + "; the old file stays for 24 hours"
}

// Reseal encrypts the key again because the management key is about to change.
func (s *Store) Reseal(key *Key, managementKey string) error {
	old, _, err := s.cfg.Files.ReadFile(s.keyFile(), maxFile)
	if err != nil {
		return fmt.Errorf("cannot read the encrypted key: %w", err)
	}
	sealed, err := s.seal(key, managementKey)
	if err != nil {
		return err
	}
	if err := s.cfg.Files.WriteFile(s.previousFile(), old, 0o600); err != nil {
		return fmt.Errorf("cannot keep the old encrypted key: %w", err)
	}
	return s.replaceKey(sealed)
}

// replaceKey writes the encrypted key. If the last step of the write fails, the sync of the directory,
// the new file is in force all the same, and the caller must not go back to the old one: Open would
// find a key that does not fit. Only a crash can undo such a write, and Open knows what to do then.
func (s *Store) replaceKey(sealed []byte) error {
	err := s.cfg.Files.WriteFile(s.keyFile(), sealed, 0o600)
	if err == nil {
		return nil
	}
	if now, _, readErr := s.cfg.Files.ReadFile(s.keyFile(), maxFile); readErr == nil && bytes.Equal(now, sealed) {
		return nil
	}
	return err
}

func (s *Store) seal(key *Key, managementKey string) ([]byte, error) {
	return sealKey(key, managementKey, byte(s.cfg.Log2N))
}

// Prune removes the old encrypted file 24 hours after the management key was changed. If only that
// file needed the salt of version 1, it removes the salt too.
func (s *Store) Prune() error {
	old, info, err := s.cfg.Files.ReadFile(s.previousFile(), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || time.Since(info.ModTime()) < keepPrevious {
		return err
	}
	if err := s.cfg.Files.Remove(s.previousFile()); err != nil {
		return err
	}
	current, _, err := s.cfg.Files.ReadFile(s.keyFile(), maxFile)
	if err != nil || bytes.HasPrefix(old, []byte(magic)) || !bytes.HasPrefix(current, []byte(magic)) {
		return err
	}
	return s.cfg.Files.Remove(s.saltFile())
}

// finish writes the files that are derived from the identity.
func (s *Store) finish(o *Opened, rewrite bool) error {
	if rewrite {
		if err := s.writeIdentity(o.Identity); err != nil {
			return err
		}
	}
	if err := s.Prune(); err != nil {
		o.note("the old encrypted key could not be removed: " + err.Error())
	}
	if err := s.prepareTree(o); err != nil {
		return err
	}
	return s.writeEnvironment(o.Identity)
}

func (s *Store) writeIdentity(i Identity) error {
	if err := s.cfg.Files.MkdirAll(s.cfg.Layout.Identities, 0o700); err != nil {
		return fmt.Errorf("cannot make the directory of identities: %w", err)
	}
	if err := s.cfg.Files.WriteFile(s.identityFile(), encode(i), 0o640); err != nil {
		return fmt.Errorf("cannot write the identity file: %w", err)
	}
	return nil
}

// Environment is the identity as variables for programs and shells. It contains no secret.
func (i Identity) Environment() [][2]string {
	return [][2]string{
		{"AGENTBOX_AGENT_ID", i.AgentID}, {"AGENTBOX_NPUB", i.Npub}, {"AGENTBOX_PUBKEY_HEX", string(i.PublicKey)},
		{"AGENTBOX_PUBKEY", string(i.PublicKey)}, {"AGENTBOX_DID", i.DID},
	}
}

// writeEnvironment writes identity.env for shells. No value needs quoting, because no character in
// them has a meaning for a shell.
func (s *Store) writeEnvironment(i Identity) error {
	var b strings.Builder
	for _, kv := range i.Environment() {
		fmt.Fprintf(&b, "%s=%s\n", kv[0], kv[1])
	}
	if err := s.cfg.Files.MkdirAll(filepath.Dir(s.cfg.Layout.Environment), 0o755); err != nil {
		return fmt.Errorf("cannot make the directory of identity.env: %w", err)
	}
	if err := s.cfg.Files.WriteFile(s.cfg.Layout.Environment, []byte(b.String()), 0o640); err != nil {
		return fmt.Errorf("cannot write the identity's variables: %w", err)
	}
	return nil
}
