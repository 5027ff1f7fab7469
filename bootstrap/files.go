package bootstrap

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// randomHex returns 2n random hexadecimal digits.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: instead of an error it would end the program
	return hex.EncodeToString(b)
}

// openFlags open a file for reading. With O_NONBLOCK, opening a FIFO does not wait for a writer
// (open(2)).
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// ErrTooLarge means that a file is larger than the limit for its kind.
var ErrTooLarge = errors.New("the file is too large")

// readBounded reads a regular file of at most limit bytes.
func readBounded(r *os.Root, name string, limit int64) ([]byte, fs.FileInfo, error) {
	f, err := r.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	return readOpen(f, limit)
}

func readOpen(f *os.File, limit int64) ([]byte, fs.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", f.Name())
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = ErrTooLarge
	}
	return data, info, err
}

// readFileBounded reads a regular file of at most limit bytes. If a FIFO is in its place, it does
// not wait for a writer.
func readFileBounded(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, _, err := readOpen(f, limit)
	return data, err
}

// unwrapPath returns the reason of a failed file operation without the paths.
func unwrapPath(err error) error {
	if one, ok := errors.AsType[*fs.PathError](err); ok {
		return one.Err
	}
	if two, ok := errors.AsType[*os.LinkError](err); ok {
		return two.Err
	}
	return err
}
