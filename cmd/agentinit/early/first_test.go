//go:build !cgo

package early

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// printFiles prints the size of the descriptor table, and the limit of open files that a child has.
func printFiles() {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(status), "FDSize:")
	var size int
	if _, err := fmt.Sscan(rest, &size); err != nil {
		panic(err)
	}
	soft, err := exec.Command("sh", "-c", "ulimit -Sn").Output()
	if err != nil {
		panic(err)
	}
	fmt.Print(size, " ", string(soft))
}

func TestDescriptorTableIsGrown(t *testing.T) {
	if os.Getenv("PRINT_FILES") != "" {
		printFiles()
		os.Exit(0)
	}
	for limits, want := range map[string]string{
		"1000:5000": "4096 1000",
		"5000:6000": "4096 5000",
		"1000:1000": "256 1000", // the table cannot be larger than the hard limit needs
	} {
		cmd := exec.Command("prlimit", "--nofile="+limits, os.Args[0], "-test.run=^TestDescriptorTableIsGrown$")
		cmd.Env = append(os.Environ(), "PRINT_FILES=1")
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s: %v: got %q, want %q", limits, err, got, want)
		}
	}
}
