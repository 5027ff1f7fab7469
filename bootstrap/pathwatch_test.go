package bootstrap

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// The kernel does close a descriptor that is handed to it. Otherwise each watch would count against
// its user's limit for ever.
func TestWhatIsClosedElsewhereIsClosed(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	closed := false
	err = lateclose.Hand(int(w.Fd()), func() error {
		closed = true
		_, err := w.Write([]byte("still open"))
		return errors.Join(err, w.Close())
	})
	if err != nil || !closed {
		t.Fatalf("closed by its owner: %v, %v", closed, err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "still open" {
		t.Errorf("%q, %v", text, err)
	}
}
