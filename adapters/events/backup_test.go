package events

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func TestBackupHoldsWhatWasAcknowledged(t *testing.T) {
	l, err := NewLocal(LocalConfig{Dir: t.TempDir(), Source: testSource})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Disconnect(t.Context())
	for i := range 100 {
		if _, err := l.Dispatch(t.Context(), adapters.Event{ID: fmt.Sprint("id-", i), Kind: fmt.Sprint("test.", i)}); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := l.Backup(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	var text string
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text += string(raw)
	}
	if n := strings.Count(text, "\n"); n != 100 || !strings.HasSuffix(text, "\n") || !strings.Contains(text, "test.99") {
		t.Errorf("%d lines in %v", n, files)
	}
}
