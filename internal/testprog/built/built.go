// Package built owns the build of testprog for the tests of a package: it builds testprog once for
// each test binary, any user can run the result, and the end of the tests removes it. It must never
// be part of a binary.
package built

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var (
	dir  string // holds testprog; empty until a test asks for it
	path = sync.OnceValues(build)
)

func build() (string, error) {
	var err error
	if dir, err = os.MkdirTemp("", "testprog"); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "testprog")
	cmd := exec.Command("go", "build", "-o", bin, "github.com/dreamlab-ai/agentinit/internal/testprog")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, os.Chmod(dir, 0o755)
}

// Path returns the path of testprog. The first call builds it and waits for child processes, so it
// must come before the test creates an Owner of processes. The package's TestMain must run the tests
// through Tests.
func Path(t testing.TB) string {
	t.Helper()
	bin, err := path()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Tests runs the tests of a package that uses Path, and then removes testprog.
type Tests struct{ M *testing.M }

// Run returns the exit status of the tests, or 1 if testprog cannot be removed.
func (t Tests) Run() int {
	status := t.M.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}
