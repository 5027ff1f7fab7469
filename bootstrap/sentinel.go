package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// SentinelCycle is the time between two looks at the sentinel while sealed where
// the kernel cannot tell of a change (inotify instances and watches are few per
// user and shared with every program of the same uid), and while the sentinel
// cannot be restored. Otherwise it is looked at only after the kernel reported a change.
const SentinelCycle = 5 * time.Second

// sentinelPause is the least time between two looks, however often programs
// change what is watched.
const sentinelPause = 250 * time.Millisecond

// maxSentinel bounds what is read of a file at the sentinel's place. A
// thousand required programs need about 100 KiB.
const maxSentinel = 4 << 20

// sentinelFile is the published form of the seal.
type sentinelFile struct {
	policy *Policy
	path   string
	bus    *event.Bus
	watch  func(path string) changes
	sealed chan struct{} // closed by the first set
	// guarded ends with remove.
	guarded context.Context
	leave   context.CancelFunc

	mu      sync.Mutex
	content []byte // nil while not sealed
	fault   string // why it could not be written the last time
}

// changes tell when a file may be another one or altered: a pathWatch.
type changes interface {
	arm() error
	wait(ctx context.Context)
	close()
}

func newSentinelFile(policy *Policy, path string, bus *event.Bus) *sentinelFile {
	s := &sentinelFile{
		policy: policy, path: path, bus: bus, sealed: make(chan struct{}),
		watch: func(path string) changes { return newPathWatch(path) },
	}
	s.guarded, s.leave = context.WithCancel(context.Background())
	return s
}

// set is what write and check put in place from now on; called once.
func (s *sentinelFile) set(content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = content
	close(s.sealed)
}

// write puts the content in place.
func (s *sentinelFile) write() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeLocked()
}

func (s *sentinelFile) writeLocked() error {
	err := s.policy.MkdirAll(filepath.Dir(s.path), 0o755)
	if err == nil {
		err = s.policy.WriteFile(s.path, s.content, 0o644)
	}
	s.fault = ""
	if err != nil {
		s.fault = unwrapPath(err).Error() // without the name of the temporary file
	}
	return err
}

// remove takes the file away, forgets the content and ends the guard: the kernel
// takes a while to forget what is watched, and an exit waits for that.
func (s *sentinelFile) remove() error {
	s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = nil
	return s.policy.Remove(s.path)
}

// check restores a file that is not what the seal wrote. It reports whether it
// had to, and publishes that; a file that cannot be restored is published once.
func (s *sentinelFile) check() (restored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.content == nil {
		return false
	}
	data, _, err := s.policy.ReadFile(s.path, maxSentinel)
	if err == nil && bytes.Equal(data, s.content) {
		s.fault = ""
		return false
	}
	found := "altered"
	if err != nil {
		found = err.Error()
	}
	before := s.fault
	err = s.writeLocked()
	if err != nil && s.fault == before {
		return false // said already
	}
	fields := map[string]any{"path": s.path, "found": found, "restored": err == nil}
	if err != nil {
		fields["reason"] = err.Error()
	}
	s.bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventSentinelAltered, Fields: fields})
	return err == nil
}

// broken tells whether the file is known not to be what it should.
func (s *sentinelFile) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content != nil && s.fault != ""
}

// guard checks whenever something has happened to the file, until it is removed or
// ctx ends.
func (s *sentinelFile) guard(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.guarded, stop)()
	select {
	case <-s.sealed:
	case <-ctx.Done():
		return
	}
	w := s.watch(s.path)
	defer w.close()
	said := false
	for ctx.Err() == nil {
		blind := w.arm()
		switch restored := s.check(); {
		case restored: // and what was put in place is not watched yet
			sleep(ctx, sentinelPause)
		case blind != nil || s.broken():
			if blind != nil && !said {
				s.unwatched(blind)
			}
			said = blind != nil
			sleep(ctx, SentinelCycle)
		default:
			said = false
			sleep(ctx, sentinelPause)
			w.wait(ctx)
		}
	}
}

func (s *sentinelFile) unwatched(reason error) {
	s.bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventSentinelUnwatched, Fields: map[string]any{
		"path": s.path, "reason": reason.Error(), "cycle_ms": SentinelCycle.Milliseconds(),
	}})
}

// sleep waits for so long, or until ctx ends.
func sleep(ctx context.Context, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// RemoveStaleSentinel removes what an earlier boot left, and what one that was
// killed in the middle left beside it. It must be called before anything answers
// /ready. A runtime directory that does not exist is fine.
func (b *Boot) RemoveStaleSentinel() error {
	sentinel := b.cfg.Roots.Sentinel()
	if err := errors.Join(b.policy.Remove(sentinel), b.policy.RemoveUnfinished(sentinel)); err != nil {
		return fail(ExitPrepare, err, "cannot remove the stale sentinel %s", sentinel)
	}
	return nil
}

// GuardSentinel restores the sentinel whenever it is deleted or altered while
// the box is sealed, until ctx ends.
func (b *Boot) GuardSentinel(ctx context.Context) { b.sentinel.guard(ctx) }

// Unseal removes the sentinel; it belongs to the first moment of a shutdown.
func (b *Boot) Unseal() error {
	if err := b.sentinel.remove(); err != nil {
		return errors.Join(errors.New("cannot remove the sentinel"), err)
	}
	return nil
}
