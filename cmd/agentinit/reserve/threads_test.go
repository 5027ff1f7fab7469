package reserve

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestThreadsAreKept(t *testing.T) {
	Threads(ServingThreads)
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nThreads:")
	value, _, _ := strings.Cut(rest, "\n")
	if n, err := strconv.Atoi(strings.TrimSpace(value)); err != nil || n < ServingThreads {
		t.Errorf("%d threads %v, want %d at least", n, err, ServingThreads)
	}
}
