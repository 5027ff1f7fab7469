package bootstrap

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// blind simulates a kernel that cannot report changes.
type blind struct{}

func (blind) arm() error           { return syscall.ENOSPC }
func (blind) wait(context.Context) { panic("nothing was armed") }
func (blind) close()               {}

// restless simulates a kernel that reports changes all the time.
type restless struct{ looks *int }

func (r restless) arm() error         { *r.looks++; return nil }
func (restless) wait(context.Context) {}
func (restless) close()               {}

// sealedRig is a sealed box whose sentinel is guarded until ctx ends. Then guarded is closed.
func sealedRig(t *testing.T, ctx context.Context, c changes) (r *sealRig, guarded chan struct{}) {
	t.Helper()
	r = newSealRig(t, "stay", nil)
	if c != nil {
		r.boot.sentinel.watch = func(string) changes { return c }
	}
	close(r.sup.started)
	r.boot.started = r.sup.started
	r.boot.watcher = newWatcher(r.bus, r.sup)
	if _, err := seal(t.Context(), r.boot); err != nil {
		t.Fatal(err)
	}
	guarded = make(chan struct{})
	go func() { r.boot.GuardSentinel(ctx); close(guarded) }()
	return r, guarded
}

// damages are ways to damage a sentinel that the guard repairs.
func damages(path string) []func() error {
	return []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.WriteFile(path, []byte("{}"), 0o644) },
		func() error { return os.WriteFile(path, []byte(strings.Repeat("x", maxSentinel+1)), 0o644) },
		func() error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o644)) },
		func() error { return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)) },
		func() error { return os.RemoveAll(filepath.Dir(path)) },
		func() error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") },
	}
}

func TestSentinelIsGuardedWithoutInotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, done := sealedRig(t, ctx, blind{})
		path := r.boot.cfg.Roots.Sentinel()
		want := read(t, path)
		damages := damages(path)
		for i, damage := range damages {
			synctest.Wait()
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(sentinelCycle + sentinelPause)
			synctest.Wait()
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() || read(t, path) != want {
				t.Fatalf("damage %d: %v %v", i, info, err)
			}
			if n := len(r.events(EventSentinelAltered)); n != i+1 {
				t.Fatalf("damage %d: %d events", i, n)
			}
		}
		if n := len(r.events(EventSentinelUnwatched)); n != 1 {
			t.Errorf("it was said %d times that nothing is watched", n)
		}
		// A fault that cannot be repaired is reported once, not every five seconds.
		if err := errors.Join(os.Remove(path), os.MkdirAll(path+"/x", 0o755)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * sentinelCycle)
		synctest.Wait()
		if n := len(r.events(EventSentinelAltered)); n != len(damages)+1 {
			t.Fatalf("%d events", n-len(damages))
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := r.boot.Unseal(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sentinelCycle)
		synctest.Wait()
		if _, err := os.Lstat(path); err == nil {
			t.Fatal("a sentinel that was taken away at shutdown came back")
		}
		cancel()
		<-done
	})
}

// A sentinel that a program makes before the seal is removed, whatever it is. The one of the seal stays.
func TestForgedSentinelIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := newSealRig(t, "stay", nil)
		r.boot.sentinel.watch = func(string) changes { return blind{} }
		done := make(chan struct{})
		go func() { r.boot.GuardSentinel(ctx); close(done) }()
		path := r.boot.cfg.Roots.Sentinel()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		forgeries := []func() error{
			func() error { return os.WriteFile(path, []byte("{}"), 0o644) },
			func() error { return os.Symlink("/etc/passwd", path) },
			func() error { return syscall.Mkfifo(path, 0o644) },
			func() error { return os.Mkdir(path, 0o755) },
		}
		for i, forge := range forgeries {
			synctest.Wait()
			if err := forge(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(sentinelCycle + sentinelPause)
			synctest.Wait()
			if info, err := os.Lstat(path); err == nil {
				t.Errorf("forgery %d: %v is there", i, info.Mode())
			}
			if n := len(r.events(EventSentinelAltered)); n != i+1 {
				t.Errorf("forgery %d: %d events", i, n)
			}
		}
		close(r.sup.started)
		r.boot.started = r.sup.started
		r.boot.watcher = newWatcher(r.bus, r.sup)
		if _, err := seal(t.Context(), r.boot); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sentinelCycle)
		synctest.Wait()
		read(t, path)
		if n := len(r.events(EventSentinelAltered)); n != len(forgeries) {
			t.Errorf("%d events after the seal", n)
		}
		cancel()
		<-done
	})
}

// There is a pause between checks, however often programs change the watched files.
func TestSentinelIsNotLookedAtWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		ctx, cancel := context.WithTimeout(t.Context(), 10*sentinelPause-time.Millisecond)
		defer cancel()
		_, done := sealedRig(t, ctx, restless{&looks})
		<-done
		if looks != 10 {
			t.Errorf("%d looks within 10 pauses", looks)
		}
	})
}

// vandal simulates a program that deletes the sentinel, or puts a directory in its place, after each
// restoration.
type vandal struct {
	path    chan string // holds the path once it is known
	damages *int
	damage  func(path string) error
}

func (vandal) arm() error { return nil }
func (v vandal) wait(ctx context.Context) {
	path := <-v.path
	v.path <- path
	if ctx.Err() == nil && v.damage(path) == nil {
		*v.damages++
	}
}
func (vandal) close() {}

