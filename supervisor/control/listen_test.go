package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

func listen(tb testing.TB, path string) *control.Socket {
	tb.Helper()
	s, warning, err := control.Listen(tb.Context(), control.SocketConfig{Path: path, Mode: 0o640, GID: -1})
	must(tb, errors.Join(warning, err))
	tb.Cleanup(func() { s.Close() })
	return s
}

func TestSocketFile(t *testing.T) {
	path := controltest.SocketPath(t)
	s := listen(t, path)
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode() != os.ModeSocket|0o640 {
		t.Errorf("mode %v", info.Mode())
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	must(t, s.Close())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestLiveListenerIsNotDisplaced(t *testing.T) {
	path := controltest.SocketPath(t)
	listen(t, path)
	_, _, err := control.Listen(t.Context(), control.SocketConfig{Path: path, Mode: 0o600, GID: -1})
	if !errors.Is(err, control.ErrInUse) {
		t.Fatalf("got %v, want ErrInUse", err)
	}
	conn, err := net.Dial("unix", path)
	must(t, err)
	conn.Close()
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := controltest.SocketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	listen(t, path)
	conn, err := net.Dial("unix", path)
	must(t, err)
	conn.Close()
}

// TestOneWins: if many start at once over a stale socket, exactly one listens.
func TestOneWins(t *testing.T) {
	path := controltest.SocketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	var mu sync.Mutex
	var won []*control.Socket
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			s, _, err := control.Listen(context.Background(), control.SocketConfig{Path: path, Mode: 0o600, GID: -1})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, s)
			} else if !errors.Is(err, control.ErrInUse) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d listen", len(won))
	}
	must(t, won[0].Close())
}

func TestOtherFilesAreLeftAlone(t *testing.T) {
	path := controltest.SocketPath(t)
	must(t, os.WriteFile(path, []byte("mine"), 0o600))
	if _, _, err := control.Listen(t.Context(), control.SocketConfig{Path: path, Mode: 0o600, GID: -1}); err == nil {
		t.Fatal("a file that is not a socket was replaced")
	}
	data, err := os.ReadFile(path)
	must(t, err)
	equal(t, string(data), "mine")
}

func TestCloseLeavesTheSuccessorsFile(t *testing.T) {
	path := controltest.SocketPath(t)
	s := listen(t, path)
	must(t, os.Remove(path))
	listen(t, path)
	must(t, s.Close())
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutAWritableDirectory(t *testing.T) {
	path := filepath.Join(filepath.Dir(controltest.SocketPath(t)), "missing", "s")
	s, warning, err := control.Listen(t.Context(), control.SocketConfig{Path: path, Mode: 0o600, GID: -1})
	must(t, err)
	if warning == nil || s.Name() != "@"+path || !s.Abstract() {
		t.Fatalf("%q, warning %v", s.Name(), warning)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- control.New(controltest.New().Own()).Serve(ctx, s) }()
	c := api.NewClient(s.Name())
	_, err = c.Status(t.Context())
	must(t, err)
	_, _, err = control.Listen(t.Context(), control.SocketConfig{Path: s.Name(), GID: -1})
	if !errors.Is(err, control.ErrInUse) {
		t.Errorf("a taken abstract name: %v", err)
	}
	cancel()
	must(t, <-served)
}

func TestLongPathIsAnError(t *testing.T) {
	path := filepath.Join(filepath.Dir(controltest.SocketPath(t)), strings.Repeat("x", 120))
	_, _, err := control.Listen(t.Context(), control.SocketConfig{Path: path, GID: -1})
	if err == nil || !strings.Contains(err.Error(), "longer than 107") {
		t.Fatalf("got %v", err)
	}
}

// The tests below need clients in other processes: the test binary runs itself again.

// noExitSleep stops the race detector from delaying each exit.
const noExitSleep = "GORACE=atexit_sleep_ms=0"

// TestPeerHelper is not a test: it is the client. It requests a status and a stop and prints the
// answers.
func TestPeerHelper(t *testing.T) {
	socket, ok := os.LookupEnv("CONTROL_TEST_PEER")
	if !ok {
		t.Skip("is the peer of other tests")
	}
	c := api.NewClient(socket)
	_, read := c.Status(t.Context())
	_, write := c.Stop(t.Context(), api.ActionRequest{All: true})
	_, open := c.Version(t.Context())
	os.Stdout.WriteString("read=" + string(api.CodeOf(read)) + " write=" + string(api.CodeOf(write)) + " open=" + string(api.CodeOf(open)) + "\n")
	os.Exit(0)
}

func runPeer(t *testing.T, socket string, cred *syscall.Credential) (pid int, answer string) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestPeerHelper$")
	if cred != nil {
		// The binary is in a directory that only this user can read: run it by descriptor.
		f, err := os.Open(exe)
		must(t, err)
		defer f.Close()
		cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{f}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
		cmd.Dir = "/"
	}
	cmd.Env = []string{"CONTROL_TEST_PEER=" + socket, noExitSleep}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return cmd.Process.Pid, strings.TrimSpace(out.String())
}

