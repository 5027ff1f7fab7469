package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRoots are roots below a new directory.
func testRoots(t *testing.T, env ...string) Roots {
	t.Helper()
	e := EnvironMap(env)
	r, err := NewRoots(t.TempDir(), func(k string) string { return e[k] })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func write(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // independent of the umask
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRoots(t *testing.T) {
	env := map[string]string{"WORKSPACE": "/home/me", "SOLID_POD_ROOT": "/data/pods"}
	r, err := NewRoots("", func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	if r.Workspace != "/home/me" || r.SolidPods != "/data/pods" || r.Projects != "/projects" ||
		r.Sentinel() != "/run/agentbox/bootstrap.done" || r.ManagementKey() != "/home/me/profiles/default/mgmt-key" {
		t.Fatalf("got %+v", r)
	}
	r, err = NewRoots("/box/", func(k string) string { return env[k] })
	if err != nil || r.Workspace != "/box/home/me" || r.Manifest != "/box/etc/agentbox.toml" || r.Image != "/box/opt/agentbox" {
		t.Fatalf("got %+v %v", r, err)
	}
	if r, err := NewRoots("/", func(string) string { return "" }); err != nil || r.Prefix != "" {
		t.Fatalf("got %+v %v", r, err)
	}
	if r, err := NewRoots("./box", func(string) string { return "" }); err != nil || !filepath.IsAbs(r.Workspace) {
		t.Fatalf("got %+v %v", r, err)
	}
}

func TestPolicy(t *testing.T) {
	r := testRoots(t)
	p := NewPolicy(r)
	for _, good := range []string{r.Workspace, r.Workspace + "/a/b", r.Sentinel(), r.EnvHints(), r.ManagementKey(), r.X11} {
		if err := p.Check(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		r.Image, r.Image + "/bin/x", r.Workspace + "-other/x", r.Workspace + "/../opt/agentbox/x",
		r.ProfileD + "/other.sh", r.Prefix + "/etc/passwd", "/etc/passwd", r.Prefix, "/",
	} {
		if err := p.Check(bad); !errors.Is(err, ErrForbiddenWrite) {
			t.Errorf("%s is allowed: %v", bad, err)
		}
		if err := p.WriteFile(bad, nil, 0o644); !errors.Is(err, ErrForbiddenWrite) {
			t.Errorf("%s can be written: %v", bad, err)
		}
		if err := p.MkdirParent(bad, 0o755); !errors.Is(err, ErrForbiddenWrite) {
			t.Errorf("the parent of %s can be created: %v", bad, err)
		}
		if err := p.MkdirAll(bad, 0o755); !errors.Is(err, ErrForbiddenWrite) {
			t.Errorf("%s can be created: %v", bad, err)
		}
	}
}

// Programs can write in the workspace. A symbolic link that a program leaves there must not make
// the next boot write outside the workspace.
func TestPolicyFollowsNoLinkOut(t *testing.T) {
	r := testRoots(t)
	p := NewPolicy(r)
	outside := t.TempDir()
	if err := p.MkdirAll(r.Workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, r.Workspace+"/profiles"); err != nil {
		t.Fatal(err)
	}
	if err := p.MkdirAll(filepath.Dir(r.ManagementKey()), 0o700); err == nil {
		t.Error("a directory was made through the link")
	}
	if err := p.WriteFile(r.Workspace+"/profiles/x", nil, 0o600); err == nil {
		t.Error("a file was written through the link")
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("outside holds %v", entries)
	}
}

func TestWriteFileIsWholeAndLeavesNothing(t *testing.T) {
	r := testRoots(t)
	p := NewPolicy(r)
	file := r.Workspace + "/f"
	if err := p.MkdirAll(r.Workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := p.WriteFile(file, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.CreateFile(file, []byte("three"), 0o640); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("got %v", err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o640 || read(t, file) != "two" {
		t.Fatalf("%v %v %q", info, err, read(t, file))
	}
	if entries, _ := os.ReadDir(r.Workspace); len(entries) != 1 {
		t.Fatalf("left behind: %v", entries)
	}
	if err := p.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := p.Remove(file); err != nil {
		t.Fatalf("removing what is not there: %v", err)
	}
}

// A FIFO in the place of a directory is an error at once. Without a writer, a process that opens it
// waits for ever.
func TestPolicyWaitsForNoPipeInPlaceOfADirectory(t *testing.T) {
	r := testRoots(t)
	p := NewPolicy(r)
	below := r.Workspace + "/below"
	if err := errors.Join(os.MkdirAll(r.Workspace, 0o755), syscall.Mkfifo(below, 0o600), os.MkdirAll(filepath.Dir(r.Runtime), 0o755), syscall.Mkfifo(r.Runtime, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func() error{
		"make":        func() error { return p.MkdirAll(r.Runtime+"/x", 0o755) },
		"write":       func() error { return p.WriteFile(r.Sentinel(), nil, 0o644) },
		"remove":      func() error { return p.Remove(r.Sentinel()) },
		"read":        func() error { _, _, err := p.ReadFile(r.Sentinel(), 1); return err },
		"describe":    func() error { _, err := p.Lstat(r.Sentinel()); return err },
		"list":        func() error { _, err := p.ReadDir(r.Runtime); return err },
		"list below":  func() error { _, err := p.ReadDir(below); return err },
		"write below": func() error { return p.WriteFile(below+"/x", nil, 0o644) },
	} {
		result := make(chan error, 1)
		go func() { result <- try() }()
		select {
		case err := <-result:
			if !errors.Is(err, syscall.ENOTDIR) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s hangs", name)
		}
	}
}

// A program has put very many files into a directory. The names of all would take much memory.
func TestReadDirIsBounded(t *testing.T) {
	r := testRoots(t)
	p := NewPolicy(r)
	if err := p.MkdirAll(r.Workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if names, err := p.ReadDir(r.Workspace); len(names) != 0 || err != nil {
		t.Errorf("empty: %v %v", names, err)
	}
	for i := range maxNames + 1 {
		if i == maxNames {
			if names, err := p.ReadDir(r.Workspace); len(names) != maxNames || err != nil {
				t.Errorf("at the bound: %d %v", len(names), err)
			}
		}
		if err := os.Symlink("x", fmt.Sprint(r.Workspace, "/", i)); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := p.ReadDir(r.Workspace); names != nil || err == nil {
		t.Errorf("above the bound: %d names", len(names))
	}
	if err := p.RemoveUnfinished(r.Workspace + "/file"); err == nil {
		t.Error("RemoveUnfinished has read all names")
	}
}

func TestReadFileWaitsForNoPipe(t *testing.T) {
	r := testRoots(t)
	p := NewPolicy(r)
	if err := p.MkdirAll(r.Workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(r.Workspace+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.ReadFile(r.Workspace+"/fifo", 10); err == nil {
		t.Error("a pipe was read as a file")
	}
	write(t, r.Workspace+"/big", strings.Repeat("x", 11), 0o600)
	if _, _, err := p.ReadFile(r.Workspace+"/big", 10); !errors.Is(err, safeopen.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	s := newSecret("hunter2")
	j, err := json.Marshal(map[string]any{"k": s, "p": &s})
	if err != nil {
		t.Fatal(err)
	}
	out := string(j) + fmt.Sprintf("%v %+v %#v %s %q %x %d %T", s, s, s, s, s, s, s, s) + fmt.Sprintf("%v %d", &s, []Secret{s}) + fmt.Sprint(struct{ S Secret }{s})
	if strings.Contains(out, "hunter") || strings.Contains(out, fmt.Sprintf("%x", "hunter2")) {
		t.Fatalf("it is there: %s", out)
	}
	if s.Reveal() != "hunter2" || s.Empty() {
		t.Fatal("the text is gone")
	}
}

func TestManagementKey(t *testing.T) {
	none := func(string) string { return "" }
	good := strings.Repeat("ab", 32)
	for _, c := range []struct {
		name    string
		file    *string
		mode    fs.FileMode
		env     string
		want    string // "": any key
		from    KeySource
		note    bool
		err     string
		nonRoot bool
	}{
		{name: "made", from: KeyGenerated},
		{name: "placeholder", env: keyPlaceholder, from: KeyGenerated},
		{name: "blank", env: "  ", from: KeyGenerated},
		{name: "environment", env: "from-the-environment", want: "from-the-environment", from: KeyFromEnvironment},
		{name: "short", env: "short", want: "short", from: KeyFromEnvironment, note: true},
		{name: "file", file: new(good + "\n"), mode: 0o600, want: good, from: KeyFromFile},
		{name: "the operator's own", file: new("correct-horse-battery"), mode: 0o400, want: "correct-horse-battery", from: KeyFromFile},
		{name: "group may read", file: new(good), mode: 0o660, want: good, from: KeyFromFile, note: true},
		{name: "all may read", file: new(good), mode: 0o644, want: good, from: KeyFromFile, note: true},
		{name: "a placeholder in the file", file: new(keyPlaceholder + "\n"), mode: 0o600, err: "holds the placeholder"},
		{name: "empty", file: new(""), mode: 0o600, err: "fewer than 16"},
		{name: "cut", file: new("abc"), mode: 0o600, err: "fewer than 16"},
		{name: "binary", file: new(good + "\x00\xff"), mode: 0o600, err: "printable ASCII"},
		{name: "two lines", file: new(good + "\n" + good), mode: 0o600, err: "printable ASCII"},
		{name: "huge", file: new(strings.Repeat("x", maxKey+1)), mode: 0o600, err: "too large"},
		{name: "unreadable", file: new(good), mode: 0o000, err: "permission", nonRoot: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.nonRoot && os.Geteuid() == 0 {
				t.Skip("needs a user other than root: root reads everything")
			}
			r := testRoots(t)
			p := NewPolicy(r)
			if c.file != nil {
				write(t, r.ManagementKey(), *c.file, c.mode)
			}
			get := func(string) string { return c.env }
			key, from, note, err := findKey(p, r, get)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v", err)
				}
				if strings.Contains(err.Error(), good) {
					t.Fatal("the error holds the key")
				}
				if c.mode != 0 && read(t, r.ManagementKey()) != *c.file {
					t.Fatal("the file was replaced")
				}
				return
			}
			if err != nil || from != c.from || (note != "") != c.note || c.want != "" && key.Reveal() != c.want {
				t.Fatalf("%q %v %q %v", key.Reveal(), from, note, err)
			}
			if from == KeyFromEnvironment {
				if _, err := os.Stat(r.ManagementKey()); err == nil {
					t.Fatal("a key of the environment was written down")
				}
				return
			}
			info, err := os.Stat(r.ManagementKey())
			if err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Fatalf("%v %v", info.Mode(), err)
			}
			if from == KeyGenerated && len(key.Reveal()) != 64 {
				t.Fatalf("the key has %d digits", len(key.Reveal()))
			}
			again, from, _, err := findKey(p, r, none)
			if err != nil || from != KeyFromFile || again != key {
				t.Fatalf("the second boot has another key: %v %v", from, err)
			}
		})
	}
}

func TestTwoBoxesMakeOneKey(t *testing.T) {
	r := testRoots(t)
	var mu sync.Mutex
	keys := make(map[string]int)
	made := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			key, from, _, err := findKey(NewPolicy(r), r, func(string) string { return "" })
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			keys[key.Reveal()]++
			if from == KeyGenerated {
				made++
			}
		})
	}
	wg.Wait()
	if len(keys) != 1 || made != 1 {
		t.Fatalf("%d keys, made %d times", len(keys), made)
	}
}

const (
	passwdText = "root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\nbroken\nneg:x:-1:5::/:\nbig:x:4294967295:5::/:\ndev:x:7:7::/second:/bin/sh\n"
	groupText  = "root:x:0:\ndev:x:1000:\nvideo:x:44:dev,other\naudio:x:29:dev\nbad:x:zz:dev\n"
)

func TestUsers(t *testing.T) {
	u := ParseUsers([]byte(passwdText), []byte(groupText))
	for _, c := range []struct {
		user, group string
		extra       []string
		want, home  string
		err         string
	}{
		{user: "dev", want: "1000:1000 [29 44]", home: "/home/dev"},
		{user: "1000", want: "1000:1000 [29 44]", home: "/home/dev"},
		{user: "dev", group: "video", want: "1000:44 [29 44]", home: "/home/dev"},
		{user: "dev:video", want: "1000:44 [29 44]", home: "/home/dev"},
		{user: "dev", extra: []string{"7", "audio", "7"}, want: "1000:1000 [7 29]", home: "/home/dev"},
		{user: "dev", extra: []string{}, want: "1000:1000 []", home: "/home/dev"},
		{user: "4242", want: "4242:4242 []", home: "/"},
		{user: "4242", group: "9", want: "4242:9 []", home: "/"},
		{user: "nobody", err: `no user "nobody"`},
		{user: "neg", err: `no user "neg"`},
		{user: "big", err: `no user "big"`},
		{user: "-1", err: "no user"},
		{user: "4294967295", err: "no user"},
		{user: "dev", group: "bad", err: `no group "bad"`},
		{user: "dev", extra: []string{"none"}, err: `no group "none"`},
	} {
		id, err := u.Resolve(c.user, c.group, c.extra)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: got %v", c, err)
			}
			continue
		}
		got := fmt.Sprintf("%d:%d %v", id.Credential.UID, id.Credential.GID, id.Credential.Groups)
		if err != nil || got != c.want || id.Home != c.home {
			t.Errorf("%+v: got %s %s %v", c, got, id.Home, err)
		}
	}
	if _, err := LoadUsers("/dev/null/passwd", "/nor/this"); err == nil || err.Error() != "cannot read /dev/null/passwd: not a directory" {
		t.Errorf("passwd below a file: %v", err)
	}
	if _, err := LoadUsers("/does/not/exist", "/nor/this"); err != nil {
		t.Errorf("a box without passwd: %v", err)
	}
}

func TestPolicyRenamesAndLinksWithinItsRoots(t *testing.T) {
	roots := testRoots(t)
	p := NewPolicy(roots)
	old, now := filepath.Join(roots.SolidPods, "pods", "a"), filepath.Join(roots.SolidPods, "pods", "b")
	write(t, filepath.Join(old, "f"), "x", 0o644)
	if err := errors.Join(p.Rename(old, now), p.Symlink("b", old)); err != nil {
		t.Fatal(err)
	}
	if info, err := p.Lstat(old); err != nil || info.Mode()&fs.ModeSymlink == 0 || read(t, filepath.Join(old, "f")) != "x" {
		t.Errorf("the link: %v, %v", info, err)
	}
	for name, err := range map[string]error{
		"rename out of the root": p.Rename(now, filepath.Join(roots.Workspace, "b")),
		"rename from nowhere":    p.Rename("/etc/passwd", now),
		"absolute link":          p.Symlink("/etc", filepath.Join(roots.SolidPods, "l")),
		"link that climbs":       p.Symlink("../../etc", filepath.Join(roots.SolidPods, "l")),
		"link in the image":      p.Symlink("x", filepath.Join(roots.Image, "l")),
	} {
		if !errors.Is(err, ErrForbiddenWrite) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// After a crash between any two steps, one of the key files can still decrypt the private key.
func TestRotateManagementKey(t *testing.T) {
	roots := testRoots(t)
	var known []string
	r := newBootRig(t, roots, agentboxManifest, func(c *Config) { c.KeyKnown = func(s Secret) { known = append(known, s.Reveal()) } })
	if err := r.boot(t); err != nil {
		t.Fatal(err)
	}
	old := r.ManagementKey().Reveal()
	resealed := errors.New("resealing failed")
	if err := r.RotateManagementKey(func(Secret) error { return resealed }); !errors.Is(err, resealed) || r.ManagementKey().Reveal() != old {
		t.Fatalf("a reseal that fails changes the key: %v", err)
	}
	if strings.TrimSpace(read(t, roots.ManagementKey())) != old {
		t.Fatal("the file has another key")
	}
	err := r.RotateManagementKey(func(next Secret) error {
		if strings.TrimSpace(read(t, roots.NextManagementKey())) != next.Reveal() || strings.TrimSpace(read(t, roots.PreviousManagementKey())) != old {
			t.Error("the two keys are not on disk before the reseal")
		}
		return nil
	})
	now := strings.TrimSpace(read(t, roots.ManagementKey()))
	if err != nil || now == old || r.ManagementKey().Reveal() != now || len(known) != 2 || known[1] != now {
		t.Errorf("err %v, known %d", err, len(known))
	}
	fixed := newBootRig(t, testRoots(t), agentboxManifest, func(c *Config) { c.Environ = append(c.Environ, "MANAGEMENT_API_KEY=0123456789abcdef") })
	if err := fixed.boot(t); err != nil {
		t.Fatal(err)
	}
	if err := fixed.RotateManagementKey(func(Secret) error { return nil }); !errors.Is(err, ErrKeyElsewhere) {
		t.Errorf("a key of the environment: %v", err)
	}
}

func TestAManifestThatAgentinitMayNotRead(t *testing.T) {
	f := unreadable("/etc/agentbox.toml", &fs.PathError{Op: "open", Path: "/etc/agentbox.toml", Err: fs.ErrPermission})
	want := fmt.Sprintf("agentinit runs as user %d: let it read the file and enter the directories above it", os.Geteuid())
	if f.Code != "E000" || f.File != "/etc/agentbox.toml" || f.Hint != want {
		t.Errorf("%+v, want the hint %q", f, want)
	}
}
