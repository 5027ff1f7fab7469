package bootstrap

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Policy says where bootstrap may write. Bootstrap creates every file and directory through it, so
// that a write to any other place is an error and cannot change the image.
type Policy struct {
	image string // never written, whatever the roots are
	roots []string
}

// NewPolicy is the policy for the roots: the legal writes of bootstrap.md as data. A file stands
// for itself, a directory for everything below it.
func NewPolicy(r Roots) *Policy {
	return &Policy{image: r.Image, roots: []string{
		r.Workspace, r.Projects, r.Ruvector, r.SolidPods, r.Identities, r.Consultations,
		r.ProgramLogs, r.VarRun, r.Screenshots, r.X11, r.Runtime, r.EnvHints(),
	}}
}

// ErrForbiddenWrite means that bootstrap tried to write outside the legal roots.
var ErrForbiddenWrite = errors.New("bootstrap must not write there")

// Check returns ErrForbiddenWrite unless path is, or lies below, a legal root.
func (p *Policy) Check(path string) error {
	_, err := p.rootOf(path)
	return err
}

func (p *Policy) rootOf(path string) (string, error) {
	clean := filepath.Clean(path)
	if below(clean, p.image) {
		return "", fmt.Errorf("%w: %s is part of the image", ErrForbiddenWrite, path)
	}
	for _, root := range p.roots {
		if below(clean, root) {
			return root, nil
		}
	}
	return "", fmt.Errorf("%w: %s", ErrForbiddenWrite, path)
}

// below reports whether path is dir or lies below dir.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// MkdirAll creates a directory with its parents. An existing directory stays unchanged, including
// its mode.
func (p *Policy) MkdirAll(path string, mode fs.FileMode) error {
	root, err := p.rootOf(path)
	if err != nil {
		return err
	}
	// The root itself may be a symbolic link of the operator. Links below the root must not lead
	// outside, because programs can write there.
	if err := os.MkdirAll(root, mode); err != nil || path == root {
		return err
	}
	r, rel, err := p.open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.MkdirAll(rel, mode)
}

// MkdirParent creates the parent directory of a file that is itself a legal root.
func (p *Policy) MkdirParent(file string, mode fs.FileMode) error {
	if err := p.Check(file); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(file), mode)
}

// open opens the legal root of path. rel is the path below that root.
func (p *Policy) open(path string) (r *os.Root, rel string, err error) {
	root, err := p.rootOf(path)
	if err != nil {
		return nil, "", err
	}
	if filepath.Clean(path) == root { // the file itself is a legal root
		root = filepath.Dir(root)
	}
	if rel, err = filepath.Rel(root, path); err != nil {
		return nil, "", err
	}
	if r, err = openRoot(root); err != nil {
		return nil, "", err
	}
	return r, rel, nil
}

// openRoot is os.OpenRoot, but does not wait for a writer if a program has put a FIFO in the place of
// the directory: with a slash at the end, the kernel opens only a directory (path_resolution(7)).
func openRoot(dir string) (*os.Root, error) { return os.OpenRoot(dir + "/") }

// openDir opens a directory below r, and does not wait if a FIFO is in its place.
func openDir(r *os.Root, name string) (*os.File, error) {
	return r.OpenFile(name, openFlags|unix.O_DIRECTORY, 0)
}

// WriteFile writes a file atomically: a reader sees the complete old or the complete new content,
// even after a crash. The directory must exist.
func (p *Policy) WriteFile(path string, data []byte, mode fs.FileMode) error {
	return p.install(path, data, setMode(mode), (*os.Root).Rename)
}

// RewriteFile is WriteFile with the mode of the file that it replaces. If agentinit runs as root, the
// owner stays the same too.
func (p *Policy) RewriteFile(path string, data []byte, old fs.FileInfo) error {
	return p.install(path, data, func(f *os.File) error {
		var err error
		if of, ok := old.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			err = f.Chown(int(of.Uid), int(of.Gid))
		}
		return errors.Join(err, f.Chmod(old.Mode().Perm()))
	}, (*os.Root).Rename)
}

// CreateFile is WriteFile for a file that must not exist yet. If the file exists, even because
// another box has just created it, the error is fs.ErrExist.
func (p *Policy) CreateFile(path string, data []byte, mode fs.FileMode) error {
	return p.install(path, data, setMode(mode), func(r *os.Root, temp, name string) error {
		err := r.Link(temp, name)
		if err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
		// This file system has no hard links (FUSE, 9p). A check and a rename are not atomic, but
		// there is no better way.
		if _, statErr := r.Lstat(name); statErr == nil {
			return fs.ErrExist
		}
		return r.Rename(temp, name)
	})
}

// unfinished is part of the name of a temporary file. Behind it are so many random bytes in hexadecimal.
const (
	unfinished      = ".tmp-"
	unfinishedBytes = 6
)

