package control_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// told is a control.PathWatch that reports a change when the test says so. It tells the test that the
// server has looked at the path and waits: a test that changes the path before may be noticed too early.
type told struct{ waits, changed chan struct{} }

func newTold() told { return told{make(chan struct{}), make(chan struct{})} }

func (w told) Arm() error { return nil }
func (w told) Close()     {}
func (w told) Wait(ctx context.Context) error {
	for waits := w.waits; ; waits = nil {
		select {
		case waits <- struct{}{}:
		case <-w.changed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestListenHelper is not a test: another process runs it and listens until its input ends.
func TestListenHelper(t *testing.T) {
	socket, ok := os.LookupEnv("CONTROL_TEST_LISTEN")
	if !ok {
		t.Skip("is the listener of another test")
	}
	if socket == "" { // listens on the socket that it was given
		must(t, unix.Listen(3, 1))
		os.Exit(0)
	}
	_, err := net.Listen("unix", socket)
	must(t, err)
	os.Stdout.WriteString("listening\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// listenElsewhere lets another process listen at the path.
func listenElsewhere(t *testing.T, path string) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, "-test.run=^TestListenHelper$")
	cmd.Env = []string{"CONTROL_TEST_LISTEN=" + path, noExitSleep}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { in.Close(); must(t, cmd.Wait()) })
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	equal(t, line, "listening\n")
}

// listenAndPass listens at the path as a program that hides itself does: the process that called
// listen(2) has ended, and another one has the socket.
func listenAndPass(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	file := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { file.Close() })
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, "-test.run=^TestListenHelper$")
	cmd.Env = []string{"CONTROL_TEST_LISTEN=", noExitSleep}
	cmd.ExtraFiles = []*os.File{file}
	must(t, cmd.Run())
}

// listenOnly lets another process listen at the path and fills the queue of the listener, which
// accepts nothing.
func listenOnly(t *testing.T, path string) {
	t.Helper()
	listenAndPass(t, path)
	for {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(t, err)
		t.Cleanup(func() { must(t, unix.Close(fd)) })
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			equal(t, err, error(unix.EAGAIN))
			return
		}
	}
}

// mkdir makes a directory that os.Remove does not remove.
func mkdir(t *testing.T, path string) {
	t.Helper()
	must(t, os.Mkdir(path, 0o700))
	must(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
}

// The server restores its socket in place of any file and of a program's socket, but not of a
// listener from outside the box. Clients that are connected do not notice.
func TestSocketThatIsTakenAway(t *testing.T) {
	none := func(int) (string, bool) { return "", false }
	others := func(pid int) (string, bool) { return "web", pid != os.Getpid() }
	for _, c := range []struct {
		name     string
		put      func(t *testing.T, path string)
		owner    func(int) (string, bool)
		found    string
		restored bool
	}{
		{name: "nothing is there", found: "nothing", restored: true},
		{name: "a file", put: func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) }, found: "another file", restored: true},
		{name: "a link", put: func(t *testing.T, path string) { must(t, os.Symlink("/none", path)) }, found: "another file", restored: true},
		{name: "a dead socket", put: func(t *testing.T, path string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			must(t, err)
			l.SetUnlinkOnClose(false)
			must(t, l.Close())
		}, found: "another socket", restored: true},
		{name: "a program of the box", put: listenElsewhere, owner: others, found: "another socket", restored: true},
		{name: "another agentinit", put: listenElsewhere, owner: none, found: "another socket"},
		{name: "a listener that was passed on", put: listenAndPass, owner: none, found: "another socket", restored: true},
		{name: "a listener that accepts nothing", put: listenOnly, owner: none, found: "another socket", restored: true},
		{name: "a directory that is not empty", put: mkdir, found: "another file", restored: true},
		{name: "a directory in the place of the next socket", put: func(t *testing.T, path string) {
			mkdir(t, filepath.Join(filepath.Dir(path), fmt.Sprintf(".%x", os.Getpid())))
		}, found: "nothing", restored: true},
		// It would hold up a process that opens it until another writes.
		{name: "a FIFO in the place of the directory", put: func(t *testing.T, path string) {
			must(t, os.Remove(filepath.Dir(path)))
			must(t, unix.Mkfifo(filepath.Dir(path), 0o600))
			t.Cleanup(func() { // the server moves it away
				moved, err := filepath.Glob(filepath.Dir(path) + ".moved-*")
				must(t, err)
				for _, m := range moved {
					must(t, os.Remove(m))
				}
			})
		}, found: "nothing", restored: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := controltest.New(controltest.Program("web"))
			if c.owner != nil {
				b.Owners = c.owner
			}
			cfg := b.Own()
			watch := newTold()
			cfg.Watch = func(string) control.PathWatch { return watch }
			path := controltest.Serve(t, cfg)
			before, err := os.Lstat(path)
			must(t, err)
			seen := make(chan api.Event)
			connected := make(chan struct{})
			go func() {
				_ = api.NewClient(path).Events(t.Context(), 0, true, func(e api.Event) error {
					if e.Name == "Connected" {
						close(connected)
					}
					if e.Name == control.EventSocketLost {
						seen <- e
					}
					return nil
				})
			}()
			b.Bus.Publish(event.Event{Name: "Connected"})
			<-connected
			<-watch.waits
			must(t, os.Remove(path))
			if c.put != nil {
				c.put(t, path)
			}
			watch.changed <- struct{}{}
			e := <-seen
			equal(t, string(e.Fields["found"]), `"`+c.found+`"`)
			now, err := os.Lstat(path)
			must(t, err)
			if !c.restored {
				equal(t, string(e.Fields["restored"]), "false")
				return
			}
			equal(t, string(e.Fields["restored"]), "true")
			equal(t, now.Mode(), before.Mode())
			s, err := api.NewClient(path).Status(t.Context())
			must(t, err)
			equal(t, len(s.Programs), 1)
		})
	}
}