// A program that alters the sentinel all the time does not fill the ring of events, and the file is
// restored each time.
func TestEventsAboutTheSentinelAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, damages := make(chan string, 1), 0
		ctx, cancel := context.WithCancel(t.Context())
		r, done := sealedRig(t, ctx, vandal{path, &damages, os.Remove})
		path <- r.boot.cfg.Roots.Sentinel()
		time.Sleep(5 * time.Minute)
		cancel()
		<-done
		events := r.events(EventSentinelAltered)
		told := uint64(len(events))
		for _, e := range events {
			if e.Fields["restored"] != true {
				t.Fatalf("not restored: %v", e.Fields)
			}
			told += e.Fields["suppressed"].(uint64)
		}
		if damages < 500 || len(events) < 30 || len(events) > 45 || told > uint64(damages) || told < uint64(damages)-100 {
			t.Errorf("%d damages, %d events tell of %d", damages, len(events), told)
		}
	})
}

// A fault that cannot be repaired is told even if it begins while events are suppressed, and once.
func TestASuppressedFaultIsToldLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, damages := make(chan string, 1), 0
		ctx, cancel := context.WithCancel(t.Context())
		r, done := sealedRig(t, ctx, vandal{path, &damages, func(path string) error {
			if damages < 100 {
				return os.Remove(path)
			}
			return errors.Join(os.Remove(path), os.MkdirAll(path+"/x", 0o755))
		}})
		path <- r.boot.cfg.Roots.Sentinel()
		time.Sleep(10 * time.Minute)
		cancel()
		<-done
		faults := 0
		for _, e := range r.events(EventSentinelAltered) {
			if e.Fields["restored"] == false {
				faults++
			}
		}
		if faults != 1 || !r.boot.sentinel.broken() {
			t.Errorf("the fault was told %d times", faults)
		}
	})
}

// altered waits for the next event about the sentinel.
func altered(t *testing.T, w *event.Watcher) map[string]any {
	t.Helper()
	for {
		e, err := w.Next(t.Context())
		if err != nil {
			t.Fatalf("nothing was noticed: %v", err)
		}
		switch e.Name {
		case EventSentinelAltered:
			return e.Fields
		case EventSentinelUnwatched:
			t.Fatalf("it is not watched: %v", e.Fields)
		}
	}
}

// awaitMended returns when the file is restored after a damage. If a damage has several steps, the
// guard may repair the file between two steps.
func awaitMended(t *testing.T, w *event.Watcher, path, want string) {
	t.Helper()
	for {
		if f := altered(t, w); f["restored"] != true {
			t.Fatalf("not mended: %v", f)
		}
		if got, err := os.ReadFile(path); err == nil && string(got) == want {
			return
		}
	}
}

func TestSentinelIsWatched(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, done := sealedRig(t, ctx, nil)
	w := r.bus.Watch(0)
	path := r.boot.cfg.Roots.Sentinel()
	want := read(t, path)
	damages := append(damages(path),
		func() error { return os.Chmod(path, 0) }, // root can still read the file
		func() error { return os.Remove(path) },
	)
	for i, damage := range damages {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if i == len(damages)-2 && os.Geteuid() == 0 {
			continue
		}
		awaitMended(t, w, path, want)
	}
	// A hard link to the file elsewhere is another way to write to it.
	twin := filepath.Join(t.TempDir(), "twin")
	if err := os.Link(path, twin); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(twin, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	awaitMended(t, w, path, want)
	cancel()
	<-done
}

// needsDirectory can watch only if there is a directory, like a pathWatch.
type needsDirectory struct{ path string }

func (n needsDirectory) arm() error {
	_, err := os.Stat(filepath.Dir(n.path))
	return err
}
func (needsDirectory) wait(ctx context.Context) { <-ctx.Done() }
func (needsDirectory) close()                   {}

// A box whose socket is elsewhere has no runtime directory before the seal.
func TestSentinelIsWatchedBeforeTheSealWithoutItsDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := newSealRig(t, "stay", nil)
		path := r.boot.cfg.Roots.Sentinel()
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		r.boot.sentinel.watch = func(path string) changes { return needsDirectory{path} }
		done := make(chan struct{})
		go func() { r.boot.GuardSentinel(ctx); close(done) }()
		synctest.Wait()
		if told := r.events(EventSentinelUnwatched); len(told) != 0 {
			t.Errorf("it is not watched: %v", told[0].Fields)
		}
		cancel()
		<-done
	})
}

func TestSentinelUnderAMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, done := sealedRig(t, ctx, nil)
	w := r.bus.Watch(0)
	path := r.boot.cfg.Roots.Sentinel()
	want := read(t, path)
	for range 2 { // the second round tests the watch on the file that the first mount has put in place
		if err := syscall.Mount("none", filepath.Dir(path), "tmpfs", 0, ""); err != nil {
			t.Skipf("needs the right to mount: %v", err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(filepath.Dir(path), 0); err != nil {
				t.Error(err)
			}
		})
		awaitMended(t, w, path, want)
	}
	cancel()
	<-done
}

// calm simulates a kernel that never reports a change. closed is set when the watch is closed.
type calm struct{ closed *bool }

func (calm) arm() error               { return nil }
func (calm) wait(ctx context.Context) { <-ctx.Done() }
func (c calm) close()                 { *c.closed = true }

// The watches must be released when the shutdown begins, not at the exit.
func TestTheGuardEndsWithTheSentinel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := false
		r, done := sealedRig(t, t.Context(), calm{&closed})
		synctest.Wait()
		if closed {
			t.Fatal("the watch ended by itself")
		}
		if err := r.boot.Unseal(); err != nil {
			t.Fatal(err)
		}
		<-done
		if !closed {
			t.Error("the watch is still open")
		}
	})
}
