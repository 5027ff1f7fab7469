package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"
)

// What other programs can take away from a start is no failure of the program.
func TestStarved(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&StartError{Op: opFork, Err: unix.EAGAIN}, true},
		{&StartError{Op: opFork, Err: unix.ENOMEM}, true},
		{fmt.Errorf("cannot make a pipe: %w", unix.ENFILE), true},
		{&StartError{Op: opTerminal, Err: &fs.PathError{Op: "open", Path: "/dev/ptmx", Err: unix.ENOSPC}}, true},
		{&StartError{Op: opFork, Err: unix.EPERM}, false},
		{&StartError{Op: opTerminal, Err: unix.ENOENT}, false},
		{&StartError{Op: opSandbox, Err: unix.ENOSPC}, false},
		{&StartError{Op: opCommand, Err: unix.EAGAIN}, false}, // limits.nproc can be too small for ever
		{&StartError{Op: opDescriptors, Err: unix.EMFILE}, false},
		{errors.New("it failed"), false},
	} {
		if got := Starved(c.err); got != c.want {
			t.Errorf("%v: %t", c.err, got)
		}
	}
}
