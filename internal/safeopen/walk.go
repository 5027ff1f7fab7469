package safeopen

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLinks is the limit of symbolic links in the kernel (path_resolution(7)).
const maxLinks = 40

// walk opens a path component by component.
type walk struct {
	create  bool // make missing directories with mode
	mode    fs.FileMode
	careful bool // follow only links that root or our own user made
	// If look is true, the walk stores in weak the first directory in which another user could
	// replace the next component.
	look bool
	weak *UnsafeError

	links int
}

// directory returns an O_PATH descriptor of the directory at an absolute path.
func (w *walk) directory(abs string) (int, error) {
	fd, err := openRoot()
	if err != nil {
		return -1, err
	}
	fail := func(err error) (int, error) {
		unix.Close(fd)
		return -1, err
	}
	rest, at := abs, "/"
	for {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		if name == "" {
			break
		}
		at = path.Join(at, name)
		if err := w.lookAt(fd, path.Dir(at)); err != nil {
			return fail(err)
		}
		target, err := w.link(fd, name, at)
		if err != nil {
			return fail(err)
		}
		if target != "" {
			if strings.HasPrefix(target, "/") {
				unix.Close(fd)
				if fd, err = openRoot(); err != nil {
					return -1, err
				}
				at = "/"
			} else {
				at = path.Dir(at)
			}
			rest = target + "/" + rest
			continue
		}
		next, err := w.step(fd, name, at)
		if err != nil {
			return fail(err)
		}
		unix.Close(fd)
		fd = next
	}
	if err := w.lookAt(fd, at); err != nil {
		return fail(err)
	}
	return fd, nil
}

func openRoot() (int, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	return fd, nil
}

func (w *walk) step(fd int, name, at string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	next, err := unix.Openat(fd, name, flags, 0)
	if err == unix.ENOENT && w.create {
		if err := unix.Mkdirat(fd, name, uint32(w.mode.Perm())); err != nil && err != unix.EEXIST {
			return -1, &fs.PathError{Op: "mkdir", Path: at, Err: whyFull(fd, err)}
		}
		next, err = unix.Openat(fd, name, flags, 0)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: at, Err: err}
	}
	return next, nil
}

// link returns the target of a symbolic link, or "" for any other file. It refuses a link that
// another user made or can replace.
func (w *walk) link(fd int, name, at string) (string, error) {
	if name == "" || name == "." || name == ".." {
		return "", nil
	}
	link, err := unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil // the caller gets the same error when it opens the file
	}
	defer unix.Close(link)
	var st unix.Stat_t
	if err := unix.Fstat(link, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: at, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", nil
	}
	if w.links++; w.links > maxLinks {
		return "", &fs.PathError{Op: "open", Path: at, Err: unix.ELOOP}
	}
	if w.careful {
		var dir unix.Stat_t
		if err := unix.Fstat(fd, &dir); err != nil {
			return "", &fs.PathError{Op: "stat", Path: path.Dir(at), Err: err}
		}
		if !ours(st.Uid, link) {
			return "", &UnsafeError{Path: at, Reason: fmt.Sprintf("is a symbolic link that belongs to uid %d", st.Uid)}
		}
		if !w.look && replaceable(fd, &dir) { // if look is true, lookAt has stored it
			return "", &UnsafeError{Path: at, Reason: "is a symbolic link in a directory that another user can write"}
		}
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(link, "", text)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: at, Err: err}
	}
	return string(text[:n]), nil
}

// lookAt stores in weak a directory whose entries another user can replace.
func (w *walk) lookAt(fd int, at string) error {
	if !w.look || w.weak != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: at, Err: err}
	}
	if replaceable(fd, &st) {
		w.weak = &UnsafeError{Path: at, Reason: describe("directory", &st)}
	}
	return nil
}

// replaceable reports whether another user can replace one of our entries in a directory. In a
// sticky directory, only the owners of the entry or the directory can (unlink(2)). On a file system
// that is mounted read-only, no user can.
func replaceable(fd int, dir *unix.Stat_t) bool {
	if ours(dir.Uid, fd) && (!othersWrite(dir) || dir.Mode&unix.S_ISVTX != 0) {
		return false
	}
	return !readOnly(fd)
}

// ours reports whether the file belongs to root or to our own user.
func ours(uid uint32, fd int) bool {
	return trusted(uid) || uid == overflowUID && unmapped(fd)
}

// othersWrite reports whether the mode allows users other than the owner to write. Group 0, which
// is root's group, and our own group are allowed.
func othersWrite(st *unix.Stat_t) bool {
	return st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid()
}

