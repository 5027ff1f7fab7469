package bootstrap

import "context"

// PathWatch gives other packages the same watch that guards the sentinel: it reports when a path
// may name another file.
type PathWatch struct {
	watch *pathWatch
	ends  context.Context
}

// WatchPath returns a watch that begins with Arm. The watch ends when the box is unsealed, because
// the kernel takes time to release watches, and the exit would wait for that.
func (b *Boot) WatchPath(path string) *PathWatch {
	return &PathWatch{newPathWatch(path), b.sentinel.guarded}
}

// Arm watches the file that the path leads to now. If a caller first calls Arm and then reads the
// file, it misses no change.
func (w *PathWatch) Arm() error { return w.watch.arm() }

// Wait returns when something may have changed since Arm. An error means that the box was unsealed,
// or that ctx has ended.
func (w *PathWatch) Wait(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(w.ends, stop)()
	w.watch.wait(ctx)
	return ctx.Err()
}

// Close must be called once, after the last call of Wait.
func (w *PathWatch) Close() { w.watch.close() }
