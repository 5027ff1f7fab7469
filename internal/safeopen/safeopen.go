// Package safeopen owns the opening of files in directories that other users can change, and the removal
// of trees there.
//
// agentinit runs as root and opens paths that a program partly owns: a log directory, an env_file,
// the directory of a task, the termination log. O_NOFOLLOW protects only the last component
// (open(2)). If a directory above it is replaced by a symbolic link, root opens a file anywhere.
// This package follows a symbolic link only if root or agentinit's own user made it, in a directory
// that no other user can write. It returns directories as descriptors, so that a later rename of a
// component has no effect.
//
// It must never decide what a file is for, and never import another package of this module. If
// agentinit does not run as root, this package follows links as the kernel does, because every
// program of the same uid has the same rights.
package safeopen

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnsafe matches every refusal of this package (errors.Is).
var ErrUnsafe = errors.New("unsafe path")

// UnsafeError names the component of a path that another user controls.
type UnsafeError struct {
	Path   string // the component
	Reason string // for example "is a symbolic link that belongs to uid 1000"
}

func (e *UnsafeError) Error() string { return e.Path + " " + e.Reason }

// Is makes errors.Is(err, ErrUnsafe) true for every UnsafeError.
func (e *UnsafeError) Is(target error) bool { return target == ErrUnsafe }

// Directory is an open directory. Names must be single components: a name with a slash, "." and
// ".." are refused. The methods may be called from several goroutines, but not after Close.
type Directory struct {
	path string
	fd   int
}

// OpenDirectory opens a directory by its path. Errors are *fs.PathError or *UnsafeError.
func OpenDirectory(path string) (*Directory, error) { return openDirectory(path, 0, false) }

// MakeDirectory is OpenDirectory, but it makes missing directories with mode, reduced by the umask.
func MakeDirectory(path string, mode fs.FileMode) (*Directory, error) {
	return openDirectory(path, mode, true)
}

func openDirectory(name string, mode fs.FileMode, create bool) (*Directory, error) {
	abs, err := absolute(name)
	if err != nil {
		return nil, err
	}
	w := walk{mode: mode, create: create, careful: privileged()}
	fd, err := w.open(abs)
	if err != nil {
		return nil, err
	}
	return &Directory{path: path.Clean(abs), fd: fd}, nil
}

// openPlain opens a directory in one system call (openat2(2), Linux 5.6), if its path contains no
// symbolic link at all. That is the case for nearly every path.
func openPlain(path string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// Path is the path with which the directory was opened.
func (d *Directory) Path() string { return d.path }

// Below opens the directory that names leads to, one component after the other, or the directory itself
// again. It follows no symbolic link, so the result lies below d.
func (d *Directory) Below(names ...string) (*Directory, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(d.fd, ".", flags, 0)
	for i := 0; err == nil && i < len(names); i++ {
		above := fd
		if err = component(names[i]); err == nil {
			fd, err = unix.Openat(above, names[i], flags, 0)
		}
		unix.Close(above)
	}
	if err != nil {
		return nil, d.fail("open", path.Join(names...), err)
	}
	return &Directory{path: path.Join(d.path, path.Join(names...)), fd: fd}, nil
}

// Readlink returns the target of a symbolic link in the directory.
func (d *Directory) Readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	err := component(name)
	n := 0
	if err == nil {
		n, err = unix.Readlinkat(d.fd, name, buf)
	}
	if err != nil {
		return "", d.fail("readlink", name, err)
	}
	return string(buf[:n]), nil
}

// Watch adds a watch for the directory itself to an inotify descriptor (inotify(7)) and returns the watch.
func (d *Directory) Watch(inotify int, mask uint32) (int, error) {
	wd, err := unix.InotifyAddWatch(inotify, "/proc/self/fd/"+strconv.Itoa(d.fd), mask)
	if err != nil {
		return -1, d.fail("watch", "", err)
	}
	return wd, nil
}

// Close releases the descriptor.
func (d *Directory) Close() error { return unix.Close(d.fd) }

func (d *Directory) fail(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: path.Join(d.path, name), Err: err}
}

func component(name string) error {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return unix.EINVAL
	}
	return nil
}

