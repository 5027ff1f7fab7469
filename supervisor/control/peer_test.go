package control

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/polled"
)

// The kernel names the peer of a connection, also if epoll does not watch the connection.
func TestPeerOfAPolledConnection(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	full := func(*os.File) (net.Conn, error) { return nil, unix.ENOSPC }
	conn, err := polled.New(l.(*net.UnixListener), full).Accept(time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := identify(conn, false, func(int) (string, bool) { return "web", true })
	if err != nil || peer.PID != os.Getpid() || peer.Program != "web" {
		t.Errorf("got %+v, %v", peer, err)
	}
}
