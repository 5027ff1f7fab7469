package api

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fullQueue returns a listener whose queue is full, and the path to it.
func fullQueue(t *testing.T) (*net.UnixListener, string) {
	t.Helper()
	t.Chdir(t.TempDir()) // a relative path is short enough
	const path = "s"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for {
		conn, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			return l.(*net.UnixListener), path
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
}

// A client waits for its turn while programs fill the queue of the socket.
func TestDialWaitsWhileTheQueueIsFull(t *testing.T) {
	l, path := fullQueue(t)
	done := make(chan error, 1)
	go func() {
		conn, err := NewClient(path).dial(t.Context())
		if err == nil {
			conn.Close()
		}
		done <- err
	}()
	waitUntil(t, "the client waits", func() bool { return len(done) > 0 || inConnect(t) })
	if len(done) > 0 {
		t.Fatalf("did not wait: %v", <-done)
	}
	for range 2 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	_, path := fullQueue(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := DialSocket(ctx, path); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("after its time: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		waitUntil(t, "the client waits", func() bool { return inConnect(t) })
		cancel()
	}()
	if _, err := DialSocket(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// inConnect tells whether a thread of this process waits in connect(2).
func inConnect(t *testing.T) bool {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Error(err)
	}
	for _, thread := range threads {
		call, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/syscall")
		if err == nil && strings.HasPrefix(string(call), strconv.Itoa(unix.SYS_CONNECT)+" ") {
			return true
		}
	}
	return false
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	for end := time.Now().Add(30 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Errorf("not in time: %s", what)
			return
		}
	}
}
