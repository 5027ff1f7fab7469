package lateclose

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose/lingertest"
)

// A thread that waits for a held pipe takes no signal, so another thread takes it.
func TestPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	release := lingertest.HoldPipe(t, int(w.Fd()))
	read := make(chan error)
	buf := make([]byte, 16)
	go func() {
		n, err := Pipe{r}.Read(buf)
		if err == nil && string(buf[:n]) != "hello" {
			err = fmt.Errorf("read %q", buf[:n])
		}
		read <- err
	}()
	const wanted = 1<<(unix.SIGCHLD-1) | 1<<(unix.SIGTERM-1)
	if blocked := blockedBy(t, "pipe_read"); blocked&wanted != wanted {
		t.Errorf("the waiting thread blocks %#x", blocked)
	}
	release()
	if err := <-read; err != nil {
		t.Error(err)
	}
	if err := (Pipe{w}).Close(); err != nil {
		t.Error(err)
	}
	if n, err := (Pipe{r}).Read(buf); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if err := (Pipe{r}).Close(); err != nil {
		t.Error(err)
	}
	if n, err := (Pipe{r}).Read(buf); n != 0 || err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after the close: %d, %v", n, err)
	}
}

// blockedBy waits until a thread waits in that function of the kernel, and returns the signals that the
// thread blocks.
func blockedBy(t *testing.T, function string) uint64 {
	t.Helper()
	for {
		tasks, err := filepath.Glob("/proc/self/task/*/wchan")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if b, err := os.ReadFile(task); err != nil || !strings.Contains(string(b), function) {
				continue
			}
			status, err := os.ReadFile(filepath.Join(filepath.Dir(task), "status"))
			if err != nil {
				continue
			}
			_, rest, _ := strings.Cut(string(status), "SigBlk:\t")
			digits, _, _ := strings.Cut(rest, "\n")
			blocked, err := strconv.ParseUint(digits, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return blocked
		}
	}
}