// OpenFile opens a regular file. It never follows a symbolic link and never waits for the other end
// of a FIFO. In a directory that another user can write, it does not write to a file of root that
// has a second name: a program can make such a hard link if fs.protected_hardlinks is 0
// (proc_sys_fs(5)).
func (d *Directory) OpenFile(name string, flag int, mode fs.FileMode) (*os.File, error) {
	fd, st, err := d.open(name, flag, mode)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, fmt.Errorf("%s is not a regular file", path.Join(d.path, name))
	}
	// The file is truncated only now, after it has been checked.
	if flag&os.O_TRUNC != 0 {
		if err := unix.Ftruncate(fd, 0); err != nil {
			unix.Close(fd)
			return nil, d.fail("truncate", name, err)
		}
	}
	return os.NewFile(uintptr(fd), path.Join(d.path, name)), nil
}

// OpenAny opens a file of any type except a symbolic link, for example a FIFO or a device. It does
// not create or truncate a file.
func (d *Directory) OpenAny(name string, flag int) (*os.File, error) {
	fd, _, err := d.open(name, flag&^os.O_CREATE, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path.Join(d.path, name)), nil
}

func (d *Directory) open(name string, flag int, mode fs.FileMode) (int, *unix.Stat_t, error) {
	if err := component(name); err != nil {
		return -1, nil, d.fail("open", name, err)
	}
	flags := flag&^os.O_TRUNC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := unix.Openat(d.fd, name, flags, uint32(mode.Perm()))
	for err == unix.EINTR {
		fd, err = unix.Openat(d.fd, name, flags, uint32(mode.Perm()))
	}
	if err == unix.ELOOP {
		return -1, nil, &UnsafeError{Path: path.Join(d.path, name), Reason: "is a symbolic link"}
	}
	if err != nil {
		return -1, nil, d.fail("open", name, whyFull(d.fd, err))
	}
	st := new(unix.Stat_t)
	if err = unix.Fstat(fd, st); err != nil {
		err = d.fail("stat", name, err)
	} else if flag&(os.O_WRONLY|os.O_RDWR) != 0 {
		err = d.soleName(name, st)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, st, nil
}

// soleName refuses a file of root that has a second name, in a directory that another user can
// write.
func (d *Directory) soleName(name string, st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink <= 1 || !privileged() || !trusted(st.Uid) {
		return nil
	}
	var dir unix.Stat_t
	if err := unix.Fstat(d.fd, &dir); err != nil {
		return d.fail("stat", name, err)
	}
	if trusted(dir.Uid) && !othersWrite(&dir) {
		return nil
	}
	return &UnsafeError{Path: path.Join(d.path, name), Reason: "has a second name (hard link) somewhere else"}
}

// Mkdir makes a directory in the directory with mode, reduced by the umask.
func (d *Directory) Mkdir(name string, mode fs.FileMode) error {
	if err := component(name); err != nil {
		return d.fail("mkdir", name, err)
	}
	if err := unix.Mkdirat(d.fd, name, uint32(mode.Perm())); err != nil {
		return d.fail("mkdir", name, whyFull(d.fd, err))
	}
	return nil
}

// whyFull adds to ENOSPC that inodes have run out, not space. fd may be an O_PATH descriptor.
func whyFull(fd int, err error) error {
	var st unix.Statfs_t
	if err != unix.ENOSPC || unix.Fstatfs(fd, &st) != nil || !lacksInodes(&st) {
		return err
	}
	return fmt.Errorf("%w: %s", err, noInode)
}

// NoInode returns what to say of a file of the directory that a library could not make or write, if its
// file system has no free inode, and "" otherwise. Errors of this package say it themselves.
func NoInode(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || !lacksInodes(&st) {
		return ""
	}
	return noInode
}

const noInode = "there is free space, but no free inode; remove files (df -i shows inodes)"

// lacksInodes tells whether inodes have run out, and not space: df(1) shows free space then. File systems
// without a fixed number of inodes have 0 Files (statfs(2)).
func lacksInodes(st *unix.Statfs_t) bool { return st.Files > 0 && st.Ffree == 0 && st.Bavail > 0 }

// WriteFile replaces a file of the directory: a reader sees the complete old or the complete new
// content, even after a crash.
func (d *Directory) WriteFile(name string, data []byte, mode fs.FileMode) error {
	temp := name + ".tmp-" + rand.Text()
	f, err := d.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = d.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, d.Remove(temp))
	}
	return nil
}

// Rename renames a file of the directory. It replaces an existing file of the new name.
func (d *Directory) Rename(from, to string) error { return d.Move(from, d, to) }

