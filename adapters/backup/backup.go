// Package backup copies and restores parts of the box's local state. A restored part is first
// written beside its place, then exchanged in one step; the old state is kept under another name.
// While its state is exchanged, a slot is out of service. If the slot does not work with the new
// state, it gets its old state back.
//
// It must never follow a link out of a tree, wait for a pipe in one, or replace state and then
// return an error.
package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Part is one piece of the box's state.
type Part struct {
	// Name is its directory in the archive: one path element.
	Name string
	// Secret parts are left out unless they are asked for.
	Secret bool
	// Snapshot writes a consistent copy below dir, which is empty. Data written meanwhile may be
	// missing, but never in part. If there is nothing to copy, that is no error.
	Snapshot func(ctx context.Context, dir string) error
	// Serving tells whether the state is in use now. Then a restore must ask explicitly to replace
	// it.
	Serving func() bool
	// Check checks a snapshot below dir, which may be written to: it must be complete, and its
	// format not newer than this program knows. Check changes nothing else.
	Check func(ctx context.Context, dir string) error
	// Restore puts a checked snapshot in place of the present state. It keeps the present state
	// under a name with stamp and returns that name, or "" if there was none. If it returns an
	// error, nothing was replaced.
	Restore func(ctx context.Context, dir, stamp string) (kept string, err error)
}

// Place is where a part of the box's state lies.
type Place struct {
	Path string // a file, or a directory with all below it
	File string // the file's name in a backup, "" for a directory
}

// Slots is what the state of a slot is exchanged through. Its functions are called
// when a backup or a restore is asked for.
type Slots struct {
	Set     func() *adapters.Set
	Adapter func(adapters.Slot) adapters.Adapter // that the manifest wants
	// Forget drops the remembered answers to calls, because the things in them no longer exist.
	Forget func(context.Context) error
	// Restored is called with each restored state, Report with each problem that does not fail the
	// restore.
	Restored func(slot adapters.Slot, path, kept string)
	Report   func(name string, err error)
}

// in is what a snapshot below dir has for this place.
func (p Place) in(dir string) string { return filepath.Join(dir, p.File) }

// Part makes a slot's state part of backup and restore. open makes an adapter of the
// same class over a snapshot: that it connects is the check.
func (s Slots) Part(slot adapters.Slot, place Place, snapshot func(ctx context.Context, to string) error,
	open func(dir string) (adapters.Adapter, error)) Part {
	return Part{
		Name:     string(slot),
		Snapshot: func(ctx context.Context, dir string) error { return snapshot(ctx, place.in(dir)) },
		Serving:  func() bool { return s.status(slot).Active != string(adapters.ClassOff) },
		Check: func(ctx context.Context, dir string) error {
			if _, err := os.Stat(place.in(dir)); err != nil {
				return err
			}
			a, err := open(dir)
			if err != nil {
				return err
			}
			if err := a.Connect(ctx); err != nil {
				return err
			}
			return a.Disconnect(ctx)
		},
		Restore: func(ctx context.Context, dir, stamp string) (string, error) {
			return s.restore(ctx, slot, place, place.in(dir), stamp)
		},
	}
}

func (s Slots) status(slot adapters.Slot) adapters.SlotStatus {
	for _, one := range s.Set().Status() {
		if one.Slot == slot {
			return one
		}
	}
	return adapters.SlotStatus{}
}