func TestOwnersProcessesMayOnlyRead(t *testing.T) {
	for name, c := range map[string]struct {
		control bool
		want    string
	}{
		"without control": {false, "read= write=forbidden open="},
		"with control":    {true, "read= write= open="},
	} {
		t.Run(name, func(t *testing.T) {
			web := controltest.Program("web")
			web.Spec.Control = c.control
			b := controltest.New(web)
			b.Owners = func(pid int) (string, bool) { return "web", pid != os.Getpid() }
			path := controltest.Serve(t, b.Own())
			pid, answer := runPeer(t, path, nil)
			equal(t, answer, c.want)
			event := control.EventRefused
			if c.control {
				event = control.EventChange
			}
			for w := b.Bus.Watch(0); ; {
				e, ok := w.TryNext()
				if !ok {
					t.Fatalf("no %s event", event)
				}
				if e.Name != event {
					continue
				}
				equal(t, e.Fields["peer_pid"], any(pid))
				equal(t, e.Fields["peer_program"], any("web"))
				break
			}
		})
	}
}

func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it runs peers as other users")
	}
	b := controltest.New(controltest.Program("web"))
	cfg := b.Config(1000, 2000)
	path := controltest.Serve(t, cfg)
	must(t, os.Chmod(filepath.Dir(path), 0o755))
	for name, c := range map[string]struct {
		cred syscall.Credential
		want string
	}{
		"own user":            {syscall.Credential{Uid: 1000, Gid: 1000}, "read= write= open="},
		"group":               {syscall.Credential{Uid: 1001, Gid: 2000}, "read= write=forbidden open="},
		"supplementary group": {syscall.Credential{Uid: 1001, Gid: 1001, Groups: []uint32{3, 2000}}, "read= write=forbidden open="},
		"stranger":            {syscall.Credential{Uid: 1001, Gid: 1001}, "read=forbidden write=forbidden open="},
	} {
		t.Run(name, func(t *testing.T) {
			_, answer := runPeer(t, path, &c.cred)
			equal(t, answer, c.want)
		})
	}
}

