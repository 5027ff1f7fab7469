// Package built owns the build of testprog for the tests of a package: it builds testprog once for
// each test binary, and any user can run the result. It must never be part of a binary.
package built

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var path = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "testprog")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "testprog")
	cmd := exec.Command("go", "build", "-o", bin, "github.com/dreamlab-ai/agentinit/internal/testprog")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, os.Chmod(dir, 0o755)
})

// Path returns the path of testprog. The first call builds it and waits for child processes, so it
// must come before the test creates an Owner of processes.
func Path(t testing.TB) string {
	t.Helper()
	bin, err := path()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
