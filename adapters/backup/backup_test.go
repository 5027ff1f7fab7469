package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
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

// A restore asks whether a tree is in use. A program may have put a FIFO in place of the tree.
func TestWhatIsInPlaceOfATree(t *testing.T) {
	dir := t.TempDir()
	full, fifo := filepath.Join(dir, "full"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.MkdirAll(filepath.Join(full, "task"), 0o700), mkfifo(fifo)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{full: true, filepath.Join(full, "task"): false, fifo: false, filepath.Join(dir, "none"): false} {
		if got := Tree("tasks", path, false, nil).Serving(); got != want {
			t.Errorf("%s: serving is %t", path, got)
		}
	}
}

// A program can make a file that no backup can read in time. The copy of it must end with its context.
func TestACopyEndsWithItsContext(t *testing.T) {
	from := t.TempDir()
	f, err := os.Create(filepath.Join(from, "huge"))
	if err != nil {
		t.Fatal(err)
	}
	// 4 TiB: less than the largest file of every usual file system, and hours to read.
	if err := errors.Join(f.Truncate(4<<40), f.Close()); err != nil {
		t.Skipf("the file system takes no file of 4 TiB: %v", err)
	}
	copied := filepath.Join(t.TempDir(), "copied")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- copyTree(ctx, from, copied) }()
	for { // until it reads that file
		if _, err := os.Stat(filepath.Join(copied, "huge")); err == nil {
			break
		}
		runtime.Gosched()
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "huge") {
		t.Errorf("the copy ended with %v", err)
	}
	if _, err := listFiles(ctx, from); !errors.Is(err, context.Canceled) {
		t.Errorf("the list ended with %v", err)
	}
}

// A program can fill a tree with files of long names, and put directories in each other: the copy must not
// hold all names in memory, or a descriptor for each level.
func TestATreeIsBounded(t *testing.T) {
	wide := t.TempDir()
	dir := wide
	for len(dir) < 3500 {
		dir = filepath.Join(dir, strings.Repeat("d", 200))
	}
	deep := t.TempDir()
	for _, path := range []string{dir, filepath.Join(deep, strings.Repeat("d/", maxTreeDepth+1))} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTree(t.Context(), wide, filepath.Join(t.TempDir(), "c")); err != nil {
		t.Errorf("without files: %v", err)
	}
	for n := range maxTreeNames / 3000 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []string{wide, deep} {
		if err := copyTree(t.Context(), from, filepath.Join(t.TempDir(), "c")); err == nil {
			t.Errorf("%s was copied", from)
		}
	}
}

