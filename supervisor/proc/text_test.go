package proc

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// resident returns the resident file pages of this process, in KiB.
func resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "RssFile:"); ok {
			n, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no RssFile")
	return 0
}

func TestReleaseTextGivesPagesBack(t *testing.T) {
	before := resident(t)
	ended := make(chan struct{})
	close(ended)
	if err := ReleaseText(ended); err != nil {
		t.Fatal(err)
	}
	if after := resident(t); after >= before {
		t.Errorf("%d KiB of our file were resident, now %d", before, after)
	}
}
