package bootstrap

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
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