// A process that holds the lock on the directory delays the socket by one attempt.
func TestALockOnTheDirectoryDelaysOnly(t *testing.T) {
	b := controltest.New()
	cfg := b.Own()
	watch := newTold()
	cfg.Watch = func(string) control.PathWatch { return watch }
	path := controltest.Serve(t, cfg)
	dir, err := os.Open(filepath.Dir(path))
	must(t, err)
	defer dir.Close()
	must(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	events := b.Bus.Watch(b.Bus.Seq())
	<-watch.waits
	must(t, os.Remove(path))
	watch.changed <- struct{}{}
	for _, restored := range []bool{false, true} { // the first attempt respects the lock
		e, err := events.Next(t.Context())
		for err == nil && e.Name != control.EventSocketLost {
			e, err = events.Next(t.Context())
		}
		must(t, err)
		equal(t, e.Fields["restored"], any(restored))
	}
	_, err = api.NewClient(path).Status(t.Context())
	must(t, err)
}

// exhausted is a control.PathWatch of a user who has no inotify instance left.
type exhausted struct{}

func (exhausted) Arm() error                 { return unix.EMFILE }
func (exhausted) Close()                     {}
func (exhausted) Wait(context.Context) error { return unix.EMFILE }

// ended is a control.PathWatch whose first wait has returned an error.
type ended struct {
	err    error
	waited chan struct{} // closed by the first wait
	once   *sync.Once
}

func (ended) Arm() error { return nil }
func (ended) Close()     {}

func (e ended) Wait(context.Context) error {
	e.once.Do(func() { close(e.waited) })
	return e.err
}

// If the watch ends with the box, that is no trouble. If it ends before, it is.
func TestTheEndOfTheBoxIsNoTrouble(t *testing.T) {
	for err, want := range map[error]bool{context.Canceled: false, unix.EMFILE: true} {
		t.Run(err.Error(), func(t *testing.T) {
			b := controltest.New(controltest.Program("web"))
			cfg, watch := b.Own(), ended{err, make(chan struct{}), new(sync.Once)}
			cfg.Watch = func(string) control.PathWatch { return watch }
			path := controltest.Serve(t, cfg)
			<-watch.waited
			// The next check finds that the socket is gone. A trouble would have been reported
			// before.
			must(t, os.Remove(path))
			troubled := false
			for events := b.Bus.Watch(0); ; {
				e, err := events.Next(t.Context())
				must(t, err)
				troubled = troubled || e.Name == control.EventTrouble
				if e.Name == control.EventSocketLost {
					break
				}
			}
			equal(t, troubled, want)
		})
	}
}

// If a user has used up all inotify instances, the server still finds that its socket is gone, and
// restores it.
func TestSocketThatCannotBeWatchedIsLookedAt(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	cfg := b.Own()
	cfg.Watch = func(string) control.PathWatch { return exhausted{} }
	path := controltest.Serve(t, cfg)
	must(t, os.Remove(path))
	events := b.Bus.Watch(0)
	for {
		e, err := events.Next(t.Context())
		must(t, err)
		if e.Name == control.EventSocketLost {
			equal(t, e.Fields["restored"], any(true))
			break
		}
	}
	_, err := api.NewClient(path).Status(t.Context())
	must(t, err)
}
