package leased

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/leased/leasetest"
)

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := Check(file); err != nil {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	release := leasetest.Hold(t, file)
	if err := Check(file); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("with a lease: %v", err)
	}
	release()
	if err := Check(file); err != nil {
		t.Errorf("after the lease: %v", err)
	}
}
