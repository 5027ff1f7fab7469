package events

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// inTime returns the error of f, and fails the test if f hangs.
func inTime(t *testing.T, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal(what + " hangs")
		return nil
	}
}

// A program of agentinit's user puts a FIFO in the place of the segment. A reader does not wait for
// the other end, and events still go to the file that agentinit has open.
func TestFIFOInPlaceOfASegment(t *testing.T) {
	l := start(t, LocalConfig{Dir: t.TempDir(), MaxBytes: minMaxBytes})
	dispatch := func() error {
		_, err := l.Dispatch(t.Context(), adapters.Event{Kind: "x", ID: adapters.NewID()})
		return err
	}
	if err := dispatch(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(l.cfg.Dir, "*"+suffix))
	if err != nil || len(segments) != 1 {
		t.Fatalf("%v %v", segments, err)
	}
	if err := errors.Join(os.Remove(segments[0]), syscall.Mkfifo(segments[0], 0o600)); err != nil {
		t.Fatal(err)
	}
	err = inTime(t, "the history", func() error {
		_, err := l.History(context.Background(), adapters.EventFilter{}, adapters.PageOpt{})
		return err
	})
	if !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("the history: %v", err)
	}
	if err := inTime(t, "a dispatch", dispatch); err != nil {
		t.Errorf("a dispatch: %v", err)
	}
}

// A program replaces the file with the position of the delivery.
func TestPositionOfAnAttacker(t *testing.T) {
	for name, c := range map[string]struct {
		put  func(path string) error
		want error
	}{
		"a FIFO": {func(path string) error { return syscall.Mkfifo(path, 0o600) }, nil},
		// It takes no space on the disk.
		"a file of 4 TiB": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 4<<40))
		}, safeopen.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.put(filepath.Join(dir, positionFile)); err != nil {
				t.Fatal(err)
			}
			err := inTime(t, "reading", func() error { _, err := readPosition(dir); return err })
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("reading: %v", err)
			}
			if err := inTime(t, "writing", func() error { return writePosition(dir, 7) }); err != nil {
				t.Errorf("writing: %v", err)
			}
			if seq, err := readPosition(dir); seq != 7 || err != nil {
				t.Errorf("%d %v", seq, err)
			}
		})
	}
}

// A program leaves a segment of 4 TiB without a line, which takes no space on the disk. Reading it
// ends with its context.
func TestSegmentWithoutLines(t *testing.T) {
	s := &segment{day: "2026-01-02", first: 1, size: 4 << 40}
	j := &journal{dir: t.TempDir(), segments: []*segment{s}}
	path := filepath.Join(j.dir, s.name())
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, s.size)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, f := range map[string]func() error{
		"scanning": func() error { return j.scanSegment(ctx, s, false, nil) },
		"reading": func() error {
			_, _, _, err := j.readSegment(ctx, s, 0, s.size, 0, s.size, func(adapters.Event) bool { return true })
			return err
		},
	} {
		if err := inTime(t, name, f); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