// TestPeerThatIsGone: if the process that connected has ended, its identity is unknown, so its
// connection may not change anything.
func TestPeerThatIsGone(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	path := controltest.SocketPath(t)
	s := listen(t, path)
	conn := leftBehind(t, path)
	defer conn.Close()

	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- control.New(b.Own()).Serve(ctx, s) }()
	const body = `{"all":true}`
	_, err := conn.Write([]byte("POST /v1/stop HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body))
	must(t, err)
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	must(t, err)
	if !strings.Contains(string(answer[:n]), "the process that connected is gone") {
		t.Errorf("got %s", answer[:n])
	}
	equal(t, b.Snapshot().Programs[0].State.String(), "RUNNING")
	cancel()
	must(t, <-served)
}

// TestConnectionsOfTheGoneKeepNobodyOut: a program that connects with processes that end at once
// cannot take the connections of others.
func TestConnectionsOfTheGoneKeepNobodyOut(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	cfg := b.Own()
	cfg.Limits = control.Limits{Connections: 4, Guests: 1}
	path := controltest.SocketPath(t)
	s := listen(t, path)
	var left []net.Conn
	for range 5 { // they wait in the queue of the socket
		conn := leftBehind(t, path)
		defer conn.Close()
		_, err := io.WriteString(conn, "GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
		left = append(left, conn)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- control.New(cfg).Serve(ctx, s) }()
	statuses := map[string]int{}
	for _, conn := range left[:4] {
		answer := make([]byte, len("HTTP/1.1 200"))
		_, err := io.ReadFull(conn, answer)
		must(t, err)
		statuses[string(answer)]++
	}
	if statuses["HTTP/1.1 200"] != 1 || statuses["HTTP/1.1 503"] != 3 {
		t.Fatalf("answered are %v", statuses)
	}
	_, err := api.NewClient(path).Status(t.Context())
	must(t, err)
	cancel()
	must(t, <-served)
}

// leftBehind returns a connection to the socket. The process that connected has ended.
func leftBehind(t *testing.T, path string) net.Conn {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	mine, theirs := os.NewFile(uintptr(pair[0]), "mine"), os.NewFile(uintptr(pair[1]), "theirs")
	defer mine.Close()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestConnectHelper$")
	cmd.Env = []string{"CONTROL_TEST_CONNECT=" + path, noExitSleep}
	cmd.ExtraFiles = []*os.File{theirs}
	out, err := cmd.CombinedOutput()
	theirs.Close()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	oob := make([]byte, 64)
	_, n, _, _, err := syscall.Recvmsg(int(mine.Fd()), make([]byte, 1), oob, syscall.MSG_CMSG_CLOEXEC)
	must(t, err)
	messages, err := syscall.ParseSocketControlMessage(oob[:n])
	must(t, err)
	fds, err := syscall.ParseUnixRights(&messages[0])
	must(t, err)
	file := os.NewFile(uintptr(fds[0]), "connection")
	conn, err := net.FileConn(file)
	must(t, errors.Join(err, file.Close()))
	return conn
}

// TestConnectHelper is not a test: it connects, passes the connection on, and ends.
func TestConnectHelper(t *testing.T) {
	socket, ok := os.LookupEnv("CONTROL_TEST_CONNECT")
	if !ok {
		t.Skip("is the peer of another test")
	}
	conn, err := net.Dial("unix", socket)
	must(t, err)
	f, err := conn.(*net.UnixConn).File()
	must(t, err)
	must(t, syscall.Sendmsg(3, []byte{0}, syscall.UnixRights(int(f.Fd())), nil, 0))
	os.Exit(0)
}

// That no descriptor is free is told when it begins and when it is over.
func TestAFullTableOfDescriptors(t *testing.T) {
	b := controltest.New()
	path := controltest.Serve(t, b.Own())
	peer, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(peer)
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	restore := func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }
	defer restore()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max}))
	must(t, unix.Connect(peer, &unix.SockaddrUnix{Name: path}))
	events := b.Bus.Watch(0)
	trouble := func() event.Event {
		for {
			e, err := events.Next(t.Context())
			must(t, err)
			if e.Name == control.EventTrouble {
				return e
			}
		}
	}
	if e := trouble(); e.Level != event.Warn || !strings.HasSuffix(e.Fields["error"].(string), ": too many open files") {
		t.Errorf("with no free descriptor: %v", e)
	}
	restore()
	if e := trouble(); e.Level != event.Info || e.Fields["message"] != "connections are accepted again" {
		t.Errorf("with free descriptors: %v", e)
	}
}