// restore puts from in place while the slot is out of service. A slot that
// does not come back with it gets its old state again.
func (s Slots) restore(ctx context.Context, slot adapters.Slot, place Place, from, stamp string) (kept string, err error) {
	staged, err := stage(ctx, from, place.Path, stamp)
	if err != nil {
		return "", err
	}
	defer safeopen.RemoveAll(staged) // if the state was put in place, there is nothing to remove here
	if err := s.Set().Degrade(ctx, slot, errors.New("its state is being restored")); err != nil {
		return "", err
	}
	// Even if the caller has ended, the slot must come back.
	ctx = context.WithoutCancel(ctx)
	adapter := s.Adapter(slot)
	err = adapter.Disconnect(ctx)
	if err == nil {
		err = unshared(place)
	}
	if err == nil {
		kept, err = swapIn(staged, place.Path, stamp)
	}
	if err != nil {
		return "", errors.Join(err, s.Set().Restore(ctx, slot))
	}
	if err := s.Set().Restore(ctx, slot); err != nil {
		return "", errors.Join(fmt.Errorf("the slot does not connect: %w", err), s.undo(ctx, slot, place, kept, stamp))
	}
	if err := s.Forget(ctx); err != nil {
		s.Report("IdempotencyNotForgotten", err)
	}
	s.Restored(slot, place.Path, kept)
	return kept, nil
}

// undo puts the kept state back. The refused one is kept too.
func (s Slots) undo(ctx context.Context, slot adapters.Slot, place Place, kept, stamp string) error {
	stamp += ".refused"
	err := s.Set().Degrade(ctx, slot, errors.New("its state is being restored"))
	switch {
	case err != nil:
	case kept == "": // there was no state before
		err = os.Rename(place.Path, keptName(place.Path, stamp))
	default:
		_, err = swapIn(kept, place.Path, stamp)
	}
	return errors.Join(err, s.Set().Restore(ctx, slot))
}

// unshared makes sure that no other process has the database open: the last one to
// close it removes its log, and a log beside another database would damage that.
func unshared(place Place) error {
	if place.File == "" {
		return nil
	}
	if _, err := os.Lstat(place.Path + "-wal"); err == nil {
		return adapters.Errorf(adapters.CodeConflict, "%s is in use by a backup that is being made, or by another process", place.Path)
	}
	return nil
}

// stage copies a file or a directory to where a rename reaches path.
func stage(ctx context.Context, from, path, stamp string) (staged string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", err
	}
	staged = path + ".restoring-" + stamp
	info, err := os.Stat(from)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		err = stageTree(ctx, from, staged, info.Mode().Perm())
	default:
		err = copyFrom(ctx, func() (fs.File, error) { return os.Open(from) }, staged, info.Mode())
	}
	if err != nil {
		return "", errors.Join(err, safeopen.RemoveAll(staged))
	}
	return staged, nil
}

func stageTree(ctx context.Context, from, to string, mode fs.FileMode) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	place, err := hold(to)
	if err != nil {
		return err
	}
	return errors.Join(copyTree(ctx, from, place.dir), os.Chmod(place.dir, mode|0o700), place.release())
}

// swapIn puts staged at path in one step and keeps the old state under another name. If the sync of the
// directory fails, staged is in place all the same: only a crash of the machine can undo that, and then
// one of the two states is there, complete.
func swapIn(staged, path, stamp string) (kept string, err error) {
	defer func() { _ = safeopen.SyncDirectory(filepath.Dir(path)) }()
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return "", os.Rename(staged, path)
	}
	kept = keptName(path, stamp)
	err = unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if err == nil {
		if err := os.Rename(staged, kept); err != nil {
			// Exchanged again, because the caller removes what is at staged: that is the old state now.
			return "", errors.Join(err, unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE))
		}
		return kept, nil
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return "", fmt.Errorf("cannot put %s in place: %w", path, err)
	}
	// The file system cannot exchange (rename(2), RENAME_EXCHANGE): for a moment there is nothing
	// at path.
	if err := os.Rename(path, kept); err != nil {
		return "", err
	}
	if err := os.Rename(staged, path); err != nil {
		return "", errors.Join(err, os.Rename(kept, path))
	}
	return kept, nil
}

func keptName(path, stamp string) string { return path + ".before-" + stamp }

// Bounds of a tree, which programs can write. Its names are in memory, twice with the list of an archive.
const (
	maxTreeFiles = 300_000
	maxTreeNames = 32 << 20 // bytes of all paths
	maxTreeDepth = 256
	namesAtOnce  = 1000
)

