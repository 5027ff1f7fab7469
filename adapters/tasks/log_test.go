package tasks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// An agent that goes on to print while its log cannot be written causes one error, and one more if the
// log fails again later.
func TestAFailingLogIsToldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	good, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("needs /dev/full: ", err)
	}
	defer full.Close()
	l := &logWriter{file: full, partial: map[string][]byte{}}
	// Each event ends a line and begins the next one. Only the beginning of the line that is written may precede it.
	line := adapters.AgentEvent{Kind: adapters.AgentEventStdout, Payload: []byte(`{"data":"hello\n> "}`)}
	for i, step := range []struct {
		to   *os.File
		told bool
	}{{full, true}, {full, false}, {full, false}, {good.file, false}, {full, true}, {full, false}} {
		l.file = step.to
		if err := l.write(line); step.told != errors.Is(err, syscall.ENOSPC) || !step.told && err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if err := good.close(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), "> hello") != 1 {
		t.Errorf("the log has %q %v", text, err)
	}
}
