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

// SentinelCycle is the time between two looks at the sentinel while sealed.
//
// It is looked at rather than watched: the truth is in memory and /ready does
// not depend on the file, so a few seconds do no harm; inotify instances are
// few per user and shared with every program of the same uid, and they do not
// exist on every file system a runtime directory may be on.
const SentinelCycle = 5 * time.Second

// maxSentinel bounds what is read of a file at the sentinel's place. A
// thousand required programs need about 100 KiB.
const maxSentinel = 4 << 20

// sentinelFile is the published form of the seal.
type sentinelFile struct {
	policy *Policy
	path   string
	bus    *event.Bus

	mu      sync.Mutex
	content []byte // nil while not sealed
	fault   string // why it could not be written the last time
}

func (s *sentinelFile) set(content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = content
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

// remove takes the file away and forgets the content.
func (s *sentinelFile) remove() error {
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

// guard checks every SentinelCycle until ctx ends.
func (s *sentinelFile) guard(ctx context.Context) {
	t := time.NewTicker(SentinelCycle)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.check()
		}
	}
}

// RemoveStaleSentinel removes what an earlier boot left. It must be called
// before anything answers /ready. A runtime directory that does not exist is
// fine.
func (b *Boot) RemoveStaleSentinel() error {
	if err := b.policy.Remove(b.cfg.Roots.Sentinel()); err != nil {
		return fail(ExitPrepare, err, "cannot remove the stale sentinel %s", b.cfg.Roots.Sentinel())
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
