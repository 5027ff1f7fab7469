package probes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// MountTimeout bounds one look at a directory: a file system whose server is
// gone answers late or never.
const MountTimeout = 2 * time.Second

// notChecked is the reason of a requirement that has not been checked so far.
const notChecked = "not checked yet"

// MountCheck says why a directory is not present and writable; nil when it is.
// It may block for ever; callers bound it.
type MountCheck func(path string) error

// CheckMount is the MountCheck of a real directory. It asks the kernel for
// permission instead of writing a file: a write every few seconds would wake
// disks and journals, and access(2) reports a read-only file system as well.
func CheckMount(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("does not exist")
	case err != nil:
		return fmt.Errorf("cannot look: %w", unwrapPath(err))
	case !info.IsDir():
		return errors.New("is not a directory")
	}
	// faccessat with AT_EACCESS: the effective ids are the ones that will write.
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("not writable: %w", err)
	}
	return nil
}

func unwrapPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// mountProbe looks at one directory with at most one look under way: a hung
// file system costs one goroutine, however long it hangs.
type mountProbe struct {
	path    string
	check   MountCheck
	pending chan error // of a look that has not answered yet
	asked   time.Time
}

// look returns the outcome, or an error that says how long the answer is due.
func (p *mountProbe) look(ctx context.Context, timeout time.Duration) error {
	if p.pending == nil {
		p.pending, p.asked = make(chan error, 1), time.Now()
		go func(check MountCheck, path string, done chan<- error) { done <- check(path) }(p.check, p.path, p.pending)
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case err := <-p.pending:
		p.pending = nil
		return err
	case <-t.C:
		return fmt.Errorf("no answer for %s", time.Since(p.asked).Round(time.Second))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// missingCycle is the time between two looks at a directory that is not there or
// not writable: the reason in /ready must not outlive its cause.
const missingCycle = 500 * time.Millisecond

// FollowMounts checks the directories at once and then every Cycle, a missing one
// more often, until ctx ends. It belongs before the seal: a requirement that is added later would let
// the box be ready without it for a moment. Each has its own goroutine, so one that hangs delays no other.
func (r *Readiness) FollowMounts(ctx context.Context, paths []string, check MountCheck) {
	done := make(chan struct{})
	for _, path := range paths {
		r.Set(Requirement{ID: "mount:" + path, Kind: KindMount, Reason: notChecked})
	}
	for _, path := range paths {
		go func() {
			r.followMount(ctx, path, check)
			done <- struct{}{}
		}()
	}
	for range paths {
		<-done
	}
}

func (r *Readiness) followMount(ctx context.Context, path string, check MountCheck) {
	probe := &mountProbe{path: path, check: check}
	r.every(ctx, func() time.Duration {
		err := probe.look(ctx, MountTimeout)
		if ctx.Err() != nil {
			return Cycle
		}
		q := Requirement{ID: "mount:" + path, Kind: KindMount, Met: err == nil}
		if err != nil {
			q.Reason = err.Error()
		}
		r.Set(q)
		if err != nil {
			return missingCycle
		}
		return Cycle
	})
}

// every calls f now, then each time after what f returns and at each Recheck, until
// ctx ends.
func (r *Readiness) every(ctx context.Context, f func() time.Duration) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		again := r.rechecked() // before f: a recheck during it must not be lost
		t.Reset(f())
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-again:
		}
	}
}
