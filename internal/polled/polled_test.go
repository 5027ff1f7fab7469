package polled

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unwatched simulates net.FileConn when epoll has no watches left.
func unwatched(*os.File) (net.Conn, error) { return nil, unix.ENOSPC }

func pair(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(l.(*net.UnixListener), unwatched).Accept(time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); peer.Close() })
	return c.(*Conn), peer
}

func TestConn(t *testing.T) {
	c, peer := pair(t)
	if c.RemoteAddr().Network() != "unix" || c.LocalAddr().String() == "" {
		t.Errorf("from %v to %v", c.RemoteAddr(), c.LocalAddr())
	}
	if _, err := io.WriteString(peer, "asked"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 99)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "asked" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if _, err := io.WriteString(c, "answered"); err != nil {
		t.Fatal(err)
	}
	if n, err := peer.Read(b); err != nil || string(b[:n]) != "answered" {
		t.Errorf("the peer read %q, %v", b[:n], err)
	}
	// A new deadline also ends a read that is waiting already.
	waited := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); waited <- err }()
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	peer.Close()
	if n, err := c.Read(b); n != 0 || err != io.EOF {
		t.Errorf("after the end: %d, %v", n, err)
	}
	if _, err := c.Write(b); !errors.Is(err, unix.EPIPE) {
		t.Errorf("written after the end: %v", err)
	}
}

func TestCloseEndsARead(t *testing.T) {
	c, _ := pair(t)
	waited := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); waited <- err }()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAccept(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := New(l.(*net.TCPListener), nil)
	if _, err := p.Accept(time.Now()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	c, err := p.Accept(time.Now().Add(time.Hour))
	if _, ok := c.(*net.TCPConn); !ok || err != nil {
		t.Fatalf("a connection that can be watched is %T, %v", c, err)
	}
	c.Close()
	ended := make(chan error, 1)
	go func() { _, err := p.Accept(time.Now().Add(time.Hour)); ended <- err }()
	l.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// If there are too many connections, the oldest is closed. Connections that have ended do not count.
func TestTooManyConnections(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := New(l.(*net.UnixListener), unwatched)
	accept := func() net.Conn {
		t.Helper()
		peer, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { peer.Close() })
		c, err := p.Accept(time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := accept()
	for range 2 * Most {
		if err := accept().Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range Most - 1 {
		accept()
	}
	if _, err := first.Write([]byte("x")); err != nil {
		t.Errorf("the first of %d was closed: %v", Most, err)
	}
	accept()
	if _, err := first.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("with one more, the first is open: %v", err)
	}
}
