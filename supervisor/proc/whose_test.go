package proc

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/rate"
)

// If agentinit cannot read /proc because it has no free descriptor, it must not treat a program's
// process as an outsider: outsiders have more rights.
func TestWhatCannotBeLookedAtCountsAsOurs(t *testing.T) {
	o := &Owner{selfPID: -1, byPID: map[int]*process{}}
	parent := os.Getppid()
	if _, ok, err := o.Whose(parent); ok || err != nil {
		t.Fatalf("the twin: an outsider is ours: %v %v", ok, err)
	}
	var id uint64
	var ok bool
	var err error
	withOpenFiles(t, 0, func() { id, ok, err = o.Whose(parent) })
	if id != 0 || !ok || err != nil {
		t.Errorf("without descriptors: %d %v %v", id, ok, err)
	}
}

// withOpenFiles calls f while the limit of open files is n.
func withOpenFiles(t *testing.T, n uint64, f func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	now := was
	now.Cur = n
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	f()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
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

// A process that was reaped before its start was registered counts for its program, whatever the time of
// its message.
func TestDepartureBeforeTheRegistration(t *testing.T) {
	const pid = 4711
	var d departures
	before := time.Now().Add(-time.Second)
	d.add(pid, 0)
	d.correct(pid, 7)
	for _, sent := range []time.Time{before, {}} {
		if id, ok := d.of(pid, sent); id != 7 || !ok {
			t.Errorf("sent at %v: %d %v", sent, id, ok)
		}
	}
	d.correct(pid, 8) // the entry without a program was pushed out meanwhile; 7 is that of an earlier process
	if id, _ := d.of(pid, time.Time{}); id != 8 {
		t.Errorf("a later process: %d", id)
	}
	if id, _ := d.of(pid, before); id != 7 {
		t.Errorf("the earlier process: %d", id)
	}
}

// A message counts for the process that had the pid when it was sent, and not for one that had it
// before or after.
func TestSenderHadThePidAtTheTime(t *testing.T) {
	const gone = 1 << 29
	o := newOwner(t, Options{})
	p := mustStart(t, o, sh("sleep 1000"))
	defer func() { _ = o.Kill(p.ID) }()
	q := mustStart(t, o, sh("sleep 1000"))
	defer func() { _ = o.Kill(q.ID) }()
	now := time.Now()
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second).Round(0) }
	o.mu.Lock()
	o.departed = departures{next: 3, slots: [departedKept]departure{{gone, 71, ago(4)}, {gone, 72, ago(2)}, {q.PID, 0, ago(2)}}}
	o.mu.Unlock()
	for _, c := range []struct {
		name string
		pid  int
		sent time.Time
		want uint64
	}{
		{"before the end of the first", gone, ago(5), 71},
		{"before the end of the second", gone, ago(3), 72},
		{"after the end of the second", gone, ago(1), 0},
		{"at a time that is not known", gone, time.Time{}, 72},
		{"now, by a living process", p.PID, now, p.ID},
		{"before that process began", p.PID, ago(5), 0},
		{"before that process began, by one of an unknown program", q.PID, ago(5), 0},
		{"by a living process, at a time that is not known", p.PID, time.Time{}, p.ID},
		{"by a living process, before the clock was set forward", p.PID, ago(3600), p.ID},
		{"by a living process, before the clock was set back", p.PID, ago(-3600), p.ID},
	} {
		if id, ok := o.Sender(c.pid, c.sent); id != c.want || ok != (c.want != 0) {
			t.Errorf("sent %s: %d %v, want %d", c.name, id, ok, c.want)
		}
	}
}

// A long chain of processes must not take the time of the one goroutine that looks at senders.
func TestFarAncestorsAreRationed(t *testing.T) {
	o := newOwner(t, Options{})
	p := startTester(t, o, sh(`deep() { read pid rest </proc/self/stat; echo $pid; if [ $1 -gt 0 ]; then (deep $(($1-1)); :); else sleep 1000; fi; }; deep 40`))
	defer func() { _ = o.Kill(p.ID) }()
	var chain []int
	for range 41 {
		chain = append(chain, p.number(t))
	}
	near, far := chain[freeAncestors-1], chain[40]
	for _, pid := range []int{near, far} {
		if id, ok := o.Owns(pid); id != p.ID || !ok {
			t.Errorf("pid %d belongs to %d %v, want %d", pid, id, ok, p.ID)
		}
	}
	o.mu.Lock()
	o.far = rate.Bucket{} // used up
	o.mu.Unlock()
	if id, ok := o.Owns(near); id != p.ID || !ok {
		t.Errorf("a near one belongs to %d %v, want %d", id, ok, p.ID)
	}
	if id, ok := o.Owns(far); id != 0 || !ok {
		t.Errorf("a far one belongs to %d %v, want an unknown program", id, ok)
	}
}

// A process that is just being reaped has no parent in /proc, as one from outside the pid namespace has.
// The kernel may still show it as a zombie.
func TestAReapedProcessIsNoOutsider(t *testing.T) {
	const fields = " 4227084 0 0 0 0 0 0 0 0 20 0 " // from flags to nice
	for line, released := range map[string]bool{
		"42 (sh) Z 0 0 0 0 -1" + fields + "0 0 2051594 0 0":   true,
		"42 (sh) X 0 0 0 0 -1" + fields + "0 0 2051594 0 0":   true,
		"42 (sh) Z 7 42 42 0 -1" + fields + "1 0 2051594 0 0": false,
		"42 (sh) S 0 42 42 0 -1" + fields + "1 0 2051594 0 0": false, // from outside
	} {
		if st, err := parseStat(42, []byte(line)); err != nil || st.released() != released {
			t.Errorf("%s: %+v, %v", line, st, err)
		}
	}
}
