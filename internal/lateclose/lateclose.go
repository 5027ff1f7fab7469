// Package lateclose has the kernel close a descriptor whose close takes long, so that
// an exit does not wait for it. It must never be used for a descriptor whose close
// has a meaning for another process, because nobody knows when it happens.
package lateclose

import "golang.org/x/sys/unix"

// Hand calls closing, which must close the caller's only descriptor fd, and makes a
// thread of the kernel the one that waits for the close of what fd refers to. The last
// close of an inotify instance waits until the kernel has forgotten what was watched, 15
// to 50 ms, and an exit waits for the close: several times what the stop of a hundred
// programs takes. Where the kernel refuses the hand-over, closing waits itself, and no
// more is lost than time; the error is that of closing.
//
// It sends the descriptor, with one of the receiving socket, to a socket that nobody
// has any more when it returns. Such sockets, with what is under way to them, are
// closed by the kernel's collector for them (net/unix/garbage.c), since Linux 6.10
// in a thread of its own. Before, it ran in the close of a socket: no time is lost
// either.
func Hand(fd int, closing func() error) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return closing()
	}
	// What is refused here leaves the caller's descriptor the last one.
	_ = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd, pair[1]), nil, unix.MSG_DONTWAIT)
	// The order matters twice: the close of the first socket starts the collector, and
	// whoever closes last waits. So the caller's descriptor is closed before the collector
	// can come to the one under way.
	err = closing()
	unix.Close(pair[1])
	unix.Close(pair[0])
	return err
}
