package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

const stranger = 4711 // a user that is neither root nor any program's

// give makes a file the stranger's.
func give(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of two users")
	}
	if err := os.Lchown(path, stranger, stranger); err != nil {
		t.Fatal(err)
	}
}

func TestAManifestThatAnotherUserOwnsIsRefused(t *testing.T) {
	r := newBootRig(t, testRoots(t), plain)
	if err := r.Load(t.Context()); err != nil { // the opposite case: a file of root is accepted
		t.Fatal(err)
	}
	give(t, r.cfg.Roots.Manifest)
	_, err := r.Reread()
	if findings, ok := errors.AsType[Findings](err); !ok || findings[0].Code != "E000" || !strings.Contains(err.Error(), "belongs to uid 4711") {
		t.Errorf("got %v", err)
	}
}

// A line is appended to the shell file of a user: it stays the user's.
func TestAShellFileKeepsItsOwner(t *testing.T) {
	roots := testRoots(t)
	file := filepath.Join(roots.Workspace, ".profile")
	write(t, file, "alias ll='ls -l'", 0o640)
	give(t, file)
	if err := os.MkdirAll(roots.Image, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := newBootRig(t, roots, agentboxManifest).boot(t); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || !strings.Contains(read(t, file), sourcingMark) {
		t.Fatalf("%v, %q", err, read(t, file))
	}
	if of := info.Sys().(*syscall.Stat_t); of.Uid != stranger || of.Gid != stranger || info.Mode() != 0o640 {
		t.Errorf("the file belongs to %d:%d, mode %v", of.Uid, of.Gid, info.Mode())
	}
}

func TestAManifestInADirectoryOfAnotherUserIsToldOf(t *testing.T) {
	r := newBootRig(t, testRoots(t), plain)
	give(t, filepath.Dir(r.cfg.Roots.Manifest))
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.bus.Counts()[EventManifestReplaceable] != 1 {
		t.Error("not told")
	}
}

func TestEnvFileOwners(t *testing.T) {
	roots := testRoots(t)
	dir := filepath.Dir(roots.Manifest)
	secret, theirs := filepath.Join(dir, "secret"), filepath.Join(dir, "theirs", "env")
	write(t, secret, "KEY=root-only\n", 0o600)
	if err := os.Mkdir(filepath.Dir(theirs), 0o755); err != nil {
		t.Fatal(err)
	}
	give(t, filepath.Dir(theirs))
	manifest := func(user string) string {
		return "[programs.web]\ncommand = [\"/bin/sleep\"]\nenv_file = \"" + theirs + "\"\n" + user
	}
	for _, c := range []struct {
		name, user string
		place      func()
		refused    bool
	}{
		{"root's own", "", func() { write(t, theirs, "A=1\n", 0o600) }, false},
		{"the program's own", "user = \"4711\"\n", func() { write(t, theirs, "A=1\n", 0o600); give(t, theirs) }, false},
		{"the program's own, in a variable", "user = \"${NO_SUCH:-4711}\"\n", func() { write(t, theirs, "A=1\n", 0o600); give(t, theirs) }, false},
		{"another user's, for a program of root's", "", func() { write(t, theirs, "A=1\n", 0o600); give(t, theirs) }, true},
		{"another program's", "user = \"4712\"\n", func() { write(t, theirs, "A=1\n", 0o600); give(t, theirs) }, true},
		{"a link to what only root can read", "user = \"4711\"\n", func() {
			if err := os.Symlink(secret, theirs); err != nil {
				t.Fatal(err)
			}
			give(t, theirs)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.RemoveAll(theirs); err != nil {
				t.Fatal(err)
			}
			c.place()
			r := newBootRig(t, roots, manifest(c.user))
			_, err := r.Read()
			if refused := err != nil && strings.Contains(err.Error(), "E127"); refused != c.refused || err != nil && !refused {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestATerminationLogThatIsALinkOverwritesNothing(t *testing.T) {
	dir := t.TempDir()
	target, log := filepath.Join(dir, "shadow"), filepath.Join(dir, "their", "log")
	write(t, target, "precious", 0o600)
	if err := os.Mkdir(filepath.Dir(log), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, log); err != nil {
		t.Fatal(err)
	}
	give(t, filepath.Dir(log))
	give(t, log)
	if written, err := WriteTerminationReport(log, func() []byte { return []byte("report") }); written || !errors.Is(err, safeopen.ErrUnsafe) {
		t.Errorf("%v %v", written, err)
	}
	if text, err := os.ReadFile(target); err != nil || string(text) != "precious" {
		t.Errorf("the target is now %q %v", text, err)
	}
}
