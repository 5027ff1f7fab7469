package identity_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
)

const managementKey = "0123456789abcdef0123456789abcdef"

// place is the directories of a box in a test. Files are written through bootstrap's policy.
type place struct {
	dir   string
	roots bootstrap.Roots
	cfg   identity.Config
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{dir: t.TempDir()}
	var err error
	if p.roots, err = bootstrap.NewRoots(p.dir, func(string) string { return "" }); err != nil {
		t.Fatal(err)
	}
	p.cfg = identity.Config{
		Files: bootstrap.NewPolicy(p.roots),
		Layout: identity.Layout{
			Identities: p.roots.Identities, Profile: filepath.Join(p.roots.Workspace, "profiles", "default"),
			Pods: p.roots.SolidPods, Environment: filepath.Join(p.roots.Runtime, "identity.env"),
		},
		Log2N: 4, PodBase: "http://127.0.0.1:8484", QuotaBytes: 1 << 20,
		Services: []identity.Service{{Type: "SolidPod", Endpoint: "http://127.0.0.1:8484/"}},
	}
	return p
}

func (p *place) store(t testing.TB) *identity.Store {
	t.Helper()
	s, err := identity.NewStore(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *place) open(t testing.TB, older ...string) *identity.Opened {
	t.Helper()
	o, err := p.store(t).Open(managementKey, older...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (p *place) keyFile() string { return filepath.Join(p.cfg.Layout.Profile, "nostr.key.enc") }
func (p *place) identityFile() string {
	return filepath.Join(p.cfg.Layout.Identities, "agentbox-core.json")
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func put(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestFirstBootMakesEverything(t *testing.T) {
	p := newPlace(t)
	o := p.open(t)
	if !o.Created || len(o.Notes) > 0 {
		t.Errorf("created %v, notes %q", o.Created, o.Notes)
	}
	modes := map[string]fs.FileMode{
		p.keyFile(): 0o600, p.identityFile(): 0o640, p.cfg.Layout.Environment: 0o640, p.cfg.Layout.Identities: 0o700 | fs.ModeDir,
	}
	pod := filepath.Join(p.roots.SolidPods, "pods", o.Npub)
	modes[filepath.Join(p.roots.SolidPods, ".acl")] = 0o640
	for _, name := range []string{"profile.json", "did-nostr.json", ".acl", ".quota.json"} {
		modes[filepath.Join(pod, name)] = 0o640
	}
	for _, name := range []string{"memory/episodic", "memory/semantic", "system/adrs", "system/prds", "events/inbox", "events/outbox", "events/intent-queue"} {
		modes[filepath.Join(pod, name)] = 0o750 | fs.ModeDir
	}
	for path, want := range modes {
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
		} else if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
	if len(o.Npub) != 63 || o.DID != "did:nostr:"+string(o.PublicKey) {
		t.Errorf("npub %q, DID %q", o.Npub, o.DID)
	}
	var public map[string]any
	if err := json.Unmarshal(read(t, p.identityFile()), &public); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"agent_id", "created_at", "rotated_at", "public_key_hex", "npub", "did"} {
		if _, ok := public[key]; !ok {
			t.Errorf("the identity file lacks %s", key)
		}
	}
	if env := string(read(t, p.cfg.Layout.Environment)); strings.Count(env, "\n") != 5 || !strings.Contains(env, "AGENTBOX_NPUB="+o.Npub+"\n") {
		t.Errorf("identity.env is %q", env)
	}
	for _, of := range []string{pod, p.roots.SolidPods} {
		if acl := string(read(t, filepath.Join(of, ".acl"))); !strings.Contains(acl, "acl:agent <"+o.DID+">") || !strings.Contains(acl, "acl:default") {
			t.Errorf(".acl of %s is %s", of, acl)
		}
	}
	var doc struct {
		ID     string `json:"id"`
		Method []struct {
			ID  string `json:"id"`
			Hex string `json:"publicKeyHex"`
		} `json:"verificationMethod"`
		AlsoKnownAs []string `json:"alsoKnownAs"`
	}
	if err := json.Unmarshal(read(t, filepath.Join(pod, "did-nostr.json")), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.ID != o.DID || len(doc.Method) != 1 || doc.Method[0].ID != o.DID+"#key-0" || doc.Method[0].Hex != string(o.PublicKey) ||
		len(doc.AlsoKnownAs) != 1 || !strings.HasSuffix(doc.AlsoKnownAs[0], "/pods/"+o.Npub+"/profile.json#me") {
		t.Errorf("DID document: %+v", doc)
	}
}

// In a tree that has pods, no access list is made for what is beside them.
func TestTreeWithPodsGetsNoAccessList(t *testing.T) {
	p := newPlace(t)
	if err := os.MkdirAll(filepath.Join(p.roots.SolidPods, "pods"), 0o750); err != nil {
		t.Fatal(err)
	}
	p.open(t)
	if _, err := os.Stat(filepath.Join(p.roots.SolidPods, ".acl")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree has an access list: %v", err)
	}
}

func TestSecondBootChangesNothing(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	acl := filepath.Join(p.roots.SolidPods, "pods", first.Npub, ".acl")
	put(t, acl, []byte("# mine\n"))
	before := snapshot(t, p.dir)
	second := p.open(t)
	if second.Created || second.PublicKey != first.PublicKey || second.Key.Nsec() != first.Key.Nsec() || len(second.Notes) > 0 {
		t.Errorf("the second boot is another: %+v", second)
	}
	for path, content := range snapshot(t, p.dir) {
		if before[path] != content {
			t.Errorf("%s was written", path)
		}
	}
}

// snapshot returns the content of every regular file below dir.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		out[path] = string(read(t, path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A file that cannot be read is never replaced: the error names the file, and every byte stays
// unchanged.
func TestUnreadableIsLeftAlone(t *testing.T) {
	other := newPlace(t)
	other.open(t)
	for name, spoil := range map[string]func(t *testing.T, p *place){
		"wrong management key": func(t *testing.T, p *place) {
			again := newPlace(t)
			s := again.store(t)
			if _, err := s.Open("another management key"); err != nil {
				t.Fatal(err)
			}
			put(t, p.keyFile(), read(t, again.keyFile()))
			put(t, p.identityFile(), read(t, again.identityFile()))
		},
		"flipped bit": func(t *testing.T, p *place) {
			data := read(t, p.keyFile())
			data[len(data)-1] ^= 1
			put(t, p.keyFile(), data)
		},
		"cut off":                  func(t *testing.T, p *place) { put(t, p.keyFile(), read(t, p.keyFile())[:50]) },
		"empty key":                func(t *testing.T, p *place) { put(t, p.keyFile(), nil) },
		"key is a directory":       func(t *testing.T, p *place) { replaceByDirectory(t, p.keyFile()) },
		"key is gone":              func(t *testing.T, p *place) { remove(t, p.keyFile()) },
		"key of another":           func(t *testing.T, p *place) { put(t, p.keyFile(), read(t, other.keyFile())) },
		"identity of another":      func(t *testing.T, p *place) { put(t, p.identityFile(), read(t, other.identityFile())) },
		"empty identity":           func(t *testing.T, p *place) { put(t, p.identityFile(), nil) },
		"identity is garbage":      func(t *testing.T, p *place) { put(t, p.identityFile(), []byte("\x00\xff{")) },
		"identity is an array":     func(t *testing.T, p *place) { put(t, p.identityFile(), []byte("[]")) },
		"identity without key":     func(t *testing.T, p *place) { put(t, p.identityFile(), []byte("{}")) },
		"identity with wrong npub": func(t *testing.T, p *place) { edit(t, p.identityFile(), "npub1", "npub2") },
		"plaintext is no key":      func(t *testing.T, p *place) { edit(t, p.identityFile(), `{`, `{"private_key_hex": "12",`) },
		"plaintext of another": func(t *testing.T, p *place) {
			edit(t, p.identityFile(), `{`, `{"private_key_hex": "`+strings.Repeat("11", 32)+`",`)
		},
		"version 1 without salt": func(t *testing.T, p *place) { put(t, p.keyFile(), bytes.Repeat([]byte{1}, 60)) },
		"huge key":               func(t *testing.T, p *place) { put(t, p.keyFile(), bytes.Repeat([]byte{1}, 1<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.open(t)
			spoil(t, p)
			before := snapshot(t, p.dir)
			o, err := p.store(t).Open(managementKey)
			if err == nil {
				t.Fatalf("opened as %s", o.Npub)
			}
			if !strings.Contains(err.Error(), "nostr.key.enc") && !strings.Contains(err.Error(), "agentbox-core.json") && !strings.Contains(err.Error(), "salt") {
				t.Errorf("the error names no file: %v", err)
			}
			after := snapshot(t, p.dir)
			for path := range after {
				if before[path] != after[path] {
					t.Errorf("%s was written", path)
				}
			}
			if len(before) != len(after) {
				t.Error("a file is gone or new")
			}
		})
	}
}

// A file that agentinit did not make is called that, and the text does not blame the salt or the
// management key.
func TestAFileThatIsNoEncryptedKey(t *testing.T) {
	for name, content := range map[string][]byte{"empty": nil, "garbage": []byte("garbage\n"), "cut off": []byte("AGK2..."), "large": bytes.Repeat([]byte{1}, 5000)} {
		p := newPlace(t)
		p.open(t)
		put(t, p.keyFile(), content)
		_, err := p.store(t).Open(managementKey)
		want := p.keyFile() + " is no file that agentinit made: not an encrypted key file of version 1 or 2"
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "salt") ||
			!strings.HasSuffix(err.Error(), "; restore it from a backup; without a backup, move it and "+p.identityFile()+" away, and agentinit makes a new identity") {
			t.Errorf("%s: %v", name, err)
		}
		remove(t, p.keyFile())
		remove(t, p.identityFile())
		if o, err := p.store(t).Open(managementKey); err != nil || !o.Created {
			t.Errorf("%s: what the text says did not help: %v", name, err)
		}
	}
}

func replaceByDirectory(t *testing.T, path string) {
	remove(t, path)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func edit(t testing.TB, path, old, new string) {
	t.Helper()
	put(t, path, bytes.Replace(read(t, path), []byte(old), []byte(new), 1))
}

func TestLostIdentityFileIsWrittenAnew(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	remove(t, p.identityFile())
	second := p.open(t)
	if second.PublicKey != first.PublicKey || len(second.Notes) != 1 {
		t.Errorf("%s, notes %q", second.PublicKey, second.Notes)
	}
}

func TestChangedManagementKeyEncryptsAgain(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	old := read(t, p.keyFile())
	if _, err := p.store(t).Open("a new management key"); err == nil || !strings.Contains(err.Error(), "MANAGEMENT_API_KEY_PREVIOUS") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	o, err := p.store(t).Open("a new management key", "", "wrong", managementKey)
	if err != nil || o.PublicKey != first.PublicKey || len(o.Notes) != 1 {
		t.Fatalf("%v", err)
	}
	if !bytes.Equal(read(t, p.keyFile()+".previous"), old) {
		t.Error("the old file is not kept")
	}
	if o, err = p.store(t).Open("a new management key"); err != nil || len(o.Notes) > 0 {
		t.Fatalf("it was not encrypted again: %v, %v", o, err)
	}
	yesterday := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(p.keyFile()+".previous", yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	if _, err := p.store(t).Open("a new management key"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.keyFile() + ".previous"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old file is still there after a day: %v", err)
	}
}

// The file of the older runtime: an npub made of 64 bytes, and the private key as plaintext.
func TestPlaintextIsImported(t *testing.T) {
	p := newPlace(t)
	const secret = "67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa"
	long := "npub1" + strings.Repeat("q", 109)
	put(t, p.identityFile(), []byte(`{"agent_id":"agentbox-core","created_at":"2025-03-01T00:00:00Z","private_key_hex":"`+secret+
		`","public_key_hex":"`+strings.Repeat("ab", 64)+`","npub":"`+long+`","did":"did:nostr:`+long+`"}`))
	pods := filepath.Join(p.roots.SolidPods, "pods")
	put(t, filepath.Join(pods, long, "memory", "note.txt"), []byte("kept"))
	o := p.open(t)
	if string(o.PublicKey) != "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e" || len(o.Notes) != 1 {
		t.Errorf("%s, notes %q", o.PublicKey, o.Notes)
	}
	if o.CreatedAt.Year() != 2025 {
		t.Errorf("created at %v", o.CreatedAt)
	}
	raw, err := hex.DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range snapshot(t, p.dir) {
		if strings.Contains(content, secret) || strings.Contains(content, string(raw)) || strings.Contains(content, "nsec1") {
			t.Errorf("%s still holds the private key", path)
		}
	}
	if target, err := os.Readlink(filepath.Join(pods, long)); err != nil || target != o.Npub {
		t.Errorf("the old pod name leads to %q, %v", target, err)
	}
	if got := read(t, filepath.Join(pods, long, "memory", "note.txt")); string(got) != "kept" {
		t.Error("the pod's content is gone")
	}
	if again := p.open(t); len(again.Notes) > 0 || again.PublicKey != o.PublicKey {
		t.Errorf("second boot: %q", again.Notes)
	}
}

func TestRotation(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	pods := filepath.Join(p.roots.SolidPods, "pods")
	put(t, filepath.Join(pods, first.Npub, "events", "inbox", "m.json"), []byte("mail"))
	edit(t, filepath.Join(pods, first.Npub, ".acl"), "<#owner>", "# a friend, too\n<#owner>")
	oldKey := read(t, p.keyFile())
	second, err := p.store(t).Rotate(first, managementKey)
	if err != nil {
		t.Fatal(err)
	}
	if second.PublicKey == first.PublicKey || second.Previous != first.PublicKey || second.RotatedAt == nil || !second.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("%+v", second.Identity)
	}
	archived, err := filepath.Glob(filepath.Join(p.cfg.Layout.Profile, "archive", "*", "nostr.key.enc"))
	if err != nil || len(archived) != 1 || !bytes.Equal(read(t, archived[0]), oldKey) {
		t.Errorf("archived %v, %v", archived, err)
	}
	acl := string(read(t, filepath.Join(pods, second.Npub, ".acl")))
	if !strings.Contains(acl, second.DID) || strings.Contains(acl, string(first.PublicKey)) || !strings.Contains(acl, "a friend") {
		t.Errorf(".acl after the rotation:\n%s", acl)
	}
	if all := string(read(t, filepath.Join(p.roots.SolidPods, ".acl"))); !strings.Contains(all, second.DID) || strings.Contains(all, string(first.PublicKey)) {
		t.Errorf(".acl of the tree after the rotation:\n%s", all)
	}
	if got := read(t, filepath.Join(pods, first.Npub, "events", "inbox", "m.json")); string(got) != "mail" {
		t.Error("the pod's old name leads nowhere")
	}
	if again := p.open(t); again.PublicKey != second.PublicKey || len(again.Notes) > 0 {
		t.Errorf("after a restart: %s, %q", again.PublicKey, again.Notes)
	}
}

func TestBadAgentID(t *testing.T) {
	for _, id := range []string{"../x", "a/b", ".hidden", strings.Repeat("a", 65), "a b", "a\n"} {
		if _, err := identity.NewStore(identity.Config{AgentID: id}); err == nil {
			t.Errorf("agent id %q was taken", id)
		}
	}
}

// unsynced fails after it has replaced the encrypted key, as a directory does that cannot be synced.
type unsynced struct {
	identity.Files
	key string
}

func (u unsynced) WriteFile(path string, data []byte, mode fs.FileMode) error {
	err := u.Files.WriteFile(path, data, mode)
	if path == u.key {
		return errors.Join(err, syscall.EIO)
	}
	return err
}

func TestAKeyThatIsInTheFileIsInForce(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	whole := p.cfg.Files
	p.cfg.Files = unsynced{whole, p.keyFile()}
	second, err := p.store(t).Rotate(first, managementKey)
	if err != nil {
		t.Fatal(err)
	}
	const next = "the next management key"
	if err := p.store(t).Reseal(second.Key, next); err != nil {
		t.Error(err) // the caller would forget the next management key
	}
	p.cfg.Files = whole
	again, err := p.store(t).Open(next)
	if err != nil || again.PublicKey != second.PublicKey || len(again.Notes) > 0 {
		t.Errorf("after a restart: %+v, %v", again, err)
	}
}

// After a rotation, the access lists that an operator wrote still have the former key. agentinit's own lists
// have the new one.
func TestListsThatNameTheFormerKey(t *testing.T) {
	p := newPlace(t)
	first := p.open(t)
	pods := p.cfg.Layout.Pods
	for name, text := range map[string]string{
		"notes/.acl":          "acl:agent <did:nostr:" + string(first.PublicKey) + ">.",
		"pods/other/.acl":     "acl:agent </pods/" + first.Npub + "/profile.json#me>.",
		"notes/text.ttl":      string(first.PublicKey),
		"notes/deep/page.acl": string(first.PublicKey),
		"public/.acl":         "acl:agentClass foaf:Agent.",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(pods, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(pods, name), []byte(text))
	}
	if err := os.Symlink("../notes/.acl", filepath.Join(pods, "public", "link.acl")); err != nil {
		t.Fatal(err)
	}
	s := p.store(t)
	second, err := s.Rotate(first, managementKey)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"notes/.acl", "notes/deep/page.acl", "pods/other/.acl"}
	if lists, all := s.ListsNaming(second.Previous); !slices.Equal(lists, want) || !all {
		t.Errorf("got %v, all: %t; want %v", lists, all, want)
	}
	for i := range 250 {
		put(t, filepath.Join(pods, "notes", fmt.Sprint(i, ".acl")), []byte(first.Npub))
	}
	if lists, all := s.ListsNaming(second.Previous); len(lists) != 200 || all {
		t.Errorf("%d lists, all: %t", len(lists), all)
	}
	if err := os.RemoveAll(pods); err != nil {
		t.Fatal(err)
	}
	if lists, all := s.ListsNaming(second.Previous); lists != nil || !all {
		t.Errorf("without pods: %v, all: %t", lists, all)
	}
}

var errKilled = errors.New("killed")

// mortal fails every write from the n-th on. This simulates a process that was killed at that
// point.
type mortal struct {
	identity.Files
	left int
}

func (m *mortal) step() error {
	if m.left--; m.left < 0 {
		return errKilled
	}
	return nil
}

func (m *mortal) MkdirAll(path string, mode fs.FileMode) error {
	return errors.Join(m.step(), m.alive(func() error { return m.Files.MkdirAll(path, mode) }))
}
func (m *mortal) WriteFile(path string, data []byte, mode fs.FileMode) error {
	return errors.Join(m.step(), m.alive(func() error { return m.Files.WriteFile(path, data, mode) }))
}
func (m *mortal) CreateFile(path string, data []byte, mode fs.FileMode) error {
	if err := m.step(); err != nil {
		return err
	}
	return m.Files.CreateFile(path, data, mode)
}
func (m *mortal) Rename(from, to string) error {
	return errors.Join(m.step(), m.alive(func() error { return m.Files.Rename(from, to) }))
}
func (m *mortal) Symlink(target, path string) error {
	return errors.Join(m.step(), m.alive(func() error { return m.Files.Symlink(target, path) }))
}
func (m *mortal) Remove(path string) error {
	return errors.Join(m.step(), m.alive(func() error { return m.Files.Remove(path) }))
}
func (m *mortal) alive(f func() error) error {
	if m.left < 0 {
		return nil
	}
	return f()
}

// If the process is killed between any two writes of the first boot, of an import or of a rotation,
// the box has one identity at the next boot: never none, never a third one.
func TestKilledBetweenAnyTwoWrites(t *testing.T) {
	const secret = "67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa"
	long := "npub1" + strings.Repeat("q", 109)
	for name, c := range map[string]struct {
		before func(t *testing.T, p *place) *identity.Opened
		do     func(s *identity.Store, before *identity.Opened) error
	}{
		"first boot": {
			func(*testing.T, *place) *identity.Opened { return nil },
			func(s *identity.Store, _ *identity.Opened) error { _, err := s.Open(managementKey); return err },
		},
		"import": {
			func(t *testing.T, p *place) *identity.Opened {
				put(t, p.identityFile(), []byte(`{"private_key_hex":"`+secret+`","npub":"`+long+`"}`))
				put(t, filepath.Join(p.roots.SolidPods, "pods", long, "memory", "note.txt"), []byte("kept"))
				return nil
			},
			func(s *identity.Store, _ *identity.Opened) error { _, err := s.Open(managementKey); return err },
		},
		"rotation": {
			func(t *testing.T, p *place) *identity.Opened { return p.open(t) },
			func(s *identity.Store, before *identity.Opened) error {
				_, err := s.Rotate(before, managementKey)
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 0; ; n++ {
				p := newPlace(t)
				before := c.before(t, p)
				whole := p.cfg.Files
				p.cfg.Files = &mortal{whole, n}
				err := c.do(p.store(t), before)
				p.cfg.Files = whole
				o := p.open(t)
				if name == "import" {
					if string(o.PublicKey) != "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e" {
						t.Fatalf("killed at write %d: another key", n)
					}
					for _, pod := range []string{long, o.Npub} {
						if string(read(t, filepath.Join(p.roots.SolidPods, "pods", pod, "memory", "note.txt"))) != "kept" {
							t.Fatalf("killed at write %d: the pod is gone", n)
						}
					}
				}
				if before != nil && o.PublicKey == before.PublicKey && err == nil {
					t.Fatal("the rotation did nothing")
				}
				if before != nil && o.PublicKey != before.PublicKey && o.Previous != before.PublicKey {
					t.Fatalf("killed at write %d: a third key", n)
				}
				if again := p.open(t); again.PublicKey != o.PublicKey || len(again.Notes) > 0 {
					t.Fatalf("killed at write %d: the boot after the next differs: %q", n, again.Notes)
				}
				if err == nil {
					return
				}
			}
		})
	}
}
