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
	run := func(limits string) (size, soft int) {
		t.Helper()
		cmd := exec.Command("prlimit", "--nofile="+limits, os.Args[0], "-test.run=^TestDescriptorTableIsGrown$")
		cmd.Env = append(os.Environ(), "PRINT_FILES=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", limits, err, out)
		}
		if _, err := fmt.Sscan(string(out), &size, &soft); err != nil {
			t.Fatalf("%s: %v: %q", limits, err, out)
		}
		return size, soft
	}
	for limits, want := range map[string]int{"1000:5000": 1000, "5000:6000": 5000} {
		if size, soft := run(limits); size != 4096 || soft != want {
			t.Errorf("%s: %d descriptors, limit %d", limits, size, soft)
		}
	}
	// The hard limit forbids a larger table. How large it is depends on the descriptors that the test has inherited.
	if size, soft := run("1000:1000"); size >= 1000 || soft != 1000 {
		t.Errorf("1000:1000: %d descriptors, limit %d", size, soft)
	}
}