func describe(what string, st *unix.Stat_t) string {
	if !trusted(st.Uid) {
		return fmt.Sprintf("is a %s that belongs to uid %d", what, st.Uid)
	}
	if st.Mode&0o002 != 0 {
		return "is a " + what + " that every user can write"
	}
	return fmt.Sprintf("is a %s that group %d can write", what, st.Gid)
}

func readOnly(fd int) bool {
	var at unix.Statfs_t
	return unix.Fstatfs(fd, &at) == nil && at.Flags&unix.ST_RDONLY != 0
}

// overflowUID is the uid that the kernel reports for a user without a number in our user namespace
// (user_namespaces(7)). Files that a rootless engine mounts have this owner.
const overflowUID = 65534

// unmapped tells whether the owner of a file with overflowUID has no number here. Then open(2) with
// O_NOATIME fails with EPERM, even for root. Otherwise the file belongs to a user whose number this
// is, most often the user called nobody.
func unmapped(fd int) bool {
	if wholeNamespace() {
		return false
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NOATIME|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(again)
	}
	return err == unix.EPERM
}

// wholeNamespace reports whether every uid is mapped in our user namespace.
var wholeNamespace = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
})

// ErrTooLarge means that a file is larger than the limit.
var ErrTooLarge = errors.New("the file is too large")

// ReadPrivate reads a regular file of at most limit bytes whose content decides what root runs: a
// manifest or an env_file. If agentinit is root, it refuses with an *UnsafeError a file that
// another user can write, and a symbolic link that another user made. The allowed users may own the
// file. If another user can replace the file, weak is not nil. ReadPrivate never waits for the
// other end of a FIFO.
func ReadPrivate(name string, limit int64, allowed ...uint32) (data []byte, weak *UnsafeError, err error) {
	f, weak, err := openPrivate(name, allowed)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, _, err = ReadOpen(f, limit)
	return data, weak, err
}

// ReadPlain reads a regular file of at most limit bytes, and follows links as the kernel does. It never
// waits for the other end of a FIFO (open(2)).
func ReadPlain(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, _, err := ReadOpen(f, limit)
	return data, err
}

// ReadOpen reads an open file of at most limit bytes, if it is a regular file.
func ReadOpen(f *os.File, limit int64) ([]byte, fs.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", f.Name())
	}
	data, err := readBounded(f, limit)
	return data, info, err
}

// readBounded does not ask for the size of the file, as os.ReadFile does to allocate memory for it.
// A sparse file has any size and takes no space on the disk.
func readBounded(f *os.File, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = ErrTooLarge
	}
	return data, err
}

func openPrivate(name string, allowed []uint32) (*os.File, *UnsafeError, error) {
	if !privileged() {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		return f, nil, err
	}
	w := walk{careful: true, look: true}
	dir, base, err := w.parent(name)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	if component(base) != nil { // the root directory, or a path that ends in ".."
		return nil, nil, fmt.Errorf("%s is not a regular file", name)
	}
	fd, st, err := dir.open(base, os.O_RDONLY, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := dir.ownFile(fd, base, st, allowed); err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), path.Join(dir.path, base)), w.weak, nil
}

func (d *Directory) ownFile(fd int, base string, st *unix.Stat_t, allowed []uint32) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG || readOnly(fd) {
		return nil
	}
	if !ours(st.Uid, fd) && !slices.Contains(allowed, st.Uid) || othersWrite(st) {
		return &UnsafeError{Path: path.Join(d.path, base), Reason: describe("file", st)}
	}
	return d.soleName(base, st)
}

// parent opens the directory of a file. It follows links in the last component.
func (w *walk) parent(name string) (*Directory, string, error) {
	abs, err := absolute(name)
	if err != nil {
		return nil, "", err
	}
	for {
		above, base := split(abs)
		fd, err := w.open(above)
		if err != nil {
			return nil, "", err
		}
		target, err := w.link(fd, base, abs)
		if err == nil && target == "" {
			return &Directory{path: path.Clean(above), fd: fd}, base, nil
		}
		unix.Close(fd)
		if err != nil {
			return nil, "", err
		}
		if !strings.HasPrefix(target, "/") {
			target = above + target
		}
		abs = target
	}
}

// open is like directory, but uses one system call if possible.
func (w *walk) open(abs string) (int, error) {
	if !w.look {
		if fd, err := openPlain(abs); err == nil {
			return fd, nil
		}
	}
	return w.directory(abs)
}
