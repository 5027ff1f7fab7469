package bootstrap

import (
	"os"
	"path/filepath"
	"testing"
)

// TestWatchPath: the watch of a path reports each change, and ends when the box is unsealed.
func TestWatchPath(t *testing.T) {
	r := newSealRig(t, "stay", nil)
	path := filepath.Join(t.TempDir(), "socket")
	w := r.boot.WatchPath(path)
	defer w.Close()
	for _, change := range []func() error{
		func() error { return os.WriteFile(path, nil, 0o600) },
		func() error { return os.Rename(path, path+".away") },
		func() error { return os.Symlink("elsewhere", path) },
		func() error { return os.Remove(path) },
		func() error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		if err := w.Arm(); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.boot.Unseal(); err != nil {
		t.Fatal(err)
	}
	for w.Wait(t.Context()) == nil {
		// Discard the remaining events of the last change.
	}
}