// copyTree copies the files and directories below from, with their modes, to a new directory. A
// missing tree counts as empty. Everything else is left out. The tree may belong to a program, so
// copyTree must not follow a link in it, wait for a pipe or keep names without a bound.
func copyTree(ctx context.Context, from, to string) error {
	root, err := os.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	c := treeCopy{ctx: ctx, root: root, to: to}
	if err := os.Mkdir(to, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return c.directory(".", 0)
}

type treeCopy struct {
	ctx  context.Context
	root *os.Root
	to   string

	files, names int // so far
}

func (c *treeCopy) directory(name string, depth int) error {
	if depth > maxTreeDepth {
		return fmt.Errorf("it has a directory more than %d levels deep; remove that", maxTreeDepth)
	}
	entries, err := c.list(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	for _, d := range entries {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.one(filepath.Join(name, d.Name()), d, depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *treeCopy) one(name string, d fs.DirEntry, depth int) error {
	if !d.IsDir() && !d.Type().IsRegular() {
		return nil
	}
	info, err := c.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	target := filepath.Join(c.to, name)
	if d.IsDir() {
		if err := os.Mkdir(target, info.Mode().Perm()|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return c.directory(name, depth+1)
	}
	err = copyFrom(c.ctx, func() (fs.File, error) {
		return c.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	}, target, info.Mode())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if c.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// list returns the entries of a directory. It reads the directory in parts: a program can put millions of
// files there.
func (c *treeCopy) list(name string) (entries []fs.DirEntry, err error) {
	f, err := c.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for {
		part, err := f.ReadDir(namesAtOnce)
		for _, d := range part {
			c.names += len(name) + 1 + len(d.Name())
		}
		if c.files += len(part); c.files > maxTreeFiles || c.names > maxTreeNames {
			return nil, fmt.Errorf("it holds more than %d files, or more than %d MiB of names; remove some of them", maxTreeFiles, maxTreeNames>>20)
		}
		entries = append(entries, part...)
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// copyFrom copies a regular file as long as it is now to a new one, on disk when
// it returns. It ends with ctx: to read a sparse file of a program can take years.
func copyFrom(ctx context.Context, open func() (fs.File, error), to string, mode fs.FileMode) error {
	in, err := open()
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil // another took its name meanwhile
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
	if err != nil {
		return err
	}
	err = copySparse(out, io.LimitReader(adapters.UntilDone(ctx, in), info.Size()))
	return errors.Join(err, out.Chmod(mode.Perm()), out.Sync(), out.Close())
}

// copySparse writes a new file in which zeros become holes: a sparse file of a program may be far larger
// than the disk.
func copySparse(f *os.File, r io.Reader) error {
	w := &holes{f: f}
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	return f.Truncate(w.end) // after a last hole
}

// holes leaves out what is all zeros.
type holes struct {
	f   *os.File
	end int64
}

func (h *holes) Write(p []byte) (n int, err error) {
	if len(bytes.TrimLeft(p, "\x00")) == 0 {
		n = len(p)
		_, err = h.f.Seek(int64(n), io.SeekCurrent)
	} else {
		n, err = h.f.Write(p)
	}
	h.end += int64(n)
	return n, err
}

// Tree makes a directory part of backup and restore. swap, when set, runs
// what puts another directory in place of it.
func Tree(name, path string, secret bool, swap func(func() error) error) Part {
	if swap == nil {
		swap = func(f func() error) error { return f() }
	}
	return Part{
		Name: name, Secret: secret,
		Snapshot: func(ctx context.Context, dir string) error { return copyTree(ctx, path, dir) },
		Serving: func() bool {
			f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0) // without the flag, it would wait for a writer of a FIFO
			if err != nil {
				return false
			}
			defer f.Close()
			_, err = f.Readdirnames(1)
			return err == nil
		},
		Restore: func(ctx context.Context, dir, stamp string) (kept string, err error) {
			staged, err := stage(ctx, dir, path, stamp)
			if err != nil {
				return "", err
			}
			defer safeopen.RemoveAll(staged)
			err = swap(func() (err error) {
				kept, err = swapIn(staged, path, stamp)
				return err
			})
			return kept, err
		},
	}
}
