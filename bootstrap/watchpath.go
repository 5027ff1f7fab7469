package bootstrap

import "context"

// PathWatch tells others what the sentinel's guard is told of its file: when a
// path may have begun to name something else.
type PathWatch struct {
	watch *pathWatch
	ends  context.Context
}

// WatchPath watches nothing until Arm. The watch ends with the seal: the kernel
// takes a while to forget what is watched, and an exit waits for that.
func (b *Boot) WatchPath(path string) *PathWatch {
	return &PathWatch{newPathWatch(path), b.sentinel.guarded}
}

// Arm makes the watch one of what the path leads to now. A caller that arms first and
// looks then misses no change.
func (w *PathWatch) Arm() error { return w.watch.arm() }

// Wait returns when something may have changed since Arm. An error says that the
// watch has ended, or ctx has.
func (w *PathWatch) Wait(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(w.ends, stop)()
	w.watch.wait(ctx)
	return ctx.Err()
}

// Close must be called once, when Wait is not called any more.
func (w *PathWatch) Close() { w.watch.close() }
