package proc

import (
	"os"

	"golang.org/x/sys/unix"
)

// epoll waits for events of descriptors (epoll(7)). The Go runtime polls epoll's own descriptor, so
// that waiting occupies no thread. The zero value watches no descriptor.
type epoll struct{ file *os.File }

func newEpoll() (epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return epoll{}, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // otherwise the runtime does not poll it
		unix.Close(fd)
		return epoll{}, os.NewSyscallError("fcntl", err)
	}
	return epoll{os.NewFile(uintptr(fd), "epoll")}, nil
}

func (e epoll) ok() bool { return e.file != nil }

// control calls epoll_ctl(2). After close it returns an error.
func (e epoll) control(op, fd int, ev *unix.EpollEvent) error {
	conn, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := conn.Control(func(ep uintptr) { result = unix.EpollCtl(int(ep), op, fd, ev) }); err != nil {
		return err
	}
	return result
}

// watch adds a descriptor. Its events then carry the descriptor's number.
func (e epoll) watch(fd int, events uint32) error {
	return e.control(unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// each calls f with the events as they come, until close is called.
func (e epoll) each(f func([]unix.EpollEvent)) {
	conn, err := e.file.SyscallConn()
	if err != nil {
		return // closed
	}
	var ready [64]unix.EpollEvent
	// The function always returns false. So no event is lost between one epoll_wait and the next
	// wait for the descriptor. Read returns only an error, that of close.
	_ = conn.Read(func(ep uintptr) bool {
		for {
			n, err := unix.EpollWait(int(ep), ready[:], 0)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return false
			}
			f(ready[:n])
		}
	})
}

// close makes each return. It may be called more than once.
func (e epoll) close() {
	if e.ok() {
		_ = e.file.Close() // the descriptor has no unwritten data
	}
}