// setMode gives a new file exactly mode: the umask has removed bits from it, but login shells of all
// users read a hint file.
func setMode(mode fs.FileMode) func(*os.File) error {
	return func(f *os.File) error { return f.Chmod(mode) }
}

// install writes a temporary file beside path, which finish prepares. Then place moves or links it to
// its final name.
func (p *Policy) install(path string, data []byte, finish func(*os.File) error, place func(r *os.Root, temp, name string) error) error {
	r, rel, err := p.open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	temp := rel + unfinished + randomHex(unfinishedBytes)
	if err := writeSynced(r, temp, data, finish); err != nil {
		return errors.Join(err, removeIfThere(r, temp))
	}
	err = place(r, temp, rel)
	// After a successful rename the temporary file no longer exists, and that is fine.
	if err = errors.Join(err, removeIfThere(r, temp)); err != nil {
		return err
	}
	return syncDir(r, filepath.Dir(rel))
}

func writeSynced(r *os.Root, name string, data []byte, finish func(*os.File) error) error {
	f, err := r.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, finish(f), f.Sync(), f.Close())
}

// syncDir makes a rename in the directory survive a crash. If a file system cannot sync a
// directory, it returns EINVAL. That error is ignored.
func syncDir(r *os.Root, dir string) error {
	d, err := openDir(r, dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) { // fsync(2): this kind of file cannot be synced
		err = nil
	}
	return errors.Join(err, d.Close())
}

func removeIfThere(r *os.Root, name string) error {
	err := r.Remove(name)
	// A read-only file system returns an error even if the file does not exist.
	if _, statErr := r.Lstat(name); errors.Is(statErr, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ReadFile reads at most limit bytes of a regular file below a legal root. It never follows a link
// out of the root. If a program has put a FIFO in the file's place, it does not wait for a writer.
func (p *Policy) ReadFile(path string, limit int64) ([]byte, fs.FileInfo, error) {
	r, rel, err := p.open(path)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	f, err := r.OpenFile(rel, openFlags, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	return safeopen.ReadOpen(f, limit)
}

// maxNames is the most files that ReadDir lists. A program can put millions of files there.
const maxNames = 50_000

// ReadDir lists the names in a directory below a legal root, unsorted. More than maxNames are an
// error.
func (p *Policy) ReadDir(path string) ([]string, error) {
	r, rel, err := p.open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	d, err := openDir(r, rel)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(maxNames + 1)
	if errors.Is(err, io.EOF) {
		err = nil // the directory is empty
	}
	if len(names) > maxNames {
		names, err = nil, fmt.Errorf("%s holds more than %d files; remove some of them", path, maxNames)
	}
	return names, errors.Join(err, d.Close())
}

// Remove removes a file. If the file does not exist, that is not an error.
func (p *Policy) Remove(path string) error { return p.removing(path, removeIfThere) }

// removing calls remove. If the root does not exist, it returns nil.
func (p *Policy) removing(path string, remove func(r *os.Root, rel string) error) error {
	r, rel, err := p.open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	return remove(r, rel)
}

// Lstat describes a file below a legal root. It does not follow a link.
func (p *Policy) Lstat(path string) (info fs.FileInfo, err error) {
	r, rel, err := p.open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Lstat(rel)
}

// Rename renames a file or directory within one legal root.
func (p *Policy) Rename(from, to string) error {
	r, rel, err := p.open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	root, err := p.rootOf(from)
	if err != nil {
		return err
	}
	target, err := filepath.Rel(root, to)
	if err != nil || !below(filepath.Clean(to), root) {
		return fmt.Errorf("%w: %s is not below %s", ErrForbiddenWrite, to, root)
	}
	if err := r.Rename(rel, target); err != nil {
		return err
	}
	return syncDir(r, filepath.Dir(target))
}

// Symlink makes a symbolic link below a legal root. target must be relative and must stay below the
// root, so that a reader of the link cannot be led outside.
func (p *Policy) Symlink(target, path string) error {
	if !filepath.IsLocal(target) {
		return fmt.Errorf("%w: a link to %s", ErrForbiddenWrite, target)
	}
	r, rel, err := p.open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Symlink(target, rel); err != nil {
		return err
	}
	return syncDir(r, filepath.Dir(rel))
}

// RemoveUnfinished removes temporary files of writes to path that were killed. No process may write
// path at the same time. A file whose name is only similar stays: a user has made it.
func (p *Policy) RemoveUnfinished(path string) error {
	dir, base := filepath.Split(path)
	names, err := p.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		random, isTemp := strings.CutPrefix(name, base+unfinished)
		if raw, notHex := hex.DecodeString(random); isTemp && notHex == nil && len(raw) == unfinishedBytes {
			err = errors.Join(err, p.Remove(dir+name))
		}
	}
	return err
}
