package events

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// Backup copies the journal into dir, which must exist. The copy has every event that was
// acknowledged before the call, and whole lines only. A segment that retention removes meanwhile is
// left out.
func (l *Local) Backup(ctx context.Context, dir string) error {
	o, err := l.opened()
	if err != nil {
		return err
	}
	type part struct {
		name string
		size int64
	}
	o.journal.mu.Lock()
	parts := make([]part, len(o.journal.segments))
	for i, s := range o.journal.segments {
		parts[i] = part{s.name(), s.size}
	}
	o.journal.mu.Unlock()
	for _, p := range parts {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := copyPrefix(filepath.Join(l.cfg.Dir, p.name), filepath.Join(dir, p.name), p.size)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// copyPrefix copies the first n bytes. Segments only grow, so later bytes were written after the
// backup began.
func copyPrefix(from, to string, n int64) (err error) {
	src, err := safeopen.OpenFile(from, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	_, err = io.CopyN(dst, src, n)
	return err
}
