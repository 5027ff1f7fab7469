package backup

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyTreeFollowsNothing: a program's tree may hold anything.
func TestCopyTreeFollowsNothing(t *testing.T) {
	from, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	for name, err := range map[string]error{
		"secret":  os.WriteFile(secret, []byte("s"), 0o600),
		"link":    os.Symlink(secret, filepath.Join(from, "link")),
		"dirlink": os.Symlink(filepath.Dir(secret), filepath.Join(from, "dirlink")),
		"pipe":    mkfifo(filepath.Join(from, "pipe")),
		"file":    os.WriteFile(filepath.Join(from, "file"), []byte("f"), 0o640),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	to := filepath.Join(t.TempDir(), "to")
	if err := copyTree(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(to)
	if err != nil || len(entries) != 1 || entries[0].Name() != "file" {
		t.Errorf("%v %v", entries, err)
	}
}

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }
