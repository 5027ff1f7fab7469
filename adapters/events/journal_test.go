package events

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func openTestJournal(t *testing.T, split int64) *journal {
	t.Helper()
	j, err := openJournal(t.Context(), t.TempDir(), false, split, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.close() }) // the test may have left a file that cannot be synced
	return j
}

// withPipe calls f while the journal writes into a pipe, which fsync(2) refuses.
func (j *journal) withPipe(t *testing.T, f func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	use := func(file *os.File) (before *os.File) {
		j.mu.Lock()
		defer j.mu.Unlock()
		before, j.file = j.file, file
		return before
	}
	good := use(w)
	defer use(good)
	f()
}

// A sync in the background that has failed is tried again, even if no event follows.
func TestAFailedSyncIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := openTestJournal(t, minMaxBytes)
		j.withPipe(t, func() {
			if _, err := j.append(adapters.Event{Kind: "x"}, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(syncWithin * 3 / 2)
			synctest.Wait()
			if _, _, failed := j.status(); failed == nil {
				t.Fatal("the sync has not failed: the test shows nothing")
			}
		})
		time.Sleep(syncWithin * 5 / 4)
		synctest.Wait()
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.dirty {
			t.Error("the event was not brought to disk")
		}
	})
}

// If a new segment cannot be begun, the event is refused, and a later one begins the segment.
func TestASegmentBeginsAfterAFailure(t *testing.T) {
	j := openTestJournal(t, 1) // a segment for each event
	for range 2 {
		if _, err := j.append(adapters.Event{Kind: "x"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	j.withPipe(t, func() {
		if _, err := j.append(adapters.Event{Kind: "x"}, nil); err == nil {
			t.Fatal("the old segment was synced: the test shows nothing")
		}
	})
	if e, err := j.append(adapters.Event{Kind: "x"}, nil); err != nil || e.Seq != 4 {
		t.Errorf("%+v %v", e, err)
	}
}

// A program may put a file in the place of the next segment.
func TestASegmentBeginsBesideAForeignFile(t *testing.T) {
	j := openTestJournal(t, 1) // a segment for each event
	first, err := j.append(adapters.Event{Kind: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	next := segment{day: first.TS.Format(dayFormat), n: 1}
	foreign := filepath.Join(j.dir, next.name())
	if err := os.WriteFile(foreign, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if e, err := j.append(adapters.Event{Kind: "x"}, nil); err != nil || e.Seq != 2 {
		t.Errorf("%+v %v", e, err)
	}
	if text, err := os.ReadFile(foreign); string(text) != "mine\n" {
		t.Errorf("the foreign file has %q %v", text, err)
	}
}

// If the directory has no free inode, the failed probe says so, and names the directory.
func TestAProbeWithoutAnInode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=1"); err != nil {
		t.Skip("needs root: cannot mount a tmpfs: ", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	j := &journal{dir: dir}
	if err := j.probe(); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "no free inode") {
		t.Errorf("got %v", err)
	}
}