// A program can put a deep tree, and any number of files, beside the copies that a killed box has left.
func TestLeftCopiesAreRemoved(t *testing.T) {
	home := t.TempDir()
	left, other := filepath.Join(home, stagingPrefix+"backup-1"), filepath.Join(home, "other")
	for _, dir := range []string{filepath.Join(left, "a/b"), other} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(left, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := sweepStaging(home); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is left: %v", err)
	}
	if _, err := os.Lstat(other); err != nil {
		t.Error(err)
	}
	for n := range maxStaging + 1 {
		if err := os.WriteFile(filepath.Join(home, stagingPrefix+strconv.Itoa(n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := sweepStaging(home); err == nil {
		t.Error("all names were read")
	}
}

// The copy of a sparse file, and what is unpacked from an archive, need no more disk than the file.
func TestHolesAreKept(t *testing.T) {
	from, to, unpacked := t.TempDir(), t.TempDir(), t.TempDir()
	const size, at = 64 << 20, 40<<20 + 17
	f, err := os.Create(filepath.Join(from, "sparse"))
	if err == nil {
		_, err = f.WriteAt([]byte("data"), at)
	}
	if err := errors.Join(err, f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := copyTree(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	original, err := os.Open(filepath.Join(from, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer original.Close()
	if err := unpackOne(root, &tar.Header{Name: "sparse", Mode: 0o600, Typeflag: tar.TypeReg}, original); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{to, unpacked} {
		path := filepath.Join(dir, "sparse")
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if used := info.Sys().(*syscall.Stat_t).Blocks * 512; info.Size() != size || used > 1<<20 {
			t.Errorf("%d bytes use %d on disk", info.Size(), used)
		}
		content, err := os.ReadFile(path)
		if err != nil || string(bytes.Trim(content, "\x00")) != "data" || !bytes.HasPrefix(content[at:], []byte("data")) {
			t.Errorf("the content is another one: %v", err)
		}
	}
}

// Every refusal of the choice of parts names the parameter.
func TestARefusedChoiceNamesItsField(t *testing.T) {
	s := &State{Parts: []Part{{Name: "key", Secret: true}}}
	key := archiveList{Files: []archivedFile{{Name: "key/file"}}}
	for _, c := range []struct {
		want  string
		list  archiveList
		parts []string
	}{
		{"empty", archiveList{}, nil},
		{"is secret", key, nil},
		{`has no "beads"; it has key`, key, []string{"beads"}},
		{"it has no part", archiveList{}, []string{"beads"}},
		{"keeps no", archiveList{Files: []archivedFile{{Name: "other/file"}}}, nil},
	} {
		_, err := s.choose(RestoreOptions{Parts: c.parts}, c.list, new(Restored))
		if e := adapters.AsError(err); e == nil || e.Code != adapters.CodeValidation || e.Fields["field"] != "part" || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: %+v", c.want, e)
		}
	}
}

// A part to leave out that the box does not keep: the error names those that it keeps.
func TestARefusedSkipNamesTheParts(t *testing.T) {
	s := &State{Parts: []Part{{Name: "beads"}, {Name: "events"}}}
	_, _, err := s.selected(CopyOptions{Skip: []string{"bead"}})
	if e := adapters.AsError(err); e == nil || !strings.Contains(e.Message, `this box keeps no "bead", only beads, events`) {
		t.Errorf("%v", err)
	}
}

// Two restores soon after each other keep the state before each of them.
func TestRestoresKeepStateUnderDifferentNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stamps []string
		part := Part{Name: "p", Restore: func(_ context.Context, _, stamp string) (string, error) {
			stamps = append(stamps, stamp)
			return "", nil
		}}
		for range 2 {
			if err := replaceParts(t.Context(), []Part{part}, "", &Restored{Parts: []RestoredPart{{Name: "p"}}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if stamps[0] == stamps[1] {
			t.Errorf("both restores keep state under %s", stamps[0])
		}
	})
}

// The user of the workspace puts a link in place of the directory of the copy. Root writes the copy
// nowhere else, and does not remove anything there.
func TestACopyStaysInItsDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: others refuse nothing")
	}
	home, elsewhere := t.TempDir(), t.TempDir()
	kept := filepath.Join(elsewhere, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "x"), []byte("x"), 0o600)
	}
	s := &State{Staging: home, Parts: []Part{{Name: "one", Snapshot: func(ctx context.Context, dir string) error {
		made, err := filepath.Glob(filepath.Join(home, stagingPrefix+"*"))
		if err != nil || len(made) != 1 {
			t.Fatal(made, err)
		}
		return errors.Join(os.Rename(made[0], filepath.Join(home, "moved")), os.Symlink(elsewhere, made[0]), write(ctx, dir))
	}}, {Name: "two", Snapshot: write}}}
	c, err := s.Copy(t.Context(), CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := c.Archive(t.Context(), &archive); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"one/x", "two/x"} {
		if !bytes.Contains(archive.Bytes(), []byte(name)) {
			t.Errorf("the archive has no %s", name)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(elsewhere, "*")); err != nil || !slices.Equal(left, []string{kept}) {
		t.Errorf("elsewhere: %v %v", left, err)
	}
	if left, err := filepath.Glob(filepath.Join(home, "moved", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// meanwhile is a context that does something when it is asked for its error.
type meanwhile struct {
	context.Context
	do func()
}

func (m meanwhile) Err() error {
	m.do()
	return m.Context.Err()
}

// The same for what a restore puts beside the state.
func TestARestoredTreeStaysInItsDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: others refuse nothing")
	}
	from, home, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(from, "x"), nil, 0o600), os.Chmod(from, 0o750)); err != nil {
		t.Fatal(err)
	}
	path, moved := filepath.Join(home, "tasks"), filepath.Join(home, "moved")
	swapped := path + ".restoring-1"
	ctx := meanwhile{t.Context(), func() {
		if info, err := os.Lstat(swapped); err == nil && info.IsDir() {
			if err := errors.Join(os.Rename(swapped, moved), os.Symlink(elsewhere, swapped)); err != nil {
				t.Error(err)
			}
		}
	}}
	if _, err := stage(ctx, from, path, "1"); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(elsewhere, "*")); err != nil || len(left) > 0 {
		t.Errorf("elsewhere: %v %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(moved, "x")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(moved); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("%v %v", info, err)
	}
}

// A state whose directory cannot be synced is in place all the same, and the old one is named.
func TestAStateInADirectoryThatCannotBeSyncedIsReplaced(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs an ordinary user: root can read every directory")
	}
	dir := t.TempDir()
	path, staged := filepath.Join(dir, "state"), filepath.Join(dir, "state.restoring-x")
	if err := errors.Join(os.WriteFile(path, []byte("old"), 0o600), os.WriteFile(staged, []byte("new"), 0o600), os.Chmod(dir, 0o300)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700) // so that it can be removed
	kept, err := swapIn(staged, path, "x")
	if err != nil || kept != path+".before-x" {
		t.Errorf("%q %v", kept, err)
	}
	for file, want := range map[string]string{path: "new", path + ".before-x": "old"} {
		if got, err := os.ReadFile(file); string(got) != want {
			t.Errorf("%s has %q %v, want %q", file, got, err, want)
		}
	}
}

// The name for the old state may be taken. Then nothing is replaced: the caller removes the new state
// and must not remove the old one.
func TestAStateThatCannotBeKeptIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	staged, taken := path+".restoring-x", path+".before-x"
	for dir, content := range map[string]string{path: "old", staged: "new", taken: "other"} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := swapIn(staged, path, "x"); err == nil || kept != "" {
		t.Errorf("%q %v", kept, err)
	}
	for dir, want := range map[string]string{path: "old", staged: "new", taken: "other"} {
		if got, err := os.ReadFile(filepath.Join(dir, "file")); string(got) != want {
			t.Errorf("%s has %q %v, want %q", dir, got, err, want)
		}
	}
}

// choosy is a slot that works with any state but one.
type choosy struct {
	adapters.Beads
	path string
}

func (choosy) Impl() string          { return "choosy" }
func (choosy) Class() adapters.Class { return adapters.ClassLocal }
func (choosy) Enabled() bool         { return true }
func (c choosy) Connect(context.Context) error {
	if text, _ := os.ReadFile(c.path); string(text) == "refused" {
		return errors.New("not this one")
	}
	return nil
}

func TestARefusedStateIsTakenAway(t *testing.T) {
	for _, before := range []string{"", "old"} {
		path, dir := filepath.Join(t.TempDir(), "state"), t.TempDir()
		if before != "" {
			if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "state"), []byte("refused"), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := adapters.Resolve(adapters.Config{Slots: map[adapters.Slot]string{adapters.SlotBeads: "choosy"}}, adapters.Table{
			adapters.SlotBeads: {"choosy": func() (adapters.Adapter, error) { return choosy{adapters.WrapBeads(nil, nil), path}, nil }},
		})
		if err != nil {
			t.Fatal(err)
		}
		set := adapters.NewSet(r, adapters.Options{})
		defer set.Disconnect(context.Background())
		if err := set.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := Slots{Set: func() *adapters.Set { return set }, Adapter: r.Adapter}
		_, err = s.Part(adapters.SlotBeads, Place{Path: path, File: "state"}, nil, nil).Restore(t.Context(), dir, "S")
		now, _ := os.ReadFile(path)
		refused, _ := os.ReadFile(path + ".before-S.refused")
		if err == nil || string(now) != before || string(refused) != "refused" || !s.status(adapters.SlotBeads).Ready() {
			t.Errorf("before %q: %v; the state is %q, beside it is %q, the slot is %+v", before, err, now, refused, s.status(adapters.SlotBeads))
		}
	}
}
