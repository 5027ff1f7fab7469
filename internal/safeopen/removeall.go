package safeopen

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// RemoveAll removes a file, or a directory with all below it. If there is none, that is no error. A link
// is removed itself.
//
// A program can make a tree of any depth. os.RemoveAll holds a descriptor for each level of it, and
// puts the whole path into its error again at each level. RemoveAll holds three descriptors: a directory in
// a directory becomes one of the top first.
func RemoveAll(name string) error {
	dir, err := OpenDirectory(path.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.RemoveAll(path.Base(name))
}

// RemoveAll removes a file of the directory, or a directory with all below it: see the function
// RemoveAll.
func (d *Directory) RemoveAll(name string) error {
	err := component(name)
	if err == nil {
		err = removeAll(d.fd, name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.fail("remove", name, err)
	}
	return nil
}

// maxRemoved bounds the entries of one tree. A program can add some for as long as others are removed.
const maxRemoved = 10_000_000

type removal struct {
	top  *os.File
	left int // entries
}

func removeAll(dir int, name string) error {
	if full, err := unlink(dir, name); !full {
		return err
	}
	top, err := openToRead(dir, name, name)
	if err != nil {
		return err
	}
	defer top.Close()
	r := removal{top: top, left: maxRemoved}
	for more := true; more; {
		more, err = r.each(top, r.flatten)
	}
	if err == nil {
		_, err = unlink(dir, name)
	}
	return err
}

// flatten removes an entry of the top. What is not empty below it becomes an entry of the top.
func (r *removal) flatten(name string) error {
	full, err := unlink(int(r.top.Fd()), name)
	if !full {
		return err
	}
	dir, err := openToRead(int(r.top.Fd()), name, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	more, err := r.each(dir, func(entry string) error {
		full, err := unlink(int(dir.Fd()), entry)
		if full {
			err = unix.Renameat(int(dir.Fd()), entry, int(r.top.Fd()), "removed-"+rand.Text())
		}
		return err
	})
	if err != nil {
		return err
	}
	if full, err = unlink(int(r.top.Fd()), name); full && more {
		return nil // readdir(3) may pass over entries while others are removed: the next round finds them
	}
	return err
}

// each calls f, which removes an entry, for the entries of dir. more tells that f has removed some. err is
// the first error.
func (r *removal) each(dir *os.File, f func(entry string) error) (more bool, err error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	for {
		names, readErr := dir.Readdirnames(namesAtOnce)
		if r.left -= len(names); r.left < 0 {
			return false, fmt.Errorf("it holds more than %d files; remove them by hand", maxRemoved)
		}
		for _, name := range names {
			if failure := f(name); failure == nil {
				more = true
			} else if err == nil {
				err = failure
			}
		}
		if errors.Is(readErr, io.EOF) {
			return more, err
		}
		if readErr != nil {
			return false, readErr
		}
	}
}

// unlink removes a file or an empty directory. full tells that it is a directory with entries.
func unlink(dir int, name string) (full bool, err error) {
	err = unix.Unlinkat(dir, name, 0)
	if err == nil || err == unix.ENOENT {
		return false, nil
	}
	switch asDirectory := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); asDirectory {
	case nil, unix.ENOENT:
		return false, nil
	case unix.ENOTDIR:
		return false, err
	case unix.ENOTEMPTY, unix.EEXIST: // rmdir(2)
		return true, asDirectory
	default:
		return false, asDirectory
	}
}

// openToRead opens a directory in a directory. Errors of the file name path.
func openToRead(dir int, name, path string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
