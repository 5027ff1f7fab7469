package safeopen

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// deepTree makes dir/name with depth directories in each other. No path can name the last one, because a
// path has at most 4096 bytes.
func deepTree(t *testing.T, dir, name string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	for i := 0; i <= depth && err == nil; i++ {
		if err = unix.Mkdirat(fd, name, 0o755); err != nil {
			break
		}
		next, openErr := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		unix.Close(fd)
		fd, err = next, openErr
	}
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
}

func TestRemoveAll(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	for _, name := range []string{"tree/a/b/c", "tree/a/empty", "tree/d", "outside"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tree/file", "tree/a/b/c/file", "outside/file", "file"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tree/link", "tree/a/link", "link"} {
		if err := os.Symlink(outside, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	deepTree(t, filepath.Join(dir, "tree"), "deep", 50)
	for _, name := range []string{"tree", "file", "link", "missing", "missing/file"} {
		if err := RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	var left []string
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		left = append(left, path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{dir, outside, filepath.Join(outside, "file")}; !slices.Equal(left, want) {
		t.Errorf("left: %q", left)
	}
}

// The descriptors of the process are enough for a tree that is deeper than they are many.
func TestRemoveAllOfADeepTree(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const depth = 3000
	deepTree(t, dir, "d", depth)
	few := limit
	few.Cur = min(limit.Cur, depth/2)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err := RemoveAll(filepath.Join(dir, "d"))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "d")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree is left: %v", err)
	}
}

// What cannot be removed is an error that names the top, and does not make RemoveAll go on for ever.
func TestRemoveAllThatCannot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can remove everything")
	}
	dir := t.TempDir()
	kept := filepath.Join(dir, "tree", "kept")
	if err := os.MkdirAll(filepath.Join(kept, "file"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(kept, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(kept, 0o755) })
	err := RemoveAll(filepath.Join(dir, "tree"))
	if failure, ok := errors.AsType[*fs.PathError](err); !ok || failure.Path != filepath.Join(dir, "tree") {
		t.Errorf("%v", err)
	}
}
