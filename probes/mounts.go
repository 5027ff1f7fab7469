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

// mountTimeout bounds one check of a directory: if the server of a file system does not answer, a
// check may take for ever.
const mountTimeout = 2 * time.Second

// notChecked is the reason of a requirement that has not been checked so far.
const notChecked = "not checked yet"

// MountCheck says why a directory is not present and writable, or nil if it is. It may block for
// ever; callers limit the wait.
type MountCheck func(path string) error

// CheckMount is the MountCheck for a real directory. It asks the kernel for permission and writes
// no file: a write every few seconds would wake disks and journals, and access(2) reports a
// read-only file system too.
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
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// mountProbe checks one directory with at most one check under way. So a hanging file system
// occupies one goroutine, however long it hangs.
type mountProbe struct {
	path    string
	check   MountCheck
	pending chan error // of a check that has not returned yet
	asked   time.Time
}

// look returns the result, or an error that says how long the check has been under way.
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

// missingCycle is the time between two checks of a directory that is missing or not writable, so
// that the reason in /ready disappears soon after its cause.
const missingCycle = 500 * time.Millisecond

// FollowMounts checks the directories at once and then every checkCycle, a missing one more often, until
// ctx ends. It must start before the seal: with a requirement added later, the box could be ready
// without it for a moment. Each directory has its own goroutine, so one that hangs does not delay
// the others.
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
		err := probe.look(ctx, mountTimeout)
		if ctx.Err() != nil {
			return checkCycle
		}
		q := Requirement{ID: "mount:" + path, Kind: KindMount, Met: err == nil}
		if err != nil {
			q.Reason = err.Error()
		}
		r.Set(q)
		if err != nil {
			return missingCycle
		}
		return checkCycle
	})
}

// every calls f now, again after the time that f returns, and at the seal, until ctx ends.
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
