package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Policy says where bootstrap may write. Every file and directory it creates
// goes through it, so that a write outside is an error here and not a surprise
// in the image.
type Policy struct {
	image string // never written, whatever the roots say
	roots []string
}

// NewPolicy is the policy for the roots: what bootstrap.md lists as legal
// writes, as data. A file stands for itself, a directory for all below it.
func NewPolicy(r Roots) *Policy {
	return &Policy{image: r.Image, roots: []string{
		r.Workspace, r.Projects, r.Ruvector, r.SolidPods, r.Identities, r.Consultations,
		r.ProgramLogs, r.VarRun, r.Screenshots, r.X11, r.Runtime, r.EnvHints(),
	}}
}

// ErrForbiddenWrite means that bootstrap was about to write where it must not.
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

// below tells whether path is dir or lies in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// MkdirAll creates a directory with its parents. One that exists is left as it
// is, its mode included.
func (p *Policy) MkdirAll(path string, mode fs.FileMode) error {
	root, err := p.rootOf(path)
	if err != nil {
		return err
	}
	// The root itself may be a link that the operator made; what lies below it
	// must not lead out of it, for programs can write there.
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

// MkdirParent creates the directory that a file which is a legal write of its own
// lies in.
func (p *Policy) MkdirParent(file string, mode fs.FileMode) error {
	if err := p.Check(file); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(file), mode)
}

// open opens the root that path lies below; rel is the rest of path.
func (p *Policy) open(path string) (r *os.Root, rel string, err error) {
	root, err := p.rootOf(path)
	if err != nil {
		return nil, "", err
	}
	if filepath.Clean(path) == root { // a file that is a root of its own
		root = filepath.Dir(root)
	}
	if rel, err = filepath.Rel(root, path); err != nil {
		return nil, "", err
	}
	if r, err = os.OpenRoot(root); err != nil {
		return nil, "", err
	}
	return r, rel, nil
}

// WriteFile writes a file as one step: a reader sees the old content or all of
// the new one, also after a crash. The directory must exist.
func (p *Policy) WriteFile(path string, data []byte, mode fs.FileMode) error {
	return p.install(path, data, mode, (*os.Root).Rename)
}

// CreateFile is WriteFile for a file that must not exist yet: it returns
// fs.ErrExist otherwise, also when another box was faster.
func (p *Policy) CreateFile(path string, data []byte, mode fs.FileMode) error {
	return p.install(path, data, mode, func(r *os.Root, temp, name string) error {
		err := r.Link(temp, name)
		if err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
		// No hard links here (FUSE, 9p): the next best thing.
		if _, statErr := r.Lstat(name); statErr == nil {
			return fs.ErrExist
		}
		return r.Rename(temp, name)
	})
}

// unfinished marks the temporary file of a write.
const unfinished = ".tmp-"

// install writes a temporary file beside path and puts it in place with place.
func (p *Policy) install(path string, data []byte, mode fs.FileMode, place func(r *os.Root, temp, name string) error) error {
	r, rel, err := p.open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	temp := rel + unfinished + randomHex(6)
	if err := writeSynced(r, temp, data, mode); err != nil {
		return errors.Join(err, removeIfThere(r, temp))
	}
	err = place(r, temp, rel)
	// After a rename there is nothing left to remove.
	if err = errors.Join(err, removeIfThere(r, temp)); err != nil {
		return err
	}
	return syncDir(r, filepath.Dir(rel))
}

func writeSynced(r *os.Root, name string, data []byte, mode fs.FileMode) error {
	f, err := r.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	// The umask has taken bits away from mode; a key wants none more, a hint
	// file wants all.
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// syncDir makes a rename in the directory survive a crash. File systems that
// cannot sync a directory say EINVAL; there is nothing more to be done on them.
func syncDir(r *os.Root, dir string) error {
	d, err := r.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, errInvalid) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

func removeIfThere(r *os.Root, name string) error {
	err := r.Remove(name)
	// A read-only file system refuses even to remove what is not there.
	if _, statErr := r.Lstat(name); errors.Is(statErr, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ReadFile reads at most limit bytes of a regular file below a legal root. It
// never follows a link out of the root and never waits for a pipe that someone
// has put in the file's place.
func (p *Policy) ReadFile(path string, limit int64) ([]byte, fs.FileInfo, error) {
	r, rel, err := p.open(path)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	return readBounded(r, rel, limit)
}

// ReadDir lists the names in a directory below a legal root, in no order.
func (p *Policy) ReadDir(path string) ([]string, error) {
	r, rel, err := p.open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	d, err := r.Open(rel)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

// Remove removes a file; one that is not there is fine.
func (p *Policy) Remove(path string) error { return p.removing(path, removeIfThere) }

// removing has nothing to do where there is no root.
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

// Lstat describes a file below a legal root; a link is described, not followed.
func (p *Policy) Lstat(path string) (info fs.FileInfo, err error) {
	r, rel, err := p.open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Lstat(rel)
}

// Rename gives a file or directory another name below the same legal root.
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

// Symlink makes a link below a legal root. target is relative and stays below it:
// whatever reads through the link must not be led out.
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

// RemoveUnfinished removes the temporary files of writes that were killed. The file
// must not be written meanwhile.
func (p *Policy) RemoveUnfinished(path string) error {
	return p.removing(path, func(r *os.Root, rel string) error {
		names, err := fs.Glob(r.FS(), globEscaper.Replace(filepath.ToSlash(rel))+unfinished+"*")
		for _, name := range names {
			err = errors.Join(err, removeIfThere(r, name))
		}
		return err
	})
}

var globEscaper = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, `\`, `\\`)
