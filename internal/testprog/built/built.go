// Package built builds testprog for the tests of a package: once for each test
// binary, for any user to run. It is part of no binary.
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

// Path is where it lies. The build waits for children of its own, so the first
// call belongs before there is an Owner of processes.
func Path(t testing.TB) string {
	t.Helper()
	bin, err := path()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}
