package control

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a connection, as the kernel recorded it at connect(2).
// PID 0 means a process that is not visible in this pid namespace.
type Peer struct {
	PID    int
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	// Program is the supervised program whose tree the peer belongs to. It is "" for a process
	// outside the box, and nobodysProgram for a descendant of agentinit that belongs to no
	// program's tree.
	Program string
	// Abstract says that the peer came through a socket without a file, so no file mode was
	// checked.
	Abstract bool
	// Uncertain says that the process has already ended, so its program is not known.
	Uncertain bool
	// Principal names the holder of a checked credential over HTTP, and Granted is what the
	// credential allows. Such a peer has no process.
	Principal string
	Granted   Access
}

// Member reports whether the peer is in the group.
func (p Peer) Member(gid uint32) bool {
	return p.GID == gid || slices.Contains(p.Groups, gid)
}

// guest reports whether the peer counts as a process of a supervised program. A process that has
// ended counts too, because any program can connect with a process that ends at once, and keep the
// connection.
func (p Peer) guest() bool { return p.Program != "" || p.Uncertain }

// nobodysProgram is the program name of a process that descends from agentinit but from no program
// of the manifest: an agent, a probe's command, an escaped process. It must not be treated as an
// operator. No program can have this name.
const nobodysProgram = "(none)"

// identify reads the peer's credentials and asks owner about the peer. The witness is taken first
// and checked last. If the process still lives then, the pid meant the same process all the time.
// So owner's answer is not about a later process with the same pid.
func identify(conn net.Conn, abstract bool, owner func(int) (string, bool)) (Peer, error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return Peer{}, fmt.Errorf("%T has no descriptor", conn)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	peer := Peer{Abstract: abstract}
	var w witness
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		if peerErr = readPeer(int(fd), &peer); peerErr == nil && peer.PID != 0 {
			w = witnessOf(int(fd), peer.PID)
		}
	}); err != nil {
		return Peer{}, err
	}
	if peerErr != nil {
		return Peer{}, peerErr
	}
	defer w.close()
	if peer.PID == 0 {
		return peer, nil
	}
	if name, ok := owner(peer.PID); ok {
		peer.Program = cmp.Or(name, nobodysProgram)
	}
	peer.Uncertain = !w.same()
	return peer, nil
}

func readPeer(fd int, peer *Peer) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("cannot read the peer's credentials: %w", err)
	}
	peer.PID, peer.UID, peer.GID = int(cred.Pid), cred.Uid, cred.Gid
	if peer.Groups, err = peerGroups(fd); err != nil {
		return fmt.Errorf("cannot read the peer's groups: %w", err)
	}
	return nil
}

// witness remembers a process, to check later whether its pid still means that process.
type witness struct {
	pidfd   int // -1: none
	pid     int
	started string // start time in /proc/PID/stat; "" means that the process has ended
}

// witnessOf asks the socket for a pidfd, which names the process that connected (SO_PEERPIDFD,
// Linux 6.5). On an older kernel it opens a pidfd by number, so a change between connect and accept
// stays unnoticed. Without pidfds it reads the start time.
func witnessOf(fd, pid int) witness {
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	switch {
	case err == nil:
		return witness{pidfd: pidfd, pid: pid}
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM):
		return witness{pidfd: -1, pid: pid, started: startTime(pid)}
	}
	return witness{pidfd: -1, pid: pid}
}

// same reports whether the process still lives under its pid.
func (w witness) same() bool {
	if w.pidfd >= 0 {
		return alive(w.pidfd)
	}
	return w.started != "" && startTime(w.pid) == w.started
}

func (w witness) close() {
	if w.pidfd > 0 {
		unix.Close(w.pidfd)
	}
}

// alive polls the pidfd: it becomes readable when the process ends
// (pidfd_open(2)).
func alive(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 0
	}
}

// startTime is field 22 of /proc/PID/stat (proc_pid_stat(5)), counted after the
// command's closing parenthesis because the command may contain anything.
func startTime(pid int) string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	if end < 0 || len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// peerGroups reads SO_PEERGROUPS (unix(7)), which x/sys has no function for.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups)) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno == unix.ENOPROTOOPT:
			return nil, nil // before Linux 4.13: only the primary group counts
		case errno == unix.ERANGE && int(size/4) > len(groups):
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}

// executable is the peer's program file, for the audit trail. It is "" if the kernel does not give
// it.
func executable(pid int) string {
	exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return ""
	}
	return exe
}
