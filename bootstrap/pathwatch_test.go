package bootstrap

import (
	"io"
	"os"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// The kernel's collector does close what is left to it: else each watch would be
// lost to its user for good.
func TestWhatIsClosedElsewhereIsClosed(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := lateclose.Hand(int(w.Fd())); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("still open")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "still open" {
		t.Errorf("%q, %v", text, err)
	}
}
