package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// TestBridgeClosedByTheBox: if the box closes the channel while the host still talks, agentctl
// reports it.
func TestBridgeClosedByTheBox(t *testing.T) {
	dir, err := os.MkdirTemp("", "ctl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := controltest.Serve(t, controltest.New().Config(os.Geteuid(), os.Getegid()), filepath.Join(dir, "s"))
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
