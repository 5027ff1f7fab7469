package proc

import (
	"errors"
	"os"
	"testing"

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
