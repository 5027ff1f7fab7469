package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// sentinelCycle is the time between two checks of the sentinel while the box is sealed, in two
// cases. One case is that the kernel cannot report a change (inotify instances and watches are
// limited per user and shared by all programs of that uid). The other case is that the sentinel
// cannot be restored. Otherwise a check runs only after the kernel has reported a change.
const sentinelCycle = 5 * time.Second

// sentinelPause is the minimum time between two checks, however often programs change the watched
// files.
const sentinelPause = 250 * time.Millisecond

// maxSentinel bounds the size of the file that is read as sentinel. A sentinel with a thousand
// required programs has about 100 KiB.
const maxSentinel = 4 << 20

// sentinelFile is the file that publishes the seal.
type sentinelFile struct {
	policy *Policy
	path   string
	bus    *event.Bus
	watch  func(path string) changes
	// guarded ends when remove is called.
	guarded context.Context
	leave   context.CancelFunc

	mu      sync.Mutex
	content []byte // nil while the box is not sealed
	fault   string // why the last write or removal failed; empty if it succeeded
	told    string // the fault in the latest event about one; empty once the file is right

	quiet event.Throttle // a program can alter the file as often as it is restored
}

// changes reports when a file may have been replaced or altered. It is a pathWatch, except in
// tests.
type changes interface {
	arm() error
	wait(ctx context.Context)
	close()
}

func newSentinelFile(policy *Policy, path string, bus *event.Bus) *sentinelFile {
	s := &sentinelFile{
		policy: policy, path: path, bus: bus,
		watch: func(path string) changes { return newPathWatch(path) },
	}
	s.guarded, s.leave = context.WithCancel(context.Background())
	return s
}

// publish writes the content to the file; check restores it from now on. It is called once. The
// caller publishes its error, so check does not publish the same fault again.
func (s *sentinelFile) publish(content []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = content
	err := s.put()
	s.told = s.fault
	return err
}

// put writes the content, or removes the file while the box is not sealed.
func (s *sentinelFile) put() (err error) {
	if s.content == nil {
		err = s.policy.Remove(s.path)
	} else if err = s.makeDirectory(); err == nil {
		err = s.policy.WriteFile(s.path, s.content, 0o644)
	}
	s.fault = ""
	if err != nil {
		s.fault = unwrapPath(err).Error() // without the name of the temporary file
	}
	return err
}

func (s *sentinelFile) makeDirectory() error {
	return s.policy.MkdirAll(filepath.Dir(s.path), 0o755)
}

// remove removes the file, forgets the content and ends the guard. The guard must end now, because
// the kernel takes time to release watches, and the exit would wait for that.
func (s *sentinelFile) remove() error {
	s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = nil
	return s.policy.Remove(s.path)
}

// check restores the file if its content is not what the seal wrote, and publishes an event. It
// removes a file that is there although the box is not sealed: a program that looks at it would take the
// box for sealed. restored reports whether it did. A file that cannot be restored is published once.
// Events above a rate are only counted.
func (s *sentinelFile) check() (restored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.wrong()
	if found == "" {
		s.fault, s.told = "", ""
		return false
	}
	err := s.put()
	if err != nil && s.fault == s.told {
		return false // this fault has been published already
	}
	if err == nil {
		s.told = ""
	}
	suppressed, ok := s.quiet.Pass(time.Now())
	if !ok {
		return err == nil
	}
	s.told = s.fault
	fields := map[string]any{"path": s.path, "found": found, "restored": err == nil, "suppressed": suppressed}
	if err != nil {
		fields["reason"] = err.Error()
	}
	s.bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventSentinelAltered, Fields: fields})
	return err == nil
}

// wrong says what is wrong with the file; "" if the file is right.
func (s *sentinelFile) wrong() string {
	if s.content == nil {
		if _, err := s.policy.Lstat(s.path); err != nil {
			return ""
		}
		return "made by a program: the box is not sealed"
	}
	data, _, err := s.policy.ReadFile(s.path, maxSentinel)
	switch {
	case err != nil:
		return err.Error()
	case !bytes.Equal(data, s.content):
		return "altered"
	}
	return ""
}

// broken reports whether the file is known to be missing or wrong.
func (s *sentinelFile) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault != ""
}

// guard calls check after every change of the file, until the file is removed or ctx ends.
func (s *sentinelFile) guard(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.guarded, stop)()
	w := s.watch(s.path)
	defer w.close()
	said := false
	for ctx.Err() == nil {
		blind := w.arm()
		if errors.Is(blind, fs.ErrNotExist) && s.makeDirectory() == nil {
			blind = w.arm() // there was no directory to watch
		}
		switch restored := s.check(); {
		case restored: // the new file is not watched yet, so arm again
			sleep.For(ctx, sentinelPause)
		case blind != nil || s.broken():
			if blind != nil && !said {
				s.unwatched(blind)
			}
			said = blind != nil
			sleep.For(ctx, sentinelCycle)
		default:
			said = false
			sleep.For(ctx, sentinelPause)
			w.wait(ctx)
		}
	}
}

func (s *sentinelFile) unwatched(reason error) {
	s.bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventSentinelUnwatched, Fields: map[string]any{
		"path": s.path, "reason": reason.Error(), "cycle_ms": sentinelCycle.Milliseconds(),
	}})
}

// RemoveStaleSentinel removes the sentinel of an earlier boot, and the temporary files of a boot
// that was killed while writing. It must be called before any server answers /ready. If the runtime
// directory does not exist, that is not an error.
func (b *Boot) RemoveStaleSentinel() error {
	sentinel := b.cfg.Roots.Sentinel()
	if err := errors.Join(b.policy.Remove(sentinel), b.policy.RemoveUnfinished(sentinel)); err != nil {
		return fail(ExitPrepare, err, "cannot remove the stale sentinel %s", sentinel)
	}
	return nil
}

// GuardSentinel restores the sentinel whenever it is deleted or altered while the box is sealed, and
// removes one that a program makes before, until ctx ends.
func (b *Boot) GuardSentinel(ctx context.Context) { b.sentinel.guard(ctx) }

// Unseal removes the sentinel. It must be called at the beginning of a shutdown.
func (b *Boot) Unseal() error {
	if err := b.sentinel.remove(); err != nil {
		return errors.Join(errors.New("cannot remove the sentinel"), err)
	}
	return nil
}
