package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// bridgedBox is the socket of a box that answers what it is told, and closes the channel after "close".
func bridgedBox(t *testing.T) (socket string) {
	t.Helper()
	return controltest.Serve(t, controltest.New().Own())
}

// TestBridgeClosedByTheBox: if the box closes the channel while the host still talks, agentctl
// reports it.
func TestBridgeClosedByTheBox(t *testing.T) {
	socket := bridgedBox(t)
	host, stdin := io.Pipe()
	t.Cleanup(func() { stdin.Close() })
	go func() { _, _ = io.WriteString(stdin, "hello\nclose\n") }()
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), []string{"bridge", "--socket", socket},
		func(string) (string, bool) { return "", false }, host, &stdout, &stderr)
	if code != exitFailure || stdout.String() != "hello\n" || !strings.Contains(stderr.String(), "closed the channel") {
		t.Errorf("status %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
}

// closing is a channel of a box that closes it while the host still talks: it takes no more, and what
// it sends ends only then.
type closing struct{ net.Conn }

func (c closing) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func (c closing) CloseWrite() error {
	_, err := io.WriteString(c.Conn, "close\n")
	return err
}

func TestBridgeClosedWhileTheHostTalks(t *testing.T) {
	conn, err := api.NewClient(bridgedBox(t)).Bridge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Conn = closing{conn.Conn}
	c := &cli{stdin: strings.NewReader("hello\n"), stdout: io.Discard}
	if err := c.joinBridge(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "closed the channel") {
		t.Errorf("error %v", err)
	}
}
