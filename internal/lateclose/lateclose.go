// Package lateclose owns the close of descriptors that may take long. Hand is for agentinit's own:
// the kernel closes them later, so that an exit does not wait. It must never be used for a
// descriptor whose close another process notices, because the time of the close is unknown. Strays
// is for those that other processes have passed to agentinit, and Pipe for the pipes of programs.
package lateclose

import "golang.org/x/sys/unix"

// Hand calls closing, which must close the caller's only descriptor fd. A thread of the kernel then
// waits for the last close of the open file. The last close of an inotify instance takes 15 to 50
// ms, until the kernel has released the watches. An exit would wait for it, and that is several
// times longer than the stop of a hundred programs. If the kernel refuses the hand-over, closing
// waits itself. The error is that of closing.
//
// Hand sends the descriptor, together with a descriptor of the receiving socket, to a socket that
// no process holds after Hand returns. The kernel's garbage collector for unix sockets
// (net/unix/garbage.c) closes such sockets and the descriptors in their queues. Since Linux 6.10 it
// runs in its own thread. Before, it ran in the close of a socket, which takes no additional time.
func Hand(fd int, closing func() error) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return closing()
	}
	// If the kernel refuses the message, the caller's descriptor stays the last one.
	_ = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd, pair[1]), nil, unix.MSG_DONTWAIT)
	// The order is important: the close of the first socket starts the collector, and the process
	// that closes last waits. So the caller's descriptor is closed before the collector can reach
	// the one in the queue.
	err = closing()
	unix.Close(pair[1])
	unix.Close(pair[0])
	return err
}