// Move is Rename into another directory of the same file system.
func (d *Directory) Move(from string, into *Directory, to string) error {
	err := errors.Join(component(from), component(to))
	if err == nil {
		err = unix.Renameat(d.fd, from, into.fd, to)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: path.Join(d.path, from), New: path.Join(into.path, to), Err: err}
	}
	return nil
}

// Remove removes a file of the directory. It removes a symbolic link itself, not its target.
func (d *Directory) Remove(name string) error {
	if err := component(name); err != nil {
		return d.fail("remove", name, err)
	}
	if err := unix.Unlinkat(d.fd, name, 0); err != nil {
		return d.fail("remove", name, err)
	}
	return nil
}

// Entry is the result of Stat.
type Entry struct {
	Regular  bool  // a regular file
	Dir      bool  // a directory
	Size     int64 // bytes
	Modified time.Time
}

// Stat describes a file of the directory. It describes a symbolic link itself, not its target.
func (d *Directory) Stat(name string) (Entry, error) {
	if err := component(name); err != nil {
		return Entry{}, d.fail("stat", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Entry{}, d.fail("stat", name, err)
	}
	kind := st.Mode & unix.S_IFMT
	return Entry{Regular: kind == unix.S_IFREG, Dir: kind == unix.S_IFDIR, Size: st.Size, Modified: time.Unix(st.Mtim.Unix())}, nil
}

// Sync makes the names in the directory survive a crash of the machine. Where the file system cannot sync
// a directory (EINVAL, fsync(2)), it does nothing.
func (d *Directory) Sync() error {
	f, err := d.readable()
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// readable opens the directory once more: O_PATH descriptors cannot be read or synced (open(2)).
func (d *Directory) readable() (*os.File, error) {
	f, err := openToRead(d.fd, ".", d.path)
	if err != nil {
		return nil, d.fail("open", "", err)
	}
	return f, nil
}

// Names returns the wanted names in the directory, sorted; more than most of them are an error. It
// reads the directory in parts: a program can put millions of files there.
func (d *Directory) Names(wanted func(name string) bool, most int) ([]string, error) {
	f, err := d.readable()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names := []string{}
	for {
		part, err := f.Readdirnames(namesAtOnce)
		for _, name := range part {
			if !wanted(name) {
				continue
			}
			if len(names) == most {
				return nil, fmt.Errorf("%s holds more than %d such files; remove some of them", d.path, most)
			}
			names = append(names, name)
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

const namesAtOnce = 1000

// SyncDirectory is Directory.Sync of the directory with that path.
func SyncDirectory(name string) error {
	d, err := OpenDirectory(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// OpenFile opens a regular file by its path: see Directory.OpenFile. A symbolic link in the last
// component is followed under the same rule as in the other components.
func OpenFile(name string, flag int, mode fs.FileMode) (*os.File, error) {
	dir, base, err := parent(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.OpenFile(base, flag, mode)
}

// ReadFile reads a regular file of at most limit bytes by its path: see OpenFile. For a larger file
// the error is ErrTooLarge.
func ReadFile(name string, limit int64) ([]byte, error) {
	f, err := OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, limit)
}

// WriteFile replaces a file by its path: see Directory.WriteFile. The directory must exist.
func WriteFile(name string, data []byte, mode fs.FileMode) error {
	dir, base, err := parent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.WriteFile(base, data, mode)
}

// OpenAny is OpenFile for a file of any type: see Directory.OpenAny.
func OpenAny(name string, flag int) (*os.File, error) {
	dir, base, err := parent(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.OpenAny(base, flag)
}

func parent(name string) (*Directory, string, error) {
	w := walk{careful: privileged()}
	return w.parent(name)
}

// absolute does not clean the path: ".." after a symbolic link is the parent of the link's target.
func absolute(name string) (string, error) {
	if name == "" {
		return "", &fs.PathError{Op: "open", Path: name, Err: unix.ENOENT}
	}
	if strings.HasPrefix(name, "/") {
		return name, nil
	}
	wd, err := os.Getwd()
	return wd + "/" + name, err
}

func split(abs string) (above, base string) {
	abs = strings.TrimRight(abs, "/")
	i := strings.LastIndexByte(abs, '/')
	if i < 0 {
		return "/", ""
	}
	return abs[:i+1], abs[i+1:]
}

// privileged reports whether agentinit can open files that another user cannot open.
var privileged = sync.OnceValue(func() bool { return os.Geteuid() == 0 })

func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }
