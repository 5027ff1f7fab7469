package safeopen

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// stranger is a user that is neither root nor the user of the tests.
const stranger = 4711

// ground makes a directory of the stranger inside a directory of root, like a program's log
// directory. It also makes a directory of root that the stranger must not reach.
func ground(t *testing.T) (owned, secret string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of two users")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	owned, secret = filepath.Join(dir, "owned"), filepath.Join(dir, "secret")
	for _, d := range []string{owned, secret} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	own(t, owned)
	return owned, secret
}

func own(t *testing.T, path string) {
	t.Helper()
	if err := os.Lchown(path, stranger, stranger); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, name string) string {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
	return name
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const appending = os.O_WRONLY | os.O_APPEND | os.O_CREATE

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ErrUnsafe) {
		t.Errorf("%s: %v, want it refused as unsafe", what, err)
	}
}

func TestADirectorySwappedForALinkIsRefused(t *testing.T) {
	owned, secret := ground(t)
	logs := link(t, secret, filepath.Join(owned, "logs"))
	own(t, logs)
	file := filepath.Join(logs, "web.log")

	// For comparison: the kernel with O_NOFOLLOW alone follows the link.
	f, err := os.OpenFile(file, appending|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		t.Fatalf("without this package the attack should work: %v", err)
	}
	f.Close()
	if err := os.Remove(filepath.Join(secret, "web.log")); err != nil {
		t.Fatal(err)
	}

	_, err = OpenFile(file, appending, 0o640)
	refused(t, "OpenFile", err)
	_, err = MakeDirectory(filepath.Join(logs, "more"), 0o755)
	refused(t, "MakeDirectory", err)
	_, err = OpenAny(file, os.O_WRONLY)
	refused(t, "OpenAny", err)
	if entries, err := os.ReadDir(secret); err != nil || len(entries) > 0 {
		t.Errorf("root's directory now has %v %v", entries, err)
	}
}

func TestLinks(t *testing.T) {
	owned, secret := ground(t)
	base := filepath.Dir(owned)
	write(t, filepath.Join(secret, "file"), "x")
	strangers := link(t, filepath.Join(secret, "file"), filepath.Join(owned, "strangers"))
	own(t, strangers)
	for _, c := range []struct {
		name, path string
		unsafe     bool
	}{
		{"root's link in root's directory", link(t, "secret", filepath.Join(base, "way")) + "/file", false},
		{"root's link to a file", link(t, secret+"/file", filepath.Join(base, "file")), false},
		{"root's link that goes up", link(t, "owned/../secret", filepath.Join(base, "up")) + "/file", false},
		{"root's link in a directory of the stranger's", link(t, "../secret", filepath.Join(owned, "way")) + "/file", true},
		{"the stranger's link to a file", strangers, true},
		{"root's link to the stranger's link", link(t, strangers, filepath.Join(base, "two")), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := OpenFile(c.path, os.O_RDONLY, 0)
			if err == nil {
				f.Close()
			}
			if c.unsafe {
				refused(t, c.path, err)
			} else if err != nil {
				t.Error(err)
			}
			// Also test without openat2, as on Linux before 5.6.
			w := walk{careful: true}
			fd, err := w.directory(filepath.Dir(c.path))
			if err == nil {
				unix.Close(fd)
			} else if !c.unsafe {
				t.Errorf("walking: %v", err)
			}
		})
	}
	loop := link(t, "loop", filepath.Join(base, "loop"))
	if _, err := OpenDirectory(loop + "/x"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to itself: %v", err)
	}
}

func TestASecondNameOfRootsFileIsRefused(t *testing.T) {
	owned, secret := ground(t)
	key := write(t, filepath.Join(secret, "key"), "KEY=1")
	linked := filepath.Join(owned, "web.log")
	if err := os.Link(key, linked); err != nil {
		t.Fatal(err)
	}
	_, err := OpenFile(linked, appending, 0o640)
	refused(t, "OpenFile", err)
	_, err = OpenFile(linked, os.O_WRONLY|os.O_TRUNC, 0)
	refused(t, "with O_TRUNC", err)
	_, _, err = ReadPrivate(linked, 100, stranger)
	refused(t, "ReadPrivate", err)
	if text, err := os.ReadFile(key); err != nil || string(text) != "KEY=1" {
		t.Errorf("root's file is now %q %v", text, err)
	}
	if f, err := OpenFile(key, appending, 0); err != nil { // under its original name
		t.Error(err)
	} else {
		f.Close()
	}
}

func TestReadPrivate(t *testing.T) {
	owned, secret := ground(t)
	base := filepath.Dir(owned)
	theirs := write(t, filepath.Join(owned, "theirs"), "x")
	own(t, theirs)
	shared := write(t, filepath.Join(base, "shared"), "x")
	grouped := write(t, filepath.Join(base, "grouped"), "x")
	for file, mode := range map[string]os.FileMode{shared: 0o646, grouped: 0o660} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(grouped, 0, stranger); err != nil {
		t.Fatal(err)
	}
	theirLink := link(t, write(t, filepath.Join(secret, "key"), "x"), filepath.Join(owned, "env"))
	own(t, theirLink)
	for _, c := range []struct {
		name, path   string
		allowed      []uint32
		unsafe, weak bool
	}{
		{"root's file", write(t, filepath.Join(base, "own"), "x"), nil, false, false},
		{"root's file in their directory", write(t, filepath.Join(owned, "own"), "x"), nil, false, true},
		{"their file", theirs, nil, true, false},
		{"their file, allowed", theirs, []uint32{stranger}, false, true},
		{"every user writes", shared, nil, true, false},
		{"a group writes", grouped, nil, true, false},
		{"their link to root's file", theirLink, []uint32{stranger}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			data, weak, err := ReadPrivate(c.path, 10, c.allowed...)
			switch {
			case c.unsafe:
				refused(t, c.path, err)
			case err != nil || string(data) != "x":
				t.Errorf("%q %v", data, err)
			case (weak != nil) != c.weak:
				t.Errorf("weak is %v, want it: %v", weak, c.weak)
			}
		})
	}
	if _, _, err := ReadPrivate(filepath.Join(base, "own"), 0); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond the limit: %v", err)
	}
}

