package proc

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// If agentinit cannot read /proc because it has no free descriptor, it must not treat a program's
// process as an outsider: outsiders have more rights.
func TestWhatCannotBeLookedAtCountsAsOurs(t *testing.T) {
	o := &Owner{selfPID: -1, byPID: map[int]*process{}}
	parent := os.Getppid()
	if _, ok, err := o.Whose(parent); ok || err != nil {
		t.Fatalf("the twin: an outsider is ours: %v %v", ok, err)
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := was
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	id, ok, err := o.Whose(parent)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if id != 0 || !ok || err != nil {
		t.Errorf("without descriptors: %d %v %v", id, ok, err)
	}
}

func TestDeparturesAreRemembered(t *testing.T) {
	const gone = 1 << 29 // greater than the kernel's largest pid
	o := &Owner{selfPID: -1, byPID: map[int]*process{}}
	if _, ok, err := o.Whose(gone); ok || !errors.Is(err, ErrNoProcess) {
		t.Errorf("a process nobody knows: %v %v", ok, err)
	}
	o.departed.add(gone, 7)
	if id, ok, err := o.Whose(gone); id != 7 || !ok || err != nil {
		t.Errorf("one that was reaped: %d %v %v", id, ok, err)
	}
	for i := range departedKept {
		o.departed.add(i+2, 1)
	}
	if _, ok, _ := o.Whose(gone); ok {
		t.Error("remembered for ever")
	}
}

// A message counts for the process that had the pid when it was sent, and not for one that had it
// before or after.
func TestSenderHadThePidAtTheTime(t *testing.T) {
	const gone = 1 << 29
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	self := os.Getpid()
	o := &Owner{selfPID: -1, byPID: map[int]*process{self: {id: 5}}}
	o.departed.slots[0] = departure{gone, 7, noon}
	o.departed.slots[1] = departure{gone, 8, noon.Add(2 * time.Second)}
	o.departed.next = 2
	for _, c := range []struct {
		name string
		pid  int
		sent time.Time
		want uint64
	}{
		{"before the end of the first", gone, noon.Add(-time.Second), 7},
		{"before the end of the second", gone, noon.Add(time.Second), 8},
		{"after the end of the second", gone, noon.Add(3 * time.Second), 0},
		{"at a time that is not known", gone, time.Time{}, 8},
		{"now, by a living process", self, time.Now(), 5},
		{"before that process began", self, time.Unix(0, 0), 0},
		{"by a living process, at a time that is not known", self, time.Time{}, 5},
	} {
		if id, ok := o.Sender(c.pid, c.sent); id != c.want || ok != (c.want != 0) {
			t.Errorf("sent %s: %d %v, want %d", c.name, id, ok, c.want)
		}
	}
}

// The way from the last process of a long chain is walked once, also for other processes there.
func TestALongWayIsRemembered(t *testing.T) {
	st, err := readStat(os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	o := &Owner{selfPID: -1, byPID: map[int]*process{}, byID: map[uint64]*process{7: {id: 7}}}
	short, long := make([]life, longWay-1), make([]life, longWay)
	short[0], long[0] = life{st.pid, st.start}, life{st.pid, st.start}
	o.rememberAncestors(short, 7)
	if _, ok, _ := o.Whose(os.Getpid()); ok {
		t.Error("a short way is remembered")
	}
	o.rememberAncestors(long, 7)
	if id, ok, _ := o.Whose(os.Getpid()); id != 7 || !ok {
		t.Errorf("a long way is not remembered: %d %v", id, ok)
	}
	delete(o.byID, 7)
	if _, ok, _ := o.Whose(os.Getpid()); ok {
		t.Error("an ancestor belongs to a program that has ended")
	}
	for i := range 2 * mostAncestors {
		long[0].start = uint64(i + 1)
		if o.rememberAncestors(long, 7); len(o.ancestors) > mostAncestors {
			t.Fatalf("%d ancestors are remembered", len(o.ancestors))
		}
	}
}
