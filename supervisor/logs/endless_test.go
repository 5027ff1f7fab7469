package logs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/rotated"
)

// A program leaves a rotated file of 4 TiB, which takes no space on the disk and has no line that
// the query wants. The read ends with its context.
func TestReadOfAnEndlessFileEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.log")
	p := newPlane(t, Config{})
	c, stdout, stderr := open(t, p, Options{Program: "web", To: ToFile, Path: path, Backups: -1})
	write(t, stdout, "wanted\n")
	closeAll(t, stdout, stderr)
	<-c.Done()
	flush(t, p)
	huge := path + "." + time.Now().UTC().Format(rotated.Layout)
	if err := errors.Join(os.WriteFile(huge, nil, 0o600), os.Truncate(huge, 4<<40)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, lines := range map[string]int{"all": 0, "the last": 10, "too many to keep": keptLines + 1} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for l := range p.Read(ctx, Query{Files: true, Lines: lines, Grep: regexp.MustCompile("nosuch")}) {
				t.Errorf("%s: %+v", name, l)
			}
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: it does not end", name)
		}
	}
}
