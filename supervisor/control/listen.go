package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// ErrInUse says that another process listens on the socket and answers.
var ErrInUse = errors.New("another process listens there; stop it, or choose another place (supervisor.socket, --root)")

// errLocked says that another process holds the lock on the directory.
var errLocked = errors.New("it is locked")

// maxSocketPath is the longest path that fits in sockaddr_un.sun_path with its final NUL (unix(7)).
const maxSocketPath = 107

// SocketConfig says where to listen.
type SocketConfig struct {
	// Path is a file, or an abstract name when it begins with "@".
	Path string
	// Mode is the file's mode; an abstract socket has none.
	Mode fs.FileMode
	// GID is the file's group; -1 leaves the group unchanged.
	GID int
}

// Socket is a listening control socket. Close it when the Server is done.
type Socket struct {
	listener *net.UnixListener
	name     string
	file     os.FileInfo // nil when abstract
	cfg      SocketConfig
	locked   bool // another process held the lock on the directory the last time; only keep uses it
}

// Name is where the socket can be reached: the path or the abstract name.
func (s *Socket) Name() string { return s.name }

// Abstract tells whether the socket has no file. Then file permissions do not protect it.
func (s *Socket) Abstract() bool { return s.file == nil }

// Close stops listening and removes the file, unless another file has replaced it.
func (s *Socket) Close() error {
	err := s.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	if s.file == nil {
		return err
	}
	now, statErr := os.Lstat(s.name)
	if statErr != nil || !os.SameFile(now, s.file) {
		return err
	}
	return errors.Join(err, os.Remove(s.name))
}

// Listen opens the control socket. It replaces a socket file left by a dead process. If a process
// listens there, Listen returns ErrInUse and leaves that socket alone. If the file cannot be made
// because its directory is missing or not writable, Listen uses api.AbstractFallback of the path
// and returns the reason as warning.
func Listen(ctx context.Context, cfg SocketConfig) (socket *Socket, warning, err error) {
	if strings.HasPrefix(cfg.Path, "@") {
		socket, err = listenAbstract(cfg.Path)
		return socket, nil, err
	}
	socket, err = listenFile(ctx, cfg)
	if err == nil || !unwritable(err) {
		return socket, nil, err
	}
	warning = fmt.Errorf("%w; listening on the abstract socket %s instead", err, api.AbstractFallback(cfg.Path))
	socket, err = listenAbstract(api.AbstractFallback(cfg.Path))
	return socket, warning, err
}

// unwritable tells a missing or read-only directory from all other failures. Only then the abstract
// socket can help.
func unwritable(err error) bool {
	causes := []error{unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOSPC, unix.EDQUOT}
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

func listenAbstract(name string) (*Socket, error) {
	if len(name) > maxSocketPath {
		return nil, fmt.Errorf("abstract socket name %q is longer than %d bytes", name, maxSocketPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("cannot listen on %s: %w", name, ErrInUse)
	}
	if err != nil {
		return nil, err
	}
	return &Socket{listener: l, name: name}, nil
}

// listenFile binds under a temporary name and renames the file, so that the socket has its mode and
// group as soon as it can be found. The lock on the directory prevents two starting processes from
// both removing a stale file.
func listenFile(ctx context.Context, cfg SocketConfig) (*Socket, error) {
	dir := filepath.Dir(cfg.Path)
	if max(len(cfg.Path), len(tempName(cfg.Path))) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q is longer than %d bytes", cfg.Path, maxSocketPath)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkFree(ctx, cfg.Path); err != nil {
		return nil, err
	}
	return bind(cfg)
}

// bind puts a new listener in the place of the file at the path.
func bind(cfg SocketConfig) (*Socket, error) {
	temp := tempName(cfg.Path)
	if err := removeSocket(temp); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	s := &Socket{listener: l, name: cfg.Path, cfg: cfg}
	if err := s.publish(temp, cfg); err != nil {
		l.Close()
		return nil, errors.Join(err, removeSocket(temp))
	}
	return s, nil
}

func tempName(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%x", os.Getpid()))
}

// publish gives the file its group and mode and renames it. A program that may write in the directory
// can put another file in its place at any time. So the file is opened first, and no path of it is used
// to change it.
func (s *Socket) publish(temp string, cfg SocketConfig) error {
	fd, err := unix.Open(temp, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: temp, Err: err}
	}
	f := os.NewFile(uintptr(fd), temp)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("cannot listen on %s: another file has taken the place of the socket", cfg.Path)
	}
	if cfg.GID >= 0 {
		if err := unix.Fchownat(fd, "", -1, cfg.GID, unix.AT_EMPTY_PATH); err != nil {
			return fmt.Errorf("cannot give the control socket to group %d: %w", cfg.GID, maskPermission(err))
		}
	}
	// fchmod(2) refuses O_PATH, and fchmodat2(2) came with Linux 6.6.
	if unix.Fchmodat(fd, "", uint32(cfg.Mode.Perm()), unix.AT_EMPTY_PATH) != nil {
		if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), cfg.Mode.Perm()); err != nil {
			return err
		}
	}
	s.file = info
	return os.Rename(temp, cfg.Path)
}

// maskPermission hides the type of a refused chown. Otherwise it would look like a directory that
// is not writable, and the fallback to an abstract socket would hide a wrong socket_group.
func maskPermission(err error) error { return errors.New(err.Error()) }

// checkFree removes the file of a dead listener. It connects first: only a refused connection
// proves that no server is there.
func checkFree(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("cannot listen on %s: it exists and is not a socket (mode %s); remove it", path, info.Mode())
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		conn.Close()
		return fmt.Errorf("cannot listen on %s: %w", path, ErrInUse)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("cannot listen on %s: %w: %v", path, ErrInUse, err)
	}
	return os.Remove(path)
}

func removeSocket(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func lockDir(dir string) (unlock func() error, err error) {
	// With O_DIRECTORY, a FIFO in the place of the directory is an error, and not a wait for a writer.
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		d.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cannot listen in %s: %w: %w", dir, ErrInUse, errLocked)
		}
		return nil, fmt.Errorf("cannot lock %s, which keeps two boxes apart: %w", dir, err) // of a file system without locks
	}
	return d.Close, nil
}