func TestDirectory(t *testing.T) {
	d, err := MakeDirectory(filepath.Join(t.TempDir(), "a", "b"), 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.OpenFile("one", appending, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("text"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := d.Rename("one", "two"); err != nil {
		t.Fatal(err)
	}
	if e, err := d.Stat("two"); err != nil || !e.Regular || e.Size != 4 {
		t.Errorf("%+v %v", e, err)
	}
	// The descriptor refers to the directory even after a rename.
	if err := os.Rename(d.Path(), d.Path()+"-moved"); err != nil {
		t.Fatal(err)
	}
	if f, err = d.OpenFile("one", appending, 0o640); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if names, err := d.Names(func(string) bool { return true }, 100); err != nil || !slices.Equal(names, []string{"one", "two"}) {
		t.Errorf("%v %v", names, err)
	}
	if err := d.Remove("one"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", ".", "..", "a/b", "../x"} {
		if _, err := d.OpenFile(bad, appending, 0o640); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOtherTypes(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(fifo, os.O_RDONLY, 0); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a FIFO: %v", err)
	}
	if _, err := OpenAny(fifo, os.O_WRONLY); !errors.Is(err, unix.ENXIO) {
		t.Errorf("a FIFO without a reader: %v", err)
	}
	f, err := OpenAny("/dev/null", os.O_WRONLY)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// Of a directory with many files, only the wanted names are kept, and no more than the caller allows.
func TestNamesAreChosenAndBounded(t *testing.T) {
	dir := t.TempDir()
	const files = 2*namesAtOnce + 10
	for i := range files {
		write(t, filepath.Join(dir, fmt.Sprintf("%04d", i)), "")
	}
	d, err := OpenDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	seen := 0
	few := func(name string) bool { seen++; return strings.HasSuffix(name, "99") }
	names, err := d.Names(few, files/100)
	if err != nil || len(names) != files/100 || names[0] != "0099" || !slices.IsSorted(names) || seen != files {
		t.Errorf("%d of %d: %v %v", len(names), seen, names, err)
	}
	if names, err = d.Names(few, files/100-1); err == nil || names != nil {
		t.Errorf("above the bound: %v", names)
	}
}

func TestSyncDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, works := range map[string]bool{dir: true, "/proc/self": true /* it cannot be synced */, file: false, filepath.Join(dir, "missing"): false} {
		if err := SyncDirectory(path); (err == nil) != works {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestNoFreeInode: if only inodes have run out, the error says so. If the space has, it does not.
func TestNoFreeInode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a tmpfs")
	}
	for options, want := range map[string]bool{"nr_inodes=1": true, "size=4k,nr_inodes=2": false} { // the root directory is an inode
		t.Run(options, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
				t.Skip("needs root: cannot mount a tmpfs: ", err)
			}
			defer func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}()
			if !want {
				if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 4096), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d, err := OpenDirectory(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			_, fileErr := d.OpenFile("log", os.O_WRONLY|os.O_CREATE, 0o600)
			_, pathErr := MakeDirectory(filepath.Join(dir, "sub"), 0o700)
			for name, err := range map[string]error{"file": fileErr, "directory": d.Mkdir("sub", 0o700), "directory of a path": pathErr} {
				if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "no free inode") != want {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// Below leads only to directories below, and Move takes a file there.
func TestBelow(t *testing.T) {
	top := t.TempDir()
	for what, err := range map[string]error{
		"tree": os.MkdirAll(filepath.Join(top, "a", "b"), 0o700), "file": os.WriteFile(filepath.Join(top, "file"), nil, 0o600),
		"link": os.Symlink("a", filepath.Join(top, "link")), "out": os.Symlink("/", filepath.Join(top, "a", "out")),
	} {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	d, err := OpenDirectory(top)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, names := range [][]string{{"link"}, {"link", "b"}, {"a", "out"}, {"a", ".."}, {".."}, {"."}, {"a/b"}, {""}, {"file"}, {"none"}} {
		if below, err := d.Below(names...); err == nil {
			t.Errorf("%q leads to %s", names, below.Path())
			below.Close()
		}
	}
	below, err := d.Below("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer below.Close()
	if err := d.Move("file", below, "moved"); err != nil {
		t.Fatal(err)
	}
	if entry, err := below.Stat("moved"); err != nil || !entry.Regular || entry.Dir {
		t.Errorf("%+v, %v", entry, err)
	}
	for _, bad := range []string{"../x", "", "."} {
		if err := below.Move("moved", d, bad); err == nil {
			t.Errorf("moved to %q", bad)
		}
	}
	if target, err := d.Readlink("link"); err != nil || target != "a" {
		t.Errorf("link to %q, %v", target, err)
	}
	if _, err := d.Readlink("a"); err == nil {
		t.Error("a directory is a link")
	}
	same, err := d.Below()
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()
	if entry, err := same.Stat("a"); err != nil || !entry.Dir {
		t.Errorf("%+v, %v", entry, err)
	}
}
