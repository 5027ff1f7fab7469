package tasks

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A line that is written after the reader has read up to the end, but before it has asked for the next
// line, is found at once. Otherwise a Follower would wait for a wake-up that has already been.
func TestALineWrittenAfterTheLastReadIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r *logReader
	for i := range 3 {
		want := fmt.Sprint("line ", i)
		if _, err := fmt.Fprintln(f, want); err != nil {
			t.Fatal(err)
		}
		if r == nil {
			if r, err = newLogReader(path, 0); err != nil {
				t.Fatal(err)
			}
			defer r.file.Close()
		}
		if got, err := r.next(); got != want || err != nil {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	if got, err := r.next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %q %v", got, err)
	}
}
